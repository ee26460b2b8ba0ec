"""How the kit fails a test."""


class Unexpected(AssertionError):
    """What came is not what the test said would come; the message tells both, for a test's report."""

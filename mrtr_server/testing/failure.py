"""How the kit fails a test."""


class Unexpected(AssertionError):
    """What came is not what the test expected. The message shows both, for a test's report."""

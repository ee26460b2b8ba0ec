"""Names of test cases."""

import re


def named(value: object) -> str:
    """Return the name of a case: the value, without addresses, which differ between two processes that run the tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))

"""Names of test cases."""

import re


def named(value: object) -> str:
    """Return a value as the name of a case, without addresses, which differ between processes."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))

"""What the tests of telemetry share."""

import pytest

from ..support.observed import Observed


@pytest.fixture
def observed() -> Observed:
    """What the servers of a test show."""
    return Observed()

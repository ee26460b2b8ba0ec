"""What handlers did, in the tests that count it: each effect is written down, and each test begins with none."""

import asyncio

from .serving import TIMEOUT

EFFECTS: list[str] = []
"""What has been done since the test began; `tests/conftest.py` clears it."""


def effect(what: str) -> str:
    EFFECTS.append(what)
    return what


def new_ticket() -> str:
    EFFECTS.append("ticket")
    return str(EFFECTS.count("ticket"))


async def slow_effect(what: str) -> str:
    await asyncio.sleep(0.02)
    EFFECTS.append(what)
    return what


async def happened(what: str) -> None:
    async with asyncio.timeout(TIMEOUT):
        while what not in EFFECTS:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

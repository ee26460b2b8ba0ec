"""axe-core, which looks for what keeps people from using a page."""

from functools import cache
from typing import Any

from playwright.sync_api import Frame

from .npm import packages

AXE = packages("axe", "axe-core@4.14.1")


@cache
def _script() -> str:
    AXE.install()
    return (AXE.folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


def barriers(page: Frame) -> list[Any]:
    """Return what is wrong with a page as it is now, by the rules of axe-core and its advice."""
    page.evaluate(_script())
    # Frames within are looked at by themselves.
    found: dict[str, Any] = page.evaluate("axe.run({ iframes: false, rules: { 'frame-tested': { enabled: false } } })")
    assert found["passes"], "axe has looked at nothing"
    return [
        (each["id"], [node["html"] for node in each["nodes"]], each["help"])
        for each in (*found["violations"], *found["incomplete"])
    ]

"""What an author says of a page: where it loads from, and what it may do (MCP Apps, UI Resource Format)."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from ..errors import SetupError
from ..fields import Checked, takes

CSP_MEMBERS = {
    "connect": "connectDomains",
    "resources": "resourceDomains",
    "frames": "frameDomains",
    "base_uris": "baseUriDomains",
}
PERMISSIONS = {
    "camera": "camera",
    "microphone": "microphone",
    "geolocation": "geolocation",
    "clipboard_write": "clipboardWrite",
}
_HOST = r"(?:\*\.)?(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::(?:[1-9][0-9]{0,4}|\*))?"
ORIGIN = re.compile(rf"(https?|wss?)://{_HOST}")

Permission = Literal["camera", "microphone", "geolocation", "clipboard_write"]


@dataclass(frozen=True, kw_only=True)
class Csp(Checked):
    """From where a page may load, and where it may send: `Csp(connect=["https://api.example.com"])`.

    Each is a list of origins, such as `"https://api.example.com"` or `"https://*.example.com"`. A host allows nothing
    else (MCP Apps, UI Resource Format), so a page without any is a page without a network.

    Args:
        connect: for requests of scripts: `fetch`, `XMLHttpRequest`, and WebSockets (`"wss://..."`).
        resources: for scripts, styles, images, fonts and media.
        frames: for frames within the page.
        base_uris: for the `<base>` of the page.

    Raises:
        SetupError: one is no origin; the message says which.
    """

    connect: Sequence[str] = field(default=(), metadata=takes(""))
    resources: Sequence[str] = field(default=(), metadata=takes(""))
    frames: Sequence[str] = field(default=(), metadata=takes(""))
    base_uris: Sequence[str] = field(default=(), metadata=takes(""))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in CSP_MEMBERS:
            given: Any = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Collection):
                raise SetupError(f"Csp({name}=...) takes a list of origins; it got {given!r}")
            object.__setattr__(self, name, tuple(_origin(name, each) for each in given))  # it is frozen


def _origin(where: str, given: Any) -> str:
    origin = given.rstrip("/").lower() if isinstance(given, str) else ""
    found = ORIGIN.fullmatch(origin)
    if found is None:
        parts = urlsplit(origin if "://" in origin else f"https://{origin}")
        how = f"{parts.scheme}://{parts.netloc}" if parts.netloc else "https://api.example.com"
        if not ORIGIN.fullmatch(how):
            how = "https://api.example.com"
        raise SetupError(f"Csp({where}=...): {given!r} is no origin; write one such as {how}, without a path")
    if found[1].startswith("ws") and where != "connect":
        raise SetupError(f"Csp({where}=...): {given!r} is for WebSockets, which belong into connect=")
    return origin


@dataclass(frozen=True)
class PageOptions(Checked):
    """Options of `app.ui`."""

    page: str | Path | Callable[..., Any] = field(metadata=takes("the path of a file, or a function that returns HTML"))
    _: KW_ONLY
    name: str | None = None
    title: str | None = None
    description: str | None = None
    csp: Csp | None = field(default=None, metadata=takes('Csp(...), such as Csp(connect=["https://api.example.com"])'))
    permissions: Collection[Permission] = field(default=(), metadata=takes(""))
    domain: str | None = None
    border: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.permissions
        unknown = [given] if isinstance(given, str) else [each for each in given if each not in PERMISSIONS]
        if unknown:
            raise SetupError(f"permissions={given!r} takes a list of {', '.join(PERMISSIONS)}; not {unknown[0]!r}")

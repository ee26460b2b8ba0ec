"""MCP Apps on the wire: what a page is called, and what a client says that it draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import SetupError
from .callers import ClientInfo

UI = "io.modelcontextprotocol/ui"
"""The extension by which tools have pages (MCP Apps, Extension Identifier)."""

WRAPPED = "mrtr-server/wrapped"
"""In `_meta` of a result whose value is a member of its structured content, for the script of pages to unwrap it."""

MIME_TYPE = "text/html;profile=mcp-app"

FOR_PAGES = {"openai/widgetAccessible": True}
"""In `_meta` of a tool that pages call, for hosts that do not read its `visibility`."""
FOR_PAGES_ALONE = {"openai/visibility": "private", **FOR_PAGES}
"""The same of one that models are not shown."""


@dataclass(frozen=True, eq=False)
class AppPage:
    """A page of an app, as `app.ui(...)` returns it, for `ui=` of a tool or of an ask.

    Args:
        uri: where hosts read it. It changes with the page, so that no host shows an old one for a new tool. All its
            earlier addresses are served, too, with the page of today.
        address: the same without what changes, for `disable` and `remove_resource`.
    """

    uri: str
    address: str


@dataclass(frozen=True)
class Ui:
    """How a tool is drawn: `@app.tool(ui=Ui(page=board, question=False))`.

    Args:
        page: the page that is drawn with its result, as `app.ui(...)` returns it; None for none.
        question: whether what it asks is asked in a page where a host draws apps and can't elicit; see `Apps`. Default:
            where its code shows that it may ask.
    """

    page: AppPage | str | None = None
    question: bool | None = None

    def __post_init__(self) -> None:
        check_ui(self.page)


def uri_of(page: AppPage | str) -> str:
    """Return the URI of a page; that of one which an author has made is a text."""
    return page if isinstance(page, str) else page.uri


def check_ui(ui: object) -> None:
    """Check what an author gives as a page, or None. Raises `SetupError`."""
    if not (ui is None or isinstance(ui, AppPage) or (isinstance(ui, str) and ui.startswith("ui://"))):
        raise SetupError(f"ui={ui!r} is no page: it has a URI such as ui://orders; make one with app.ui(...)")


def page_of(entry: Mapping[str, Any]) -> str | None:
    """Return the URI of the page that the entry of a tool names; None if it names none."""
    uri = _ui_in(entry).get("resourceUri")
    return uri if isinstance(uri, str) else None


def visibility_of(entry: Mapping[str, Any]) -> Sequence[str]:
    """Return who may be shown a tool by its entry: models, pages or both (MCP Apps, Resource Discovery)."""
    visibility = _ui_in(entry).get("visibility")
    return visibility if isinstance(visibility, Sequence) else ("model", "app")


def _ui_in(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    ui = entry.get("_meta", {}).get("ui")
    return ui if isinstance(ui, Mapping) else {}


def draws_pages(settings: Mapping[str, Any]) -> bool:
    """Return whether a client draws HTML pages, by its settings of the extension (MCP Apps, Capability Negotiation)."""
    types = settings.get("mimeTypes")
    return isinstance(types, list) and MIME_TYPE in types


def draws_forms(client: ClientInfo) -> bool:
    """Return whether a client draws a form by a page, besides drawing it by itself (SEP-3118)."""
    if client.capabilities is None or not client.supports("elicitation.form"):
        return False
    settings = client.extension(UI) or {}
    return draws_pages(settings) and isinstance(settings.get("elicitation"), dict)


def drawn_by(uri: str) -> dict[str, Any]:
    """Return the `_meta` of a form that a page draws."""
    return {"ui": {"resourceUri": uri}}

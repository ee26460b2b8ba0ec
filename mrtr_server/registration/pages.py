"""Pages of apps: HTML that a host draws beside the result of a tool (MCP Apps, UI Resource Format)."""

import re
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic_core import to_json

from ..errors import FlowError, SetupError
from ..protocol.apps import FOR_PAGES_ALONE, MIME_TYPE, AppPage, uri_of
from ..protocol.messages import JSON
from .page_options import CSP_MEMBERS, PERMISSIONS, Csp, PageOptions


class ServedPage(NamedTuple):
    """What goes out with a page."""

    name: str
    meta: JSON  # `_meta.ui` of the resource
    csp: Csp
    is_checked: bool  # whether the page was checked when it was registered

    def body(self, html: Any, uri: str, prefix: str) -> JSON:
        """Return the body of a read: the page with our script, and what hosts must know of it.

        `html`: what the function of the page has returned. `uri`: where it was read. `prefix`: what the names of tools
        begin with, where the application is included in another. Raises `FlowError` if the page can't be drawn.
        """
        if not isinstance(html, str):
            raise FlowError(f"The page {self.name!r} is a {type(html).__name__}; return its HTML as text")
        if not self.is_checked and (problem := _problem_of(html, self.csp)):
            raise FlowError(f"The page {self.name!r} {problem}")
        content = {"uri": uri, "mimeType": MIME_TYPE, "text": with_script(html, prefix), "_meta": {"ui": self.meta}}
        return {"contents": [content]}


def _problem_of(html: str, csp: Csp) -> str:
    from .page_checks import problem_of  # only where there are pages

    return problem_of(html, csp)


_ANY_DIGEST = re.compile(r"/v-[0-9a-f]{12}\.html$")


def address_of(uri: str) -> str:
    """Return the URI of a page without its digest; any other URI as it is."""
    return _ANY_DIGEST.sub("", uri) if uri.startswith("ui:") else uri


def digest_of(source: str, meta: JSON) -> str:
    """Return what the address of a page has of the page, and of all that goes out with it."""
    parts = [source, script(), meta]
    return blake2b(to_json(parts, inf_nan_mode="constants"), digest_size=6).hexdigest()


def meta_of(options: PageOptions, csp: Csp) -> JSON:
    """Return `_meta.ui` of a page (MCP Apps, UI Resource Format)."""
    meta: JSON = {
        "csp": {on_wire: list(getattr(csp, name)) for name, on_wire in CSP_MEMBERS.items()},
        "permissions": {PERMISSIONS[each]: {} for each in sorted(options.permissions)} or None,
        "domain": options.domain,
        "prefersBorder": options.border,
    }
    return {name: value for name, value in meta.items() if value is not None}


def ui_of_tool(ui: AppPage | str | None, used_by: Literal["model", "app"] | None) -> JSON:
    """Return what `_meta` of a tool says of its page (MCP Apps, Resource Discovery). Raises `SetupError`."""
    if used_by not in (None, "model", "app"):
        raise SetupError(f'used_by={used_by!r}: choose from "model", "app", or leave it out for both')
    if ui is None:
        if used_by is not None:
            raise SetupError(f"used_by={used_by!r} is for a tool that has a page; give ui=, too")
        return {}
    uri = uri_of(ui)
    visibility = ["model", "app"] if used_by is None else [used_by]
    meta: JSON = {"ui": {"resourceUri": uri, "visibility": visibility}, "ui/resourceUri": uri}
    if used_by == "app":
        meta |= FOR_PAGES_ALONE
    return meta


# The script of ours in each page

_NOTHING = r"(?:\s|<!--.*?-->)*"
_HEAD = re.compile(
    rf"\ufeff?{_NOTHING}(?:<!doctype[^>]*>)?{_NOTHING}(?:<html(?:\s[^>]*)?>)?{_NOTHING}(?:<head(?:\s[^>]*)?>)?",
    re.IGNORECASE | re.DOTALL,
)
"""What a document begins with, up to the content of its head. All of it may be left out (HTML, Optional tags)."""


_SCRIPT = Path(__file__).with_name("page.js")
"""The script by which a page calls tools, with a place for their prefix."""


@cache
def script(path: Path = _SCRIPT) -> str:
    """Return a script as pages get it, without comments and indentation: by default the one that calls tools."""
    lines = map(str.strip, path.read_text(encoding="utf-8").splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def end_of_script() -> str:
    """Return how our script ends in every page that has it."""
    return script()[-80:]


def with_script(html: str, prefix: str) -> str:
    """Return a page with the script before all that could use it."""
    tag = f"<script>{script().replace('__PREFIX__', prefix)}</script>"  # a prefix has the characters of names
    begins = _HEAD.match(html)
    end = begins.end() if begins else 0
    return f"{html[:end]}{tag}{html[end:]}"

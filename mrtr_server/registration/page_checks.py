"""What a page of an app loads, and whether its policy lets it. It is loaded where there is a page."""

import re
from functools import lru_cache
from html.parser import HTMLParser
from urllib.parse import urlsplit

from .page_options import Csp

_IMPORT = re.compile(r"""@import\s+(?:url\(\s*)?["']?([^"')\s;]+)""", re.IGNORECASE)
_MODULE = re.compile(
    r"""^(?![ \t]{0,200}(?://|\*)).*?(?:\bfrom|\bimport)\s{0,20}\(?\s{0,20}["'](https?://[^"']+)["']""", re.MULTILINE
)
_LOADING = frozenset(
    ("stylesheet", "preload", "modulepreload", "prefetch", "icon", "apple-touch-icon", "mask-icon", "manifest")
)


class _Loads(HTMLParser):
    """Collects what a page loads by the addresses in it: scripts, what they import, and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._within = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._within = "module" if tag == "script" and given.get("type") == "module" else tag
        if tag == "script" and "src" in given:
            self.found.append(("<script src>", given["src"]))
        elif tag == "link" and not _LOADING.isdisjoint(given.get("rel", "").lower().split()):
            self.found += [("<link>", href) for href in [given.get("href", "")] if not href.startswith("data:")]

    def handle_data(self, data: str) -> None:
        if self._within == "style":
            self.found += [("@import", each) for each in _IMPORT.findall(data)]
        elif self._within == "module":
            self.found += [("import", each) for each in _MODULE.findall(data)]

    def handle_endtag(self, tag: str) -> None:
        self._within = ""


@lru_cache(maxsize=64)
def problem_of(html: str, csp: Csp) -> str:
    """Return why hosts would draw a page without what it loads, a blank frame; empty if they would not."""
    loads = _Loads()
    loads.feed(html)
    for how, address in loads.found:
        parts = urlsplit(f"https:{address}" if address.startswith("//") else address)
        if not parts.netloc:
            return (
                f"loads {address!r} by {how}, which hosts can't: it has no address of its own there. Put the content "
                "into the page, or name the whole address"
            )
        origin = f"{parts.scheme}://{parts.netloc}".lower()
        if not allows(csp, origin):
            return (
                f"loads {address!r} by {how}, which its policy does not allow, so hosts would show a blank frame; "
                f'write csp=Csp(resources=["{origin}"]), or put the content into the page'
            )
    return ""


def allows(csp: Csp, origin: str) -> bool:
    """Return whether a policy lets a page load scripts and styles from an origin."""
    scheme, _, host = origin.partition("://")
    for allowed in csp.resources:
        its_scheme, _, its_host = allowed.partition("://")
        name, _, port = its_host.rpartition(":") if its_host.endswith(":*") else (its_host, "", "")
        of_host = host.rpartition(":")[0] or host if port else host
        is_host = of_host.endswith(name[1:]) if name.startswith("*.") else of_host == name
        if scheme == its_scheme and is_host:
            return True
    return False

"""Which addresses may go out: people open them, and clients fetch them (RFC 3986)."""

import re
from urllib.parse import urlsplit

from ..well_formed import well_formed

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?=.)", re.DOTALL)
_WEB = ("http:", "https:")
_NO_HOST = re.compile(r"[%<>^|\"`{}]")
"""What no host may have (URL Standard, forbidden host code points): clients fail to read it, or go elsewhere."""
_SCRIPTS = ("javascript:", "vbscript:")


def fault_of_page(url: str) -> str:
    """Return what is wrong with the address of a web page, as the end of a sentence; empty if nothing is.

    The sentence never has the address, which may hold a token.
    """
    if not url.lower().startswith(_WEB):
        return "must be absolute, with http: or https:, such as https://example.com/page"
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        return (
            "has a space, a control character, a backslash or a letter that is not ASCII; percent-encode its parts "
            "with urllib.parse.quote"
        )
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, or half of an IPv6 address
        return "can't be read as an address"
    if not has_host:
        return "has no host; write it whole, such as https://example.com/page"
    if "@" in parts.netloc:
        return "has a user name or a password, which everybody sees who sees the address; leave them out"
    if _NO_HOST.search(parts.netloc):
        return "has a character in its host that no host has, such as %"
    return ""


def fault_of_icon(src: str) -> str:
    """Return what is wrong with the address of an icon, as `fault_of_page` does (Icons, Security Considerations)."""
    if src[:11].lower() == "data:image/":
        return ""
    fault = fault_of_page(src)
    return f"is neither a data: URI of an image nor a page: it {fault}" if fault else ""


def fault_of_uri(uri: str) -> str:
    """Return what is wrong with the URI of a resource, as `fault_of_page` does (Resources, Common URI Schemes).

    Letters that are not ASCII, and spaces, are allowed except on the web: clients percent-encode them.
    """
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return "is not a URI: it has no scheme, such as file: or docs:, or nothing after it"
    if not well_formed(uri).isprintable():  # halves of characters are shown, or refused, as in all other texts
        return "has a control character; percent-encode its parts with urllib.parse.quote"
    name = scheme[0].lower()
    if name in _SCRIPTS:
        return f"has the scheme {name}, which runs as a script where a person opens it"
    return fault_of_page(uri) if name in _WEB else ""

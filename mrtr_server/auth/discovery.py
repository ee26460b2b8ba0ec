"""What an authorization server says of itself (RFC 8414, OpenID Connect Discovery)."""

from typing import Any
from urllib.parse import urlsplit

from ..errors import IssuerUnavailable, SetupError
from .fetching import fetch_json, is_safe


def check_issuer(issuer: str) -> None:
    """Check that an issuer can be asked for its metadata. Raises `SetupError`."""
    if not is_safe(issuer) or "?" in issuer:
        raise SetupError(f"issuer={issuer!r} must be an https address, such as https://login.example.com")


def metadata_urls(issuer: str) -> list[str]:
    """Return where the metadata of an issuer may be, in the order in which to look (RFC 8414, sections 3 and 5).

    Args:
        issuer: its identifier, with or without a path.
    """
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    ]
    return list(dict.fromkeys(urls))


async def discover(issuer: str) -> dict[str, Any]:
    """Return the metadata of an issuer.

    Raises:
        IssuerUnavailable: it has none, or none that it wrote of itself; the message says what was found where.
    """
    tried = []
    for url in metadata_urls(issuer):
        try:
            metadata = await fetch_json(url)
        except IssuerUnavailable as error:
            tried.append(str(error))
            continue
        named = metadata.get("issuer")
        if named == issuer:
            return metadata
        tried.append(f"{url} is of the issuer {str(named)[:200]!r}, so set issuer= to that if it is the one you mean")
    raise IssuerUnavailable("; ".join(tried))

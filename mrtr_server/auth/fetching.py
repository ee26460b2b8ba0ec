"""Requests to the issuer of tokens, which never block the event loop, and its metadata (RFC 8414, OpenID Discovery)."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import cache
from typing import Any, cast
from urllib.parse import urlsplit

from ..addresses import is_loopback_address
from ..errors import IssuerUnavailable, SetupError, lacking

try:
    import httpx
except ImportError as error:
    raise lacking("Verifying tokens", "auth", error) from error

SECONDS = 5.0  # that one request may take in all

LARGEST = 512 * 1024  # bytes of a response

_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}
"""Nothing compressed: a small response could fill the memory before its size is known."""


def is_safe(url: str) -> bool:
    """Return whether a URL may be asked for what is trusted: `https`, or `http` on loopback."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        return (
            parts.port != 0
            and parts.username is None
            and not parts.fragment
            and bool(host)
            and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback_address(host)))
        )
    except (ValueError, TypeError, AttributeError):  # no text, or no URL
        return False


async def fetch_json(
    url: str,
    form: Mapping[str, str] | None = None,
    credentials: tuple[str, str] | None = None,
    document: Mapping[str, Any] | None = None,
    bearer: str = "",
) -> dict[str, Any]:
    """Return the JSON object at a URL, to which a form or a document may be POSTed. Redirects are not followed.

    The credentials are name and password of this server, and the bearer token is a person's. Raises
    `IssuerUnavailable`, with the status of a useless reply, and the error that it names.
    """
    if not is_safe(url):
        raise IssuerUnavailable(f"{url!r} is not an https address")
    try:
        async with asyncio.timeout(SECONDS):
            status, body = await _send(url, form, credentials, document, bearer)
    except TimeoutError:
        raise IssuerUnavailable(f"{url} did not answer within {SECONDS:g} s") from None
    except IssuerUnavailable:
        raise
    except Exception as error:  # the errors of httpx, of the network and of certificates; never a failed request
        raise IssuerUnavailable(f"{url} can't be reached: {type(error).__name__}") from None
    if status != 200 and not (status == 201 and document is not None):
        raise IssuerUnavailable(f"{url} answered with the status {status}", status, _error_in(body))
    found = _parsed(body)
    if not isinstance(found, dict):
        raise IssuerUnavailable(f"{url} did not answer with a JSON object", status)
    return found


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _error_in(body: bytes) -> str:
    found = _parsed(body)
    return str(found.get("error", ""))[:100] if isinstance(found, dict) else ""


async def _send(
    url: str,
    form: Mapping[str, str] | None,
    credentials: tuple[str, str] | None,
    document: Mapping[str, Any] | None,
    bearer: str,
) -> tuple[int, bytes]:
    # The certificates are read in a thread: that takes some 20 ms.
    context = await asyncio.to_thread(_ssl_context)
    method, fields = ("GET" if form is None and document is None else "POST"), None if form is None else dict(form)
    headers = {**_HEADERS, "Authorization": f"Bearer {bearer}"} if bearer else _HEADERS
    async with (
        httpx.AsyncClient(verify=context, timeout=SECONDS, follow_redirects=False) as client,
        client.stream(method, url, data=fields, json=document, auth=credentials, headers=headers) as response,
    ):
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.strip().lower() not in ("", "identity"):
            raise IssuerUnavailable(f"{url} answered compressed, which was not asked for", response.status_code)
        body = b""
        async with aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_raw())) as parts:
            async for part in parts:
                body += part
                if len(body) > LARGEST:
                    raise IssuerUnavailable(f"{url} answered with more than {LARGEST} bytes", response.status_code)
        return response.status_code, body


@cache
def _ssl_context() -> ssl.SSLContext:
    return ssl.create_default_context()


# Metadata


def check_issuer(issuer: str) -> None:
    if not is_safe(issuer) or "?" in issuer:
        raise SetupError(f"issuer={issuer!r} must be an https address, such as https://login.example.com")


def metadata_urls(issuer: str) -> list[str]:
    """Return where the metadata of an issuer may be, in the order in which to look (RFC 8414, sections 3 and 5)."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    ]
    return list(dict.fromkeys(urls))


async def discover(issuer: str) -> dict[str, Any]:
    """Return the metadata that an issuer wrote of itself. Raises `IssuerUnavailable`, with what was found where."""
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

"""A person logs in in the browser, and the client calls with the tokens that come of it (Authorization)."""

import asyncio
import hmac
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from inspect import isawaitable
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from ..addresses import is_loopback_address
from ..auth.fetching import discover, fetch_json, is_safe
from ..crypto.digests import challenge_of
from ..errors import IssuerUnavailable, LoginFailed
from ..protocol.messages import JSON
from .token_store import SystemTokens, TokenStore, not_kept

_LARGEST = 16 * 1024  # bytes of a request's head
_READ_SECONDS = 10.0
_MOST_PARAMETERS = 20

_PATH = "/callback"

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{0}</title><p>{0}</p></html>"""


class Redirect:
    """Listens on 127.0.0.1 for the redirect that brings a state back. Other requests get an error."""

    def __init__(self, state: str, ports: Sequence[int]) -> None:
        self._state = state
        self._ports = ports
        self._port = 0
        self._server: asyncio.Server | None = None
        self._came: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        """Listen on the first of the ports that is free. Raises `LoginFailed`."""
        for port in self._ports:
            with suppress(OSError):
                self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=_LARGEST)
                self._port = self._server.sockets[0].getsockname()[1]
                return self
        raise LoginFailed(f"Nothing can listen on port {self._ports[0]} for the end of the login: it is taken")

    async def __aexit__(self, *raised: object) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}{_PATH}"

    async def parameters(self) -> dict[str, str]:
        return await self._came

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            closing(writer),
            suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError),
        ):
            async with asyncio.timeout(_READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                is_it = self._take(head.split(b"\r\n", 1)[0].decode("ascii"))
                text = "You can close this page." if is_it else "This is not the login that is waited for."
                body = _PAGE.format(text).encode()
                writer.write(
                    f"HTTP/1.1 {'200 OK' if is_it else '404 Not Found'}\r\nContent-Type: text/html; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
                    "Connection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()

    def _take(self, line: str) -> bool:
        """Note the redirect, if a request is that. Raises `ValueError`."""
        method, target, _ = line.split(" ")
        parts = urlsplit(target)
        found = dict(parse_qsl(parts.query, max_num_fields=_MOST_PARAMETERS))
        if method != "GET" or parts.path != _PATH or self._came.done():
            return False
        if not hmac.compare_digest(found.get("state", "").encode(), self._state.encode()):
            return False
        self._came.set_result(found)
        return True


Way = Literal["by refreshing", "by a login", "by another request"]

OpenPage = Callable[[str], Awaitable[object] | object]

_LONGEST_CHALLENGE = 4096
_BEARER = re.compile(r"(?i)\bbearer\b(.*)")
_PARAMETER = re.compile(r'\b([A-Za-z_]{1,40})\s{0,10}=\s{0,10}(?:"([^"\\]*(?:\\.[^"\\]*)*)"|([^\s,"]+))')


class Challenge(NamedTuple):
    """What a refusal says of how to get in (RFC 6750, RFC 9728)."""

    error: str = ""
    scope: str = ""
    resource_metadata: str = ""


def read_challenge(header: str) -> Challenge:
    bearer = _BEARER.search(header[:_LONGEST_CHALLENGE])
    named = _PARAMETER.findall(bearer[1]) if bearer else ()
    found = {name.lower(): re.sub(r"\\(.)", r"\1", quoted) or plain for name, quoted, plain in named}
    return Challenge(*(found.get(name, "") for name in Challenge._fields))


@dataclass(frozen=True, slots=True, repr=False)
class _Grant:
    """What one authorization server gave for one server. It is never shown: most of it is secret."""

    issuer: str
    resource: str
    token_endpoint: str
    client_id: str
    client_secret: str
    redirect_uri: str  # with which the client is registered
    access_token: str
    refresh_token: str
    scope: str


def _read_grant(kept: str) -> _Grant | None:
    """Return a grant that was kept; None if it is of another release."""
    try:
        grant = _Grant(**json.loads(kept))
    except (ValueError, TypeError):
        return None
    return grant if all(isinstance(each, str) for each in asdict(grant).values()) else None


class OAuth:
    """Logs a person in where a server wants that: `Client(url, auth=OAuth(open_page=webbrowser.open))`.

    Tokens are kept in the keyring of the system, if the package `keyring` is installed, or else in a file that its user
    alone can read. They are refreshed, and a server that wants more scopes is logged in to again.

    Args:
        open_page: opens the page of the authorization server; a function or a coroutine function. It may ask the person
            first, and raise `LoginFailed`. Without it, only tokens that are kept are used.
        client_id: what the authorization server knows the client by: a registered id, or the URL of its metadata
            document. By default, the client registers itself.
        client_secret: what was given with a registered id, if something was.
        scopes: what to ask for, besides what the server says that it needs.
        port: of this machine, for the redirect at the end; any by default.
        seconds: how long the person may take, in seconds.
        store: where the tokens are kept.
    """

    def __init__(
        self,
        open_page: OpenPage | None = None,
        *,
        client_id: str | None = None,
        client_secret: str = "",
        scopes: tuple[str, ...] = (),
        port: int = 0,
        seconds: float = 300.0,
        store: TokenStore | None = None,
    ) -> None:
        self._open_page = open_page
        self._client = (client_id, client_secret) if client_id is not None else None
        self._scopes = scopes
        self._port = port
        self._seconds = seconds
        self._store: TokenStore = store or SystemTokens()
        self._grants: dict[str, _Grant] = {}
        self._one_at_a_time = asyncio.Lock()

    async def load(self, server: str) -> None:
        """Load the tokens that are kept for a server.

        Args:
            server: its URL.

        Raises:
            SetupError: they can't be read.
        """
        try:
            kept = await asyncio.to_thread(self._store.load, server)
        except OSError as error:
            raise not_kept(error) from None
        if kept is not None and (grant := _read_grant(kept)) is not None:
            self._grants[server] = grant

    def token(self, server: str) -> str:
        """Return the access token for a server.

        Args:
            server: its URL.

        Returns:
            The token; empty if there is none.
        """
        grant = self._grants.get(server)
        return "" if grant is None else grant.access_token

    async def renew(self, server: str, used: str, status: int, header: str, before: Way | None) -> Way | None:
        """Get another token after a refusal of the one that was used.

        Args:
            server: its URL.
            used: the token that was refused; empty if there was none.
            status: of the refusal.
            header: its `WWW-Authenticate`.
            before: how the used one was got, if that was for the same request.

        Returns:
            How another was got; None if there is none to get.

        Raises:
            LoginFailed: the login did not come to its end.
            SetupError: the tokens can't be kept.
        """
        async with self._one_at_a_time:
            if self.token(server) != used:
                return "by another request"
            if not is_safe(server):
                return None
            try:
                grant, way = await self._renewed(server, status, read_challenge(header), before)
            except IssuerUnavailable as error:
                raise LoginFailed(f"The login has failed: {error}") from None
            if grant is None:
                return None
            self._grants[server] = grant
            try:
                await asyncio.to_thread(self._store.save, server, json.dumps(asdict(grant)))
            except OSError as error:
                raise not_kept(error) from None
            return way

    async def _renewed(
        self, server: str, status: int, challenge: Challenge, before: Way | None
    ) -> tuple[_Grant | None, Way]:
        grant = self._grants.get(server)
        if status == 401 and before is None and grant is not None and grant.refresh_token:
            try:
                return await _refreshed(grant), "by refreshing"
            except IssuerUnavailable as error:
                if not 400 <= error.status < 500:
                    raise
        wanted, granted = set(challenge.scope.split()), set(grant.scope.split()) if grant is not None else set()
        would_help = before != "by a login" if status == 401 else challenge.error == "insufficient_scope"
        if self._open_page is None or not would_help or (status == 403 and wanted <= granted):
            return None, "by a login"
        scopes = wanted | granted if status == 403 else wanted
        return await self._log_in(server, challenge, scopes, self._open_page), "by a login"

    async def _log_in(self, server: str, challenge: Challenge, scopes: set[str], open_page: OpenPage) -> _Grant:
        """Discover who gives tokens for a server, and let the person log in there."""
        resource = await _resource_of(server, challenge.resource_metadata)
        issuer = next(iter(_texts(resource, "authorization_servers")), "")
        _check_address(server, issuer, "the authorization server")
        metadata = await discover(issuer)
        for name in ("authorization_endpoint", "token_endpoint"):
            _check_address(server, metadata.get(name), name)
        if "S256" not in _texts(metadata, "code_challenge_methods_supported"):
            raise LoginFailed(f"{issuer} does not say that it takes PKCE with S256, without which no login is safe")
        wanted = scopes or set(_texts(resource, "scopes_supported"))
        wanted |= {*self._scopes, *{"offline_access"}.intersection(_texts(metadata, "scopes_supported"))}

        before = self._grants.get(server)
        if before is not None and before.issuer != issuer:
            before = None  # what another one gave is none of its business
        registered = urlsplit(before.redirect_uri).port if before is not None else None
        state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(64)
        async with Redirect(state, [self._port] if self._port else [registered or 0, 0]) as redirect:
            id, secret = self._client or await _registered(server, metadata, redirect.uri, before)
            asked = {
                "response_type": "code",
                "client_id": id,
                "redirect_uri": redirect.uri,
                "state": state,
                "code_challenge": challenge_of(verifier),
                "code_challenge_method": "S256",
                "resource": resource["resource"],
                **({"scope": " ".join(sorted(wanted))} if wanted else {}),
            }
            page = metadata["authorization_endpoint"]
            opened = open_page(f"{page}{'&' if '?' in page else '?'}{urlencode(asked)}")
            if isawaitable(opened):
                await opened
            code = _code_in(await self._came(redirect), metadata, issuer)
        grant = _Grant(
            issuer=issuer,
            resource=resource["resource"],
            token_endpoint=metadata["token_endpoint"],
            client_id=id,
            client_secret=secret,
            redirect_uri=redirect.uri,
            access_token="",
            refresh_token="",
            scope=asked.get("scope", ""),
        )
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": grant.redirect_uri}
        return await _asked_for_tokens(grant, {**form, "code_verifier": verifier})

    async def _came(self, redirect: Redirect) -> dict[str, str]:
        try:
            async with asyncio.timeout(self._seconds):
                return await redirect.parameters()
        except TimeoutError:
            raise LoginFailed(f"Nobody has logged in within {self._seconds:g} s") from None


async def _refreshed(grant: _Grant) -> _Grant:
    return await _asked_for_tokens(grant, {"grant_type": "refresh_token", "refresh_token": grant.refresh_token})


async def _asked_for_tokens(grant: _Grant, form: dict[str, str]) -> _Grant:
    """Return a grant with the tokens that its issuer gives for a form. Raises `IssuerUnavailable`, `LoginFailed`."""
    form = {**form, "client_id": grant.client_id, "resource": grant.resource}
    secret = (quote(grant.client_id, safe=""), quote(grant.client_secret, safe="")) if grant.client_secret else None
    given = await fetch_json(grant.token_endpoint, form, secret)
    token, refresh, scope = given.get("access_token"), given.get("refresh_token"), given.get("scope")
    if not (isinstance(token, str) and token.isascii() and token.isprintable() and token.strip()):
        raise LoginFailed(f"{grant.issuer} gave no access token")
    if str(given.get("token_type", "")).lower() != "bearer":
        raise LoginFailed(f"{grant.issuer} gave a token of another type than Bearer")
    return replace(
        grant,
        access_token=token,
        refresh_token=refresh if isinstance(refresh, str) else grant.refresh_token,
        scope=scope if isinstance(scope, str) and scope else grant.scope,
    )


async def _resource_of(server: str, named: str) -> JSON:
    """Return what a server says of the tokens that it takes (RFC 9728), from where it names, or where that is found."""
    parts = urlsplit(server)
    origin, well_known = f"{parts.scheme}://{parts.netloc}", "/.well-known/oauth-protected-resource"
    tried = []
    for url in [named] if named else dict.fromkeys((f"{origin}{well_known}{parts.path}", f"{origin}{well_known}")):
        _check_address(server, url, "the metadata of the server")
        try:
            found = await fetch_json(url)
        except IssuerUnavailable as error:
            tried.append(str(error))
            continue
        resource = urlsplit(str(found.get("resource", "")))
        of_server = parts.path == resource.path or parts.path.startswith(resource.path.rstrip("/") + "/")
        if (resource.scheme, resource.netloc) != (parts.scheme, parts.netloc) or not of_server:
            raise LoginFailed(
                f"{url} is of another server, {found.get('resource')!r:.200}: its tokens are not for this"
            )
        return found
    raise LoginFailed(f"The server wants a token, and does not say who gives one: {'; '.join(tried)}")


def _check_address(server: str, url: Any, what: str) -> None:
    """Refuse an address that is not encrypted, or leads from a server elsewhere to this machine."""
    if not isinstance(url, str) or not is_safe(url):
        raise LoginFailed(f"{what} is at no https address: {url!r:.200}")
    if _is_here(url) and not _is_here(server):
        raise LoginFailed(f"{what} is at an address of this machine, {url!r:.200}, and the server is not")


def _is_here(url: str) -> bool:
    return is_loopback_address(urlsplit(url).hostname or "")


def _texts(metadata: JSON, name: str) -> list[str]:
    found = metadata.get(name)
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


async def _registered(server: str, metadata: JSON, uri: str, before: _Grant | None) -> tuple[str, str]:
    """Return the id and the secret of the client: those of before, or of a new registration (RFC 7591)."""
    if before is not None and before.redirect_uri == uri:
        return before.client_id, before.client_secret
    endpoint = metadata.get("registration_endpoint")
    if endpoint is None:
        raise LoginFailed(
            f"{metadata['issuer']} registers no clients: register one there, and give its id as client_id"
        )
    _check_address(server, endpoint, "registration_endpoint")
    wanted = {
        "client_name": "mrtr-server",
        "redirect_uris": [uri],
        "application_type": "native",
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }
    given = await fetch_json(endpoint, document=wanted)
    id, secret = given.get("client_id"), given.get("client_secret", "")
    if not isinstance(id, str) or not id or not isinstance(secret, str):
        raise LoginFailed(f"{metadata['issuer']} registered the client without a client_id")
    return id, secret


def _code_in(came: dict[str, str], metadata: JSON, issuer: str) -> str:
    """Return the code of a redirect that is of the issuer (RFC 9207)."""
    named = came.get("iss")
    if named is None and metadata.get("authorization_response_iss_parameter_supported") is True:
        raise LoginFailed(f"The redirect does not say that it is of {issuer}")
    if named is not None and not hmac.compare_digest(named.encode(), issuer.encode()):
        raise LoginFailed(f"The redirect is not of {issuer}: it may be of an attack")
    if "error" in came:
        raise LoginFailed(f"{issuer} refused the login: {came.get('error_description') or came['error']:.200}")
    if not came.get("code"):
        raise LoginFailed(f"The redirect of {issuer} has no code")
    return came["code"]

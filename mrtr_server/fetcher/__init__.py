"""Requests to addresses that a peer names, such as callbacks of webhooks: none leads into the company's own network."""

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from ipaddress import ip_address
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import h11

from ..concurrency.running import PerLoop
from ..concurrency.threads import Threads
from ..errors import SetupError, UnfitUrl, Unreachable, UnreachableReason, lacking
from .connection import Connection, Headers
from .urls import Address, Allowed, Origin, Target, literal

__all__ = ["Fetched", "Fetcher", "UnfitUrl", "Unreachable", "UnreachableReason"]

KEPT_SECONDS = 60.0
"""How long a connection is kept without a request, in seconds. Most servers end theirs before."""

MOST_ADDRESSES = 4
"""Addresses of a name that are tried. A name may have hundreds."""


class Fetched(NamedTuple):
    """A response."""

    status: int
    body: bytes
    """The first `most` bytes of it, at most."""
    cache_control: str = ""


class Fetcher:
    """Asks addresses that a peer names.

    A name is resolved for each connection, and the connection goes to the address that was checked. So it does not
    matter what the name leads to before or after that. Redirects are not followed, and no variable of the environment
    counts (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`).

    Behind a proxy, the proxy resolves the names, so nobody checks their addresses here. It has to refuse to connect to
    addresses that are not of the Internet, and to those of the company's own, in IPv4 and IPv6.

    Args:
        allow: the company's own, which may have any address: hosts (`hooks.internal.example.com`, `host:8443`),
            origins, and networks (`10.1.0.0/16`). An origin of `http://` has to be on loopback. All that is named here
            is reached past the proxy; a name is, if it is named itself.
        proxy: the proxy by which all else leaves, such as `http://proxy.example.com:3128`.
        ca: the path of a file in PEM with more authorities than the public ones.
        timeout: seconds for a fetch in all, from its name to the end of its body.
        most_connections: of each event loop. Who comes when all are busy waits, which does not count as its own time.
    """

    def __init__(
        self,
        *,
        allow: Sequence[str] = (),
        proxy: str | None = None,
        ca: str | None = None,
        timeout: float = 10.0,
        most_connections: int = 100,
    ) -> None:
        """Raises `SetupError`."""
        self._allowed = Allowed(allow, by_proxy=proxy is not None)
        self._proxy = None if proxy is None else _Proxy.of(proxy)
        self._context = _tls(ca)
        self._timeout = timeout
        self._most = most_connections
        self._pools = PerLoop[_Pool]()
        # A resolver may take its time, which a peer can see to. The threads of the event loop are for others.
        self._threads = Threads(most_connections)

    def check(self, url: str) -> str:
        """Return a URL in the form to compare and store. No name is resolved. Raises `UnfitUrl`."""
        return str(self._allowed.check(url))

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes = b"",
        most: int = 4096,
    ) -> Fetched:
        """Send a request, and return the status and the beginning of the body, whatever the status is.

        It may be sent a second time, where a kept connection ended without a byte of a response.

        Args:
            method: of HTTP.
            url: the address, which is checked as `check` does.
            headers: besides those that say where the request goes and how long it is.
            content: the body.
            most: bytes of the response's body.

        Returns:
            The response.

        Raises:
            UnfitUrl: the URL is never asked.
            Unreachable: no response came, or none of HTTP.
        """
        target = self._allowed.check(url)
        request = _request(method, target, headers, content)
        pool = self._pools.here(partial(_Pool, self._most))
        async with pool.place():
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._send(pool, target.origin, request, content, most)
            except TimeoutError:  # ours, or the system's for a connection
                raise Unreachable("timeout") from None

    async def close(self) -> None:
        """End the connections of this event loop. What is under way comes to its end."""
        pool = self._pools.pop()
        if pool is not None:
            pool.close()
            await asyncio.sleep(0)  # until they are closed
        self._threads.close()

    async def resolve(self, host: str) -> list[str]:
        """Return the addresses of a name, in the order in which to try them; tests have a resolver of their own."""
        found = await self._threads(partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM))
        return [entry[4][0] for entry in found]

    async def _send(self, pool: "_Pool", origin: Origin, request: h11.Request, content: bytes, most: int) -> Fetched:
        while True:
            kept = pool.take(origin)
            connection = kept or await self._connect(origin)
            try:
                reply = await connection.exchange(request, content, most)
            except BaseException:
                connection.abort()
                raise
            if reply is not None:
                pool.keep(origin, connection)
                return Fetched(*reply)
            connection.abort()
            if kept is None:
                raise Unreachable("connection_refused")

    async def _connect(self, origin: Origin) -> Connection:
        proxy = None if self._allowed.is_own(origin) else self._proxy
        if proxy is None:
            connection = await self._first_of(await self._addresses(origin), origin.port)
        else:
            connection = await _open(proxy.host, proxy.port)
        try:
            if proxy is not None:
                await connection.tunnel(origin.host_and_port, proxy.headers)
            if origin.scheme == "https":
                await connection.start_tls(self._context, origin.host)
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _addresses(self, origin: Origin) -> list[Address]:
        """Return those addresses of a host to which a connection may go. Raises `Unreachable`."""
        try:
            given = [origin.host] if literal(origin.host) else await self.resolve(origin.host)
            found = [ip_address(each) for each in dict.fromkeys(given)]
        except (OSError, ValueError):  # no such name, or none that a resolver takes
            found = []
        fit = [address for address in found if self._allowed.may_connect(origin, address)]
        if not fit:  # one reason for all: which it was would show a peer what names the company has
            raise Unreachable("connection_refused")
        return fit[:MOST_ADDRESSES]

    async def _first_of(self, addresses: Sequence[Address], port: int) -> Connection:
        for address in addresses[:-1]:
            with suppress(Unreachable, TimeoutError):
                async with asyncio.timeout(self._timeout / len(addresses)):  # one that is silent leaves time for others
                    return await _open(str(address), port)
        return await _open(str(addresses[-1]), port)


class _Pool:
    """The connections of one event loop: those between two requests, and places for all."""

    def __init__(self, most: int) -> None:
        self._places = asyncio.Semaphore(most)
        self._most = most
        self._busy = 0
        self._kept: dict[Origin, list[tuple[Connection, float]]] = {}
        """The origin that was used last is the last one, and of its connections the last one is taken first."""
        self._size = 0
        self._is_closed = False

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold the place of one connection, which may be a kept one."""
        async with self._places:
            self._busy += 1
            try:
                yield
            finally:
                self._busy -= 1

    def take(self, origin: Origin) -> Connection | None:
        """Return a kept connection, if there is one. The caller holds a place."""
        self._end_old()
        while origin in self._kept:
            connection = self._remove(origin, -1)
            if connection.is_usable:
                return connection
            connection.abort()
        while self._size and self._size + self._busy > self._most:  # the caller opens one
            self._end_first()
        return None

    def keep(self, origin: Origin, connection: Connection) -> None:
        if self._is_closed or not connection.is_usable:
            connection.abort()
            return
        kept = self._kept.pop(origin, [])
        kept.append((connection, asyncio.get_running_loop().time() + KEPT_SECONDS))
        self._kept[origin] = kept
        self._size += 1
        self._end_old()

    def close(self) -> None:
        self._is_closed = True
        while self._size:
            self._end_first()

    def _end_old(self) -> None:
        # The first is not always the oldest, but near it, and no other is looked at: a request costs the same however
        # many are kept.
        now = asyncio.get_running_loop().time()
        while self._size and next(iter(self._kept.values()))[0][1] < now:
            self._end_first()

    def _end_first(self) -> None:
        self._remove(next(iter(self._kept)), 0).abort()

    def _remove(self, origin: Origin, at: int) -> Connection:
        kept = self._kept[origin]
        connection, _ = kept.pop(at)
        self._size -= 1
        if not kept:
            del self._kept[origin]
        return connection


class _Proxy(NamedTuple):
    host: str
    port: int
    headers: Headers

    @classmethod
    def of(cls, url: str) -> "_Proxy":
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 0
        except ValueError:
            host, port, parts = None, 0, urlsplit("")
        if parts.scheme != "http" or not host or not port or parts.path not in ("", "/") or parts.query:
            # Its password is in no message.
            raise SetupError("proxy= must be the address of a proxy, such as http://proxy.example.com:3128")
        headers = []
        if parts.username is not None:
            credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers.append(("Proxy-Authorization", f"Basic {b64encode(credentials.encode()).decode()}"))
        return cls(host, port, headers)


def _tls(ca: str | None) -> ssl.SSLContext:
    try:
        import certifi
    except ImportError as error:
        raise lacking("Asking addresses that clients name", "auth", error) from error
    # Not `ssl.create_default_context`, which reads SSLKEYLOGFILE, and SSL_CERT_FILE where it is given no file.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_verify_locations(certifi.where())
    if ca is not None:
        try:
            context.load_verify_locations(ca)
        except OSError as error:  # of the file, or of what is in it
            raise SetupError(f"ca={ca!r} must be a file in PEM with certificates of authorities: {error}") from None
    return context


def _request(method: str, target: Target, headers: Mapping[str, str], content: bytes) -> h11.Request:
    own = [("Host", target.origin.authority), ("Accept-Encoding", "identity")]  # what is compressed grows when read
    if content or method not in ("GET", "HEAD"):
        own.append(("Content-Length", str(len(content))))
    return h11.Request(method=method, target=target.path, headers=[*own, *headers.items()])


async def _open(host: str, port: int) -> Connection:
    """Connect to an address, or to the proxy. Raises `Unreachable`, `TimeoutError`."""
    try:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
    except TimeoutError:
        raise
    except OSError:
        raise Unreachable("connection_refused") from None
    return connection

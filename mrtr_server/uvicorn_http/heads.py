"""How uvicorn reads the heads of requests, with httptools: an upgrade is ignored, and a known head is not read again.

Java's `HttpClient` and `curl --http2` send `Upgrade: h2c` with each first request to an `http:` address. A server may
ignore that (RFC 9110, 7.8). httptools takes whatever follows the head for the other protocol: the body is lost, or the
request refused where head and body come one after the other. So the head is read again, as if it did not ask.

A client that keeps its connection sends nearly the same head again and again. A head that has come before on the same
connection, but for the digits of its `content-length`, means what it meant then. So the parser need not read it again:
the request is what uvicorn made of the head the first time, with another length and another body. It has to come as a
whole, when nothing else is under way; everything else goes to the parser. What is kept of a head ends with the
connection, and serves only requests that have it byte for byte, credentials included.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .whole_responses import Cycle, WholeResponses, is_known

_ASKING = frozenset({b"upgrade", b"http2-settings"})
"""Headers that ask for another protocol, and their names in `Connection`."""

_CONNECT = b"CONNECT"

MOST_HEADS = 4  # that are kept for a connection

LONGEST_HEAD = 4096  # bytes of a head that is kept

MOST_DIGITS = 5  # of the length of a body that is taken at once, about as much as uvicorn keeps for an application

LESSONS = 8  # heads that are kept without one of them coming again, until no more are

_END = b"\r\n\r\n"

_LENGTH = re.compile(rb"\r\ncontent-length: ([1-9][0-9]*)\r", re.IGNORECASE)

_LENGTH_NAME = b"content-length"

_CHANGING = frozenset({b"expect", b"transfer-encoding", b"upgrade"})  # by which a request is not plain

_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})

_NESTED = {"asgi", "headers", "state"}  # what is in a scope that an application could change

_PLAIN = (str, bytes, tuple, type(None))


class Parser(HttpRequestParser):
    """httptools' parser of requests, which ignores that they ask for another protocol than WebSocket."""

    def __init__(self, protocol: Any) -> None:
        super().__init__(protocol)
        self._protocol = protocol
        if hasattr(self, "set_dangerous_leniencies"):  # as uvicorn has it
            self.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed_data(self, data: Any) -> None:
        """Read bytes of a connection. Raises as httptools does; `HttpParserUpgrade` for WebSocket and CONNECT alone."""
        parser, left = self, memoryview(data)
        while True:
            try:
                HttpRequestParser.feed_data(parser, left)
                return
            except HttpParserUpgrade as upgrade:
                protocol, head = self._protocol, self._protocol.head_without_upgrade()
                if head is None:
                    raise
                left = left[upgrade.args[0] :]
                parser = protocol.parser = Parser(protocol)
                HttpRequestParser.feed_data(parser, head)


class IgnoredUpgrades(HttpToolsProtocol):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.parser = Parser(self)

    def _should_upgrade(self) -> bool:
        """Return whether a message is none to serve: it goes to another protocol, or its head is read again."""
        return bool(self.parser.get_method() != _CONNECT or super()._should_upgrade())

    def head_without_upgrade(self) -> bytes | None:
        """Return the head that was read, as if it did not ask for another protocol; None where that is to be served."""
        method = self.parser.get_method()
        if method == _CONNECT or super()._should_upgrade():
            return None
        lines = [b"%b %b HTTP/%b\r\n" % (method, self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(each for each in value.split(b",") if each.strip().lower() not in _ASKING)
            if value and name not in _ASKING:
                lines.append(b"%b: %b\r\n" % (name, value))
        return b"".join([*lines, b"\r\n"])


def ignoring_upgrades(base: Any) -> Any:
    if not issubclass(base, HttpToolsProtocol) or not hasattr(base, "_should_upgrade"):
        return base
    return type(base.__name__, (IgnoredUpgrades, base), {})


_OF_PROXIES = ProxyHeadersMiddleware.__call__.__code__
_PASSES_ON = frozenset(_OF_PROXIES.co_names) <= frozenset(
    {"app", "append", "decode", "dict", "get", "get_trusted_client_address", "join", "replace", "strip"}
    | {"trusted_hosts"}
) and {each for each in _OF_PROXIES.co_consts if isinstance(each, bytes)} <= _FORWARDED | {b", "}
"""Whether uvicorn's middleware for the headers of proxies is the one that looks at `_FORWARDED` alone."""

Serve = Callable[["KnownRequest"], Awaitable[Any]]


class Head(NamedTuple):
    before: bytes  # its bytes before the digits of its length
    after: bytes  # and behind them
    scope: dict[str, Any]  # as uvicorn made it, before an application saw it
    place: int  # of the length among the headers
    names: dict[bytes, bytes]  # the headers by their names
    serve: Serve  # serves such requests


class KnownRequest(Cycle):
    """A request whose head has come before. Its scope is the one of the head, which nobody may change."""

    task: "asyncio.Task[None]"
    _own: dict[str, Any] | None = None

    def __init__(self, protocol: WholeResponses, head: Head, length: bytes, body: bytes) -> None:
        super().__init__(protocol, head.scope, body, True, False)
        self._head = head
        self._length = length

    def headers(self) -> dict[bytes, bytes]:
        return {**self._head.names, _LENGTH_NAME: self._length}

    def own_scope(self) -> dict[str, Any]:
        if self._own is None:
            head, shared = self._head, self._head.scope
            headers = shared["headers"].copy()
            headers[head.place] = (_LENGTH_NAME, self._length)
            state = self.protocol.app_state.copy()
            self._own = {**shared, "asgi": shared["asgi"].copy(), "headers": headers, "state": state}
        return self._own

    async def serve(self, tasks: "set[asyncio.Task[None]]") -> None:
        """Serve it, as one of the server's tasks; what the application does wrong is dealt with as uvicorn does."""
        failure: BaseException | None = None
        result = None
        try:
            result = await self._head.serve(self)
        except BaseException as error:
            failure = error
        try:
            if failure is not None or result is not None or not self.response_complete:
                await self.run_asgi(partial(_end_as, failure, result))
        finally:
            failure = None  # which refers to this frame
            tasks.discard(self.task)


async def _end_as(failure: BaseException | None, result: Any, *_: Any) -> Any:
    if failure is not None:
        raise failure
    return result


class RepeatedHeads(WholeResponses):
    # The scope of the request that has begun in this data, before an application saw it.
    _begun: dict[str, Any] | None = None
    _heads: tuple[Head, ...] = ()
    _lessons = LESSONS

    def data_received(self, data: bytes) -> None:
        if not self._between:
            super().data_received(data)
            return
        for head in self._heads:
            if data.startswith(head.before) and self._repeat(head, data):
                return
        self._begun = None
        super().data_received(data)
        if self._begun is not None and self._between and self._lessons:
            self._keep(self._begun, data)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if type(cycle) is Cycle and cycle.keep_alive and self._lessons:
            scope: Any = cycle.scope
            self._begun = {**scope, "asgi": scope["asgi"].copy(), "headers": scope["headers"].copy()}
        super()._start_asgi_task(cycle, app)

    def _repeat(self, head: Head, data: bytes) -> bool:
        start, after = len(head.before), head.after
        end = data.find(b"\r", start, start + MOST_DIGITS + 1)
        if end <= start or not data.startswith(after, end):
            return False
        length, body = data[start:end], data[end + len(after) :]
        if not body or length != b"%d" % len(body) or (self.limit_concurrency is not None and self.is_full()):
            return False
        if not self.cycle.response_complete or self.transport.is_closing():
            return False
        if self.loop.get_task_factory() is not None:  # an eager one would serve the request before it has begun
            return False
        self._idle_since = None
        self._lessons = LESSONS
        self.scope: Any = head.scope
        self.cycle = request = KnownRequest(self, head, length, body)
        request.task = task = self.loop.create_task(request.serve(self.tasks))
        self.tasks.add(task)
        return True

    def _keep(self, scope: dict[str, Any], data: bytes) -> None:
        """Keep a head for the next time, if it is one of a request that is plain and has come at once."""
        self._lessons -= 1
        end = data.find(_END) + len(_END)
        head = data[:end]
        found = _LENGTH.search(head)
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        names = [name for name, _ in headers]
        if (
            found is None
            or end > LONGEST_HEAD
            or scope["method"] != "POST"
            or names.count(_LENGTH_NAME) != 1
            or not _CHANGING.isdisjoint(names)
            or {name for name, value in scope.items() if not isinstance(value, _PLAIN)} != _NESTED
            or getattr(self.config, "reset_contextvars", False)
        ):
            return
        place, length = names.index(_LENGTH_NAME), found[1]
        if headers[place][1] != length or length != b"%d" % (len(data) - end):
            return
        by_name = dict(headers)
        before, after = head[: found.start(1)], head[found.end(1) :]
        kept = Head(before, after, scope, place, by_name, self._find(scope, by_name))
        self._heads = (kept, *self._heads[: MOST_HEADS - 1])

    def _find(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> Serve:
        """Return what serves requests with this head, without what does nothing to them."""
        app: Any = self.app
        if type(app) is ProxyHeadersMiddleware and _PASSES_ON and _FORWARDED.isdisjoint(headers):
            app = app.app
        find = getattr(type(app), "_find_known", None)  # not of the object, which may pass on what it lacks
        if find is not None and len(headers) == len(scope["headers"]) and (known := find(app, scope, headers)):
            return known  # type: ignore[no-any-return]
        return partial(_serve_with, app)


def _serve_with(app: Any, request: KnownRequest) -> Awaitable[Any]:
    return app(request.own_scope(), request.receive, request.send)  # type: ignore[no-any-return]


def repeated_heads(base: Any) -> Any:
    """Return a protocol that reads a head once, if we know `base`, whose transport must have `flush`; else `base`."""
    if not issubclass(base, HttpToolsProtocol) or not is_known(HttpToolsProtocol, RequestResponseCycle):
        return base
    return type(base.__name__, (RepeatedHeads, base), {})

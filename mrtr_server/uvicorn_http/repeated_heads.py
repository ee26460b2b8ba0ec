"""Requests whose heads are known: a client that keeps its connection sends nearly the same head again and again.

A head that has come before on the same connection, but for the digits of its `content-length`, means what it meant
then. So the parser need not read it again: the request is what uvicorn made of the head the first time, with another
length and another body. It has to come as a whole, when nothing else is under way; everything else goes to the parser.
What is kept of a head ends with the connection, and serves only requests that have it byte for byte, credentials
included.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ..asgi_server import find_direct
from .whole_responses import Cycle, WholeResponses, is_known

MOST_HEADS = 4
"""Heads that are kept for a connection."""

LONGEST_HEAD = 4096
"""Bytes of a head that is kept."""

MOST_DIGITS = 5
"""Digits of the length of a body that is taken at once, about as much as uvicorn keeps for an application to take."""

LESSONS = 8
"""Heads that are kept without one of them coming again, until no more are."""

_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: ([1-9][0-9]*)\r", re.IGNORECASE)
_LENGTH_NAME = b"content-length"
_CHANGING = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
"""Headers by which a request is not plain."""

_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})
_NESTED = {"asgi", "headers", "state"}
"""What is in a scope that an application could change."""
_PLAIN = (str, bytes, tuple, type(None))

_OF_PROXIES = ProxyHeadersMiddleware.__call__.__code__
_PASSES_ON = frozenset(_OF_PROXIES.co_names) <= frozenset(
    {"app", "append", "decode", "dict", "get", "get_trusted_client_address", "join", "replace", "strip"}
    | {"trusted_hosts"}
) and {each for each in _OF_PROXIES.co_consts if isinstance(each, bytes)} <= _FORWARDED | {b", "}
"""Whether uvicorn's middleware for the headers of proxies is the one that looks at `_FORWARDED` alone."""

App = Callable[[Any, Any, Any], Awaitable[Any]]


class Head(NamedTuple):
    """A head, and what it means.

    Args:
        before, after: its bytes on both sides of the digits of its length.
        scope: as uvicorn made it, before an application saw it.
        headers: as uvicorn made them, with the length of the last request.
        names: the same by their names; None if one is there twice.
        place: where among them the length is.
        app: serves such requests.
    """

    before: bytes
    after: bytes
    scope: dict[str, Any]
    headers: list[tuple[bytes, bytes]]
    names: dict[bytes, bytes] | None
    place: int
    app: App


class RepeatedHeads(WholeResponses):
    """uvicorn's HTTP protocol, which reads a head once."""

    _begun: dict[str, Any] | None = None
    """The scope of the request that has begun while this data was read, as it was before an application saw it."""
    _heads: tuple[Head, ...] = ()
    _lessons = LESSONS

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
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
        """Serve a request if all of it has come, with a head that is known; return whether it was."""
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
        scope: Any = head.scope.copy()
        scope["asgi"] = scope["asgi"].copy()
        scope["state"] = self.app_state.copy()
        headers = head.headers
        headers[head.place] = (_LENGTH_NAME, length)
        scope["headers"] = headers.copy()
        self.scope = scope
        self.cycle = cycle = Cycle(self, scope, body, True, False)
        if head.names is not None:
            cycle.listed, cycle.names = headers, head.names.copy()
            cycle.names[_LENGTH_NAME] = length
        cycle.task = task = self.loop.create_task(cycle.serve(head.app, self.tasks))
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
        by_name = dict(headers) if len(set(names)) == len(names) else None
        before, after = head[: found.start(1)], head[found.end(1) :]
        kept = Head(before, after, scope, headers, by_name, place, self._find_app(names))
        self._heads = (kept, *self._heads[: MOST_HEADS - 1])

    def _find_app(self, names: list[bytes]) -> App:
        """Return what serves a request with headers of these names, without what does nothing to it."""
        app: Any = self.app
        if type(app) is ProxyHeadersMiddleware and _PASSES_ON and _FORWARDED.isdisjoint(names):
            app = app.app
        return find_direct(app)


def repeated_heads(base: Any) -> Any:
    """Return a protocol that reads a head once; `base` itself where this uvicorn is not one that we know.

    Args:
        base: the protocol, on a transport with `flush`; see `one_write`.
    """
    if not issubclass(base, HttpToolsProtocol) or not is_known(HttpToolsProtocol, RequestResponseCycle):
        return base
    return type(base.__name__, (RepeatedHeads, base), {})

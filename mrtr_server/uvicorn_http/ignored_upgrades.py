"""uvicorn's HTTP protocol with httptools, which goes on with HTTP/1.1 where a client asks for another protocol.

Java's `HttpClient` and `curl --http2` send `Upgrade: h2c` with each first request to an `http:` address. A server may
ignore that (RFC 9110, 7.8). httptools takes whatever follows the head for the other protocol: the body is lost, or the
request refused where head and body come one after the other. So the head is read again, as if it did not ask.
"""

from typing import Any

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_ASKING = frozenset({b"upgrade", b"http2-settings"})
"""Headers that ask for another protocol, and their names in `Connection`."""

_CONNECT = b"CONNECT"


class Parser(HttpRequestParser):
    """httptools' parser of requests, which ignores that they ask for another protocol than WebSocket."""

    def __init__(self, protocol: Any) -> None:
        super().__init__(protocol)
        self._protocol = protocol
        if hasattr(self, "set_dangerous_leniencies"):  # as uvicorn has it
            self.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed_data(self, data: Any) -> None:
        """Read what has come. Raises as httptools does; `HttpParserUpgrade` for WebSocket and CONNECT alone."""
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
    """uvicorn's HTTP protocol, with such a parser."""

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
    """Return a protocol of uvicorn that ignores upgrades; `base` itself where it is not one that we know."""
    if not issubclass(base, HttpToolsProtocol) or not hasattr(base, "_should_upgrade"):
        return base
    return type(base.__name__, (IgnoredUpgrades, base), {})

"""Whoever is turned away at the door leaves a line that says what to set, and can't fill the log."""

import asyncio
import json
import logging
import socket
from typing import Any

import pytest
import uvicorn
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from mrtr_server import BearerTokens, Context, MRTRServer
from mrtr_server.logs.refusals import CHARACTERS, LINES_IN_WINDOW, WINDOW, BoundedLines, RefusalLog

from ..conftest import Serve
from ..support.direct import exchange, headers_for
from ..support.serving import in_thread
from ..support.wire import Reply, modern, request

TWICE = [
    (b"Host", b"tools.example.com", b"other.example.com"),
    (b"Host", b"tools.example.com", b"tools.example.com"),
    (b"Authorization", b"Bearer good", b"Bearer bad"),
    (b"Authorization", b"Bearer bad", b"Bearer good"),
    (b"Content-Length", b"5", b"4"),
    (b"Content-Length", b"4", b"4"),
]


def posted(app: ASGIApp, *headers: tuple[bytes, bytes], message: dict[str, Any] | None = None, **scope: Any) -> Reply:
    message = message or modern("tools/list")
    return asyncio.run(exchange(app, json.dumps(message).encode(), [*headers_for(message), *headers], **scope))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "mrtr_server"]


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("door", keys=[bytes(32)], allowed_hosts=["tools.example.com"])


class TestAStateThatDoesNotOpen:
    """Clients choose how many of them come."""

    def test_leaves_one_line_for_each_reason(self, caplog: pytest.LogCaptureFixture) -> None:
        app = MRTRServer("door", keys=[bytes(32)], authorize=lambda caller, name: name != "hidden")

        @app.tool
        async def ask(ctx: Context) -> str:
            await ctx.confirm("Sure?")
            return "sure"

        @app.tool
        async def hidden() -> str:
            return ""

        def call(method: str, **params: Any) -> None:
            assert posted(app, message=modern(method, params)).status != 200

        for number in range(50):
            call("tools/call", name="ask", arguments={}, requestState=f"made up {number}")
            call("tools/call", name="ask", arguments={}, requestState=number)
            call("tools/call", name="hidden", arguments={})
            call("tools/list", requestState="x")
        assert lines(caplog) == [
            "tools/call 'ask': refused a requestState: not Base64",
            "tools/call 'ask': refused a requestState: not a string",
            "tools/call 'hidden': refused by authorize=",
            "tools/list: refused a requestState: this method issues none",
        ]


class TestAHeaderThatIsThereTwice:
    """One of them is what a proxy has gone by, the other what a server would."""

    @pytest.mark.parametrize(("name", "first", "second"), TWICE)
    def test_is_refused(self, name: bytes, first: bytes, second: bytes, caplog: pytest.LogCaptureFixture) -> None:
        name = name.lower()
        app = MRTRServer("door", keys=[bytes(32)])
        reply = posted(app, (name, first), (name, second))
        assert reply.status == 400
        assert json.loads(reply.body) == {"error": f"The header {name.decode()} occurs twice"}
        assert lines(caplog) == [
            f"Refused a request with two headers {name.decode()!r}: check the proxy in front of this server, which "
            "must send one"
        ]

    @pytest.mark.parametrize(("name", "first", "second"), TWICE)
    @pytest.mark.parametrize("http", ["h11", "httptools"])
    def test_is_refused_over_the_wire_too(
        self, name: bytes, first: bytes, second: bytes, http: str, serve: Serve
    ) -> None:
        """By the web server or by us."""
        wire = serve(MRTRServer("door", keys=[bytes(32)]), http=http)
        body = json.dumps(request("tools/list")).encode()
        given = {b"Host": b"x", b"Content-Length": b"%d" % len(body), b"Content-Type": b"application/json"}
        given.pop(name, None)
        headers = [*given.items(), (name, first), (name, second)]
        with socket.create_connection(("127.0.0.1", int(wire.url.split(":")[2].split("/")[0]))) as connection:
            head = b"".join(b"%s: %s\r\n" % header for header in headers)
            connection.sendall(b"POST /mcp HTTP/1.1\r\n" + head + b"\r\n" + body)
            assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")

    def test_is_refused_before_anybody_is_authenticated(self) -> None:
        asked: list[Scope] = []

        class Seeing:
            def __init__(self, app: ASGIApp) -> None:
                self.app = app

            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                asked.append(scope)
                await self.app(scope, receive, send)

        tokens = BearerTokens({"good": "ann"})
        app = MRTRServer("door", keys=[bytes(32)], auth=tokens, middleware=[Middleware(Seeing)])
        for tokens_sent in ((b"good", b"bad"), (b"bad", b"good"), (b"bad", b"bad")):
            headers = [(b"authorization", b"Bearer " + token) for token in tokens_sent]
            assert posted(app, *headers).status == 400
        assert asked == []
        assert posted(app, (b"authorization", b"Bearer good")).status == 200

    def test_is_refused_of_a_callback(self) -> None:
        app = MRTRServer("door", keys=[bytes(32)])
        app.callback("login")(lambda request: "x")
        hosts = [(b"host", b"localhost"), (b"host", b"evil.example")]
        assert posted(app, *hosts, path="/callbacks/login", method="GET").status == 400

    def test_of_any_other_name_is_not(self) -> None:
        app = MRTRServer("door", keys=[bytes(32)])
        assert posted(app, (b"x-forwarded-for", b"1"), (b"x-forwarded-for", b"2"), (b"cookie", b"a=1")).status == 200


class TestALine:
    def test_is_there_for_an_origin_that_is_refused(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        host = (b"host", b"tools.example.com")
        assert posted(app, host, (b"origin", b"https://chat.example.com")).status == 403
        assert lines(caplog) == [
            "Refused the origin 'https://chat.example.com': to let browsers call from there, add it to origins="
        ]

    def test_is_there_for_a_host_that_is_refused(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        assert posted(app, (b"host", b"evil.example")).status == 403
        assert lines(caplog) == [
            "Refused the host 'evil.example': if clients reach this server by that name, add it to allowed_hosts="
        ]

    def test_is_there_for_a_host_of_a_callback(self, caplog: pytest.LogCaptureFixture) -> None:
        app = MRTRServer("door", keys=[bytes(32)])
        app.callback("login")(lambda request: "x")
        assert posted(app, (b"host", b"tools.example.com"), path="/callbacks/login", method="GET").status == 403
        assert lines(caplog) == [
            "Callback 'login': refused the host 'tools.example.com': if browsers reach this server by that name, set "
            "base_url="
        ]

    @pytest.mark.parametrize("client", [{}, {"clientInfo": {"name": "chat\x1b[2J", "version": "1"}}])
    def test_is_there_for_a_capability_that_is_missing(
        self, client: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        app = MRTRServer("door", keys=[bytes(32)])

        @app.tool
        async def order(ctx: Context) -> str:
            await ctx.confirm("Sure?")
            return "done"

        @app.tool(task="required")
        async def report() -> str:
            return "done"

        for tool in ("order", "report"):
            message = modern("tools/call", {"name": tool}, capabilities={}, **client)
            assert posted(app, message=message).status == 400
        ordering, reporting = lines(caplog)
        name = "chat\\x1b[2J" if client else ""
        assert ordering.startswith(
            f"'tools/call order' was refused: the client '{name}' did not declare the capability "
            '\'{"elicitation": {"form": {}}}\' that it needs. '
        )
        assert "ctx.client.supports(...) in the tool" in ordering
        assert "io.modelcontextprotocol/tasks" in reporting
        assert 'register the tool with task="optional"' in reporting

    def test_is_not_there_where_nothing_is_refused(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        host = (b"host", b"tools.example.com")
        assert posted(app, host, (b"origin", b"http://localhost:3000")).status == 200
        assert lines(caplog) == []

    def test_has_no_control_characters_and_an_end(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        for name in (b"origin", b"host"):
            caplog.clear()
            value = b"https://x\x1b[2J\x9b\r" + b"y" * 60_000
            headers = {b"host": b"tools.example.com", name: value}
            assert posted(app, *headers.items()).status == 403
            (line,) = lines(caplog)
            assert line.isprintable()
            assert len(line) < 1000


class TestAThousandOfThem:
    @pytest.fixture
    def now(self) -> list[float]:
        return [0.0]

    @pytest.fixture
    def refusals(self, now: list[float]) -> RefusalLog:
        return RefusalLog(lambda: now[0])

    def test_leave_one_line_a_minute_if_they_are_alike(
        self, refusals: RefusalLog, now: list[float], caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(1000):
            refusals.note("Refused %r", "evil")
        assert lines(caplog) == ["Refused 'evil'"]
        now[0] = WINDOW
        refusals.note("Refused %r", "evil")
        refusals.note("Refused %r", "evil")
        assert lines(caplog)[1:] == ["Refused 'evil' (999 more like it were not logged)"]

    def test_leave_a_few_if_each_is_another(
        self, refusals: RefusalLog, now: list[float], caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(1000):
            refusals.note("Refused the origin %r", f"evil-{number}")
        assert len(lines(caplog)) == LINES_IN_WINDOW
        refusals.note("Refused the host %r", "good")
        assert lines(caplog)[-1] == "Refused the host 'good'"
        now[0] = WINDOW
        refusals.note("Refused the origin %r", "good")
        assert lines(caplog)[-1] == f"Refused the origin 'good' ({1000 - LINES_IN_WINDOW} more like it were not logged)"

    def test_are_kept_in_mind_by_their_beginnings(self, refusals: RefusalLog, caplog: pytest.LogCaptureFixture) -> None:
        for letter in "ab":
            refusals.note("Refused %r", "x" * CHARACTERS + letter * 1_000_000)
        (line,) = lines(caplog)
        assert len(line) < CHARACTERS + 100


class TestTheLinesOfAWebServer:
    @pytest.fixture
    def now(self) -> list[float]:
        return [0.0]

    @pytest.fixture
    def server(self, now: list[float]) -> logging.Logger:
        made = logging.getLogger("tests.web_server")
        made.filters[:] = [BoundedLines(clock=lambda: now[0])]
        made.setLevel(logging.INFO)
        return made

    def said(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        return [record.getMessage() for record in caplog.records]

    def test_are_one_for_each_reason_and_say_how_many_there_were(
        self, server: logging.Logger, now: list[float], caplog: pytest.LogCaptureFixture
    ) -> None:
        def warn() -> None:
            server.warning("Invalid %s", "HTTP")

        for _ in range(1000):
            warn()
        server.warning("Another reason")
        assert self.said(caplog) == ["Invalid HTTP", "Another reason"]
        now[0] = WINDOW
        warn()
        assert self.said(caplog)[2:] == ["Invalid HTTP (999 more like it were not logged)"]

    def test_are_few_whatever_clients_put_into_them(
        self, server: logging.Logger, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(1000):
            server.error(f"Invalid {number}")
        assert len(self.said(caplog)) == LINES_IN_WINDOW

    def test_are_one_for_each_exception_and_where_it_was_raised(
        self, server: logging.Logger, caplog: pytest.LogCaptureFixture
    ) -> None:
        class WithoutWords(Exception):
            def __str__(self) -> str:
                raise ValueError("no words")

        def fail(error: Exception) -> None:
            try:
                raise error
            except Exception as raised:
                server.error("Exception in ASGI application", exc_info=raised)

        for _ in range(10):
            fail(ValueError("one"))
            fail(ValueError("two"))
            fail(KeyError("one"))
            fail(WithoutWords())
        errors = [repr(record.exc_info[1]) for record in caplog.records if record.exc_info]
        assert errors == ["ValueError('one')", "ValueError('two')", "KeyError('one')", "WithoutWords()"]

    def test_that_are_no_warning_are_all_there(self, server: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
        for _ in range(3):
            server.info("Application startup complete.")
        assert len(self.said(caplog)) == 3

    def test_with_an_exception_are_all_there_for_an_author(
        self, server: logging.Logger, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.filters[:] = [BoundedLines(exceptions=False)]
        for _ in range(3):
            server.warning("Invalid HTTP")
            server.error("Exception in ASGI application", exc_info=ValueError("one"))
        assert self.said(caplog) == ["Invalid HTTP", *["Exception in ASGI application"] * 3]

    def test_are_bounded_for_as_long_as_a_server_runs(self, caplog: pytest.LogCaptureFixture) -> None:
        web_server = logging.getLogger("uvicorn.error")

        def warn() -> int:
            caplog.clear()
            for _ in range(3):
                its_own = (uvicorn.__file__, 1, "Invalid HTTP", (), None)
                web_server.handle(web_server.makeRecord(web_server.name, logging.WARNING, *its_own))
            return self.said(caplog).count("Invalid HTTP")

        with in_thread(MRTRServer("x", keys=[bytes(32)]), log_config=None):
            assert warn() == 1
        assert warn() == 3

    def test_that_an_author_writes_to_its_logger_are_all_there(self, caplog: pytest.LogCaptureFixture) -> None:
        with in_thread(MRTRServer("x", keys=[bytes(32)]), log_config=None):
            for number in range(LINES_IN_WINDOW + 1):
                logging.getLogger("uvicorn.error").warning("A payment has failed: %d", number)
                logging.getLogger("uvicorn.error").error("Again", exc_info=ValueError("one"))
        said = self.said(caplog)
        assert sum("payment" in each for each in said) == said.count("Again") == LINES_IN_WINDOW + 1

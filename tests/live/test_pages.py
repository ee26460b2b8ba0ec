"""Pages to open: asked while a call is open, or listed in its error where it can't be; who hears that one is done."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import httpx2
import mcp_types as types
import pytest
from mcp import ClientSession, MCPError, UrlElicitationRequiredError
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from starlette.requests import Request

from mrtr_server import BearerTokens, Context, ElicitUrl, Limits, MRTRServer, SQLStore
from mrtr_server.storage.sql import database
from mrtr_server.storage.sql.administration import new_epoch
from mrtr_server.testing import EVERYTHING, Clock, replica

from ..support.effects import EFFECTS
from ..support.handshake import Handshake, check
from ..support.models import Login
from ..support.serving import in_thread
from ..support.wire import Reply, text_of
from .test_tasks import related

JSON_ONLY = {"Accept": "application/json"}
USERS = {"ann-token": "ann", "bob-token": "bob"}


def calendar(**options: Any) -> MRTRServer:
    """Return a server with a page that reports back, and tools that need it."""
    app = MRTRServer("calendar", limits=Limits(hold_seconds=5), **{"keys": [bytes(32)], **options})

    @app.callback("login")
    async def login(request: Request) -> Login:
        return Login(name=request.query_params.get("code", "?"))

    def effect() -> str:
        EFFECTS.append("prepared")
        return "prepared"

    @app.tool
    async def meet(ctx: Context, when: str = "today") -> str:
        await ctx.step(effect)
        account = await ctx.elicit_url("Log in", callback=login)
        EFFECTS.append(f"met {account.name} {when}")
        return f"{account.name} {when}"

    @app.tool
    async def meet_and_ask(ctx: Context) -> str:
        account = await ctx.elicit_url("Log in", callback=login)
        return f"{account.name} {(await ctx.elicit('Who?', Login)).name}"

    @app.tool
    async def visit(ctx: Context) -> str:
        if "visited" not in EFFECTS:
            await ctx.elicit_url("Have a look", "https://example.com/")
        return "seen"

    @app.tool(task="required")
    async def sign(ctx: Context) -> str:
        account, other = await ctx.ask(
            ElicitUrl("Log in", callback=login), ElicitUrl("And once more", callback=login, key="other")
        )
        return f"signed by {account.name} and {other.name}"

    @app.prompt
    async def invite(ctx: Context) -> str:
        return (await ctx.elicit_url("Log in", callback=login)).name

    return app


@contextmanager
def serving(replicas: int = 1, *, auth: bool = True, **options: Any) -> Iterator[list[str]]:
    """Serve some replicas; return their endpoints."""
    known: dict[str, Any] = {"auth": BearerTokens(USERS), "identify": lambda request: request.cookies.get("user")}
    with ExitStack() as stack:
        urls = []
        for _ in range(replicas):
            given = {name: make() if callable(make) else make for name, make in options.items()}
            clock = given.pop("clock", None)
            app = calendar(**(known if auth else {}), **given)
            app = app if clock is None else replica(app, clock=clock)
            urls.append(f"http://127.0.0.1:{stack.enter_context(in_thread(app, wait=False))}/mcp")
        yield urls


@contextmanager
def client(urls: list[str], user: str = "ann", **more: Any) -> Iterator[Handshake]:
    connected = Handshake(urls, headers={"Authorization": f"Bearer {user}-token"} if user else {}, **more)
    try:
        connected.begin()
        yield connected
    finally:
        connected.close()


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[list[str]]:
    """Three replicas with one database."""
    with serving(3, store=lambda: SQLStore(f"sqlite:///{tmp_path}/live.db")) as all_urls:
        yield all_urls


def opened(page: str, user: str = "ann", code: str = "Ann") -> str:
    """Open a page as the browser of a user does; return what it shows."""
    return httpx.get(f"{page}&code={code}", cookies={"user": user}).text


def pages(reply: Reply) -> list[dict[str, Any]]:
    """Return the pages of an error that lists them, checked against the schema."""
    assert (reply.status, reply.code) == (200, -32042)
    check("URLElicitationRequiredError", reply.message)
    listed: list[dict[str, Any]] = reply.error.data["elicitations"]
    assert all(each["mode"] == "url" and each["elicitationId"] for each in listed)
    return listed


class TestWhileTheCallIsOpen:
    def test_the_client_hears_on_the_stream_of_the_call_that_the_page_is_done(self, urls: list[str]) -> None:
        with client(urls) as ann, ann.calling("meet") as stream:
            asked = stream.ask()
            assert ann.answer(asked, {"action": "accept"}).status == 202
            assert "close this page" in opened(asked["params"]["url"])
            note = stream.next()
            assert note["method"] == "notifications/elicitation/complete"
            assert note["params"] == {"elicitationId": asked["params"]["elicitationId"]}
            assert text_of(stream.end()) == "Ann today", "and hears it once"

    def test_so_it_does_of_a_page_that_is_done_before_it_answers(self, urls: list[str]) -> None:
        with client(urls) as ann, ann.calling("meet") as stream:
            asked = stream.ask()
            opened(asked["params"]["url"])
            assert stream.next()["params"] == {"elicitationId": asked["params"]["elicitationId"]}
            ann.answer(asked, {"action": "accept"})
            assert text_of(stream.end()) == "Ann today"

    def test_a_page_without_a_callback_has_a_name_too(self, urls: list[str]) -> None:
        with client(urls) as ann, ann.calling("visit") as stream:
            asked = stream.ask()
            assert asked["params"]["elicitationId"]
            ann.answer(asked, {"action": "accept"})
            assert text_of(stream.end()) == "seen"


class TestWhileATaskIsWaitedFor:
    """Its pages are done on the stream that waits for its result, whichever replica has that."""

    def test_the_client_hears_of_each_page_once_and_of_which_task(self, urls: list[str]) -> None:
        with client(urls) as ann:
            task = ann.task("sign")
            with ann.result_of(task) as stream:
                asked = [stream.ask(), stream.ask()]
                assert ann.answer(asked[0], {"action": "accept"}).status == 202
                opened(asked[0]["params"]["url"])
                first = stream.next()
                opened(asked[1]["params"]["url"], code="Eve")
                second = stream.next()
                assert ann.answer(asked[1], {"action": "accept"}).status == 202
                assert text_of(stream.end()) == "signed by Ann and Eve", "and hears of nothing else"
            for each, note in zip(asked, (first, second), strict=True):
                assert note["method"] == "notifications/elicitation/complete"
                assert note["params"]["elicitationId"] == each["params"]["elicitationId"]
                assert note["params"]["_meta"] == related(task)

    def test_who_comes_back_to_the_stream_hears_of_what_was_asked_before(self, urls: list[str]) -> None:
        with client(urls) as ann:
            task = ann.task("sign")
            with ann.result_of(task) as stream:
                first, second = stream.ask(), stream.ask()
                last = stream.last_id
            ann.answer(first, {"action": "accept"})
            opened(first["params"]["url"])
            with ann.resume(last) as stream:
                assert stream.next()["params"]["elicitationId"] == first["params"]["elicitationId"]
                opened(second["params"]["url"], code="Eve")
                assert stream.next()["params"]["elicitationId"] == second["params"]["elicitationId"]
                ann.answer(second, {"action": "accept"})  # before its page had reported, it would be asked again
                assert text_of(stream.end()) == "signed by Ann and Eve"


class TestInPlaceOfAResult:
    """A client that takes no stream can't be asked while its call is open."""

    def test_the_pages_are_listed_and_the_repeated_call_goes_on(self, urls: list[str]) -> None:
        with client(urls) as ann:
            ann.headers |= JSON_ONLY
            (page,) = pages(ann.call("meet", when="at noon"))
            assert page["message"] == "Log in"
            assert pages(ann.call("meet", when="at noon")) == [page], "not done yet: the same page"
            assert "close this page" in opened(page["url"])
            assert ann.call("meet", when="at noon").text == "Ann at noon"
        assert EFFECTS == ["prepared", "met Ann at noon"], "a step runs once in the flow, however often it is called"

    def test_a_page_that_has_reported_counts_though_the_flow_has_expired_meanwhile(self, tmp_path: Path) -> None:
        clock = Clock()
        store = SQLStore(f"sqlite:///{tmp_path}/live.db")
        with serving(store=lambda: store, clock=lambda: clock) as urls, client(urls) as ann:
            ann.headers |= JSON_ONLY
            (page,) = pages(ann.call("meet", when="later"))
            opened(page["url"])
            (other,) = pages(ann.call("meet", when="never"))
            clock.advance(3600)
            assert ann.call("meet", when="later").result["content"][0]["text"] == "Ann later"
            assert EFFECTS == ["prepared", "prepared", "met Ann later"], "what had run did not run again"
            assert pages(ann.call("meet", when="never")) != [other], "nobody had opened that one in time"

    def test_a_call_after_that_begins_anew(self, urls: list[str]) -> None:
        with client(urls) as ann:
            ann.headers |= JSON_ONLY
            (page,) = pages(ann.call("meet"))
            opened(page["url"])
            assert ann.call("meet").result
            (another,) = pages(ann.call("meet"))
            assert another["elicitationId"] != page["elicitationId"]

    def test_so_does_one_whose_flow_is_of_another_epoch_of_the_store(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would be refused for as long as the flow is kept."""
        monkeypatch.setattr(database, "EPOCH_AGE", 0.0)
        url = f"sqlite:///{tmp_path}/live.db"
        with serving(store=lambda: SQLStore(url)) as urls, client(urls) as ann:
            ann.headers |= JSON_ONLY
            (page,) = pages(ann.call("meet"))
            opened(page["url"])
            anyio.run(new_epoch, url)
            (another,) = pages(ann.call("meet"))
            assert another["elicitationId"] != page["elicitationId"]
        assert EFFECTS == ["prepared", "prepared"]

    def test_another_call_is_another_flow(self, urls: list[str]) -> None:
        with client(urls) as ann:
            ann.headers |= JSON_ONLY
            (page,) = pages(ann.call("meet", when="today"))
            opened(page["url"])
            pages(ann.call("meet", when="tomorrow"))
            reply = ann.send("prompts/get", {"name": "invite", "arguments": {}})
            opened(pages(reply)[0]["url"], code="Eve")
            assert ann.send("prompts/get", {"name": "invite", "arguments": {}}).result["messages"][0]["content"][
                "text"
            ] == ("Eve")

    def test_another_user_does_not_go_on_with_it(self, urls: list[str]) -> None:
        with client(urls) as ann, client(urls, "bob") as bob:
            for each in (ann, bob):
                each.headers |= JSON_ONLY
            (page,) = pages(ann.call("meet"))
            opened(page["url"])
            bob.session = ann.session
            (other,) = pages(bob.call("meet"))
            assert other["elicitationId"] != page["elicitationId"]
            assert "for somebody else" in opened(page["url"], "bob")
            assert ann.call("meet").text == "Ann today"

    def test_it_is_found_while_keys_are_rotated(self, tmp_path: Path) -> None:
        old, new = bytes(32), bytes([1] * 32)
        kept: dict[str, Any] = {"store": lambda: SQLStore(f"sqlite:///{tmp_path}/live.db")}
        with ExitStack() as stack:
            before = stack.enter_context(serving(keys=[old, new], **kept))
            after = stack.enter_context(serving(keys=[new, old], **kept))
            ann = stack.enter_context(client(before))
            ann.headers |= JSON_ONLY
            (page,) = pages(ann.call("meet"))
            opened(page["url"])
            ann.urls = after
            assert ann.call("meet").text == "Ann today"

    def test_who_reads_the_database_can_not_try_out_its_arguments(self, tmp_path: Path) -> None:
        """The row is found by the caller and the call, and only the keys lead from these to its name."""
        names: list[set[str]] = []
        for number in range(2):
            file = tmp_path / f"{number}.db"
            with serving(keys=[bytes([number] * 32)], store=lambda file=file: SQLStore(f"sqlite:///{file}")) as urls:
                with client(urls) as ann:
                    ann.headers |= JSON_ONLY
                    pages(ann.call("meet", when="at noon"))
            with closing(sqlite3.connect(file)) as database:
                names.append({name for (name,) in database.execute("SELECT key FROM mrtr_kept")})
        assert names[0]
        assert not names[0] & names[1], "the same call of the same user, under another key"

    def test_another_session_of_the_user_goes_on_with_it(self, urls: list[str]) -> None:
        """Some clients begin a session for each call."""
        with client(urls) as ann:
            ann.headers |= JSON_ONLY
            opened(pages(ann.call("meet"))[0]["url"])
            ann.session = ""
            ann.begin()
            assert ann.call("meet").text == "Ann today"

    def test_one_that_takes_a_stream_by_then_begins_anew(self, urls: list[str]) -> None:
        with client(urls) as ann:
            (page,) = pages(ann.send("tools/call", {"name": "meet", "arguments": {}}, **JSON_ONLY))
            opened(page["url"])
            with ann.calling("meet") as stream:
                assert stream.ask()["params"]["elicitationId"] != page["elicitationId"]

    def test_the_session_hears_on_its_get_that_the_page_is_done(self, urls: list[str]) -> None:
        with client(urls) as ann:
            (page,) = pages(ann.send("tools/call", {"name": "meet", "arguments": {}}, **JSON_ONLY))
            with ann.listen() as listening:
                opened(page["url"])
                note = listening.next()
            assert note["method"] == "notifications/elicitation/complete"
            assert note["params"] == {"elicitationId": page["elicitationId"]}

    def test_a_page_without_a_callback_is_for_the_handler_to_check(self, urls: list[str]) -> None:
        with client(urls) as ann:
            ann.headers |= JSON_ONLY
            (page,) = pages(ann.call("visit"))
            assert page["url"] == "https://example.com/"
            assert pages(ann.call("visit")), "a repetition is no consent"
            EFFECTS.append("visited")
            assert ann.call("visit").text == "seen"

    def test_what_is_asked_besides_pages_needs_a_stream(self, urls: list[str]) -> None:
        with client(urls) as ann:
            ann.headers |= JSON_ONLY
            opened(pages(ann.call("meet_and_ask"))[0]["url"])
            reply = ann.call("meet_and_ask")
            assert (reply.status, reply.code) == (200, -32600)
            assert "text/event-stream" in reply.error.message

    def test_who_opens_no_pages_is_told_what_is_missing(self, urls: list[str]) -> None:
        with client(urls, capabilities={"elicitation": {"form": {}}}) as ann:
            assert ann.send("tools/call", {"name": "meet", "arguments": {}}, **JSON_ONLY).code == -32021
        with client(urls, version="2025-06-18", capabilities={"elicitation": {}}) as ann:
            reply = ann.send("tools/call", {"name": "meet", "arguments": {}}, **JSON_ONLY)
            assert reply.code == -32021

    def test_who_declares_pages_with_an_older_version_gets_them_and_what_they_report(self, urls: list[str]) -> None:
        with client(urls, version="2025-06-18", capabilities=dict(EVERYTHING)) as ann:
            page = pages(ann.send("tools/call", {"name": "meet", "arguments": {}}, **JSON_ONLY))[0]
            with ann.listen() as listening:
                opened(page["url"])
                assert next(listening.events()).message["params"] == {"elicitationId": page["elicitationId"]}


class TestWithoutUsers:
    """Who can't be told from others can't be given what a page reported."""

    def test_a_page_that_reports_needs_a_stream(self) -> None:
        with serving(auth=False) as urls, client(urls, "") as nobody:
            nobody.headers |= JSON_ONLY
            reply = nobody.call("meet")
            assert "text/event-stream" in reply.error.message
            assert pages(nobody.call("visit")), "one that does not report needs none"


class TestTheOfficialClient:
    """It is made to take no streams in reply to a POST; all else is its own."""

    pytestmark = pytest.mark.anyio

    async def test_it_raises_its_own_error_and_hears_of_the_end(self, urls: list[str]) -> None:
        async def take_no_stream(request: httpx2.Request) -> None:
            if request.method == "POST":
                request.headers["accept"] = "application/json"

        async def never(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
            raise AssertionError("it can't be asked")

        heard = anyio.Event()
        completed: list[str] = []

        async def hear(message: Any) -> None:
            if isinstance(message, types.ElicitCompleteNotification):
                completed.append(message.params.elicitation_id)
                heard.set()

        http = create_mcp_http_client(headers={"Authorization": "Bearer ann-token"})
        http.event_hooks = {"request": [take_no_stream]}
        async with (
            http,
            streamable_http_client(urls[0], http_client=http) as (read, write),
            ClientSession(read, write, elicitation_callback=never, message_handler=hear) as session,
        ):
            await session.initialize()
            with pytest.raises(MCPError) as raised:
                await session.call_tool("meet", {})
            (page,) = UrlElicitationRequiredError.from_error(raised.value.error).elicitations
            await anyio.to_thread.run_sync(opened, page.url)
            with anyio.fail_after(10):
                await heard.wait()
            assert completed == [page.elicitation_id]
            result = await session.call_tool("meet", {})
            assert isinstance(result.content[0], types.TextContent)
            assert result.content[0].text == "Ann today"

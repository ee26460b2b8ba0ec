"""Pages that report back: whose browser opens a link, what it may do, and how the flow that asked goes on."""

import asyncio
import gc
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from pydantic import BaseModel, Field, SecretStr, field_validator
from starlette.applications import Starlette
from starlette.authentication import BaseUser, UnauthenticatedUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from mrtr_server import (
    BearerTokens,
    Callback,
    CallbackLink,
    Context,
    Elicit,
    ElicitUrl,
    InProcessStore,
    InputRequired,
    Inputs,
    KeyRing,
    Limits,
    MRTRServer,
    Principal,
    Refusal,
    SealedCodec,
    SetupError,
    SQLStore,
    StoreUnavailable,
    Task,
    ToolError,
)
from mrtr_server.addresses import BaseUrl
from mrtr_server.auth.fixed_tokens import TokenUser
from mrtr_server.errors import InvalidAnswer
from mrtr_server.flow import url_asks
from mrtr_server.flow.admission import Admission
from mrtr_server.flow.journal import Journal
from mrtr_server.flow.url_asks import UNFINISHED, Callbacks, Report, Reports
from mrtr_server.schema.stored import Stored
from mrtr_server.testing import EVERYTHING, Answer, AsyncClient, Clock, Flow, accept, cancel, decline, replica, yes

from ..support.direct import Exchange, headers_for, scope_of
from ..support.flows import AsyncFlow, is_state_only
from ..support.serving import KEYS, TIMEOUT, in_process
from ..support.wire import modern

pytestmark = pytest.mark.anyio

RING = KeyRing([bytes(32)])
BASE = "https://tools.example.com"
OPENED = accept()
SECRET = "the-token-of-the-provider"
USERS = {"ann-token": "ann", "bob-token": "bob"}


class Account(BaseModel):
    name: str
    token: str = SECRET


class Profile(BaseModel):
    nick: str


def provider(back: CallbackLink) -> str:
    return f"https://provider.example/authorize?redirect_uri={back.url}&state={back.state}&challenge={back.challenge}"


def cookie(request: Request) -> str | None:
    return request.cookies.get("user")


class Calendar(NamedTuple):
    app: MRTRServer
    google: Callback[Account]
    opened: list[Request]


def calendar(
    *,
    store: Any = None,
    signed_in: bool = True,
    name: str = "calendar",
    hold: float = 0.2,
    keys: Any = RING,
    answer: Callable[[Request], Any] = lambda request: Account(name=request.query_params.get("code", "?")),
    clock: Callable[[], float] = time.time,
    **options: Any,
) -> Calendar:
    """A server with a callback, and tools that ask for it in every style.

    Args:
        store: what replicas share.
        signed_in: whether callers have to be known, and browsers identified.
        name: the server's name.
        hold: how long an early client is held, in seconds.
        keys: its key ring.
        answer: what the callback does with the request.
        clock: returns the time, in seconds since the epoch.
        options: of `MRTRServer`.
    """
    known: dict[str, Any] = {"auth": BearerTokens(USERS), "identify": cookie} if signed_in else {}
    settings = {"base_url": BASE, "limits": Limits(hold_seconds=hold), "store": store, **known, **options}
    app = replica(MRTRServer(name, keys=keys, **settings), clock=clock)
    opened: list[Request] = []

    @app.callback("google")
    async def google(request: Request) -> Account:
        opened.append(request)
        done = answer(request)
        assert isinstance(done, Account)
        return done

    @app.tool
    async def meeting(ctx: Context) -> str:
        account = await ctx.elicit_url("Log in to Google", provider, callback=google)
        return f"{account.name} has {account.token}"

    @app.tool
    async def several(ctx: Context) -> str:
        one, other = await ctx.ask(
            ElicitUrl("Log in as yourself", provider, callback=google),
            ElicitUrl("Log in as your boss", provider, callback=google),
        )
        return f"{one.name} and {other.name}"

    @app.tool
    async def alongside(ctx: Context) -> str:
        account, profile = await ctx.ask(
            ElicitUrl("Log in to Google", provider, callback=google), Elicit("Who are you?", Profile)
        )
        return f"{account.name} is {profile.nick}"

    @app.tool
    def pure(inputs: Inputs) -> str | InputRequired:
        ask = ElicitUrl("Log in to Google", provider, callback=google)
        account = inputs.get("login", ask)
        if account is None:
            return InputRequired(login=ask)
        return f"{account.name} has {account.token}"

    return Calendar(app, google, opened)


def flow(
    *apps: ASGIApp,
    target: str = "meeting",
    method: str = "tools/call",
    user: str | None = "ann",
    host: str = "tools.example.com",
    path: str | None = None,
    capabilities: Mapping[str, Any] = EVERYTHING,
) -> AsyncFlow:
    """A flow of a user's."""
    token = f"{user}-token" if user else None
    client = AsyncClient(*apps, token=token, headers={"Host": host}, path=path, capabilities=capabilities)
    return Flow(client, method, target, {})


def url_of(asking: AsyncFlow, key: str = "google") -> str:
    """The page that the last round asks the person to open."""
    return asking.last.asks[key].url


def state_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["state"][0]


class Browser:
    """The browser of somebody.

    Args:
        app: what it talks to.
        user: who is logged in there.
        base: where it is found.
    """

    def __init__(self, app: Any, user: str | None = "ann", base: str = BASE) -> None:
        cookies = {"user": user} if user else {}
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base, cookies=cookies)

    async def back(
        self, state: str, *, name: str = "google", method: str = "GET", headers: Any = None, **query: str
    ) -> httpx.Response:
        """Come back from the provider."""
        params = {"state": state, **query}
        return await self.client.request(method, f"/callbacks/{name}", params=params, headers=headers)

    async def log_in(self, asking: AsyncFlow, key: str = "google", code: str = "ann") -> httpx.Response:
        """Open the page of a question, do there what has to be done, and come back."""
        page = await self.back(state_of(url_of(asking, key)), code=code)
        assert page.status_code == 200, page.text
        return page


async def came_back(app: MRTRServer, **query: str) -> httpx.Response:
    """Begin a flow, open its page, and come back to the server; return what the browser then shows."""
    asking = flow(app)
    assert (await asking.start()).needs_input
    return await Browser(app).back(state_of(url_of(asking)), **query)


class TestAFlowThatAsksForALogin:
    @pytest.mark.parametrize(("target", "key"), [("meeting", "google"), ("pure", "login")])
    async def test_goes_on_with_what_the_callback_returned(self, target: str, key: str) -> None:
        server = calendar()
        asking = flow(server.app, target=target)
        assert (await asking.start()).questions == {key: "Log in to Google"}
        page = await Browser(server.app).log_in(asking, key)
        assert "You can close this page" in page.text
        assert (await asking.send({key: OPENED})).text == f"ann has {SECRET}"

    async def test_leads_back_to_a_fixed_address_with_a_signed_token(self) -> None:
        asking = flow(calendar().app)
        assert (await asking.start()).needs_input
        query = parse_qs(urlsplit(url_of(asking)).query)
        assert query["redirect_uri"] == [f"{BASE}/callbacks/google"]
        assert len(query["state"][0]) < 200

    async def test_asks_along_with_other_things(self) -> None:
        server = calendar()
        asking = flow(server.app, target="alongside")
        assert set((await asking.start()).questions) == {"google", "profile"}
        await Browser(server.app).log_in(asking)
        assert (await asking.answer(google=OPENED, profile=accept(nick="annie"))).text == "ann is annie"

    async def test_asks_for_two_logins_which_are_told_apart(self) -> None:
        server = calendar()
        asking = flow(server.app, target="several")
        assert (await asking.start()).questions == {"google": "Log in as yourself", "google_2": "Log in as your boss"}
        assert url_of(asking) != url_of(asking, "google_2")
        browser = Browser(server.app)
        boss = state_of(url_of(asking, "google_2"))
        await browser.log_in(asking, "google", code="ann")
        assert (await asking.answer(google=OPENED, google_2=OPENED)).questions == {
            "google_2": f"{UNFINISHED} — Log in as your boss"
        }
        assert state_of(url_of(asking, "google_2")) == boss
        await browser.log_in(asking, "google_2", code="eve")
        assert (await asking.answer(google_2=OPENED)).text == "ann and eve"

    async def test_may_ask_for_the_same_twice_which_is_told_apart_too(self) -> None:
        server = calendar(hold=0.05)

        @server.app.tool
        async def twice(ctx: Context) -> str:
            ask = ElicitUrl("Log in", provider, callback=server.google)
            one, other = await ctx.ask(ask, ask)
            return f"{one.name} and {other.name}"

        asking = flow(server.app, target="twice")
        assert (await asking.start()).needs_input
        await Browser(server.app).log_in(asking, "google_2", code="eve")
        assert set((await asking.answer(google=OPENED, google_2=OPENED)).questions) == {"google"}
        await Browser(server.app).log_in(asking, "google", code="ann")
        assert (await asking.answer(google=OPENED)).text == "ann and eve"

    async def test_may_ask_more_after_it(self) -> None:
        """The login is read again in each later round, and is not asked for again."""
        server = calendar()

        @server.app.tool
        async def longer(ctx: Context) -> str:
            account = await ctx.elicit_url("Log in", provider, callback=server.google)
            profile = await ctx.elicit("Who are you?", Profile)
            await ctx.confirm("Sure?")
            return f"{account.name} is {profile.nick}"

        asking = flow(server.app, target="longer")
        assert (await asking.start()).needs_input
        await Browser(server.app).log_in(asking)
        assert (await asking.answer(google=OPENED)).questions == {"profile": "Who are you?"}
        assert (await asking.answer(profile=accept(nick="annie"))).questions == {"confirm": "Sure?"}
        assert (await asking.answer(confirm=accept(confirm=True))).text == "ann is annie"
        assert len(server.opened) == 1

    async def test_may_be_done_on_a_page_of_its_own(self) -> None:
        """Without a url the page is the callback itself: here a form, for what must not pass through the client."""
        app = MRTRServer("keys", keys=RING, base_url=BASE)

        @app.callback("api_key", methods=["GET", "POST"])
        async def api_key(request: Request) -> str | Response:
            if request.method == "GET":
                return HTMLResponse('<form method="post"><input name="key"></form>')
            return str((await request.form())["key"])

        @app.tool
        async def use(ctx: Context) -> str:
            return f"used {await ctx.elicit_url('Enter your key', callback=api_key)}"

        asking = flow(app, target="use", user=None)
        assert (await asking.start()).questions == {"api_key": "Enter your key"}
        page = url_of(asking, "api_key")
        assert page.startswith(f"{BASE}/callbacks/api_key?state=")
        browser = Browser(app).client
        form = await browser.get(page)
        assert "<form" in form.text
        assert form.headers["cache-control"] == "no-store"
        # Not no-referrer: browsers would send the form with `Origin: null`.
        assert form.headers["referrer-policy"] == "strict-origin"
        assert "form-action 'self'" in form.headers["content-security-policy"]
        assert "close this page" in (await browser.post(page, data={"key": "k-1"}, headers={"Origin": BASE})).text
        assert (await asking.answer(api_key=OPENED)).text == "used k-1"

    @pytest.mark.parametrize("method", ["prompts/get", "resources/read"])
    async def test_may_be_a_prompt_or_a_resource(self, method: str) -> None:
        server = calendar()

        async def handler(ctx: Context) -> str:
            return (await ctx.elicit_url("Log in", provider, callback=server.google)).name

        server.app.prompt(name="who")(handler)
        server.app.resource("who://me")(handler)
        asking = flow(server.app, target="who" if method == "prompts/get" else "who://me", method=method)
        assert (await asking.start()).needs_input
        await Browser(server.app).log_in(asking)
        assert (await asking.answer(google=OPENED)).text == "ann"

    @pytest.mark.parametrize(("answer", "says"), [(decline, "declined"), (cancel, "dismissed")])
    async def test_ends_where_the_person_says_no(self, answer: Answer, says: str) -> None:
        asking = flow(calendar().app)
        assert (await asking.start()).needs_input
        assert says in (await asking.answer(google=answer)).failure

    @pytest.mark.parametrize(
        ("target", "key", "line"),
        [("meeting", "google", "failed with KeyError"), ("pure", "login", "failed: KeyError")],
    )
    async def test_ends_where_a_newer_type_fails_on_what_was_reported_which_is_not_logged(
        self, target: str, key: str, line: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Known(Account):
            @field_validator("token")
            @classmethod
            def look_up(cls, token: str) -> str:
                return {"another": "token"}[token]

        server = calendar()
        asking = flow(server.app, target=target)
        assert (await asking.start()).needs_input
        await Browser(server.app).log_in(asking, key)
        server.google.stored = Stored(Known)
        assert "reference" in (await asking.answer({key: OPENED})).failure
        assert line in caplog.text
        assert SECRET not in caplog.text

    async def test_brings_back_all_of_what_was_reported_and_nobody_else_sees_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = InProcessStore()
        servers = [MRTRServer("login", keys=RING, base_url=BASE, store=store) for _ in range(2)]

        class Token(BaseModel):
            id: str = Field(alias="_id")
            value: SecretStr
            raw: bytes = Field(exclude=True)

        def add(server: MRTRServer) -> None:
            @server.callback("google")
            def google(request: Request) -> Token:
                return Token(_id="1", value=SecretStr(SECRET), raw=b"\xff")

            @server.tool
            async def meeting(ctx: Context) -> str:
                token = await ctx.elicit_url("Log in", callback=google)
                return f"{token.id} {token.value.get_secret_value() == SECRET} {token.raw!r}"

        for server in servers:
            add(server)
        asking = flow(*servers, user=None)
        assert (await asking.start()).needs_input
        await Browser(servers[0], user=None).log_in(asking)
        assert (await asking.answer(google=OPENED)).text == r"1 True b'\xff'"
        assert SECRET not in caplog.text

    async def test_ends_where_the_person_says_no_at_the_provider(self) -> None:
        def answer(request: Request) -> Account:
            raise Refusal("decline")

        server = calendar(answer=answer)
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        page = await Browser(server.app).log_in(asking)
        assert "Nothing was done" in page.text
        assert "declined" in (await asking.answer(google=OPENED)).failure

    async def test_in_a_fleet_of_two_versions_finds_what_was_reported_for_its_own_question(self) -> None:
        store = InProcessStore()
        old, new = calendar(store=store), calendar(store=store)
        for server, message in ((old, "Log in to Google"), (new, "Log in to Google Calendar")):

            def add(server: Calendar = server, message: str = message) -> None:
                @server.app.tool
                async def longer(ctx: Context) -> str:
                    account = await ctx.elicit_url(message, provider, callback=server.google)
                    await ctx.confirm("Sure?")
                    return account.name

            add()
        asking = flow(old.app, new.app, new.app, old.app, target="longer")
        assert (await asking.start()).needs_input
        await Browser(old.app).log_in(asking, code="ann")
        assert (await asking.answer(google=OPENED)).questions == {"google": "Log in to Google Calendar"}
        await Browser(new.app).log_in(asking, code="eve")
        assert (await asking.answer(google=OPENED)).questions == {"confirm": "Sure?"}
        assert (await asking.answer(confirm=yes)).text == "ann", "asked by the old version, and answered there"

    async def test_ends_where_a_newer_version_declares_another_type(self, caplog: pytest.LogCaptureFixture) -> None:
        """The person has been on the page, and what came of it is kept once; nobody could read it."""
        store = InProcessStore()
        old, new = calendar(store=store), calendar(store=store)
        new.google.stored = Stored(Profile)
        asking = flow(old.app, new.app, target="meeting")
        assert (await asking.start()).needs_input
        await Browser(old.app).log_in(asking, code="ann")
        assert "reference" in (await asking.answer(google=OPENED)).failure
        assert "What the callback 'google' reported no longer fits its declared type: nick: " in caplog.text
        assert SECRET not in caplog.text

    async def test_is_not_asked_of_a_client_that_opens_no_pages(self) -> None:
        asking = flow(calendar().app, capabilities={"elicitation": {"form": {}}})
        error = (await asking.start()).error
        assert error.data == {"requiredCapabilities": {"elicitation": {"url": {}}}}

    async def test_leaves_an_ask_without_a_callback_as_it_is(self) -> None:
        server = calendar()

        @server.app.tool
        async def plain(ctx: Context) -> str:
            return str(await ctx.elicit_url("Look at this", "https://example.com"))

        asking = flow(server.app, target="plain")
        assert (await asking.start()).needs_input
        assert url_of(asking, "open_url") == "https://example.com"
        assert (await asking.answer(open_url=OPENED)).text == "True"


class TestTheClientsWordIsNotEnough:
    @pytest.mark.parametrize("target", ["meeting", "pure"])
    @pytest.mark.parametrize(
        "claim",
        [OPENED, accept(name="eve", token="x"), Answer({"action": "accept", "content": "x"})],
    )
    async def test_an_accepted_answer_is_no_login(self, target: str, claim: Answer) -> None:
        key = "google" if target == "meeting" else "login"
        asking = flow(calendar(hold=0.05).app, target=target)
        assert (await asking.start()).needs_input
        url = url_of(asking, key)
        assert (await asking.send({key: claim})).questions == {key: f"{UNFINISHED} — Log in to Google"}
        assert url_of(asking, key) == url

    def test_not_even_where_nothing_looked_at_it_before(self) -> None:
        ask = ElicitUrl("Log in", provider, callback=calendar().google)
        claimed = accept(name="eve", token="x")
        with pytest.raises(InvalidAnswer):
            ask.parse(claimed.raw)
        assert ask.parse(Report(claimed.raw)) == Account(name="eve", token="x")

    async def test_a_word_without_a_state_is_not_enough(self) -> None:
        asking = flow(calendar(hold=0.05).app)
        assert (await asking.start(google=OPENED)).questions == {"google": "Log in to Google"}

    async def test_a_page_that_was_asked_for_otherwise_is_asked_for_again(self) -> None:
        """An answer counts while the page stays what it was: another amount is another question."""
        server = calendar()
        amounts = iter([3, 300, 300])

        @server.app.tool
        async def pay(ctx: Context) -> str:
            amount = next(amounts)
            paid = await ctx.elicit_url(
                "Please pay", lambda back: f"https://pay.example/{amount}?state={back.state}", callback=server.google
            )
            return f"{paid.name} paid {amount}"

        asking = flow(server.app, target="pay")
        assert (await asking.start()).needs_input
        await Browser(server.app).log_in(asking)
        assert (await asking.answer(google=OPENED)).questions == {"google": "Please pay"}
        assert "/300?" in url_of(asking)
        await Browser(server.app).log_in(asking, code="bob")
        assert (await asking.answer(google=OPENED)).text == "bob paid 300"


class TestAnEarlyClient:
    async def test_is_held_before_it_is_asked_again(self) -> None:
        asking = flow(calendar(hold=0.4).app)
        assert (await asking.start()).needs_input
        began = time.monotonic()
        assert (await asking.answer(google=OPENED)).needs_input
        assert time.monotonic() - began == pytest.approx(0.4)

    async def test_goes_on_as_soon_as_the_person_is_done_on_any_replica(self) -> None:
        store = InProcessStore()
        one, other = calendar(store=store, hold=20), calendar(store=store, hold=20)
        asking = flow(one.app)
        assert (await asking.start()).needs_input
        began = time.monotonic()
        held = asyncio.create_task(asking.answer(google=OPENED))
        await asyncio.sleep(0.3)
        assert not held.done()
        await Browser(other.app).log_in(asking)
        assert (await held).text == f"ann has {SECRET}"
        assert time.monotonic() - began < 5

    async def test_does_not_burn_its_rounds(self) -> None:
        """Two rounds do for a person who takes longer than many retries without a hold would."""
        server = calendar(limits=Limits(hold_seconds=20, rounds=2))
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        held = asyncio.create_task(asking.answer(google=OPENED))
        await asyncio.sleep(0.5)
        await Browser(server.app).log_in(asking)
        assert (await held).text == f"ann has {SECRET}"

    async def test_does_not_run_the_handler_while_it_is_held(self) -> None:
        server = calendar(hold=20)
        runs: list[int] = []

        @server.app.tool
        async def counted(ctx: Context) -> str:
            runs.append(ctx.round)
            return (await ctx.elicit_url("Log in", provider, callback=server.google)).name

        asking = flow(server.app, target="counted")
        assert (await asking.start()).needs_input
        held = asyncio.create_task(asking.answer(google=OPENED))
        await asyncio.sleep(0.2)
        assert runs == [1]
        await Browser(server.app).log_in(asking)
        assert (await held).text
        assert runs == [1, 2]

    async def test_that_leaves_is_held_no_longer(self) -> None:
        asked: list[str] = []

        class Watched(InProcessStore):
            async def get(self, key: str) -> bytes | None:
                asked.append(key)
                return await super().get(key)

        server = calendar(hold=20, store=Watched())
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        message = modern("tools/call", {"name": "meeting", "arguments": {}})
        message["params"] |= {"requestState": asking.state, "inputResponses": {"google": OPENED.raw}}
        headers = [*headers_for(message), (b"authorization", b"Bearer ann-token")]
        left = Exchange(server.app, scope_of(headers)).body(httpx.Request("POST", BASE, json=message).content).start()
        await asyncio.sleep(0.3)
        assert asked
        left.disconnect()
        await left.end()
        asked.clear()
        await asyncio.sleep(0.5)
        assert not asked

    async def test_is_handed_over_by_a_server_that_drains(self) -> None:
        looked = asyncio.Event()

        class Watched(InProcessStore):
            async def get(self, key: str) -> bytes | None:
                looked.set()
                return await super().get(key)

        store = Watched()
        one, other = calendar(store=store, hold=20), calendar(store=store, hold=20)
        asking = flow(one.app, one.app, other.app)
        assert (await asking.start()).needs_input
        page = state_of(url_of(asking))
        held = asyncio.create_task(asking.answer(google=OPENED))
        await looked.wait()
        one.app.drain()
        assert is_state_only(await held)
        await Browser(other.app).back(page, code="ann")
        assert (await asking.send()).text == f"ann has {SECRET}", "the person's consent went with it"

    async def test_is_held_on_by_a_server_that_drains_where_the_flow_has_no_round_left(self) -> None:
        server = calendar(limits=Limits(hold_seconds=20, rounds=1))
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        held = asyncio.create_task(asking.answer(google=OPENED))
        await asyncio.sleep(0.1)
        server.app.drain()
        await asyncio.sleep(0.1)
        assert not held.done()
        await Browser(server.app).log_in(asking)
        assert (await held).text == f"ann has {SECRET}"

    async def test_leaves_nothing_behind_when_it_has_been_held(self) -> None:
        def futures() -> int:
            gc.collect()
            return sum(isinstance(each, asyncio.Future) for each in gc.get_objects())

        server = calendar(hold=0.4)
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        before = futures()
        assert (await asking.answer(google=OPENED)).needs_input
        assert futures() <= before

    @pytest.mark.alone
    async def test_asks_only_for_what_it_still_needs(self) -> None:
        """What a later version of the handler does not ask for any more holds nobody up twice."""
        server = calendar(hold=0.3)
        version = {"asks": True}

        @server.app.tool
        async def changing(ctx: Context) -> str:
            if version["asks"]:
                await ctx.elicit_url("Log in", provider, callback=server.google)
            return (await ctx.elicit("Who are you?", Profile)).nick

        asking = flow(server.app, target="changing")
        assert (await asking.start()).needs_input
        version["asks"] = False
        assert (await asking.answer(google=OPENED)).questions == {"profile": "Who are you?"}
        began = time.monotonic()
        assert (await asking.answer(profile=accept(nick="annie"))).text == "annie"
        assert time.monotonic() - began < 0.3


class TestAReportThatComesToAnotherReplica:
    """In real time: there is a database between the two."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.mark.alone
    @pytest.mark.parametrize("database", ["sqlite", "postgresql"])
    async def test_is_heard_of_at_once(
        self, database: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(url_asks, "FIRST_PAUSE", 2 * TIMEOUT)  # nobody polls
        url = f"sqlite:///{tmp_path / 'store.db'}"
        if database == "postgresql":
            server = request.getfixturevalue("postgresql")
            url = server.url(await server.new_database())
        stores = [SQLStore(url), SQLStore(url)]
        one, other = (calendar(store=store, hold=TIMEOUT) for store in stores)
        waited = []
        for _ in range(5):
            asking = flow(one.app)
            assert (await asking.start()).needs_input
            held = asyncio.create_task(asking.answer(google=OPENED))
            await asyncio.sleep(0.2)
            await Browser(other.app).log_in(asking)
            came = time.monotonic()
            assert (await held).text == f"ann has {SECRET}"
            waited.append(time.monotonic() - came)
        for store in stores:
            await store.close()
        assert median(waited) < 0.05


class TestWhoseBrowserItIs:
    async def test_a_link_that_is_sent_to_somebody_else_lands_no_login_on_the_sender(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = calendar(hold=0.05)
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        page = await Browser(server.app, "bob").back(state_of(url_of(asking)), code="bob")
        assert page.status_code == 403
        assert "somebody else" in page.text
        assert not server.opened
        assert "another user's" in caplog.text
        assert (await asking.answer(google=OPENED)).needs_input

    async def test_nobody_is_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        server = calendar()
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        assert (await Browser(server.app, None).back(state_of(url_of(asking)))).status_code == 403
        assert not server.opened
        assert "nobody is logged in" in caplog.text

    async def test_another_user_can_not_go_on_with_the_flow_either(self) -> None:
        server = calendar()
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        await Browser(server.app).log_in(asking)
        asking.token = "bob-token"
        assert (await asking.answer(google=OPENED)).error.code == -32602

    @pytest.mark.parametrize(
        ("identity", "status"),
        [
            ("ann", 200),
            (Principal("ann"), 200),
            (Principal("ann", client_id="another application"), 200),
            (TokenUser("ann"), 200),
            (Principal("ann", issuer="https://issuer.example"), 403),
            ("bob", 403),
            ("", 403),
            (Principal(""), 403),
            (None, 403),
            (UnauthenticatedUser(), 403),
            (7, 500),
        ],
    )
    @pytest.mark.parametrize("is_async", [True, False])
    async def test_an_identity_comes_in_any_of_these_forms(
        self, identity: Any, status: int, is_async: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def identify(request: Request) -> Any:
            return identity

        server = calendar(identify=identify if is_async else lambda request: identity)
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        assert (await Browser(server.app).back(state_of(url_of(asking)))).status_code == status
        assert bool(server.opened) == (status == 200)
        assert status != 500 or "identify= returned a int" in caplog.text

    async def test_the_issuer_counts_and_the_application_does_not(self) -> None:
        class User(BaseUser):
            is_authenticated = True
            identity = "ann"
            issuer = "https://issuer.example"
            client_id = "desktop"

        class Backend(BearerTokens):
            async def authenticate(self, conn: Any) -> Any:
                found = await super().authenticate(conn)
                return found and (found[0], User())

        store = InProcessStore()
        for identity, status in ((Principal("ann"), 403), (Principal("ann", "https://issuer.example"), 200)):
            server = calendar(auth=Backend(USERS), identify=lambda request, who=identity: who, store=store, hold=0.05)
            asking = flow(server.app)
            assert (await asking.start()).needs_input
            assert (await Browser(server.app).back(state_of(url_of(asking)))).status_code == status

    async def test_who_is_not_logged_in_may_be_sent_to_the_login(self) -> None:
        server = calendar(identify=lambda request: cookie(request) or RedirectResponse("/login", 303))
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        page = await Browser(server.app, None).back(state_of(url_of(asking)))
        assert (page.status_code, page.headers["location"]) == (303, "/login")
        assert not server.opened

    async def test_middleware_of_the_server_is_there_for_it(self) -> None:
        def session(request: Request) -> str | None:
            return request.session.get("user")

        server = calendar(identify=session, middleware=[Middleware(SessionMiddleware, secret_key="x")])
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        assert (await Browser(server.app).back(state_of(url_of(asking)))).status_code == 403

    async def test_a_hook_that_fails_lets_nobody_through(self, caplog: pytest.LogCaptureFixture) -> None:
        def broken(request: Request) -> str:
            raise RuntimeError("the sessions are <gone>")

        server = calendar(identify=broken)
        page = await came_back(server.app)
        assert page.status_code == 500
        assert "gone" not in page.text
        assert "gone" in caplog.text
        assert not server.opened

    async def test_without_the_hook_an_authenticated_server_has_no_callbacks(self) -> None:
        app = MRTRServer("x", keys=RING, auth=BearerTokens(USERS), base_url=BASE)
        with pytest.raises(SetupError, match=r"whose browser opens its links.*identify="):
            app.callback("google")

    async def test_without_the_hook_an_authenticated_call_asks_for_none(self, caplog: pytest.LogCaptureFixture) -> None:
        """The authentication may be in middleware around the server, where only a call shows it."""
        inner = calendar(signed_in=False)
        middleware = [Middleware(AuthenticationMiddleware, backend=BearerTokens(USERS))]
        site: Any = Starlette(routes=[Mount("/", inner.app)], middleware=middleware)
        assert "Internal error" in (await flow(site).start()).failure
        assert "identify= function" in caplog.text

    async def test_with_the_hook_an_anonymous_call_asks_for_none(self, caplog: pytest.LogCaptureFixture) -> None:
        server = calendar(signed_in=False, identify=cookie)
        assert "Internal error" in (await flow(server.app, user=None).start()).failure
        assert "this call is anonymous" in caplog.text

    async def test_with_the_hook_a_link_from_before_it_opens_for_nobody(self) -> None:
        store = InProcessStore()
        before, after = calendar(signed_in=False, store=store), calendar(signed_in=False, identify=cookie, store=store)
        asking = flow(before.app, user=None)
        assert (await asking.start()).needs_input
        for user in (None, "bob"):
            assert (await Browser(after.app, user).back(state_of(url_of(asking)))).status_code == 403
        assert not after.opened

    async def test_a_server_without_authentication_has_nobody_to_compare(self) -> None:
        server = calendar(signed_in=False)
        asking = flow(server.app, user=None)
        assert (await asking.start()).needs_input
        await Browser(server.app, "whoever").log_in(asking)
        assert (await asking.answer(google=OPENED)).text == f"ann has {SECRET}"


class TestALink:
    @pytest.fixture
    def server(self) -> Calendar:
        return calendar()

    @pytest.fixture
    async def state(self, server: Calendar) -> str:
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        return state_of(url_of(asking))

    @pytest.fixture
    def refused(self, caplog: pytest.LogCaptureFixture) -> Callable[[httpx.Response, str], None]:
        """Holds a page to the one that all who are refused see, and the log to the reason."""

        def check(page: httpx.Response, reason: str) -> None:
            assert page.status_code == 400
            assert "This link is not valid" in page.text
            assert reason in caplog.text
            frozen.setdefault("page", page.text)
            assert page.text == frozen["page"]

        frozen: dict[str, str] = {}
        return check

    async def test_opens_where_nothing_was_changed(self, server: Calendar, state: str) -> None:
        assert (await Browser(server.app).back(state)).status_code == 200
        assert len(server.opened) == 1

    async def test_does_not_open_with_any_character_changed(self, server: Calendar, state: str, refused: Any) -> None:
        browser = Browser(server.app)
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."
        for position, character in enumerate(state):
            other = alphabet[(alphabet.index(character) + 1) % len(alphabet)]
            refused(await browser.back(state[:position] + other + state[position + 1 :]), "forged")
        for last in alphabet:  # whose bits do not all count
            if last != state[-1]:
                refused(await browser.back(state[:-1] + last), "forged")
        assert not server.opened

    @pytest.mark.parametrize("token", ["", ".", "...", "a.1.b.c", "é", "\x00", "x" * 600, "😀" * 10])
    async def test_does_not_open_with_garbage(self, server: Calendar, token: str, refused: Any) -> None:
        refused(await Browser(server.app).back(token), "refused a link")

    async def test_needs_exactly_one_token(self, server: Calendar, state: str, refused: Any) -> None:
        browser = Browser(server.app).client
        refused(await browser.get("/callbacks/google"), "it has 0 tokens")
        refused(await browser.get(f"/callbacks/google?state={state}&state={state}"), "it has 2 tokens")

    async def test_has_a_query_of_bounded_size(self, server: Calendar, state: str, refused: Any) -> None:
        refused(await Browser(server.app).back(state, code="x" * 20_000), "too large")

    async def test_ends_with_its_flow(self, refused: Any) -> None:
        clock = Clock()
        server = calendar(clock=clock, limits=Limits(flow_seconds=60))
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        clock.advance(61)
        refused(await Browser(server.app).back(state_of(url_of(asking))), "expired")

    async def test_lives_as_long_as_the_task_that_asks(self, refused: Any) -> None:
        clock = Clock()
        server = calendar(clock=clock, limits=Limits(flow_seconds=60))

        @server.app.tool(task=Task("required", ttl=3600))
        async def invite(ctx: Context) -> str:
            return (await ctx.elicit_url("Log in to Google", provider, callback=server.google)).name

        client = AsyncClient(server.app, token="ann-token", headers={"Host": "tools.example.com"}, tasks=True)
        asking = client.flow("invite")
        await asking.start()
        await asking.wait()
        clock.advance(3000)
        link = state_of(url_of(asking))
        await Browser(server.app).log_in(asking)
        assert (await asking.answer(google=OPENED)).text == "ann"
        clock.advance(601)
        refused(await Browser(server.app).back(link), "expired")

    async def test_is_for_one_callback_alone(self, server: Calendar, state: str, refused: Any) -> None:
        @server.app.callback("other")
        async def other(request: Request) -> str:
            raise AssertionError

        refused(await Browser(server.app).back(state, name="other"), "of another callback")

    async def test_is_for_one_server_alone(self, state: str, refused: Any) -> None:
        refused(await Browser(calendar(name="another").app).back(state), "of another callback, server or key")
        refused(await Browser(calendar(keys=[bytes([7] * 32)]).app).back(state), "server or key")

    async def test_survives_the_rotation_of_keys(self) -> None:
        """The verifier, too: it was told to the provider under the old key."""
        old, new = bytes(32), bytes([1] * 32)
        store = InProcessStore()
        challenges: list[str] = []

        def replica(*keys: bytes) -> MRTRServer:
            app = MRTRServer("calendar", keys=keys, base_url=BASE, store=store, limits=Limits(hold_seconds=0.05))

            @app.callback("google")
            async def google(request: Request, back: CallbackLink) -> str:
                challenges.append(back.challenge)
                return "done"

            @app.tool
            async def ask(ctx: Context) -> str:
                return await ctx.elicit_url("Log in", provider, callback=google)

            return app

        before, after, without = replica(old, new), replica(new, old), replica(new)
        asking = flow(before, after, after, target="ask", user=None)
        assert (await asking.start()).needs_input
        url = url_of(asking)
        assert (await Browser(without).back(state_of(url))).status_code == 400
        assert (await asking.answer(google=OPENED)).needs_input  # the new key signs another link to the same end
        assert url_of(asking) != url
        assert (await Browser(after).back(state_of(url))).status_code == 200
        assert challenges == [parse_qs(urlsplit(url).query)["challenge"][0]]
        assert (await asking.answer(google=OPENED)).text == "done"

    async def test_is_the_same_in_each_round_and_another_in_each_flow(self) -> None:
        server = calendar(hold=0.02)
        asking, another = flow(server.app), flow(server.app)
        assert (await asking.send()).needs_input
        url = url_of(asking)
        assert (await asking.send({"google": OPENED})).needs_input
        assert url_of(asking) == url
        assert (await another.send()).needs_input
        assert url_of(another) != url

    async def test_says_nothing_of_the_person(self) -> None:
        """Not even to who guesses: links of one user have nothing in common but when they end."""
        server = calendar(clock=lambda: 1e9)
        asked = [flow(server.app), flow(server.app)]
        for each in asked:
            assert (await each.send()).needs_input
        one, other = (state_of(url_of(each)).split(".") for each in asked)
        assert [a == b for a, b in zip(one, other, strict=True)] == [False, True, False, False]

    async def test_completes_once(self, server: Calendar, state: str) -> None:
        browser = Browser(server.app)
        await browser.back(state, code="ann")
        again = await browser.back(state, code="mallory")
        assert again.status_code == 200
        assert "This is done already" in again.text
        assert len(server.opened) == 1

    async def test_completes_once_when_it_is_opened_twice_at_once(self) -> None:
        turn = asyncio.Event()
        store = InProcessStore()
        app = MRTRServer("calendar", keys=RING, base_url=BASE, store=store)

        @app.callback("google")
        async def google(request: Request) -> str:
            if request.query_params["code"] == "slow":
                await turn.wait()
            return request.query_params["code"]

        @app.tool
        async def ask(ctx: Context) -> str:
            return await ctx.elicit_url("Log in", provider, callback=google)

        asking = flow(app, target="ask", user=None)
        assert (await asking.start()).needs_input
        state = state_of(url_of(asking))
        slow = asyncio.create_task(Browser(app).back(state, code="slow"))
        await asyncio.sleep(0.05)
        assert "<h1>Done</h1>" in (await Browser(app).back(state, code="fast")).text
        turn.set()
        assert "This is done already" in (await slow).text
        assert (await asking.answer(google=OPENED)).text == "fast"

    @pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
    async def test_is_opened_by_get_alone(self, server: Calendar, state: str, method: str) -> None:
        page = await Browser(server.app).back(state, method=method)
        assert (page.status_code, page.headers["allow"]) == (405, "GET")
        assert not server.opened

    @pytest.mark.parametrize("header", ["Sec-Purpose", "Purpose", "X-Moz"])
    @pytest.mark.parametrize("purpose", ["prefetch", "prefetch;prerender", "Preview"])
    async def test_is_not_opened_ahead_of_time(self, server: Calendar, state: str, header: str, purpose: str) -> None:
        assert (await Browser(server.app).back(state, headers={header: purpose})).status_code == 403
        assert not server.opened

    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("tools.example.com", 200),
            ("TOOLS.example.com", 200),
            ("tools.example.com:443", 200),
            ("tools.example.com:8443", 403),
            ("tools.example.com.evil.example", 403),
            ("evil.example", 403),
            ("127.0.0.1", 403),
            ("localhost:8000", 403),
            ("", 403),
        ],
    )
    async def test_is_opened_at_the_servers_own_host_alone(
        self, server: Calendar, state: str, host: str, status: int
    ) -> None:
        assert (await Browser(server.app).back(state, headers={"Host": host})).status_code == status
        assert len(server.opened) == (status == 200)

    async def test_takes_a_body_of_bounded_size(self) -> None:
        app = MRTRServer("keys", keys=RING, base_url=BASE, limits=Limits(body_bytes=1000))

        @app.callback("form", methods=["POST"])
        async def form(request: Request) -> str:
            return (await request.body()).decode()

        @app.tool
        async def ask(ctx: Context) -> str:
            return await ctx.elicit_url("Fill in", callback=form)

        asking = flow(app, target="ask", user=None)
        assert (await asking.start()).needs_input
        browser = Browser(app).client
        assert (await browser.post(url_of(asking, "form"), content=b"x" * 1001)).status_code == 413
        assert (await browser.post(url_of(asking, "form"), content=b"x" * 1000)).status_code == 200


class TestThePage:
    def nasty(self, request: Request) -> Account:
        raise ToolError(f"no <script>alert(1)</script> & {request.query_params['code']}")

    async def test_shows_nothing_that_runs(self) -> None:
        server = calendar(answer=self.nasty)
        page = await came_back(server.app, code='"><img src=x onerror=alert(1)>')
        assert page.status_code == 400
        assert "<script" not in page.text
        assert "<img" not in page.text
        assert "no &lt;script&gt;" in page.text

    async def test_may_load_nothing_be_framed_nowhere_and_is_not_kept(self) -> None:
        server = calendar()
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        state = state_of(url_of(asking))
        for page in (
            await Browser(server.app).back("forged"),
            await Browser(server.app, "bob").back(state),
            await Browser(server.app).back(state),
        ):
            policy = page.headers["content-security-policy"]
            for part in ("default-src 'none'", "frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'"):
                assert part in policy
            assert "script-src" not in policy
            assert page.headers["referrer-policy"] == "strict-origin"
            assert page.headers["cache-control"] == "no-store"
            assert page.headers["x-content-type-options"] == "nosniff"
            assert state not in page.text

    async def test_leads_nowhere_that_a_query_says(self) -> None:
        server = calendar()
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        evil = dict.fromkeys(("next", "url", "redirect_uri", "return_to", "back"), "https://evil.example")
        page = await Browser(server.app).back(state_of(url_of(asking)), **evil)
        assert page.status_code == 200
        assert "location" not in page.headers
        assert "evil" not in page.text

    async def test_says_what_a_tool_error_says_and_leaves_the_link_open(self) -> None:
        failing = [True]

        def answer(request: Request) -> Account:
            if failing.pop():
                raise ToolError("The provider said no.")
            return Account(name="ann")

        failing.insert(0, False)
        server = calendar(answer=answer)
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        browser = Browser(server.app)
        assert "The provider said no." in (await browser.back(state_of(url_of(asking)))).text
        await browser.log_in(asking)
        assert (await asking.answer(google=OPENED)).text == f"ann has {SECRET}"

    async def test_says_no_more_than_a_reference_where_something_broke(self, caplog: pytest.LogCaptureFixture) -> None:
        def answer(request: Request) -> Account:
            raise RuntimeError("the password is swordfish")

        server = calendar(answer=answer)
        page = await came_back(server.app)
        assert page.status_code == 500
        assert "swordfish" not in page.text
        reference = page.text.partition("reference ")[2][:8]
        assert reference in caplog.text

    async def test_may_be_the_authors_own(self) -> None:
        app = MRTRServer("own", keys=RING, base_url=BASE)

        async def thanks(request: Request) -> Response:
            return HTMLResponse("<h1>Thank you</h1>")

        @app.callback("google", page=thanks)
        def google(request: Request) -> str:
            return "done"

        @app.tool
        async def ask(ctx: Context) -> str:
            return await ctx.elicit_url("Log in", provider, callback=google)

        asking = flow(app, target="ask", user=None)
        assert (await asking.start()).needs_input
        for _ in range(2):
            page = await Browser(app).log_in(asking)
            assert "Thank you" in page.text
        assert (await asking.answer(google=OPENED)).text == "done"

    async def test_has_the_same_headers_whosever_it_is_unless_its_response_says_otherwise(self) -> None:
        names = ("cache-control", "referrer-policy", "x-content-type-options", "content-security-policy")
        app = MRTRServer("own", keys=RING, base_url=BASE)
        csp = "script-src 'nonce-1'"

        @app.callback("plain", page=lambda request: HTMLResponse("authors"))
        def plain(request: Request) -> str:
            return "done"

        @app.callback("own", page=lambda request: HTMLResponse("own", headers={"Content-Security-Policy": csp}))
        def own(request: Request) -> str:
            return "done"

        @app.callback("more")
        def more(request: Request) -> str | Response:
            return RedirectResponse("https://provider.example")

        @app.tool
        async def ask(ctx: Context) -> str:
            return "".join([await ctx.elicit_url("?", provider, callback=each) for each in (plain, own, more)])

        browser, asking = Browser(app), flow(app, target="ask", user=None)
        built_in = await browser.back("forged", name="plain")
        pages = []
        for each, answered in (("plain", {}), ("own", {"plain": OPENED}), ("more", {"own": OPENED})):
            assert (await asking.send(answered)).needs_input
            pages.append(await browser.back(state_of(url_of(asking, each)), name=each))
        assert [page.status_code for page in (built_in, *pages)] == [400, 200, 200, 307]
        for name in names:
            assert pages[0].headers[name] == pages[2].headers[name] == built_in.headers[name]
            assert pages[1].headers[name] == (csp if name == "content-security-policy" else built_in.headers[name])


class TestThePostOfAForm:
    """It comes from a page, and browsers say of which site: from others nobody is led to it."""

    FORM_POST = "https://login.example.com"

    def app(self, base: str | None = BASE) -> MRTRServer:
        app = MRTRServer("forms", keys=RING, base_url=base)

        @app.callback("key", methods=["GET", "POST"])
        async def key(request: Request) -> str:
            return str((await request.form())["key"])

        @app.callback("login", methods=["POST"], origins=[f"{self.FORM_POST}:443/", "null"])
        async def login(request: Request) -> str:
            return str((await request.form())["key"])

        @app.tool
        async def use(ctx: Context) -> str:
            return await ctx.elicit_url("?", provider, callback=key)

        @app.tool
        async def enter(ctx: Context) -> str:
            return await ctx.elicit_url("?", provider, callback=login)

        return app

    async def post(self, app: MRTRServer, tool: str, *origins: str, base: str = BASE) -> int:
        asking = flow(app, target=tool, user=None, host=base.partition("//")[2])
        assert (await asking.start()).needs_input
        name = {"use": "key", "enter": "login"}[tool]
        async with Browser(app, base=base).client as client:
            headers = [("Origin", origin) for origin in origins]
            state = {"state": state_of(url_of(asking, name))}
            page = await client.post(f"/callbacks/{name}", params=state, data={"key": "k"}, headers=headers)
        return page.status_code

    @pytest.mark.parametrize("origin", [BASE, BASE.upper()])
    async def test_is_taken_from_the_servers_own(self, origin: str) -> None:
        assert await self.post(self.app(), "use", origin) == 200

    @pytest.mark.parametrize(
        "origin", ["https://evil.example", "null", "", f"{BASE}.evil.example", f"{BASE}:444", BASE[:-1], "x", FORM_POST]
    )
    async def test_is_refused_from_others_with_what_to_set(self, origin: str, caplog: pytest.LogCaptureFixture) -> None:
        assert await self.post(self.app(), "use", origin) == 403
        (line,) = [record.getMessage() for record in caplog.records if "refused a POST" in record.getMessage()]
        assert f"'key': refused a POST from the origin {origin!r}: " in line
        assert "add it to origins= of the callback" in line

    async def test_is_refused_from_two_at_once(self) -> None:
        assert await self.post(self.app(), "use", BASE, BASE) == 403

    async def test_is_taken_from_those_that_the_callback_names(self) -> None:
        app = self.app()
        assert await self.post(app, "enter", self.FORM_POST) == 200
        assert await self.post(app, "enter", "null") == 200
        assert await self.post(app, "enter", BASE) == 200
        assert await self.post(app, "enter", "https://evil.example") == 403

    @pytest.mark.parametrize("states", [0, 1, 2])
    async def test_may_have_the_token_in_it_as_a_provider_sends_it(self, states: int) -> None:
        """With the response mode form_post there is nothing in the address."""
        app = self.app()
        asking = flow(app, target="enter", user=None)
        assert (await asking.start()).needs_input
        form = {"key": "from the provider", "state": [state_of(url_of(asking, "login"))] * states}
        page = await Browser(app).client.post("/callbacks/login", data=form, headers={"Origin": self.FORM_POST})
        assert page.status_code == (200 if states == 1 else 400)
        if states == 1:
            assert (await asking.answer(login=OPENED)).text == "from the provider"

    async def test_of_very_many_fields_is_refused(self) -> None:
        page = await Browser(self.app()).client.post("/callbacks/login", data={f"f{n}": "" for n in range(2000)})
        assert page.status_code == 400

    async def test_is_taken_without_one_since_no_browser_leaves_it_out(self) -> None:
        assert await self.post(self.app(), "use") == 200

    async def test_is_taken_on_loopback_from_the_address_that_it_came_to(self) -> None:
        local = "http://localhost:8000"
        assert await self.post(self.app(base=None), "use", local, base=local) == 200
        for other in ("http://localhost:3000", "http://127.0.0.1:8000", "http://evil.example"):
            assert await self.post(self.app(base=None), "use", other, base=local) == 403

    @pytest.mark.parametrize("origins", ["https://a.example", ["a.example"], ["https://a.example/path"], ["*"], [""]])
    def test_names_are_checked_when_the_decorator_runs(self, origins: Any) -> None:
        with pytest.raises(SetupError, match=r"one string; pass a list|is not an origin"):
            MRTRServer("forms", keys=RING).callback("x", methods=["POST"], origins=origins)(lambda request: "x")

    def test_names_are_for_what_is_posted(self) -> None:
        with pytest.raises(SetupError, match=r"origins= apply to POST only; give methods=\[\"POST\"\], too"):
            MRTRServer("forms", keys=RING).callback("x", origins=["https://a.example"])(lambda request: "x")


class OpenStore(InProcessStore):
    """A store into which somebody can look and write."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, bytes] = {}

    async def put(self, key: str, value: bytes, *, keep: float, **more: Any) -> bool:
        return self.kept.setdefault(key, value) is value

    async def get(self, key: str) -> bytes | None:
        return self.kept.get(key)


class TestWhatIsKept:
    async def test_can_not_be_read_in_the_store_nor_in_the_state(self) -> None:
        store = OpenStore()
        server = calendar(store=store)
        asking = flow(server.app, target="alongside")
        assert (await asking.start()).needs_input
        await Browser(server.app).log_in(asking, code="a-very-personal-name")
        (value,) = store.kept.values()
        for secret in (SECRET, "personal"):
            assert secret.encode() not in value
            assert secret not in str(store.kept)
        assert (await asking.answer(google=OPENED)).needs_input
        assert SECRET not in str(asking.last.message)
        sealed = SealedCodec(RING).unseal(str(asking.state))
        assert b"google" in sealed
        assert SECRET.encode() not in sealed

    async def test_counts_for_its_own_link_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        """Who can write into the store can't give one user another's login."""
        store = OpenStore()
        server = calendar(store=store)
        ann, bob = flow(server.app), flow(server.app, user="bob")
        assert (await ann.send()).needs_input
        assert (await bob.send()).needs_input
        await Browser(server.app).log_in(ann)
        ((key, kept),) = store.kept.items()
        store.kept[state_of(url_of(bob)).partition(".")[0]] = kept
        assert "Nothing was done" in (await bob.send({"google": OPENED})).error.message
        assert "under the key of another report" in caplog.text
        store.kept[key] = kept[:-4] + b"AAAA"
        assert "Nothing was done" in (await ann.send({"google": OPENED})).error.message
        assert "can't be unsealed" in caplog.text

    async def test_is_kept_as_long_as_the_flow_may_last(self) -> None:
        kept: list[float] = []

        class Watched(InProcessStore):
            async def put(self, key: str, value: bytes, *, keep: float, **more: Any) -> bool:
                kept.append(keep)
                return await super().put(key, value, keep=keep, **more)

        server = calendar(store=Watched(), limits=Limits(flow_seconds=500))
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        await Browser(server.app).log_in(asking)
        assert 490 < kept[0] <= 501

    async def test_is_no_larger_than_a_state(self, caplog: pytest.LogCaptureFixture) -> None:
        server = calendar(limits=Limits(state_bytes=3000), answer=lambda request: Account(name="x" * 4000))
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        assert (await Browser(server.app).back(state_of(url_of(asking)))).status_code == 500
        assert "allows 3000" in caplog.text

    async def test_comes_back_as_its_declared_type(self) -> None:
        app = MRTRServer("types", keys=RING, base_url=BASE)

        @app.callback("pair")
        def pair(request: Request) -> tuple[int, list[Account]]:
            return 1, [Account(name="ann")]

        @app.callback("nothing")
        def nothing(request: Request) -> None:
            return None

        @app.tool
        async def ask(ctx: Context) -> str:
            number, accounts = await ctx.elicit_url("One", callback=pair)
            await ctx.elicit_url("Two", callback=nothing)
            return f"{number} {accounts[0].name}"

        asking = flow(app, target="ask", user=None)
        assert (await asking.start()).needs_input
        await Browser(app).client.get(url_of(asking, "pair"))
        assert (await asking.answer(pair=OPENED)).needs_input
        await Browser(app).client.get(url_of(asking, "nothing"))
        assert (await asking.answer(nothing=OPENED)).text == "1 ann"

    @pytest.mark.parametrize("database", [False, True])
    async def test_counts_for_the_person_so_that_nobody_fills_the_store_with_reports(
        self, database: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = SQLStore(f"sqlite:///{tmp_path}/store.db") if database else InProcessStore()
        server = calendar(store=store, limits=Limits(hold_seconds=0.2, stored_states=30))

        async def report(user: str) -> httpx.Response:
            asking = flow(server.app, user=user)
            assert (await asking.start()).needs_input
            return await Browser(server.app, user).back(state_of(url_of(asking)))

        assert [(await report("ann")).status_code for _ in range(3)] == [200] * 3
        page = await report("ann")
        assert (page.status_code, page.headers["retry-after"]) == (429, "30")
        assert "Callback 'google': could not report, since a caller has used up its share" in caplog.text
        assert "Limits(stored_states=...)" in caplog.text
        assert (await report("bob")).status_code == 200
        await store.close()

    async def test_a_store_that_is_down_fails_closed_and_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        class Down(InProcessStore):
            async def get(self, key: str) -> bytes | None:
                raise StoreUnavailable("the database is gone")

        server = calendar(store=Down())
        asking = flow(server.app)
        assert (await asking.start()).needs_input
        page = await Browser(server.app).back(state_of(url_of(asking)))
        assert (page.status_code, page.headers["retry-after"]) == (503, "2")
        assert not server.opened
        error = (await asking.answer(google=OPENED)).error
        assert "send the request again" in error.message, "the flow is not over, so that it is no result for the model"
        assert caplog.text.count("the database is gone") == 1, "one line for the outage, not one for each request"
        assert "database" not in page.text


class TestWhereItIs:
    async def test_without_a_base_url_it_is_where_a_request_on_loopback_came_to(self) -> None:
        server = calendar(base_url=None)
        asking = flow(server.app, host="localhost:8123")
        assert (await asking.start()).needs_input
        assert "redirect_uri=http://localhost:8123/callbacks/google&" in url_of(asking)
        state = state_of(url_of(asking))
        away = Browser(server.app, base="http://evil.example")
        assert (await away.back(state)).status_code == 403
        assert (await Browser(server.app, base="http://localhost:8123").back(state)).status_code == 200

    async def test_without_a_base_url_it_is_nowhere_else(self, caplog: pytest.LogCaptureFixture) -> None:
        server = calendar(base_url=None)
        assert "Internal error" in (await flow(server.app).start()).failure
        assert "which is not loopback. Give MRTRServer its base_url=" in caplog.text

    @pytest.mark.parametrize(
        "base_url",
        [
            *("tools.example.com", "ftp://x", "https://", "https://x/?q", "https://x/#f", "https://u@x", ""),
            *("https://x:y", 'https://x/"', "https://x/a b", "https://x/\r\n", "https://bücher.example"),
        ],
    )
    async def test_a_base_url_is_an_address(self, base_url: str) -> None:
        with pytest.raises(SetupError, match="must be an address such as"):
            MRTRServer("x", keys=RING, base_url=base_url)

    async def test_mounted_it_is_below_the_mount(self) -> None:
        for base_url, base in ((f"{BASE}/tools/", BASE), (None, "http://127.0.0.1:8000")):
            server = calendar(base_url=base_url)
            site = Starlette(routes=[Mount("/tools", server.app)])
            asking = flow(site, host=base.partition("//")[2], path="/tools/mcp")
            assert (await asking.start()).needs_input
            async with httpx.AsyncClient(transport=httpx.ASGITransport(site), base_url=base) as client:
                assert f"redirect_uri={base}/tools/callbacks/google&" in url_of(asking)
                found = f"/tools/callbacks/google?state={state_of(url_of(asking))}"
                assert (await client.get(found, headers={"Cookie": "user=ann"})).status_code == 200
                assert (await client.get(found.removeprefix("/tools"))).status_code == 404
                assert (await client.get("/tools/callbacks/unknown")).status_code == 404

    async def test_as_a_route_it_has_a_route_of_its_own(self) -> None:
        server = calendar()
        site = Starlette(routes=[Route("/mcp", server.app), Route("/callbacks/{name}", server.app)])
        asking = flow(site)
        assert (await asking.start()).needs_input
        assert (await Browser(site).back(state_of(url_of(asking)))).status_code == 200

    async def test_no_authentication_of_the_servers_is_in_the_way(self) -> None:
        server = calendar()
        page = await came_back(server.app)
        assert "www-authenticate" not in page.headers
        assert page.status_code == 200
        assert (await Browser(server.app).client.get("/callbacks/unknown")).status_code == 404


class TestSeveralWorkers:
    def test_without_a_shared_store_are_refused_at_the_start(self, tmp_path: Path) -> None:
        """What one keeps the others would never see."""
        environment = {"MRTR_KEYS": KEYS}
        log = tmp_path / "log"
        with in_process("tests.support.apps:reporting", "--workers", "2", log=log, environment=environment) as server:
            server.wait()
            assert "2 workers need one shared store for the callback 'page'" in server.text
            assert "Traceback" not in server.text

    def test_one_alone_needs_none(self, tmp_path: Path) -> None:
        environment = {"MRTR_KEYS": KEYS}
        with in_process("tests.support.apps:reporting", log=tmp_path / "log", environment=environment) as server:
            assert httpx.get(f"http://127.0.0.1:{server.port}/callbacks/page").status_code == 400


class TestHoldingEndsEarly:
    """What a server that is about to end uses: it hands over what it holds."""

    @pytest.fixture
    def admission(self) -> Admission:
        return Admission(Limits())

    @pytest.fixture
    def callbacks(self, admission: Admission) -> Callbacks:
        limits = Limits(hold_seconds=20)
        store = InProcessStore()
        return Callbacks(
            {},
            RING,
            store,
            audience="x",
            base=BaseUrl(BASE),
            identifies=False,
            fanout=store.fanout(),
            limits=limits,
            on_drain=admission.on_drain,
        )

    @pytest.fixture
    def journal(self) -> Journal:
        return Journal(time.time(), answers={"google": {"callback.0.0": OPENED.raw}})

    async def test_at_once_when_the_server_begins_to_drain(
        self, callbacks: Callbacks, admission: Admission, journal: Journal
    ) -> None:
        held = asyncio.create_task(callbacks.reports(journal, lambda: admission.draining))
        await asyncio.sleep(1.5)  # by now it looks once a second
        began = time.monotonic()
        await asyncio.to_thread(admission.drain)
        assert (await held).unfinished == (("google", "callback.0.0"),)
        assert time.monotonic() == began

    async def test_it_does_not_begin_where_the_call_is_to_continue_elsewhere(
        self, callbacks: Callbacks, journal: Journal
    ) -> None:
        began = time.monotonic()
        assert (await callbacks.reports(journal, lambda: True)).unfinished == (("google", "callback.0.0"),)
        assert time.monotonic() == began

    async def test_draining_alone_ends_nothing(
        self, callbacks: Callbacks, admission: Admission, journal: Journal
    ) -> None:
        held: asyncio.Task[Reports[None]] = asyncio.create_task(callbacks.reports(journal))
        for _ in range(5):
            await asyncio.sleep(0.01)
            admission.drain()
        await asyncio.sleep(0.05)
        assert not held.done()
        held.cancel()

    async def test_a_journal_without_pages_is_not_looked_at_twice(self, callbacks: Callbacks) -> None:
        answers = {"page": {"url.0.0": OPENED.raw}, "login": {"callback.0.0": decline.raw}}
        assert await callbacks.reports(Journal(0, answers=answers)) == Reports()


class TestWhatCanNotWorkIsRefused:
    @pytest.fixture
    def app(self) -> MRTRServer:
        return MRTRServer("x", keys=RING, base_url=BASE)

    @pytest.mark.parametrize("name", ["", "a/b", "a.b", "a b", "é", "x" * 65, "..", "?"])
    async def test_a_name_that_is_no_part_of_an_address(self, app: MRTRServer, name: str) -> None:
        with pytest.raises(SetupError, match="not a valid name"):
            app.callback(name)(lambda request: None)

    async def test_a_name_that_is_taken(self, app: MRTRServer) -> None:
        app.callback("one")(lambda request: None)
        with pytest.raises(SetupError, match="There is a callback 'one' already"):
            app.callback("one")(lambda request: None)

    async def test_no_name_at_all(self, app: MRTRServer) -> None:
        with pytest.raises(SetupError, match="needs its name"):
            app.callback(lambda request: None)  # type: ignore[arg-type]

    async def test_parameters_that_nothing_fills(self, app: MRTRServer) -> None:
        functions: list[Callable[..., None]] = [lambda: None, lambda a, b, c: None]
        for function in functions:
            with pytest.raises(SetupError, match="takes the request, and optionally"):
                app.callback("c")(function)

    async def test_methods_that_no_browser_comes_back_with(self, app: MRTRServer) -> None:
        for methods in ([], ["PUT"], ["GET", "HEAD"]):
            with pytest.raises(SetupError, match="methods="):
                app.callback("c", methods=methods)(lambda request: None)  # type: ignore[arg-type]

    async def test_one_that_never_reports_anything(self, app: MRTRServer) -> None:
        async def page(request: Request) -> HTMLResponse:
            raise AssertionError

        with pytest.raises(SetupError, match="never reports"):
            app.callback("c")(page)

    async def test_a_type_that_can_not_be_kept(self, app: MRTRServer) -> None:
        class Odd: ...

        async def odd(request: Request) -> Odd:
            raise AssertionError

        with pytest.raises(SetupError, match="can't be kept"):
            app.callback("c")(odd)

    async def test_an_ask_that_does_not_fit_together(self, app: MRTRServer) -> None:
        google = app.callback("google")(lambda request: "x")
        wrong: list[tuple[Any, Any, str]] = [
            ("https://example.com", google, "url= must be a function of the CallbackLink"),
            (provider, None, "only with callback="),
            (None, None, "url as a string, or a callback="),
            (provider, lambda request: None, "is not a callback"),
        ]
        for url, callback, says in wrong:
            with pytest.raises(SetupError, match=says):
                ElicitUrl("?", url, callback=callback).question()

    async def test_a_callback_of_another_server(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        theirs = MRTRServer("theirs", keys=RING).callback("google")(lambda request: "x")

        @app.tool
        async def ask(ctx: Context) -> str:
            return str(await ctx.elicit_url("Log in", provider, callback=theirs))

        assert "Internal error" in (await flow(app, target="ask", user=None).start()).failure
        assert "belongs to another server" in caplog.text

    @pytest.mark.parametrize("style", ["inline", "pure"])
    async def test_a_url_that_fails(self, app: MRTRServer, style: str, caplog: pytest.LogCaptureFixture) -> None:
        google = app.callback("google")(lambda request: "x")

        def broken(back: CallbackLink) -> str:
            raise KeyError("client_id")

        @app.tool
        async def inline(ctx: Context) -> str:
            return str(await ctx.elicit_url("Log in", broken, callback=google))

        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            return InputRequired(google=ElicitUrl("Log in", broken, callback=google))

        assert "Internal error" in (await flow(app, target=style, user=None).start()).failure
        assert "The url= function for the callback 'google' failed: KeyError('client_id')" in caplog.text

    async def test_a_url_that_is_no_string_and_is_not_logged_either(
        self, app: MRTRServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        google = app.callback("google")(lambda request: "x")

        @app.tool
        async def inline(ctx: Context) -> str:
            url: Any = lambda back: ("https://example.com", back.state)  # noqa: E731
            return str(await ctx.elicit_url("Log in", url, callback=google))

        assert "Internal error" in (await flow(app, target="inline", user=None).start()).failure
        assert "The url= function for the callback 'google' returned a tuple, not a string" in caplog.text
        assert "'state')" not in caplog.text


class TestInAUnitTest:
    async def test_a_callback_is_called_like_the_function_that_it_was(self) -> None:
        app = MRTRServer("x", keys=RING)

        @app.callback("double")
        def double(request: Request, back: CallbackLink) -> str:
            return back.verifier * 2

        assert double(None, CallbackLink("https://x/callbacks/double", "state", "v")) == "vv"

    async def test_a_pure_function_is_given_what_the_callback_would_return(self) -> None:
        server = calendar()
        ask = ElicitUrl("Log in", provider, callback=server.google)
        assert Inputs({"login": Account(name="ann")}).get("login", ask) == Account(name="ann")
        assert Inputs().get("login", ask) is None

    async def test_a_challenge_is_that_of_rfc_7636(self) -> None:
        """The example of its appendix B."""
        back = CallbackLink("https://x", "state", "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
        assert back.challenge == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
        assert back.link == "https://x?state=state"

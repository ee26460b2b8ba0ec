"""The official client over real HTTP, with its own retry loop and callbacks: what it is asked, what it makes of it."""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import httpx
import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext
from mcp.client.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from examples import bookshop, conformance, deploy, mixed_asks, official_client, payments, report, weather, work_items
from mrtr_server import (
    Annotations,
    AudioContent,
    Completion,
    Context,
    Elicit,
    Elicited,
    EmbeddedResource,
    Header,
    ImageContent,
    InputRequired,
    Inputs,
    ListRoots,
    Lists,
    Message,
    MRTRServer,
    ResourceContents,
    ResourceLink,
    Roots,
    Sample,
    ServerInfo,
    State,
    TextContent,
    ToolError,
    ToolResult,
)

from ..conftest import Serve
from ..support.models import Login
from ..support.serving import TIMEOUT, in_thread
from ..support.task_apps import working
from ..support.wire import Inspected

pytestmark = pytest.mark.anyio

Connect = Callable[..., Any]


# Who is asked


def yes(**content: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content=content)


@dataclass
class Person:
    """Stands for whoever sits at the client: answers what is asked, and remembers it.

    Args:
        forms: the answer to a form or page, by its message; the last word counts where a reason goes before it.
        roots: what the client works in.
    """

    forms: dict[str, types.ElicitResult] = field(default_factory=dict)
    roots: list[str] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        self.asked.append(params)
        async with self.counted():
            return self.forms[params.message.rpartition("\n")[2]]

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        self.asked.append(params)
        content = params.messages[-1].content
        assert isinstance(content, types.TextContent)
        async with self.counted():
            said = types.TextContent(type="text", text=f"You said: {content.text}")
            return types.CreateMessageResult(role="assistant", content=said, model="parrot-1", stop_reason="endTurn")

    async def list_roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        self.asked.append("roots")
        async with self.counted():
            return types.ListRootsResult(roots=[types.Root(uri=uri) for uri in self.roots])

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        """See how many asks are open at once."""
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.02)
        yield
        self.at_once -= 1

    def callbacks(self) -> dict[str, Any]:
        return {
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "list_roots_callback": self.list_roots,
        }


MODERN = frozenset(
    {
        "test_a_flow_goes_on_in_another_process_of_the_client",
        "test_an_extension_follows_a_call_from_rounds_into_its_task_and_to_its_end",
        "test_what_a_task_failed_with_is_told",
        "test_log_messages_come_from_the_level_that_the_client_asked_for",
        "test_structured_output_is_what_its_schema_says",
        "test_changes_reach_the_one_who_listens",
        "test_what_was_not_asked_for_is_not_sent",
        "test_several_listen_beside_calls",
        "test_have_the_codes_of_the_protocol",
        "test_of_a_state_that_was_changed_are_no_more_than_that",
    }
)
"""What is otherwise with a handshake: states, tasks, listening, levels of messages, codes, and results that are no
objects. `tests/live` has all that."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let the client find the version by asking first, pinned, and with the handshake of 2025-11-25."""
    if "mode" in metafunc.fixturenames:
        modern = metafunc.function.__name__ in MODERN
        metafunc.parametrize("mode", ["auto", "2026-07-28", *([] if modern else ["legacy"])], indirect=True)


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> str:
    """How the client finds the version."""
    return str(request.param)


@pytest.fixture
def connect(office_url: str, mode: str) -> Connect:
    """Connect the official client to the office below, or to another server."""

    def client(person: Person | None = None, *, url: str = office_url, **options: Any) -> Client:
        return Client(url, mode=mode, **(person.callbacks() if person else {}), **options)

    return client


# The server


office = MRTRServer(
    "office", info=ServerInfo(version="2.0"), instructions="Be brief.", keys=[bytes(32)], lists=Lists(page_size=7)
)


class Booking(BaseModel):
    room: Literal["small", "large"] = Field(description="Which room")
    people: Annotated[int, Field(ge=1, le=12)]
    catering: bool = False
    email: str | None = None


@office.tool
def greet(greeting: str, inputs: Inputs) -> str | InputRequired:
    """Ask as a pure function."""
    login = inputs.get("login", Login)
    return f"{greeting}, {login.name}" if login else InputRequired(login=Elicit("Who are you?", Login))


@office.tool
async def book(day: str, ctx: Context) -> str:
    """Ask in the middle of the code, twice, with a step before."""
    number = await ctx.step(next_number)
    booking = await ctx.elicit(f"Which room on {day}?", Booking)
    await ctx.confirm(f"Book the {booking.room} room for {booking.people}?")
    return f"booking {number} in round {ctx.round}: {booking.room} for {booking.people} on {day}"


NUMBERS: list[int] = []


def next_number() -> int:
    NUMBERS.append(len(NUMBERS) + 1)
    return NUMBERS[-1]


@office.tool
async def survey(ctx: Context) -> str:
    """Ask a person, a model and the client at once."""
    login, (said, roots) = await asyncio.gather(
        ctx.elicit("Who are you?", Login), ctx.ask(Sample("hello", max_tokens=9, system_prompt="Parrot."), ListRoots())
    )
    return f"{login.name} | {said.text} | {said.model} | {[root.uri for root in roots]}"


@office.tool
def gather(inputs: Inputs, seen: State[list[str]]) -> str | InputRequired:
    """Keep a state of its own over three rounds."""
    so_far = seen.value or []
    for key in ("first", "second", "third"):
        login = inputs.get(key, Login)
        if login is None:
            return InputRequired({key: Elicit(f"The {key}?", Login)}, state=[*so_far, key])
    return " ".join(so_far)


@office.tool
async def choose(ctx: Context) -> str:
    """Branch on what the person did."""
    answer = await ctx.elicit("Who are you?", Elicited[Login])
    return answer.action if answer.content is None else answer.content.name


@office.tool
async def sign_in(ctx: Context) -> str:
    """Have a page opened."""
    await ctx.elicit_url("Sign in, please", "https://example.com/sign-in?flow=" + ctx.flow)
    return "welcome"


@office.tool
async def count(to: int, ctx: Context) -> str:
    """Tell how far it has come, and write to the log."""
    for number in range(1, to + 1):
        await ctx.progress(number, to, f"at {number}")
        await ctx.log({"at": number}, level="info" if number < to else "warning", logger="counter")
    return "done"


class Point(BaseModel):
    x: float
    y: float
    label: str | None = None


@office.tool
def locate() -> Point:
    """Return a model."""
    return Point(x=1, y=2.5)


@office.tool
def primes() -> list[int]:
    """Return a list."""
    return [2, 3, 5]


@office.tool
def stock() -> dict[str, int]:
    """Return a dictionary."""
    return {"pens": 3}


@office.tool
def answer() -> int:
    """Return a number."""
    return 42


@office.tool
def either(which: bool) -> Point | list[int]:
    """Return one of two."""
    return Point(x=0, y=0) if which else [1]


@office.tool
def content() -> list[TextContent | ImageContent | AudioContent | EmbeddedResource | ResourceLink]:
    """Return a block of every kind."""
    return [
        TextContent(text="plain", annotations=Annotations(audience=["user"], priority=0.5)),
        ImageContent(data=b"\x89PNG"),
        AudioContent(data=b"RIFF", mime_type="audio/ogg"),
        EmbeddedResource(resource=ResourceContents(uri="doc://text", text="within", mime_type="text/plain")),
        EmbeddedResource(resource=ResourceContents(uri="doc://blob", blob=b"\x00\x01")),
        ResourceLink(uri="doc://link", name="link", description="elsewhere", size=5),
    ]


@office.tool
def of_the_sdk() -> list[types.TextContent | types.ImageContent]:
    """Return blocks of the official SDK."""
    return [
        types.TextContent(type="text", text="theirs"),
        types.ImageContent(type="image", data="AAAA", mime_type="image/gif"),
    ]


@office.tool
def in_full() -> ToolResult:
    """Return everything that a result can have."""
    return ToolResult(content=["x"], structured_content={"y": 1}, meta={"example.com/z": 2})


@office.tool
def fail() -> str:
    """Fail for the model to see."""
    raise ToolError("the office is closed")


@office.tool
def crash() -> str:
    """Fail for nobody to see."""
    raise RuntimeError("swordfish")


@office.tool
def route(region: Annotated[str, Header("Region")], floor: Annotated[int, Header("Floor")] = 0) -> str:
    """Take parameters that headers mirror."""
    return f"{region} {floor}"


@office.tool
async def endless(ctx: Context) -> str:
    """Never have enough."""
    for number in range(99):
        await ctx.elicit("Who are you?", Login, key=f"login_{number}")
    return "unreachable"


@office.prompt(title="Review")
async def review(language: str, ctx: Context, style: str = "kind") -> list[Message | str]:
    """Ask for whom to write."""
    login = await ctx.elicit("Who are you?", Login)
    return [f"Review this {language}, be {style}", Message(role="assistant", content=f"Gladly, {login.name}")]


@office.prompt
def broken() -> str:
    """Fail for nobody to see."""
    raise RuntimeError("swordfish")


@office.resource("doc://plain", mime_type="text/markdown", cache_seconds=60)
def plain() -> str:
    """Be read at once."""
    READS.append("plain")
    return "# Plain"


READS: list[str] = []


@office.resource("doc://binary")
def binary() -> bytes:
    """Hold bytes."""
    return b"\x00\x01\x02"


@office.resource("doc://{owner}/{name}")
def document(owner: str, name: str, inputs: Inputs) -> str | InputRequired:
    """Ask in which of the client's directories to look."""
    listed = inputs.get("roots", Roots)
    if listed is None:
        return InputRequired(roots=ListRoots())
    return f"{owner}'s {name} in {', '.join(root.uri for root in listed.roots)}"


@office.completion("language", prompt="review")
def languages(value: str) -> list[str]:
    """Suggest by what was typed."""
    return [each for each in ("Python", "PHP", "Rust") if each.startswith(value)]


@office.completion("style", prompt="review")
def styles(value: str, known: dict[str, str]) -> Completion:
    """Suggest by what else is known."""
    return Completion(values=[f"{value}{known.get('language', '?')}"], total=40, has_more=True)


@office.completion("name", resource="doc://{owner}/{name}")
async def names(value: str) -> list[str]:
    """Suggest more than may be sent."""
    return [f"{value}{number}" for number in range(150)]


@pytest.fixture(scope="module")
def office_url() -> Iterator[str]:
    inspected = Inspected(office)
    with in_thread(inspected) as port:
        yield f"http://127.0.0.1:{port}/mcp"
    assert not inspected.problems


# Asking


class TestAsking:
    async def test_a_pure_function_asks_and_is_run_again(self, connect: Connect) -> None:
        person = Person({"Who are you?": yes(name="octocat")})
        async with connect(person) as client:
            result = await client.call_tool("greet", {"greeting": "Hello"})
        assert text(result) == "Hello, octocat"
        (asked,) = person.asked
        assert asked.requested_schema == {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        }

    async def test_inline_asks_take_a_round_each_and_steps_run_once(self, connect: Connect) -> None:
        person = Person(
            {
                "Which room on Friday?": yes(room="large", people=4),
                "Book the large room for 4?": yes(confirm=True),
            }
        )
        before = len(NUMBERS)
        async with connect(person) as client:
            result = await client.call_tool("book", {"day": "Friday"})
        assert text(result) == f"booking {before + 1} in round 3: large for 4 on Friday"
        assert len(NUMBERS) == before + 1
        assert len(person.asked) == 2

    async def test_several_asks_go_out_in_one_round_and_are_answered_side_by_side(self, connect: Connect) -> None:
        person = Person({"Who are you?": yes(name="octocat")}, roots=["file:///a", "file:///b"])
        async with connect(person) as client:
            result = await client.call_tool("survey")
        assert text(result) == "octocat | You said: hello | parrot-1 | ['file:///a', 'file:///b']"
        assert person.most_at_once == 3
        assert len(person.asked) == 3

    async def test_a_state_of_its_own_goes_with_the_flow(self, connect: Connect) -> None:
        person = Person({f"The {which}?": yes(name=which) for which in ("first", "second", "third")})
        async with connect(person) as client:
            assert text(await client.call_tool("gather")) == "first second third"

    async def test_a_page_is_opened_in_url_mode(self, connect: Connect) -> None:
        person = Person({"Sign in, please": types.ElicitResult(action="accept")})
        async with connect(person) as client:
            assert text(await client.call_tool("sign_in")) == "welcome"
        (asked,) = person.asked
        assert isinstance(asked, types.ElicitRequestURLParams)
        assert asked.url.startswith("https://example.com/sign-in?flow=")

    async def test_a_page_that_reports_back_is_waited_for(self, connect: Connect) -> None:
        """The client retries at once, long before the person is done, and asks nobody a second time."""
        server = MRTRServer("pages", keys=[bytes(32)])

        @server.callback("account")
        async def account(request: Request) -> Login:
            return Login(name=request.query_params["name"])

        @server.tool
        async def sign_in(ctx: Context) -> str:
            return (await ctx.elicit_url("Sign in, please", callback=account)).name

        visits: list[asyncio.Task[None]] = []

        class Visitor(Person):
            async def elicit(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> Any:
                assert isinstance(params, types.ElicitRequestURLParams)
                visits.append(asyncio.create_task(visit(f"{params.url}&name=octocat")))
                return await super().elicit(context, params)

        async def visit(url: str) -> None:
            await asyncio.sleep(0.5)
            async with httpx.AsyncClient(timeout=TIMEOUT) as browser:
                assert (await browser.get(url)).status_code == 200

        person = Visitor({"Sign in, please": types.ElicitResult(action="accept")})
        with in_thread(Inspected(server), wait=False) as port:
            async with connect(person, url=f"http://127.0.0.1:{port}/mcp") as client:
                assert text(await client.call_tool("sign_in")) == "octocat"
            await asyncio.gather(*visits)
        assert len(person.asked) == 1

    @pytest.mark.parametrize(("action", "said"), [("decline", "declined"), ("cancel", "dismissed")])
    async def test_a_no_ends_the_call_and_says_so(self, connect: Connect, action: Any, said: str) -> None:
        person = Person({"Who are you?": types.ElicitResult(action=action)})
        async with connect(person) as client:
            for tool, arguments in (("greet", {"greeting": "Hello"}), ("survey", {})):
                result = await client.call_tool(tool, arguments)
                assert result.is_error
                assert said in text(result)
            assert text(await client.call_tool("choose")) == action
            with pytest.raises(MCPError) as refused:
                await client.get_prompt("review", {"language": "C"})
        assert (refused.value.code, refused.value.data) == (-31001, {"action": action})

    async def test_a_confirmation_that_is_not_a_yes_ends_the_call(self, connect: Connect) -> None:
        person = Person(
            {"Which room on Friday?": yes(room="small", people=1), "Book the small room for 1?": yes(confirm=False)}
        )
        async with connect(person) as client:
            result = await client.call_tool("book", {"day": "Friday"})
        assert result.is_error

    async def test_a_form_that_came_back_wrong_is_asked_for_again_with_the_reason(self, connect: Connect) -> None:
        class Careless(Person):
            async def elicit(
                self, context: ClientRequestContext, params: types.ElicitRequestParams
            ) -> types.ElicitResult | types.ErrorData:
                self.asked.append(params.message)
                if "confirm" in str(params):
                    return yes(confirm=True)
                return yes(room="large", people=40 if len(self.asked) == 1 else 4)

        person = Careless()
        async with connect(person) as client:
            result = await client.call_tool("book", {"day": "Friday"})
        assert "large for 4" in text(result)
        first, again, _ = person.asked
        assert again == f"people: Input should be less than or equal to 12 — {first}"

    async def test_prompts_ask(self, connect: Connect) -> None:
        async with connect(Person({"Who are you?": yes(name="octocat")})) as client:
            prompt = await client.get_prompt("review", {"language": "C"})
        assert [(m.role, m.content.text) for m in prompt.messages] == [
            ("user", "Review this C, be kind"),
            ("assistant", "Gladly, octocat"),
        ]
        assert prompt.description == "Ask for whom to write."

    async def test_resources_ask(self, connect: Connect) -> None:
        async with connect(Person(roots=["file:///home"])) as client:
            (read,) = (await client.read_resource("doc://ann/plan%20b")).contents
        assert read == types.TextResourceContents(
            uri="doc://ann/plan%20b", mime_type="text/plain", text="ann's plan b in file:///home"
        )

    async def test_a_flow_goes_on_in_another_process_of_the_client(self, connect: Connect) -> None:
        """What the client needs to go on is in the result, however long it keeps it."""
        async with connect(Person()) as client:
            first = await client.session.call_tool("greet", {"greeting": "Hi"}, allow_input_required=True)
        assert isinstance(first, types.InputRequiredResult)
        async with connect(Person()) as client:
            result = await client.call_tool(
                "greet",
                {"greeting": "Hi"},
                input_responses={"login": yes(name="hubot")},
                request_state=first.request_state,
            )
        assert text(result) == "Hi, hubot"

    async def test_the_server_stops_a_flow_where_the_client_would(self, connect: Connect) -> None:
        person = Person({"Who are you?": yes(name="octocat")})
        async with connect(person) as client:
            with pytest.raises(MCPError) as stopped:
                await client.call_tool("endless")
        assert (stopped.value.code, stopped.value.data) == (-32602, {"limit": "rounds", "value": 10})
        assert len(person.asked) == 10


class TestExamples:
    """The examples, as a client of theirs meets them."""

    async def test_weather(self, serve: Serve, connect: Connect) -> None:
        person = Person({"Please provide your GitHub username": yes(name="octocat")})
        async with connect(person, url=serve(weather.app).url) as client:
            result = await client.call_tool("get_weather", {"location": "Oslo"})
        assert text(result) == "Current weather in Oslo:\nTemperature: 72°F\nConditions: Partly cloudy"

    async def test_work_items(self, serve: Serve, connect: Connect) -> None:
        person = Person(
            {
                "Resolving Bug #7 requires a resolution. How was this bug resolved?": yes(resolution="Duplicate"),
                "Since this is a duplicate, which work item is the original?": yes(duplicateOfId=5),
            }
        )
        async with connect(person, url=serve(work_items.app).url) as client:
            arguments = {"workItemId": 7, "fields": {"System.State": "Resolved"}}
            result = await client.call_tool("update_work_item", arguments)
        assert text(result).startswith("Bug #7 resolved as Duplicate of Bug #5.")

    async def test_bookshop(self, serve: Serve, connect: Connect) -> None:
        person = Person(
            {
                "How many copies of Emma? 3 are left.": yes(copies=2),
                "Where do they go?": yes(street="1 Main St", city="Paris"),
                "Buy 2 × Emma for 24 €, to 1 Main St, Paris?": yes(confirm=True),
            }
        )
        async with connect(person, url=serve(bookshop.app).url) as client:
            result = await client.call_tool("buy", {"title": "Emma"})
        assert text(result) == "2 × Emma are on their way to Paris."

    async def test_mixed_asks(self, serve: Serve, connect: Connect) -> None:
        person = Person({"Please provide your GitHub username": yes(name="octocat")})
        async with connect(person, url=serve(mixed_asks.app).url) as client:
            result = await client.call_tool("introduce")
        assert text(result) == "Hello, octocat. You said: What is the capital of France?"

    async def test_deploy(self, serve: Serve, connect: Connect, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deploy, "LOG", tmp_path / "deploy.log")

        class Sure(Person):
            async def elicit(
                self, context: ClientRequestContext, params: types.ElicitRequestParams
            ) -> types.ElicitResult | types.ErrorData:
                return yes(confirm=True)

        async with connect(Sure(), url=serve(deploy.app).url) as client:
            result = await client.call_tool("deploy", {"service": "shop"})
        built, rolled_out = (tmp_path / "deploy.log").read_text().splitlines()
        assert built.removeprefix("built ") == rolled_out.removeprefix("rolled out ")
        assert "is in production" in text(result)

    async def test_payments(
        self, serve: Serve, connect: Connect, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(payments, "LEDGER", tmp_path / "payments.db")
        async with connect(Person({"Pay 25 € to Ann?": yes(confirm=True)}), url=serve(payments.app).url) as client:
            result = await client.call_tool("pay", {"to": "Ann", "euros": 25})
            assert text(result) == "Paid 25 € to Ann, receipt 1."
            assert text(await client.call_tool("balance", {"of": "Ann"})) == "25"

    async def test_conformance(self, serve: Serve, connect: Connect) -> None:
        async with connect(Person({"What is your name?": yes(name="Ann")}), url=serve(conformance.app).url) as client:
            assert text(await client.call_tool("test_input_required_result_elicitation")) == "Hello, Ann!"
            assert len((await client.list_tools()).tools) > 15


class TestTasks:
    async def test_an_extension_follows_a_call_from_rounds_into_its_task_and_to_its_end(
        self, serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(report, "PACE", 0.0)
        in_rounds = Person({"How far should the report go?": yes(thousands=2)})
        in_the_task: list[str] = []

        async def ask(asked: types.ElicitRequestFormParams) -> types.ElicitResult:
            in_the_task.append(asked.message)
            return yes(style="sentence")

        tasks = [official_client.Tasks(ask)]
        async with connect(in_rounds, url=serve(report.app).url, extensions=tasks) as client:
            result = await client.call_tool("report", {})
        assert text(result) == "There are 303 primes below 2,000, 135 of them in the last thousand."
        assert in_the_task == ["There are 303 primes. How should the report look?"]

    async def test_what_a_task_failed_with_is_told(self, serve: Serve, connect: Connect) -> None:
        async def nobody(asked: types.ElicitRequestFormParams) -> types.ElicitResult:
            raise AssertionError(asked.message)

        async with connect(url=serve(working).url, extensions=[official_client.Tasks(nobody)]) as client:
            result = await client.call_tool("break_down", {})
        assert result.is_error
        assert text(result) == "API rate limit exceeded"

    async def test_without_one_the_result_comes_in_rounds(self, serve: Serve, connect: Connect) -> None:
        person = Person({"Who are you?": yes(name="Ann"), "How tall?": yes(size=170)})
        async with connect(person, url=serve(working).url) as client:
            assert text(await client.call_tool("measure", {})) == "Ann is 170 tall"


# Everything else


def text(result: types.CallToolResult) -> str:
    """Return the first text of a tool's result."""
    first = result.content[0]
    assert isinstance(first, types.TextContent)
    return first.text


class TestConnecting:
    async def test_finds_the_version_and_learns_about_the_server(self, office_url: str) -> None:
        async with Client(office_url) as client:
            assert client.protocol_version == "2026-07-28"
            assert client.server_info is not None
            assert (client.server_info.name, client.server_info.version) == ("office", "2.0")
            assert client.instructions == "Be brief."
            assert client.server_capabilities is not None
            assert client.server_capabilities.completions is not None
            assert client.server_capabilities.tools == types.ToolsCapability(list_changed=True)

    async def test_by_a_handshake_that_is_not_served_is_told_which_versions_are(self, serve: Serve) -> None:
        office_url = serve(MRTRServer("modern", keys=[bytes(32)], dialects=["2026-07-28"])).url
        with pytest.RaisesGroup(MCPError, flatten_subgroups=True) as refused:
            await Client(office_url, mode="legacy").__aenter__()
        error: BaseException = refused.value
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        assert isinstance(error, MCPError)
        assert (error.code, error.data["supported"]) == (-32022, ["2026-07-28"])

    async def test_follows_the_redirect_that_a_mount_without_a_slash_answers_with(self, serve: Serve) -> None:
        url = serve(Starlette(routes=[Mount("/mcp", office)])).url
        async with Client(url) as client:
            assert text(await client.call_tool("primes")) == "[2,3,5]"


class TestNotes:
    async def test_progress_reaches_the_callback_before_the_result(self, connect: Connect) -> None:
        seen: list[tuple[float, float | None, str | None]] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            seen.append((done, total, message))

        async with connect() as client:
            result = await client.call_tool("count", {"to": 3}, progress_callback=progress)
        assert text(result) == "done"
        assert seen == [(1, 3, "at 1"), (2, 3, "at 2"), (3, 3, "at 3")]

    @pytest.mark.parametrize(("level", "logged"), [("debug", [1, 2, 3]), ("warning", [3]), ("error", []), (None, [])])
    async def test_log_messages_come_from_the_level_that_the_client_asked_for(
        self, connect: Connect, level: types.LoggingLevel | None, logged: list[int]
    ) -> None:
        seen: list[types.LoggingMessageNotificationParams] = []

        async def log(params: types.LoggingMessageNotificationParams) -> None:
            seen.append(params)

        async with connect(log_level=level, logging_callback=log) as client:
            await client.call_tool("count", {"to": 3})
        assert [message.data["at"] for message in seen] == logged
        assert [message.logger for message in seen] == ["counter"] * len(logged)


class TestResults:
    @pytest.mark.parametrize(
        ("tool", "arguments", "structured"),
        [
            ("locate", {}, {"x": 1.0, "y": 2.5, "label": None}),
            ("primes", {}, [2, 3, 5]),
            ("stock", {}, {"pens": 3}),
            ("answer", {}, 42),
            ("either", {"which": True}, {"x": 0.0, "y": 0.0, "label": None}),
            ("either", {"which": False}, [1]),
        ],
    )
    async def test_structured_output_is_what_its_schema_says(
        self, connect: Connect, tool: str, arguments: Any, structured: Any
    ) -> None:
        """The client validates it by the schema in the list."""
        async with connect() as client:
            listed = {each.name: each for each in [page async for page in all_tools(client)]}
            assert listed[tool].output_schema is not None
            result = await client.call_tool(tool, arguments)
        assert result.structured_content == structured

    async def test_content_of_every_kind_arrives(self, connect: Connect) -> None:
        async with connect() as client:
            plain, image, audio, within, blob, link = (await client.call_tool("content")).content
            theirs, gif = (await client.call_tool("of_the_sdk")).content
        assert isinstance(plain, types.TextContent)
        assert plain.annotations == types.Annotations(audience=["user"], priority=0.5)
        assert isinstance(image, types.ImageContent)
        assert (b64decode(image.data), image.mime_type) == (b"\x89PNG", "image/png")
        assert isinstance(audio, types.AudioContent)
        assert (b64decode(audio.data), audio.mime_type) == (b"RIFF", "audio/ogg")
        assert isinstance(within, types.EmbeddedResource)
        assert within.resource == types.TextResourceContents(uri="doc://text", mime_type="text/plain", text="within")
        assert isinstance(blob, types.EmbeddedResource)
        assert blob.resource == types.BlobResourceContents(uri="doc://blob", blob=b64encode(b"\x00\x01").decode())
        assert link == types.ResourceLink(
            type="resource_link", uri="doc://link", name="link", description="elsewhere", size=5
        )
        assert isinstance(theirs, types.TextContent)
        assert theirs.text == "theirs"
        assert isinstance(gif, types.ImageContent)
        assert gif.mime_type == "image/gif"

    async def test_in_full_have_content_structure_and_meta(self, connect: Connect) -> None:
        async with connect() as client:
            result = await client.call_tool("in_full")
        assert (text(result), result.structured_content) == ("x", {"y": 1})
        assert result.meta is not None
        assert result.meta["example.com/z"] == 2

    async def test_resources_are_text_or_bytes(self, connect: Connect) -> None:
        async with connect() as client:
            (plain,) = (await client.read_resource("doc://plain")).contents
            (binary,) = (await client.read_resource("doc://binary")).contents
        assert plain == types.TextResourceContents(uri="doc://plain", mime_type="text/markdown", text="# Plain")
        assert isinstance(binary, types.BlobResourceContents)
        assert b64decode(binary.blob) == b"\x00\x01\x02"


async def all_tools(client: Client) -> AsyncIterator[types.Tool]:
    """Return all tools, page by page."""
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            yield tool
        cursor = page.next_cursor
        if cursor is None:
            return


class TestLists:
    async def test_come_in_pages_that_make_a_whole(self, connect: Connect) -> None:
        async with connect() as client:
            first = await client.list_tools()
            listed = [tool.name async for tool in all_tools(client)]
        assert len(first.tools) == 7
        assert listed[:3] == ["greet", "book", "survey"]
        assert len(listed) == len(set(listed)) == 19

    async def test_of_prompts_resources_and_templates(self, connect: Connect) -> None:
        async with connect() as client:
            review, _ = (await client.list_prompts()).prompts
            resources = (await client.list_resources()).resources
            (template,) = (await client.list_resource_templates()).resource_templates
        assert (review.name, review.title) == ("review", "Review")
        assert review.arguments is not None
        assert [(argument.name, argument.required) for argument in review.arguments] == [
            ("language", True),
            ("style", False),
        ]
        assert [resource.uri for resource in resources] == ["doc://plain", "doc://binary"]
        assert template.uri_template == "doc://{owner}/{name}"

    async def test_resources_are_kept_as_long_as_the_server_says(self, office_url: str) -> None:
        before = len(READS)
        async with Client(office_url) as client:
            for _ in range(3):
                await client.read_resource("doc://plain")
        assert len(READS) == before + 1


class TestCompletion:
    async def test_suggests_by_what_was_typed_and_what_is_known(self, connect: Connect) -> None:
        review = types.PromptReference(type="ref/prompt", name="review")
        async with connect() as client:
            typed = await client.complete(review, {"name": "language", "value": "P"})
            assert (typed.completion.values, typed.completion.total) == (["Python", "PHP"], 2)
            known = await client.complete(review, {"name": "style", "value": "very "}, {"language": "C"})
            assert known.completion == types.Completion(values=["very C"], total=40, has_more=True)
            assert (await client.complete(review, {"name": "unheard", "value": ""})).completion.values == []

    async def test_sends_a_hundred_at_most(self, connect: Connect) -> None:
        template = types.ResourceTemplateReference(type="ref/resource", uri="doc://{owner}/{name}")
        async with connect() as client:
            completion = (await client.complete(template, {"name": "name", "value": "n"})).completion
        assert (len(completion.values), completion.total, completion.has_more) == (100, 150, True)


class TestListening:
    async def test_changes_reach_the_one_who_listens(self, connect: Connect) -> None:
        async with (
            connect() as client,
            client.listen(
                tools_list_changed=True,
                prompts_list_changed=True,
                resources_list_changed=True,
                resource_subscriptions=["doc://plain"],
            ) as subscription,
        ):
            assert subscription.honored.tools_list_changed
            assert subscription.honored.resource_subscriptions == ["doc://plain"]
            office.notify_tools_changed()
            assert await anext(subscription) == ToolsListChanged()
            office.notify_resource_updated("doc://other")
            office.notify_resource_updated("doc://plain")
            assert await anext(subscription) == ResourceUpdated("doc://plain")
            office.notify_prompts_changed()
            assert await anext(subscription) == PromptsListChanged()
            office.notify_resources_changed()
            assert await anext(subscription) == ResourcesListChanged()

    async def test_what_was_not_asked_for_is_not_sent(self, connect: Connect) -> None:
        async with connect() as client, client.listen(prompts_list_changed=True) as subscription:
            assert not subscription.honored.tools_list_changed
            office.notify_tools_changed()
            office.notify_prompts_changed()
            assert await anext(subscription) == PromptsListChanged()

    async def test_several_listen_beside_calls(self, connect: Connect) -> None:
        async with (
            connect() as client,
            client.listen(tools_list_changed=True) as first,
            client.listen(tools_list_changed=True) as second,
        ):
            office.notify_tools_changed()
            assert text(await client.call_tool("primes")) == "[2,3,5]"
            assert await anext(first) == await anext(second) == ToolsListChanged()


class TestHeaders:
    async def test_the_client_mirrors_parameters_of_tools_that_it_has_listed(self, connect: Connect) -> None:
        async with connect() as client:
            async for _ in all_tools(client):
                pass
            for region in ("eu", "Hello, 世界", " padded ", "=?base64?x?=", ""):
                assert text(await client.call_tool("route", {"region": region, "floor": -3})) == f"{region} -3"
            assert text(await client.call_tool("route", {"region": "eu"})) == "eu 0"

    async def test_the_client_lists_a_tool_that_is_refused_for_its_headers_and_calls_again(
        self, connect: Connect
    ) -> None:
        async with connect() as client:
            assert text(await client.call_tool("route", {"region": "eu"})) == "eu 0"


class TestErrors:
    async def test_have_the_codes_of_the_protocol(self, connect: Connect) -> None:
        async with connect(Person()) as client:
            for call, code, data in (
                (client.call_tool("nowhere"), -32602, {"name": "nowhere"}),
                (client.get_prompt("nowhere"), -32602, {"name": "nowhere"}),
                (client.read_resource("nowhere://"), -32602, {"uri": "nowhere://"}),
                (client.list_tools(cursor="x"), -32602, None),
                (client.get_prompt("review", {}), -32602, {"name": "review"}),
            ):
                with pytest.raises(MCPError) as error:
                    await call
                assert (error.value.code, error.value.data) == (code, data)

    async def test_of_a_client_that_can_not_be_asked_say_what_is_missing(self, connect: Connect) -> None:
        async with connect() as client:
            needs: dict[str, dict[str, Any]] = {
                "greet": {"elicitation": {"form": {}}},
                "sign_in": {"elicitation": {"url": {}}},
            }
            for tool, missing in needs.items():
                with pytest.raises(MCPError) as error:
                    await client.call_tool(tool, {"greeting": "Hi"} if tool == "greet" else {})
                assert (error.value.code, error.value.data) == (-32021, {"requiredCapabilities": missing})

    async def test_of_a_client_that_can_not_be_asked_several_things_name_them_all(self, office_url: str) -> None:
        async with Client(office_url) as client:
            with pytest.raises(MCPError) as error:
                await client.call_tool("survey")
        missing: dict[str, Any] = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
        assert (error.value.code, error.value.data) == (-32021, {"requiredCapabilities": missing})

    async def test_of_a_state_that_was_changed_are_no_more_than_that(self, connect: Connect) -> None:
        async with connect(Person()) as client:
            with pytest.raises(MCPError) as error:
                await client.call_tool("greet", {"greeting": "Hi"}, request_state="forged")
        assert (error.value.code, error.value.data) == (-32602, None)

    async def test_of_tools_are_results_for_the_model(self, connect: Connect) -> None:
        async with connect() as client:
            failed = await client.call_tool("fail")
            crashed = await client.call_tool("crash")
            misfit = await client.call_tool("count", {"to": "many"})
        assert failed.is_error
        assert text(failed) == "the office is closed"
        assert crashed.is_error
        assert "swordfish" not in text(crashed)
        assert misfit.is_error
        assert "- to:" in text(misfit)

    async def test_inside_a_prompt_are_a_reference_into_the_log(
        self, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with connect() as client:
            with pytest.raises(MCPError) as error:
                await client.get_prompt("broken")
        assert error.value.code == -32603
        assert error.value.data["reference"] in caplog.text
        assert "swordfish" not in str(error.value)


async def test_calls_side_by_side_do_not_mix(connect: Connect) -> None:
    class Many(Person):
        async def elicit(
            self, context: ClientRequestContext, params: types.ElicitRequestParams
        ) -> types.ElicitResult | types.ErrorData:
            day = params.message.removeprefix("Which room on ").rstrip("?")
            return yes(confirm=True) if "Book the" in params.message else yes(room="small", people=int(day) % 12 + 1)

    async with connect(Many()) as client:
        results = await asyncio.gather(*(client.call_tool("book", {"day": str(day)}) for day in range(40)))
    for day, result in enumerate(results):
        assert text(result).endswith(f"small for {day % 12 + 1} on {day}")
    assert len({text(result).split()[1] for result in results}) == 40, "each flow has a booking of its own"

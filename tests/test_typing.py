"""User code type-checks under strict rules, and its mistakes are found before it runs."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent

MODELS = """
import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal, assert_type

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from mrtr_server import (
    Callback, CallbackLink, Caller, Completion, Confirm, Context, Depends, Elicit, Elicited, ElicitUrl, Header, Icon,
    IdempotencyKey, ImageContent, InputRequired, Inputs, KeyRing, Limits, ListRoots, Message, MRTRServer, NotFound,
    Principal, ResourceContents, Root, Roots, Sample, Sampled, State, TextContent, ToolAnnotations, ToolError,
    ToolResult,
)

app = MRTRServer("weather", keys=[bytes(32)], limits=Limits(rounds=5))


class GitHubLogin(BaseModel):
    name: str


class Alias(BaseModel):
    alias: str
    public: bool = False


def build(service: str, tag: str = "latest") -> bytes: ...
async def roll_out(image: bytes, *, slowly: bool = False) -> list[str]: ...
def clean_up() -> None: ...
async def charge(amount: int, *, idempotency_key: IdempotencyKey = IdempotencyKey()) -> int: ...
"""

GOOD = (
    MODELS
    + """
# 1. A pure function.
@app.tool
def get_weather(location: str, inputs: Inputs) -> str | InputRequired:
    login = inputs.get("github_login", GitHubLogin)
    assert_type(login, GitHubLogin | None)
    if login is None:
        return InputRequired(github_login=Elicit("Please provide your GitHub username", GitHubLogin))
    assert_type(login.name, str)
    return f"{location}: {login.name}"


assert_type(get_weather("Oslo", Inputs()), str | InputRequired)
assert_type(get_weather("Oslo", Inputs({"github_login": GitHubLogin(name="octocat")})), str | InputRequired)


@app.tool(name="count", annotations=ToolAnnotations(read_only_hint=True), icons=[Icon(src="data:image/a,")])
def count(inputs: Inputs, state: State[int]) -> int | InputRequired:
    assert_type(state.value, int | None)
    if state.value is None:
        return InputRequired({"state": Confirm("Go on?")}, state=1, other=ListRoots())
    return state.value + 1


def answers(inputs: Inputs) -> None:
    assert_type(inputs.get("login", Elicited[GitHubLogin]), Elicited[GitHubLogin] | None)
    assert_type(inputs.get("login", Elicit("?", GitHubLogin)), GitHubLogin | None)
    assert_type(inputs.get("login", Elicit("?", Elicited[GitHubLogin])), Elicited[GitHubLogin] | None)
    assert_type(inputs.get("sure", Confirm("Sure?")), bool | None)
    assert_type(inputs.get("open", ElicitUrl("Open", "https://example.com")), bool | None)
    assert_type(inputs.get("haiku", Sampled), Sampled | None)
    assert_type(inputs.get("haiku", Sample("a haiku")), Sampled | None)
    assert_type(inputs.get("roots", Roots), Roots | None)
    assert_type(inputs.get("roots", ListRoots()), list[Root] | None)


# Who may.
async def owner(caller: Caller, uri: str) -> bool:
    assert_type(caller.principal, Principal | None)
    return caller.principal is not None and caller.principal.subject in uri


def staff(caller: Caller, name: str) -> bool:
    return "staff" in caller.scopes


guarded = MRTRServer("guarded", keys=[bytes(32)], authorize=owner, unknown_arguments="ignore")


@guarded.tool(authorize=staff)
def whatever(ctx: Context, city: str, **more: Any) -> str:
    assert_type(ctx.scopes, frozenset[str])
    return str(more)


@guarded.prompt(authorize=lambda caller, name: caller.principal is not None)
def guarded_prompt() -> str:
    return ""


@guarded.resource("private://{user}", authorize=owner)
def guarded_resource(user: str) -> str:
    return user


# 2. Inline.
@app.tool
async def deploy(service: str, ctx: Context, region: Annotated[str, Header("Region")] = "eu") -> str:
    image = await ctx.step(build, service)
    assert_type(image, bytes)
    assert_type(await ctx.confirm(f"Deploy {service} to production?"), bool)
    done = await ctx.step(roll_out, image)
    assert_type(done, list[str])
    return ", ".join(done)


async def asks(ctx: Context) -> None:
    assert_type(await ctx.elicit("?", GitHubLogin), GitHubLogin)
    assert_type(await ctx.elicit("?", str), str)
    assert_type(await ctx.elicit("?", list[int]), list[int])
    assert_type(await ctx.elicit("?", Elicited[str], key="branching"), Elicited[str])
    typed: str = await ctx.elicit("?", Literal["a", "b"])
    assert typed
    chosen = await ctx.elicit("?", Elicited[GitHubLogin], key="login")
    assert_type(chosen, Elicited[GitHubLogin])
    assert_type(chosen.content, GitHubLogin | None)
    assert_type(chosen.accepted, bool)
    assert_type(await ctx.elicit_url("Sign in", "https://example.com"), bool)
    assert_type(await ctx.sample("Write a haiku", max_tokens=50, temperature=0.5), Sampled)
    assert_type(await ctx.list_roots(), list[Root])
    login, alias, sure = Elicit("?", GitHubLogin), Elicit("?", Elicited[Alias]), Confirm("?")
    assert_type(await ctx.ask(login), tuple[GitHubLogin])
    assert_type(await ctx.ask(login, alias), tuple[GitHubLogin, Elicited[Alias]])
    assert_type(await ctx.ask(login, alias, sure), tuple[GitHubLogin, Elicited[Alias], bool])
    assert_type(
        await ctx.ask(login, sure, Sample("?"), ListRoots()), tuple[GitHubLogin, bool, Sampled, list[Root]]
    )
    assert_type(await ctx.ask(login, sure, sure, sure, sure), tuple[Any, ...])
    assert_type(await ctx.ask(login=login, sure=sure), dict[str, Any])
    assert_type(await asyncio.gather(ctx.elicit("?", GitHubLogin), ctx.confirm("?")), tuple[GitHubLogin, bool])
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ctx.elicit("?", Alias))
    assert_type(task.result(), Alias)


# 3. Declared.
async def check_stock(title: str, ctx: Context) -> int: ...
def how_many(title: str, login: GitHubLogin) -> str: ...
Who = Annotated[GitHubLogin, Elicit("Who?")]


@app.tool(confirm=lambda title, alias: f"{title} for {alias.alias}?")
def order(
    title: str,
    login: Who,
    alias: Annotated[Alias, Elicit(how_many)],
    branching: Annotated[Elicited[Alias], Elicit(lambda title: f"{title}?", key="b")],
    sure: Annotated[bool, Confirm(lambda: "sure?")],
    page: Annotated[bool, ElicitUrl("open", lambda title: f"https://example.com/{title}")],
    said: Annotated[Sampled, Sample(lambda title: [title])],
    text: Annotated[str, Sample("a haiku")],
    roots: Annotated[list[Root], ListRoots()],
    stock: Annotated[int, Depends(check_stock)],
    other: Who | None = None,
) -> str:
    assert_type(login, GitHubLogin)
    assert_type(branching.content, Alias | None)
    assert_type(other, GitHubLogin | None)
    assert_type(stock, int)
    return title


@app.tool(confirm="Delete all?")
def delete_all() -> None: ...


def order_it(elicited: Elicited[Alias], said: Sampled) -> None:
    who, alias = GitHubLogin(name="o"), Alias(alias="a")
    assert_type(order("x", who, alias, elicited, True, True, said, "", [], 5), str)
    assert_type(order("x", login=who, alias=alias, branching=elicited, sure=True, page=True, said=said, text="",
                      roots=[], stock=5, other=who), str)


async def steps(ctx: Context) -> None:
    assert_type(await ctx.step(build, "api"), bytes)
    assert_type(await ctx.step(build, "api", tag="1"), bytes)
    assert_type(await ctx.step(build, "api", key="first"), bytes)
    assert_type(await ctx.step(build, "api", rerun=True), bytes)
    assert_type(await ctx.step(build, "api", key="second", rerun=True), bytes)
    assert_type(await ctx.step(roll_out, b""), list[str])
    assert_type(await ctx.step(roll_out, b"", slowly=True), list[str])
    assert_type(await ctx.step(roll_out, b"", key="third"), list[str])
    assert_type(await ctx.step(roll_out, b"", rerun=True), list[str])
    assert_type(await ctx.step(lambda: 5, key="lambda"), int)
    assert_type(await ctx.step(GitHubLogin, name="octocat"), GitHubLogin)
    await ctx.step(clean_up)
    assert_type(await ctx.step(charge, 5), int)


@app.tool(single_use=True)
async def pay(amount: int, ctx: Context) -> int:
    return await ctx.step(charge, amount)


async def notes(ctx: Context) -> None:
    await ctx.progress(1, 2, "half way")
    await ctx.log({"seen": 1}, level="warning", logger="weather")
    if ctx.client.supports("sampling") and ctx.principal is not None:
        assert_type(ctx.principal.subject, str)
    assert_type(ctx.flow, str)
    assert_type(ctx.round, int)


# A page that reports back.
@app.callback("google")
async def google(request: Request) -> GitHubLogin: ...


@app.callback("key", methods=["GET", "POST"], page=lambda request: HTMLResponse("thanks"))
def key(request: Request, back: CallbackLink) -> str | Response: ...


@app.callback("done")
async def done(request: Request) -> None: ...


def google_url(back: CallbackLink) -> str:
    return f"https://example.com/?to={back.url}&state={back.state}&code_challenge={back.challenge}"


async def pages(ctx: Context, inputs: Inputs) -> None:
    assert_type(google, Callback[GitHubLogin])
    assert_type(key, Callback[str])
    assert_type(done, Callback[None])
    assert_type(await ctx.elicit_url("Log in", google_url, callback=google), GitHubLogin)
    assert_type(await ctx.elicit_url("Log in", lambda back: f"{back.link}&x=1", callback=google), GitHubLogin)
    assert_type(await ctx.elicit_url("Your key", callback=key, key="api_key"), str)
    ask = ElicitUrl("Log in", google_url, callback=google)
    assert_type(ask, ElicitUrl[GitHubLogin])
    assert_type(inputs.get("google", ask), GitHubLogin | None)
    assert_type(await ctx.ask(ask, ElicitUrl("?", "https://example.com")), tuple[GitHubLogin, bool])
    InputRequired(google=ask)


def nobody(request: Request) -> None: ...
async def somebody(request: Request) -> str | Principal | Response | None: ...


MRTRServer("x", keys=[bytes(32)], identify=nobody, base_url="https://example.com")
MRTRServer("x", keys=[bytes(32)], identify=somebody)


@app.prompt
def review(code: str) -> list[str | Message]:
    return ["Review this:", Message(role="assistant", content=code)]


@app.resource("weather://{city}", mime_type="application/json", cache_seconds=60.0, cache="public")
async def weather(city: str, ctx: Context) -> ResourceContents:
    if city == "nowhere":
        raise NotFound(city)
    return ResourceContents(text="{}")


@app.completion("city", resource="weather://{city}")
def cities(value: str) -> list[str] | Completion:
    return Completion(values=[value], has_more=True)


@app.tool
def picture(size: int = Field(100, ge=1)) -> list[TextContent | ImageContent] | ToolResult:
    if size > 1000:
        raise ToolError("too large")
    if size == 1000:
        return ToolResult(content=["huge"], structured_content={"size": size}, meta={"slow": True})
    return [TextContent(text="here", meta={"k": 1}), ImageContent(data=b"", mime_type="image/png")]


@app.tool(input_schema={"type": "object"})
def raw(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


assert_type(review("x"), list[str | Message])
assert_type(cities("x"), list[str] | Completion)
also: Callable[[int], list[TextContent | ImageContent] | ToolResult] = picture
rotated = MRTRServer("rotated", keys=KeyRing.parse("00" * 32))
"""
)

WRONG = (
    MODELS
    + """
async def steps(ctx: Context) -> None:
    await ctx.step(build, 5)  # E
    await ctx.step(build)  # E
    await ctx.step(build, "api", "latest", "more")  # E
    await ctx.step(build, services="api")  # E
    await ctx.step(roll_out, "image")  # E
    await ctx.step("build", "api")  # E
    image: str = await ctx.step(build, "api")  # E
    keyed: str = await ctx.step(build, "api", key="k")  # E
    done: int = await ctx.step(roll_out, b"")  # E
    ctx.step(build, "api").decode()  # E
    await ctx.step(charge)  # E
    await ctx.step(charge, 5, idempotency_key="order-7")  # E


async def asks(ctx: Context) -> None:
    login = await ctx.elicit("?", GitHubLogin)
    login.nmae  # E
    chosen = await ctx.elicit("?", Elicited[GitHubLogin])
    chosen.name  # E
    chosen.content.name  # E
    await ctx.elicit("?")  # E
    await ctx.elicit(GitHubLogin, "?")  # E
    await ctx.confirm()  # E
    await ctx.elicit_url("Sign in")  # E
    await ctx.elicit_url("Sign in", lambda back: back.url)  # E
    await ctx.elicit_url("Sign in", callback=build)  # E
    await ctx.sample("?", include_context="everything")  # E
    one, two, three = await ctx.ask(Confirm("?"), Confirm("?"))  # E
    await ctx.ask("?")  # E
    await ctx.ask(sure="?")  # E
    sure, named = await ctx.ask(Confirm("?"), Elicit("?", GitHubLogin))
    named.nmae  # E
    await ctx.log("x", level="loud")  # E
    ctx.flow = "mine"  # E


def pure(inputs: Inputs, state: State[int]) -> str | InputRequired:
    inputs.get("login", GitHubLogin).name  # E
    inputs.get("login", Elicit("?", GitHubLogin)).name  # E
    inputs.get("login")  # E
    inputs.get("sure", Confirm)  # E
    inputs.get("city", str)  # E
    state.value + 1  # E
    return InputRequired(login="?")  # E


def asking() -> InputRequired:
    return InputRequired({"login": GitHubLogin})  # E


Elicit(5)  # E
Elicit(lambda title: title, GitHubLogin)  # E
Confirm(5)  # E
Depends()  # E
Depends("check_stock")  # E
Depends(clean_up, on_ask="Commit")  # E
Depends(clean_up, "commit")  # E
app.tool(confirm=True)  # E
app.prompt(confirm="sure?")  # E
Confirm("?", keys="k")  # E
Elicited("maybe")  # E
MRTRServer()  # E
MRTRServer("x", limit=5)  # E
Limits(rounds="ten")  # E
app.tool(nam="x")  # E
app.tool(single_use="yes")  # E
app.prompt(single_use=True)  # E
MRTRServer("x", store=1)  # E
app.resource()  # E
app.run()  # E
app.streamable_http_app()  # E
MRTRServer("x", limits={})  # E
MRTRServer("x", tools=[])  # E
MRTRServer("x", "instructions")  # E
app.tool(tag="x")  # E
app.prompt(tag="x")  # E
app.resource("a://b", tag="x")  # E


async def words_of_others(ctx: Context) -> None:
    await ctx.report_progress(1, 2)  # E
    await ctx.info("x")  # E
    ctx.session  # E
    await ctx.elicit("?", response_type=GitHubLogin)  # E


async def who(caller: Caller, name: str) -> str:
    return caller.principal.subject  # E


app.tool(authorize=who)  # E
app.tool(authorize=True)  # E
MRTRServer("x", unknown_arguments="drop")  # E


@app.tool
def tool(city: str) -> str:
    return city


tool(5)  # E


@app.tool
def declared(title: str, login: Annotated[GitHubLogin, Elicit("Who?")]) -> str:
    return login.nmae  # E


declared("x", login="octocat")  # E
tool("Oslo").name  # E
"""
)


class Found(NamedTuple):
    """What the type checker says of one line."""

    line: int
    text: str


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Found]]:
    """Check both files, as a user who has only installed the package would: strictly, and without a plugin."""
    place = tmp_path_factory.mktemp("typing")
    for name, source in (("good.py", GOOD), ("wrong.py", WRONG)):
        (place / name).write_text(source)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--cache-dir={ROOT / '.mypy_cache' / 'of-users'}",
        "--disable-error-code=empty-body",
    ]
    run = subprocess.run([*command, "good.py", "wrong.py"], cwd=place, capture_output=True, text=True)
    assert run.stderr == ""
    found: dict[str, list[Found]] = {"good.py": [], "wrong.py": []}
    for line in run.stdout.splitlines():
        if error := re.match(r"(.+\.py):(\d+): error: (.+)", line):
            found[error[1]].append(Found(int(error[2]), error[3]))
    return found


def marked(source: str) -> Iterator[int]:
    yield from (number for number, line in enumerate(source.splitlines(), 1) if line.endswith("# E"))


def test_all_three_styles_check_strictly_and_give_what_they_say(checked: dict[str, list[Found]]) -> None:
    lines = GOOD.splitlines()
    assert [f"{lines[line - 1].strip()}  # {text}" for line, text in checked["good.py"]] == []


def test_every_mistake_is_found(checked: dict[str, list[Found]]) -> None:
    lines = WRONG.splitlines()
    missed = set(marked(WRONG)) - {found.line for found in checked["wrong.py"]}
    assert [lines[number - 1] for number in sorted(missed)] == []


def test_nothing_else_is_called_a_mistake(checked: dict[str, list[Found]]) -> None:
    assert [found for found in checked["wrong.py"] if found.line not in set(marked(WRONG))] == []


def test_the_good_code_runs_too() -> None:
    # So that what is checked is what people write: each decorator takes its function.
    exec(compile(GOOD.replace("-> bytes: ...", "-> bytes: return b''"), "good.py", "exec"), {"__name__": "good"})  # noqa: S102

"""Applications that tests run in processes of their own, by import string."""

import os
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request

from mrtr_server import (
    Context,
    Elicit,
    Header,
    InputRequired,
    Inputs,
    Limits,
    Lists,
    MRTRServer,
    Root,
    Roots,
    Sample,
    Sampled,
    ServerInfo,
    State,
    Task,
    ToolError,
)

from .models import GitHubLogin, Login


class Order(BaseModel):
    size: Literal["small", "large"]
    count: Annotated[int, Field(ge=1, le=9)]
    gift: bool = False
    note: str | None = None


LIMITS = Limits(body_bytes=64 * 1024, json_depth=12, answers=4, rounds=3, state_bytes=8 * 1024)

strict = MRTRServer(
    "strict", info=ServerInfo(version="1.2.3"), keys=[bytes(32)], limits=LIMITS, lists=Lists(page_size=5)
)
"""Offers something of every kind, under limits that a test reaches soon."""


@strict.tool
def add(a: int, b: int = 0) -> int:
    """Add two numbers; a plain `def`."""
    return a + b


@strict.tool
async def greet(ctx: Context) -> str:
    """Ask for a name in the middle of the code."""
    return f"Hello, {(await ctx.elicit('Who are you?', Login)).name}"


@strict.tool
def order(inputs: Inputs, kept: State[list[int]]) -> str | InputRequired:
    """Ask in two rounds, as a pure function with a state of its own."""
    what = inputs.get("what", Order)
    if what is None:
        return InputRequired(what=Elicit("What will it be?", Order), state=[1])
    who = inputs.get("login", Login)
    if who is None:
        return InputRequired(login=Elicit("For whom?", Login), state=[*(kept.value or []), what.count])
    return f"{what.count} {what.size} for {who.name}, {kept.value}"


@strict.tool
async def deploy(service: Annotated[str, Header("Service")], ctx: Context) -> str:
    """Confirm; the parameter is mirrored into a header."""
    await ctx.confirm(f"Deploy {service}?")
    return f"{service} is deployed"


@strict.tool
async def everything(ctx: Context) -> str:
    """Ask for a form, a message and the roots at once."""
    login, fact, roots = await ctx.ask(
        Elicit("Who are you?", Login), Sample("What is new?"), Elicit("And?", Order, key="order")
    )
    return f"{login.name}: {fact.role}, {roots.count}"


@strict.tool
async def visit(ctx: Context) -> str:
    """Ask the person to open a page."""
    await ctx.elicit_url("Sign in, please", "https://example.com/sign-in")
    return "welcome"


@strict.tool
async def endless(ctx: Context) -> str:
    """Never have enough answers."""
    for number in range(100):
        await ctx.elicit(f"Question {number}", Login)
    return "unreachable"


@strict.tool
def hoard(inputs: Inputs) -> str | InputRequired:
    """Keep more than a state may hold."""
    return InputRequired(login=Elicit("Who?", Login), state="x" * 10_000)


@strict.tool
def fail() -> str:
    """Fail with a message for the model."""
    raise ToolError("it is closed")


@strict.tool
def crash() -> str:
    """Fail with what no client should see."""
    raise RuntimeError("the password is swordfish")


@strict.tool
async def count(to: int, ctx: Context) -> str:
    """Tell the client of each step, and the client's log of the start."""
    await ctx.log(f"counting to {to}", logger="counter")
    await ctx.log("nobody wants to know", level="debug")
    for number in range(1, to + 1):
        await ctx.progress(number, to, f"at {number}")
    return "done"


@strict.prompt
async def review(language: str, ctx: Context) -> str:
    """Ask for a name, where a refusal can't be a tool result."""
    who = await ctx.elicit("Who reviews?", Login)
    return f"Review this {language}, {who.name}"


@strict.prompt
def summary(inputs: Inputs) -> str | InputRequired:
    """Ask the client's model."""
    said = inputs.get("said", Sampled)
    return said.text if said else InputRequired(said=Sample("Sum it up"))


@strict.prompt
def broken() -> str:
    """Fail with what no client should see."""
    raise RuntimeError("the password is swordfish")


@strict.resource("notes://{topic}/{number}")
async def note(topic: str, number: int, ctx: Context) -> str:
    """Ask for the roots before giving a note."""
    roots: list[Root] = await ctx.list_roots()
    return f"{topic} {number} of {len(roots)}"


@strict.resource("notes://all")
def notes(inputs: Inputs) -> str | InputRequired:
    """Return a text, once it is known who reads it."""
    login, roots = inputs.get("login", Login), inputs.get("roots", Roots)
    if login is None:
        return InputRequired(login=Elicit("Who reads?", Login))
    return f"for {login.name}, {roots}"


@strict.completion("language", prompt="review")
def languages(value: str, known: dict[str, str]) -> list[str]:
    """Suggest languages."""
    return [each for each in ("Python", "PHP") if each.lower().startswith(value.lower())]


# The city weather of the earliest sketches: answering, failing, and asking first.

WEATHER = "Current weather in {}:\nTemperature: 72° F\nConditions: Partly cloudy"

answering = MRTRServer("answering", keys=[bytes(32)])
streaming = MRTRServer("streaming", keys=[bytes(32)])
failing = MRTRServer("failing", keys=[bytes(32)])
asking = MRTRServer("asking", keys=[bytes(32)])


@answering.tool(name="get_weather")
def weather_at_once(city: str) -> str:
    """Get the weather in a city."""
    return WEATHER.format(city)


@streaming.tool(name="get_weather", task=Task("optional", ttl=60, poll=5))
async def weather_in_pieces(city: str) -> AsyncIterator[str]:
    """Get the weather in a city, line by line."""
    for line in WEATHER.format(city).splitlines(keepends=True):
        yield line


@failing.tool(name="get_weather")
def no_weather(city: str) -> str:
    """Fail to get the weather in a city."""
    raise ToolError(f"Error: Unable to retrieve weather data for {city}.")


@asking.tool(name="get_weather")
async def weather_for_somebody(city: str, ctx: Context) -> str:
    """Get the weather in a city, for somebody with a GitHub account."""
    await ctx.elicit("Please provide your GitHub username", GitHubLogin)
    return WEATHER.format(city)


# Their keys are those of the environment, so that workers can share them.

reporting = MRTRServer("reporting")


@reporting.callback("page")
def page_is_done(request: Request) -> str:
    """Take a person back."""
    return "done"


telling = MRTRServer("telling")


@telling.tool
def who_serves(inputs: Inputs) -> str | InputRequired:
    """Say which worker serves each of the two rounds; an answer counts whichever of them asked."""
    login = inputs.get("login", Login)
    if login is None:
        return InputRequired(login=Elicit(f"Who asks {os.getpid()}", Login))
    return f"{os.getpid()} serves {login.name}"

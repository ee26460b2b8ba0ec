"""Tools, prompts and resources of a server whose clients answer while a call is open."""

import asyncio
import threading
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from mrtr_server import Context, Elicit, InputRequired, Inputs, ListRoots, MRTRServer, Sample, ToolError

from .effects import EFFECTS
from .models import Login
from .serving import TIMEOUT

GATE = threading.Event()
"""What `wait` waits for."""


async def opened(seconds: float = TIMEOUT) -> None:
    """Wait for the gate, which another thread opens."""
    async with asyncio.timeout(seconds):
        while not GATE.is_set():  # noqa: ASYNC110  it is no event of this loop
            await asyncio.sleep(0.01)


def exists(file: str) -> bool:
    return bool(file) and Path(file).exists()


class Toppings(BaseModel):
    """A form with choices."""

    size: Literal["small", "large"] = "small"
    toppings: list[Literal["cheese", "olives"]] = Field(default=["cheese"])


class Color(Enum):
    """Colors, by their codes."""

    RED = "#f00"
    BLUE = "#00f"


class Fields(BaseModel):
    """A form with every kind of field that older versions have, too."""

    name: str = "John"
    age: int = 30
    happy: bool = True
    size: Annotated[
        Literal["s", "l"],
        Field(json_schema_extra={"oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]}),
    ] = "s"
    color: Annotated[Color, Field(json_schema_extra={"enumNames": ["Red", "Blue"]})] = Color.RED


def register(app: MRTRServer) -> MRTRServer:
    """Register them; return the server."""

    def effect(what: str) -> str:
        EFFECTS.append(what)
        return what

    @app.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @app.tool
    async def greet(ctx: Context, greeting: str = "Hello") -> str:
        """Ask for a name."""
        login = await ctx.elicit("Who are you?", Login)
        EFFECTS.append(f"greeted {login.name}")
        return f"{greeting}, {login.name}!"

    @app.tool
    def greet_purely(inputs: Inputs) -> str | InputRequired:
        """Ask for a name, as a pure function."""
        login = inputs.get("login", Login)
        return f"Hello, {login.name}!" if login else InputRequired(login=Elicit("Who are you?", Login))

    @app.tool
    async def order(ctx: Context, title: str) -> str:
        """Ask three times: for a name, for a yes, and for two things at once."""
        login = await ctx.elicit("Who are you?", Login, key="who")
        await ctx.confirm(f"Order {title}?")
        await ctx.step(effect, f"ordered {title}")
        first, second = await ctx.ask(Elicit("From whom?", Login, key="from"), Elicit("For whom?", Login, key="for"))
        return f"{title} of {login.name}, from {first.name}, for {second.name}"

    @app.tool
    async def everything(ctx: Context) -> str:
        """Ask the person, the model and the client at once."""
        login, sampled, roots = await ctx.ask(Elicit("Who?", Login), Sample("Say hello"), ListRoots())
        return f"{sampled.text}, {login.name} in {len(roots)} places"

    @app.tool
    async def say_hello(ctx: Context) -> str:
        """Ask the model."""
        return (await ctx.sample("Say hello")).text

    @app.tool
    async def count_roots(ctx: Context) -> int:
        """Ask for the roots."""
        return len(await ctx.list_roots())

    @app.tool
    async def pizza(ctx: Context) -> str:
        """Ask for several choices at once."""
        chosen = await ctx.elicit("Which?", Toppings)
        return f"{chosen.size} with {' and '.join(chosen.toppings)}"

    @app.tool
    async def name_and_pizza(ctx: Context) -> str:
        """Ask for a name, and for several choices, at once."""
        login, chosen = await ctx.ask(Elicit("Who?", Login), Elicit("Which?", Toppings))
        return f"{login.name}: {chosen.size}"

    @app.tool
    async def fill_in(ctx: Context) -> str:
        """Ask for fields of all kinds."""
        fields = await ctx.elicit("Please fill in", Fields)
        return f"{fields.name} {fields.age} {fields.happy} {fields.color.value}"

    @app.tool
    async def open_page(ctx: Context) -> str:
        """Ask for a page to be opened."""
        await ctx.elicit_url("Please log in", "https://example.com/login")
        return "opened"

    @app.tool
    async def notes(ctx: Context) -> str:
        """Send progress and messages, and ask in the middle."""
        await ctx.progress(1, 3, "first")
        await ctx.log("begun", level="info")
        await ctx.log("details", level="debug")
        login = await ctx.elicit("Who?", Login)
        await ctx.progress(2, 3)
        await ctx.log(f"{login.name} is here", level="warning")
        return "noted"

    @app.tool
    async def wait(ctx: Context, seconds: float = TIMEOUT) -> str:
        """Send progress, and wait for the gate."""
        EFFECTS.append("waits")
        await ctx.progress(1, 2)
        await opened(seconds)
        EFFECTS.append("waited")
        return "waited"

    @app.tool
    async def wait_and_ask(ctx: Context) -> str:
        """Send progress, wait for the gate, and ask."""
        await ctx.progress(1, 2)
        await opened()
        return f"Hello, {(await ctx.elicit('Who?', Login)).name}!"

    @app.tool
    async def work_after(ctx: Context, file: str = "") -> str:
        """Ask, and then wait for the gate, or for a file, step by step."""
        login = await ctx.elicit("Who?", Login)
        EFFECTS.append("works")
        await ctx.progress(1)
        while not (GATE.is_set() or exists(file)):
            await asyncio.sleep(0.01)
            await ctx.checkpoint()
        EFFECTS.append("worked")
        return f"worked for {login.name}"

    @app.tool(single_use=True)
    async def pay(ctx: Context, amount: int) -> str:
        """Ask, and have an effect, once."""
        await ctx.confirm(f"Pay {amount}?")
        return await ctx.step(effect, f"paid {amount}")

    @app.tool(answer_within=2)
    async def hurry(ctx: Context) -> str:
        """Ask for an answer within two seconds."""
        login = await ctx.elicit("Quick, who?", Login)
        return f"Hello, {login.name}!"

    @app.tool(task="optional")
    async def long_job() -> str:
        """Take long, where the client takes tasks."""
        return "done"

    @app.tool
    def fail() -> str:
        """Fail, for the model."""
        raise ToolError("It failed")

    @app.tool
    def pair() -> tuple[int, str] | None:
        """Return what is no object."""
        return 1, "x"

    @app.tool
    def change() -> str:
        """Tell of changes."""
        app.notify_tools_changed()
        app.notify_resource_updated("notes://1")
        app.notify_resource_updated("notes://2")
        return "changed"

    @app.prompt(title="A greeting")
    async def greeting(ctx: Context) -> str:
        """Ask for a name, for a prompt."""
        return f"Greet {(await ctx.elicit('Whom?', Login)).name}"

    @app.resource("notes://{number}", title="Notes")
    def note(number: str) -> str:
        """Read a note."""
        return f"note {number}"

    @app.resource("notes://mine")
    async def mine(ctx: Context) -> str:
        """Ask for a name, for a resource."""
        return f"the notes of {(await ctx.elicit('Whose?', Login)).name}"

    return app


app = register(MRTRServer("live"))

"""Tools of a server whose clients have tasks and begin with a handshake."""

from typing import Any

from pydantic import BaseModel

from mrtr_server import (
    Context,
    Elicit,
    InputRequired,
    Inputs,
    ListRoots,
    MRTRServer,
    ProtocolError,
    Sample,
    Shutdown,
    Task,
    ToolError,
)

from .effects import EFFECTS
from .live_app import opened
from .models import Login


class Count(BaseModel):
    """What `count` returns."""

    films: int


def register(app: MRTRServer) -> MRTRServer:
    """Register them; return the server."""

    def effect(what: str) -> str:
        EFFECTS.append(what)
        return what

    @app.tool
    def add(a: int, b: int) -> int:
        """Add two numbers, without a task."""
        return a + b

    @app.tool(task=Task("optional", ttl=600, poll=0.5))
    def count(shelf: int = 1) -> Count:
        """Count films."""
        return Count(films=3 * shelf)

    @app.tool(task="optional")
    def pair() -> tuple[int, str] | None:
        """Return what is no object."""
        return 1, "x"

    @app.tool(task="required")
    async def render(ctx: Context) -> str:
        """Render a film, in the background alone."""
        return await ctx.step(effect, "rendered")

    @app.tool(task=Task("optional", poll=0.1))
    async def greet(ctx: Context, greeting: str = "Hello") -> str:
        """Ask for a name."""
        login = await ctx.elicit("Who are you?", Login)
        return await ctx.step(effect, f"{greeting}, {login.name}!")

    @app.tool(task="optional")
    async def wait_and_greet(ctx: Context) -> str:
        """Wait for the gate, and ask for a name."""
        await opened()
        return f"Hello, {(await ctx.elicit('Who are you?', Login)).name}!"

    @app.tool(task="optional")
    def greet_purely(inputs: Inputs) -> str | InputRequired:
        """Ask for a name, as a pure function."""
        login = inputs.get("login", Login)
        return f"Hello, {login.name}!" if login else InputRequired(login=Elicit("Who are you?", Login))

    @app.tool(task=Task(rounds_first=True))
    async def edit(ctx: Context) -> str:
        """Ask, and again in the background, where the client has one."""
        first = await ctx.elicit("Who begins?", Login, key="first")
        await ctx.background()
        second = await ctx.elicit("Who ends?", Login, key="second")
        return f"{first.name} and {second.name}"

    @app.tool(task="optional")
    async def everything(ctx: Context) -> str:
        """Ask the person, the model and the client at once."""
        login, sampled, roots = await ctx.ask(Elicit("Who?", Login), Sample("Say hello"), ListRoots())
        return f"{sampled.text}, {login.name} in {len(roots)} places"

    @app.tool(task="optional")
    async def say_hello(ctx: Context) -> str:
        """Ask the model."""
        return (await ctx.sample("Say hello")).text

    @app.tool(task="optional")
    async def open_page(ctx: Context) -> str:
        """Ask for a page to be opened."""
        await ctx.elicit_url("Please log in", "https://example.com/login")
        return "opened"

    @app.tool(task="optional", single_use=True)
    async def pay(ctx: Context, amount: int) -> str:
        """Ask, and have an effect, once."""
        await ctx.confirm(f"Pay {amount}?")
        return await ctx.step(effect, f"paid {amount}")

    @app.tool(task="optional")
    async def wait(ctx: Context) -> str:
        """Tell how far it is, and wait for the gate."""
        await ctx.progress(1, 3, "first")
        await opened()
        await ctx.progress(2, 3)
        return "waited"

    @app.tool(task="optional")
    def fail() -> str:
        """Fail, for the model."""
        raise ToolError("The film is torn")

    @app.tool(task="optional")
    def break_off() -> dict[str, Any]:
        """Fail, for the client."""
        raise ProtocolError("The studio is closed", {"opens": "tomorrow"})

    return app


app = register(MRTRServer("studio", shutdown=Shutdown(lame_duck=0)))

"""The application whose states, tasks, links and records of release 0.1.0 lie in `tests/golden/`.

It must stay as it is, or what was kept then belongs to another tool or step. With its own key, clock and users.
"""

from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from mrtr_server import BearerTokens, Context, Elicit, InputRequired, Inputs, KeyRing, Lists, MRTRServer, State, Task
from mrtr_server.testing import Clock, replica

NOW = 1_700_000_000.0
RING = KeyRing([bytes(range(32))])
BASE = "https://shop.example"

DONE: list[str] = []
"""What steps have done since a test began."""


class Login(BaseModel):
    name: str


class Account(BaseModel):
    name: str


def reserve(item: str) -> str:
    DONE.append(f"reserve {item}")
    return f"{item} reserved"


def pay(item: str, *, amount: int = 1) -> str:
    DONE.append(f"pay {amount} for {item}")
    return f"{item} paid"


reserve.__module__ = pay.__module__ = "shop"


def whose(request: Request) -> str:
    return request.cookies.get("user", "")


def page(link: Any) -> str:
    return f"https://id.example/?state={link.state}"


def survey(inputs: Inputs, state: State[int]) -> str | InputRequired:
    """Keep a state of its own."""
    login = inputs.get("login", Login)
    if login is None:
        return InputRequired(login=Elicit("Who are you?", Login), state=7)
    return f"{login.name}: {state.value}"


def golden(**settings: Any) -> MRTRServer:
    """Make the application, with the settings of a test."""
    known = {"auth": BearerTokens({"ann-token": "ann", "bob-token": "bob"}), "identify": whose, "base_url": BASE}
    clock = settings.pop("clock", Clock(NOW))
    app = replica(MRTRServer("golden", keys=RING, **{"lists": Lists(page_size=2), **known, **settings}), clock=clock)

    @app.callback("bank")
    async def bank(request: Request) -> Account:
        return Account(name=request.query_params.get("code", "?"))

    @app.tool
    async def order(item: str, ctx: Context) -> str:
        """Ask for a name, reserve, confirm and pay."""
        login = await ctx.elicit("Who are you?", Login)
        reserved = await ctx.step(reserve, item)
        await ctx.confirm(f"Pay for {item}, {login.name}?")
        return f"{reserved}, {await ctx.step(pay, item, amount=3)}"

    app.tool(survey)

    @app.tool(single_use=True)
    async def buy(item: str, ctx: Context) -> str:
        """Confirm and pay, once."""
        await ctx.confirm(f"Pay for {item}?")
        return await ctx.step(pay, item)

    @app.tool(task=Task("optional", ttl=600, rounds_first=True))
    async def ship(item: str, ctx: Context) -> str:
        """Reserve, go on in the background, ask there, and pay."""
        reserved = await ctx.step(reserve, item)
        await ctx.background()
        login = await ctx.elicit("Who are you?", Login)
        paid = await ctx.step(pay, item)
        return f"{reserved}, {paid}, for {login.name}"

    @app.tool
    async def log_in(ctx: Context) -> str:
        """Send the person to a page that reports back."""
        account = await ctx.elicit_url("Log in, please", page, callback=bank)
        return f"{account.name} is in"

    return app

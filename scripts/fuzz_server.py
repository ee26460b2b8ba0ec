"""What scripts/fuzz sends its requests to: a server of each kind, with a tool of every sort."""

import json
from collections.abc import Callable

from pydantic import BaseModel
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.requests import HTTPConnection

from mrtr_server import (
    Context,
    Elicit,
    InputRequired,
    Inputs,
    IntrospectionAuth,
    JWTAuth,
    Limits,
    ListRoots,
    Lists,
    MRTRServer,
    Sample,
    State,
    Task,
    ToolError,
)
from mrtr_server.testing import replica

LIMITS = Limits(body_bytes=64 * 1024, json_depth=12, values=2_000, hold_seconds=0.01, first_ask_seconds=0.01)
"""Limits that a request reaches soon."""

KINDS: dict[str, list[str] | None] = {
    "all": None,
    "open": None,
    "handshake": ["2025-11-25"],
    "modern": ["2026-07-28", "sep-draft"],
    "bare": ["2026-07-28", "draft-bare-requests"],
    "lists": ["2026-07-28", "draft-additional-info"],
    "content": ["2026-07-28", "draft-content"],
}
"""The dialects of each server. All but the open one want to know who calls."""


class Login(BaseModel):
    """Who somebody is."""

    name: str


class Named(AuthenticationBackend):
    """Believes who one says one is; who says nothing is nobody."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        """Return the user of a request."""
        name = conn.headers.get("authorization", "")
        return (AuthCredentials(), SimpleUser(name)) if name else None


def make_servers(clock: Callable[[], float], database: str | None) -> dict[str, MRTRServer]:
    """Return the servers, by kind. They share a key and a database, and nothing else."""
    return {
        kind: register(
            replica(
                MRTRServer(
                    kind,
                    keys=[bytes(32)],
                    auth=None if kind == "open" else Named(),
                    dialects=dialects,
                    limits=LIMITS,
                    lists=Lists(page_size=3),
                    store=database,
                ),
                clock=clock,
            )
        )
        for kind, dialects in KINDS.items()
    }


def make_token_servers(issuer: str, audience: str) -> dict[str, MRTRServer]:
    """Return the servers that take tokens of an issuer: signed ones, and ones about which it is asked."""
    endpoint = f"{issuer}/introspect"
    asking = IntrospectionAuth(
        issuer,
        client_id="fuzz",
        client_secret="secret",  # noqa: S106  of nobody
        audience=audience,
        endpoint=endpoint,
        cache_seconds=0,
    )
    auths = {"signed": JWTAuth(issuer, audience=audience, jwks_uri=f"{issuer}/keys"), "opaque": asking}
    servers = {kind: MRTRServer(kind, keys=[bytes(32)], auth=auth, limits=LIMITS) for kind, auth in auths.items()}
    for server in servers.values():
        server.tool(who)
    return servers


async def who(ctx: Context) -> str:
    """Say who calls."""
    principal = ctx.principal
    return json.dumps(None if principal is None else [principal.subject, principal.issuer, principal.client_id])


async def effect(what: str) -> str:
    """Do what counts."""
    return what


def register(app: MRTRServer) -> MRTRServer:  # noqa: C901  a list
    """Register a tool, prompt and resource of every sort; return the server."""

    @app.tool
    async def add(a: int, b: int = 0) -> int:
        """Add two numbers."""
        return a + b

    @app.tool
    async def greet(ctx: Context, greeting: str = "Hello") -> str:
        """Ask for a name."""
        return f"{greeting}, {(await ctx.elicit('Who?', Login)).name}"

    @app.tool
    async def order(inputs: Inputs, kept: State[list[int]]) -> str | InputRequired:
        """Ask in two rounds, as a pure function with a state."""
        login = inputs.get("login", Login)
        if login is None:
            return InputRequired(login=Elicit("Who?", Login), state=[1])
        return f"{kept.value} {login.name}"

    @app.tool
    async def deploy(ctx: Context, service: str = "x") -> str:
        """Confirm, and have an effect."""
        await ctx.confirm(f"Deploy {service}?")
        return await ctx.step(effect, service)

    @app.tool(single_use=True)
    async def pay(ctx: Context, amount: int = 1) -> str:
        """Confirm, and have an effect once."""
        await ctx.confirm(f"Pay {amount}?")
        return await ctx.step(effect, str(amount))

    @app.tool
    async def everything(ctx: Context) -> str:
        """Ask for several things at once."""
        login, said, roots = await ctx.ask(Elicit("Who?", Login), Sample("Say hello"), ListRoots())
        return f"{login.name} {said.role} {len(roots)}"

    @app.tool
    async def visit(ctx: Context) -> str:
        """Ask for a page to be opened."""
        await ctx.elicit_url("Sign in", "https://example.com/")
        return "welcome"

    @app.tool
    async def notes(ctx: Context) -> str:
        """Send notes, and ask."""
        await ctx.progress(1, 2)
        await ctx.log("begun")
        return (await ctx.elicit("Who?", Login)).name

    @app.tool
    async def fail() -> str:
        """Fail, for the model."""
        raise ToolError("it failed")

    @app.tool(task=Task(rounds_first=True))
    async def work(ctx: Context) -> str:
        """Work as a task, and ask."""
        await ctx.background()
        return (await ctx.elicit("Who?", Login)).name

    @app.prompt
    async def review(ctx: Context, language: str = "x") -> str:
        """Ask, for a prompt."""
        return f"{language} {(await ctx.elicit('Who?', Login)).name}"

    @app.resource("notes://{number}")
    async def note(number: str) -> str:
        """Read a note."""
        return number

    @app.resource("mine://notes")
    async def mine(ctx: Context) -> str:
        """Ask, for a resource."""
        return (await ctx.elicit("Whose?", Login)).name

    return app

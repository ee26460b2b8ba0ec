"""A server behind a real issuer, for tests that run several of it: `ISSUER` is the issuer, `AUDIENCE` the audience."""

import os

from mrtr_server import Context, JWTAuth, Limits, MRTRServer, RateLimits, Task

from .models import Login

app = MRTRServer(
    "issued",
    auth=JWTAuth(os.environ["ISSUER"], audience=os.environ["AUDIENCE"]),
    limits=Limits(stored_tasks=40, stored_states=300, listeners=20),  # of which one caller may have a tenth
    rate_limits=RateLimits(per_flow="1000/minute"),
)


@app.tool(rate_limit="3/minute")
async def search(ctx: Context) -> str:
    """Find nothing, a few times."""
    return f"nothing for {ctx.user.identity}"


@app.tool
async def ask(ctx: Context) -> str:
    """Ask for a name."""
    login = await ctx.elicit("Who?", Login)
    return f"{login.name} for {ctx.user.identity}"


@app.tool(single_use=True)
async def pay(ctx: Context) -> str:
    """Pay, after a confirmation."""
    await ctx.confirm("Pay?")
    return f"paid by {ctx.user.identity}"


@app.tool(task=Task(rounds_first=True))
async def work(ctx: Context) -> str:
    """Ask in the background."""
    await ctx.background()
    login = await ctx.elicit("Who?", Login)
    return f"{login.name} for {ctx.user.identity}"


@app.tool(scopes=["files:write"])
async def save(ctx: Context) -> str:
    """Save something."""
    return f"saved for {ctx.user.identity}"


@app.resource("note://one")
def note() -> str:
    """A note."""
    return "one"

"""A server whose people log in at `tests.support.github`, for tests that run several of it: `PROVIDER`, `BASE_URL`."""

import os

from mrtr_server import Context, MRTRServer
from mrtr_server.login import GitHub, Login

from .github import CLIENT, SECRET

PROVIDER = os.environ["PROVIDER"]

app = MRTRServer(
    "notes",
    auth=Login(GitHub(client_id=CLIENT, client_secret=SECRET, url=PROVIDER, api=f"{PROVIDER}/api")),
    base_url=os.environ["BASE_URL"],
)


@app.tool
async def who(ctx: Context) -> list[str]:
    """Say who calls."""
    principal = ctx.principal
    assert principal is not None
    return [principal.subject, await ctx.upstream_token() and "with a token"]

"""A server whose people log in at `tests.support.github`, for tests that run several of it.

`PROVIDER` and `BASE_URL` are addresses. `PASSED` is a file that says how many seconds its clock is ahead. `DOCUMENTS`
is the host and port where documents of clients may be, by a certificate of the authority in the file `AUTHORITY`.
"""

import os
import time
from pathlib import Path

from mrtr_server import Context, MRTRServer
from mrtr_server.fetcher import Fetcher
from mrtr_server.login import GitHub, Login

from .github import CLIENT, SECRET

PROVIDER = os.environ["PROVIDER"]
PASSED = os.environ.get("PASSED", "")
DOCUMENTS = os.environ.get("DOCUMENTS", "")


def clock() -> float:
    """Return the time, as the test has moved it."""
    return time.time() + (float(Path(PASSED).read_text()) if PASSED else 0.0)


login = Login(
    GitHub(client_id=CLIENT, client_secret=SECRET, url=PROVIDER, api=f"{PROVIDER}/api"),
    fetcher=Fetcher(allow=[DOCUMENTS], ca=os.environ["AUTHORITY"]) if DOCUMENTS else None,
)
app = MRTRServer("notes", auth=login, base_url=os.environ["BASE_URL"]).__replace__(clock=clock)


@app.tool
async def who(ctx: Context) -> list[str]:
    """Say who calls."""
    principal = ctx.principal
    assert principal is not None
    return [principal.subject, await ctx.upstream_token() and "with a token"]


@app.tool(scopes=["notes:write"])
async def write(ctx: Context) -> str:
    """Write a note."""
    return f"written with {' '.join(sorted(ctx.scopes))}"


@app.tool
async def repos(ctx: Context) -> str:
    """Use the person's repositories at the provider."""
    return await ctx.upstream_token("repo") and f"read with {' '.join(sorted(ctx.scopes))}"

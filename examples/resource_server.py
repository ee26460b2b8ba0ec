r"""A resource server of OAuth: tokens of a real issuer, and scopes that a client asks for when it needs them.

`ISSUER` is the authorization server, and `AUDIENCE` what its tokens for this server have in `aud`: the address of the
endpoint. Any MCP client with OAuth logs in by itself: the 401 leads it to the metadata, and that to the issuer. When a
tool needs more than the token permits, the 403 names the scopes, and the client asks the person for them.

    pip install '.[auth]'
    ISSUER=https://login.example.com AUDIENCE=http://127.0.0.1:8000/mcp uvicorn examples.resource_server:app

What a client sees first:

    curl -si http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{}'
    curl -s http://127.0.0.1:8000/.well-known/oauth-protected-resource/mcp
"""

import os

from mrtr_server import Context, JWTAuth, MRTRServer

app = MRTRServer(
    "notes",
    auth=JWTAuth(
        os.environ.get("ISSUER", "https://login.example.com"),
        audience=os.environ.get("AUDIENCE", "http://127.0.0.1:8000/mcp"),
        implied_scopes={"notes:write": ["notes:read"]},
    ),
    scopes=["notes:read"],
)

NOTES: dict[str, list[str]] = {}


@app.tool
def read(ctx: Context) -> list[str]:
    """Read the caller's notes."""
    return NOTES.get(ctx.user.identity, [])


@app.tool(scopes=["notes:write"])
async def write(text: str, ctx: Context) -> str:
    """Write a note."""
    await ctx.confirm(f"Write down {text!r}?")
    NOTES.setdefault(ctx.user.identity, []).append(text)
    return f"Written down for {ctx.user.display_name}"


@app.tool(visible=["notes:admin"])
def count() -> int:
    """Count the notes of all callers."""
    return sum(map(len, NOTES.values()))

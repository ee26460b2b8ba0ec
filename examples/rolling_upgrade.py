"""A rolling upgrade in the middle of a flow: answers are kept, and only new questions are asked.

Version 1 asks for a GitHub and a Google login, version 2 for a GitHub and a Microsoft login. While the fleet is
upgraded, a flow may begin on one and continue on the other. Both have the same name and keys, as all replicas do:

    export MRTR_KEYS=$(mrtr-server keygen)
    uvicorn examples.rolling_upgrade:v1 --port 8001
    uvicorn examples.rolling_upgrade:v2 --port 8002

Round 1: version 1 asks for both of its logins.

    state=$(curl -s http://127.0.0.1:8001/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "link_accounts", "arguments": {}}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2: the answers come to version 2. It needs no Google login, has the GitHub login, and asks for the other one.

    state=$(curl -s http://127.0.0.1:8002/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tools/call",
      "params": {"name": "link_accounts", "arguments": {},
        "inputResponses": {
          "github_login": {"action": "accept", "content": {"name": "octocat"}},
          "google_login": {"action": "accept", "content": {"email": "octocat@example.com"}}
        },
        '"$state"'}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 3: the new state has the GitHub login in it, so the answer that was missing is all that is sent.

    curl -s http://127.0.0.1:8002/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 3, "method": "tools/call",
      "params": {"name": "link_accounts", "arguments": {},
        "inputResponses": {"microsoft_login": {"action": "accept", "content": {"account": "octocat@example.org"}}},
        '"$state"'}
    }'
"""

from pydantic import BaseModel

from mrtr_server import Context, Elicit, MRTRServer, ServerInfo

v1 = MRTRServer("accounts", info=ServerInfo(version="1.0.0"))
v2 = MRTRServer("accounts", info=ServerInfo(version="2.0.0"))


class GitHubLogin(BaseModel):
    """In both versions, so its answer counts in both."""

    name: str


class GoogleLogin(BaseModel):
    """In version 1 only."""

    email: str


class MicrosoftLogin(BaseModel):
    """New in version 2."""

    account: str


GITHUB = Elicit("Please provide your GitHub username", GitHubLogin)
GOOGLE = Elicit("Please provide your Google address", GoogleLogin)
MICROSOFT = Elicit("Please provide your Microsoft account", MicrosoftLogin)


@v1.tool(name="link_accounts")
async def link_github_and_google(ctx: Context) -> str:
    """Link the user's accounts."""
    github, google = await ctx.ask(GITHUB, GOOGLE)
    return f"Linked {github.name} and {google.email}."


@v2.tool(name="link_accounts")
async def link_github_and_microsoft(ctx: Context) -> str:
    """Link the user's accounts."""
    github, microsoft = await ctx.ask(GITHUB, MICROSOFT)
    return f"Linked {github.name} and {microsoft.account}."

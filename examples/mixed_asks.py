"""Two asks in one round: a form for the person, and a message from the client's own model.

    uvicorn examples.mixed_asks:app

Round 1: `inputRequests` has both.

    state=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "introduce"}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2: both answers. With one of them only, the other would be asked for again, and the first kept.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tools/call",
      "params": {"name": "introduce",
        "inputResponses": {
          "github_login": {"action": "accept", "content": {"name": "octocat"}},
          "capital_of_france": {
            "role": "assistant",
            "content": {"type": "text", "text": "The capital of France is Paris."},
            "model": "claude-3-sonnet-20240307",
            "stopReason": "endTurn"}},
        '"$state"'}
    }'
"""

from pydantic import BaseModel

from mrtr_server import Context, Elicit, MRTRServer, Sample

app = MRTRServer("mixed-asks")


class GitHubLogin(BaseModel):
    """Who is to be introduced."""

    name: str


@app.tool
async def introduce(ctx: Context) -> str:
    """Introduce the user, with a fact about France."""
    login, fact = await ctx.ask(
        Elicit("Please provide your GitHub username", GitHubLogin, key="github_login"),
        Sample(
            "What is the capital of France?",
            model_preferences={
                "hints": [{"name": "claude-3-sonnet"}],
                "intelligencePriority": 0.8,
                "speedPriority": 0.5,
            },
            system_prompt="You are a helpful assistant.",
            max_tokens=100,
            key="capital_of_france",
        ),
    )
    return f"Hello, {login.name}. {fact.text}"

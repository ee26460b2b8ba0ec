"""One question, then an answer: a tool as a pure function of its arguments and inputs.

Run it, with any number of workers once `MRTR_KEYS` is set:

    uvicorn examples.weather:app

Round 1: the reply has the question in `inputRequests`, and a `requestState`.

    state=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "get_weather", "arguments": {"location": "New York"}}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2: the same request again, with the answer and the state.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tools/call",
      "params": {"name": "get_weather", "arguments": {"location": "New York"},
        "inputResponses": {"github_login": {"action": "accept", "content": {"name": "octocat"}}},
        '"$state"'}
    }'
"""

from pydantic import BaseModel

from mrtr_server import Elicit, InputRequired, Inputs, MRTRServer

app = MRTRServer("weather")


class GitHubLogin(BaseModel):
    """Who asks."""

    name: str


@app.tool
def get_weather(location: str, inputs: Inputs) -> str | InputRequired:
    """Get the current weather in a city."""
    login = inputs.get("github_login", GitHubLogin)
    if login is None:
        return InputRequired(github_login=Elicit("Please provide your GitHub username", GitHubLogin))
    return f"Current weather in {location}:\nTemperature: 72°F\nConditions: Partly cloudy"

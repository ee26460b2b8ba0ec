"""The same tools on this server, as it comes."""

from pydantic import BaseModel

from mrtr_server import Elicit, InputRequired, Inputs, MRTRServer

app = MRTRServer("bench")


class GitHubLogin(BaseModel):
    name: str


@app.tool
async def add(a: int, b: int) -> str:
    return str(a + b)


@app.tool
def add_sync(a: int, b: int) -> str:
    return str(a + b)


@app.tool
async def get_weather(location: str, inputs: Inputs) -> str | InputRequired:
    login = inputs.get("github_login", GitHubLogin)
    if login is None:
        return InputRequired(github_login=Elicit("Please provide your GitHub username", GitHubLogin))
    return f"Current weather in {location} for {login.name}: 72 degrees, partly cloudy"

"""A server on AWS Lambda, behind an API Gateway or a function URL. The handler of the function is `aws_lambda.handler`.

Install `mangum` beside `mrtr_server`, and set `MRTR_KEYS`: every instance of the function is a replica. A question
holds no instance, since a round ends with it. Two things need a process that stays, so they are not here: tasks, which
`mrtr-server worker` runs elsewhere, and clients that begin with a handshake, which answer while their call is open.
"""

from mangum import Mangum
from pydantic import BaseModel

from mrtr_server import Context, MRTRServer

app = MRTRServer("weather", dialects=["2026-07-28"])


class GitHubLogin(BaseModel):
    """Who asks."""

    name: str


@app.tool
async def get_weather(location: str, ctx: Context) -> str:
    """Get the current weather in a city."""
    login = await ctx.elicit("Please provide your GitHub username", GitHubLogin)
    return f"Weather in {location} for {login.name}: 72°F, partly cloudy"


handler = Mangum(app, lifespan="off")

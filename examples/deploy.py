"""Effects around a question: awaits in the middle of the code, and steps that run once.

The function runs from the top in every round, but a step that has run is not run again. Each step here appends a line
to the file that `DEPLOY_LOG` names (by default deploy.log in the temporary directory), so you can watch it:

    uvicorn examples.deploy:app

Round 1: the image is built, and the reply asks for a yes.

    state=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "deploy", "arguments": {"service": "shop"}}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2: the image of round 1 is rolled out. Try `"confirm": false`, or `"action": "decline"`: nothing is.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tools/call",
      "params": {"name": "deploy", "arguments": {"service": "shop"},
        "inputResponses": {"confirm": {"action": "accept", "content": {"confirm": true}}},
        '"$state"'}
    }'
"""

import os
import secrets
import tempfile
from pathlib import Path

from mrtr_server import Context, MRTRServer

LOG = Path(os.environ.get("DEPLOY_LOG") or Path(tempfile.gettempdir(), "deploy.log"))

app = MRTRServer("deploy")


def build_image(service: str) -> str:
    """Build an image, and return its name."""
    image = f"{service}:{secrets.token_hex(4)}"
    _note(f"built {image}")
    return image


def roll_out(image: str) -> str:
    """Put an image into production."""
    _note(f"rolled out {image}")
    return f"{image} is in production."


@app.tool
async def deploy(service: str, ctx: Context) -> str:
    """Build a service, and put it into production once the user agrees."""
    image = await ctx.step(build_image, service)
    await ctx.confirm(f"Deploy {image} to production?")
    return await ctx.step(roll_out, image)


def _note(line: str) -> None:
    with LOG.open("a") as log:
        log.write(f"{line}\n")

r"""A question in the middle of a task: the echo tool of the drafts' persistent workflow.

The function is a pure one, the same as for rounds. The client decides whether a call becomes a task: a call without
`task` is answered in rounds.

    uvicorn examples.echo_task:app

Step 1: the call becomes a task, and the reply has its id.

    task=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "echo", "task": {"ttl": 60000}}
    }' | tee /dev/stderr | grep -o '"taskId":"[^"]*"')

Step 2: ask for its status, until it needs input.

    until curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": {'"$task"'}
    }' | tee /dev/stderr | grep -q '"status":"input_required"'; do sleep 0.1; done

Step 3: ask what it needs, and answer.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 3, "method": "tasks/result", "params": {'"$task"'}
    }'
    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 4, "method": "tasks/input_response",
      "params": {
        "inputResponses": {"echo_input": {"action": "accept", "content": {"input": "Hello World!"}}},
        "_meta": {"io.modelcontextprotocol/related-task": {'"$task"'}}}
    }'

Step 4: once it is completed, ask for the result.

    until curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 5, "method": "tasks/get", "params": {'"$task"'}
    }' | tee /dev/stderr | grep -q '"status":"completed"'; do sleep 0.1; done
    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 6, "method": "tasks/result", "params": {'"$task"'}
    }'
"""

from pydantic import BaseModel

from mrtr_server import Elicit, InputRequired, Inputs, MRTRServer, Task

app = MRTRServer("echo")


class EchoInput(BaseModel):
    """What to say back."""

    input: str


@app.tool(task=Task("optional", ttl=3600, poll=0.1))
def echo(inputs: Inputs, input: str | None = None) -> str | InputRequired:
    """Say something back; what it is may come later."""
    if input is None:
        given = inputs.get("echo_input", EchoInput)
        if given is None:
            return InputRequired(echo_input=Elicit("Please provide the input string to echo back", EchoInput))
        input = given.input
    return f"Echo: {input}"

"""Questions that depend on answers: the rules of a work item tracker, in up to three rounds.

Rule 1: to resolve a bug, say how. Rule 2: to resolve it as a duplicate, say of which item. The function keeps nothing:
an answer from one round is there in every later round, on whichever replica that runs.

    uvicorn examples.work_items:app

Round 1: the reply asks for the resolution.

    state=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "update_work_item",
        "arguments": {"workItemId": 4522, "fields": {"System.State": "Resolved"}}}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2: the answer leads to the next question.

    state=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tools/call",
      "params": {"name": "update_work_item",
        "arguments": {"workItemId": 4522, "fields": {"System.State": "Resolved"}},
        "inputResponses": {"resolution": {"action": "accept", "content": {"resolution": "Duplicate"}}},
        '"$state"'}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 3: only the second answer is sent; the first is in the state.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 3, "method": "tools/call",
      "params": {"name": "update_work_item",
        "arguments": {"workItemId": 4522, "fields": {"System.State": "Resolved"}},
        "inputResponses": {"duplicate_of": {"action": "accept", "content": {"duplicateOfId": 4301}}},
        '"$state"'}
    }'
"""

from typing import Literal

from pydantic import BaseModel, Field

from mrtr_server import Elicit, InputRequired, Inputs, MRTRServer

app = MRTRServer("work-items")


class Resolution(BaseModel):
    """What rule 1 asks for."""

    resolution: Literal["Fixed", "Won't Fix", "Duplicate", "By Design"] = Field(
        description="Resolution type for this bug"
    )


class DuplicateOf(BaseModel):
    """What rule 2 asks for: an integer, which the form shows as a number."""

    duplicateOfId: int = Field(
        description="Work item ID of the original bug",
        json_schema_extra={"type": "number"},
    )


@app.tool
def update_work_item(workItemId: int, fields: dict[str, str], inputs: Inputs) -> str | InputRequired:
    """Set fields of a work item; a state of Resolved brings in the rules."""
    if fields.get("System.State") != "Resolved":
        return f"Work item #{workItemId} updated: {', '.join(fields) or 'nothing'}."

    bug = f"Bug #{workItemId}"
    resolved = inputs.get("resolution", Resolution)
    if resolved is None:
        question = f"Resolving {bug} requires a resolution. How was this bug resolved?"
        return InputRequired(resolution=Elicit(question, Resolution))
    if resolved.resolution != "Duplicate":
        return f"{bug} resolved as {resolved.resolution}. State set to Resolved."

    duplicate = inputs.get("duplicate_of", DuplicateOf)
    if duplicate is None:
        question = "Since this is a duplicate, which work item is the original?"
        return InputRequired(duplicate_of=Elicit(question, DuplicateOf))
    return (
        f"{bug} resolved as Duplicate of Bug #{duplicate.duplicateOfId}. "
        "State set to Resolved and duplicate link created."
    )

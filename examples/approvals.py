"""An approval queue: the model lists what waits, and the person approves or rejects it by buttons of a page.

The buttons call `decide`, which hosts show to pages alone. That is a request, and no boundary. So `decide` asks
the person: nothing is paid without a yes, whoever calls it. Where the host can't ask, a page draws the question.

    uvicorn examples.approvals:app

(With several workers or replicas, set `MRTR_KEYS` and `MRTR_DATABASE_URL` for all of them, and keep the expenses in a
database of your own.)

Round 1: a button calls the tool. The reply asks for a yes.

    state=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "decide", "arguments": {"number": 2, "approve": true}}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2: the person's yes. Send it as often as you like: the expense is paid once.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tools/call",
      "params": {"name": "decide", "arguments": {"number": 2, "approve": true},
        "inputResponses": {"confirm": {"action": "accept", "content": {"confirm": true}}},
        '"$state"'}
    }'
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from mrtr_server import Apps, Context, MRTRServer, ToolError


class Expense(BaseModel):
    """Money that somebody spent, and wants back."""

    number: int = Field(description="The number of the expense")
    who: str = Field(description="Who is paid")
    what: str = Field(description="What it was spent on")
    euros: int = Field(description="The amount, in euros")
    state: Literal["waiting", "approved", "rejected"] = Field(default="waiting", description="What was decided")


EXPENSES = {
    each.number: each
    for each in (
        Expense(number=1, who="Ann", what="train to Lyon", euros=120),
        Expense(number=2, who="Bo", what="a monitor", euros=310),
        Expense(number=3, who="Cleo", what="dinner with a client", euros=95),
    )
}

# question=True: the question is drawn in a page where the host can't ask, also without a database that is shared.
app = MRTRServer("approvals", apps=Apps(question=True))
queue = app.ui("pages/approvals.html", title="Approvals", border=True)


@app.tool(ui=queue)
def expenses() -> list[Expense]:
    """List the expenses that wait for an approval. The person sees them with buttons, and decides there."""
    return [each for each in EXPENSES.values() if each.state == "waiting"]


def settle(number: int, approve: bool) -> Expense:
    """Pay an expense or turn it down; one that is settled stays as it is."""
    if EXPENSES[number].state == "waiting":
        EXPENSES[number] = EXPENSES[number].model_copy(update={"state": "approved" if approve else "rejected"})
    return EXPENSES[number]


@app.tool(ui=queue, used_by="app")
async def decide(
    number: Annotated[int, Field(description="The number of the expense")],
    approve: Annotated[bool, Field(description="Whether it is paid")],
    ctx: Context,
) -> Expense:
    """Approve or reject an expense, once the person agrees."""
    if number not in EXPENSES:
        raise ToolError(f"There is no expense {number}; expenses lists those that wait.")
    expense = EXPENSES[number]
    if expense.state != "waiting":
        return expense  # nobody is asked about what is decided
    what = f"{expense.euros} € to {expense.who} for {expense.what}"
    await ctx.confirm(f"Pay {what}?" if approve else f"Refuse to pay {what}?")
    return await ctx.step(settle, number, approve)

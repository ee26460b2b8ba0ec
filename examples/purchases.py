r"""A buyer and a manager: what costs more than 500 € waits until the manager has approved it, maybe for days.

Each has a login and an assistant of their own. The manager's is told by a webhook that something waits, and approves it
once the manager has confirmed. Nothing of the purchase is held meanwhile but a row in the database, so any replica may
be restarted. Three of them share the port:

    export MRTR_KEYS=$(mrtr-server keygen) MRTR_DATABASE_URL=sqlite:///purchases.db
    export MRTR_WEBHOOKS_ALLOW=http://127.0.0.1:9000
    uvicorn examples.purchases:app --workers 3

The manager's agent, in a second terminal.

    python -m examples.purchases_agent

Step 1, in a third one: the buyer's call. Its client takes no tasks, so it is told that the purchase waits, and by which
id to ask for it.

    told=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' \
      -H 'Authorization: Bearer bea-token' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "buy", "arguments": {"item": "a desk", "price": 900}}
    }' | tee /dev/stderr | grep -o 'mrtr-ask: [0-9a-f-]*' | cut -d' ' -f2)

Step 2: the agent prints `Approve a desk for 900 €? [yes/no]`. Type yes there. Then the buyer's client asks.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' \
      -H 'Authorization: Bearer bea-token' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tools/call",
      "params": {"name": "mrtr_result", "arguments": {"ask": "'"$told"'"}}
    }'

A manager whose assistant takes no events asks it what waits.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' \
      -H 'Authorization: Bearer max-token' -d '{
      "jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "approvals", "arguments": {}}
    }'
"""

from typing import Annotated

from pydantic import BaseModel, Field

from mrtr_server import BearerTokens, Context, MRTRServer, Ticket

MOST_WITHOUT_APPROVAL = 500
"""Euros."""

ONE_DAY = 86_400
"""Seconds."""

# A login of yours, such as JWTAuth, knows who may approve; see docs/authentication.md.
LOGINS = BearerTokens({"bea-token": "bea", "max-token": "max"}, scopes={"max-token": ["purchases:approve"]})

app = MRTRServer("purchases", auth=LOGINS)


class Purchase(BaseModel):
    """What somebody would like to buy."""

    item: str = Field(description="What it is")
    price: int = Field(description="What it costs, in euros")


class Decision(BaseModel):
    """What the manager decides."""

    approved: bool
    reason: str = ""


class Waiting(Purchase):
    """A purchase that waits for an approval."""

    ticket: str = Field(description="Names it for approve and refuse")


approval = app.wait("approval", about=Purchase, answer=Decision, who=["purchases:approve"])


def order(item: str, price: int) -> str:
    """Order it: your shop, ERP or mail to a supplier."""
    return f"{item} was ordered for {price} €"


@app.tool(task="optional")
async def buy(
    item: Annotated[str, Field(description="What to buy")],
    price: Annotated[int, Field(description="What it costs, in euros", ge=1)],
    ctx: Context,
) -> str:
    """Buy something. What costs more than 500 € waits for the manager's approval."""
    if price > MOST_WITHOUT_APPROVAL:
        purchase = Purchase(item=item, price=price)
        decision = await ctx.wait_for(approval, purchase, answer_within=3 * ONE_DAY, remind_every=ONE_DAY)
        if not decision.approved:
            return f"{item} was not ordered: {decision.reason}"
    return await ctx.step(order, item, price)


@app.tool(scopes=["purchases:approve"])
async def approvals(ctx: Context) -> list[Waiting]:
    """List the purchases that wait for the manager's approval, the newest first."""
    page = await ctx.tickets(approval)
    return [Waiting(ticket=ticket, **ticket.about.model_dump()) for ticket in page.tickets]


@app.tool(scopes=["purchases:approve"])
async def approve(ticket: Annotated[Ticket[Purchase, Decision], approval], ctx: Context) -> str:
    """Approve a purchase, once the manager agrees."""
    await ctx.confirm(f"Approve {ticket.about.item} for {ticket.about.price} €?")
    await ctx.answer(ticket, Decision(approved=True))
    return f"{ticket.about.item} is approved"


@app.tool(scopes=["purchases:approve"])
async def refuse(
    ticket: Annotated[Ticket[Purchase, Decision], approval],
    reason: Annotated[str, Field(description="What the buyer is told")],
    ctx: Context,
) -> str:
    """Refuse a purchase, once the manager agrees."""
    await ctx.confirm(f"Refuse {ticket.about.item} for {ticket.about.price} €: {reason}?")
    await ctx.answer(ticket, Decision(approved=False, reason=reason))
    return f"{ticket.about.item} is refused"

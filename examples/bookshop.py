"""Questions in the signature: two are asked together, one depends on their answers, and a function looks the stock up.

    uvicorn examples.bookshop:app

Round 1: `inputRequests` asks how many copies to buy, and where to send them. These questions are not in the tool's
schema (`tools/list`): the model fills in the title only. Try `"Moby Dick"`, which is sold out.

    state=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "buy", "arguments": {"title": "Emma"}}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2: both answers, and a confirmation that is made from them is asked for. With one answer only, the other is
asked for again.

    state=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tools/call",
      "params": {"name": "buy", "arguments": {"title": "Emma"},
        "inputResponses": {
          "quantity": {"action": "accept", "content": {"copies": 2}},
          "address": {"action": "accept", "content": {"street": "12 Rue de la Paix", "city": "Paris"}}},
        '"$state"'}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 3: a yes. Try `"confirm": false`, or `"action": "cancel"`: nothing is bought.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 3, "method": "tools/call",
      "params": {"name": "buy", "arguments": {"title": "Emma"},
        "inputResponses": {"confirm": {"action": "accept", "content": {"confirm": true}}},
        '"$state"'}
    }'
"""

from typing import Annotated

from pydantic import BaseModel, Field

from mrtr_server import Depends, Elicit, MRTRServer, ToolError

app = MRTRServer("bookshop")

SHELF = {"Emma": (3, 12), "Middlemarch": (1, 15), "Moby Dick": (0, 9)}
"""How many copies there are, and what one costs in euros."""


class Stock(BaseModel):
    """The copies of a title in stock."""

    left: int
    price: int


class Quantity(BaseModel):
    """How many copies to buy."""

    copies: Annotated[int, Field(ge=1)]


class Address(BaseModel):
    """Where to send them."""

    street: str
    city: str


def check_stock(title: str) -> Stock:
    """Look a title up. This happens in every round, so the shop sells nothing that is no longer in stock."""
    left, price = SHELF.get(title, (0, 0))
    if left == 0:
        raise ToolError(f"{title} is sold out.")
    return Stock(left=left, price=price)


def ask_for_yes(title: str, quantity: Quantity, address: Address, stock: Stock) -> str:
    """Return the question for the confirmation: what is about to be bought."""
    return (
        f"Buy {quantity.copies} × {title} for {quantity.copies * stock.price} €, to {address.street}, {address.city}?"
    )


@app.tool(confirm=ask_for_yes)
def buy(
    title: str,
    stock: Annotated[Stock, Depends(check_stock)],
    quantity: Annotated[Quantity, Elicit(lambda title, stock: f"How many copies of {title}? {stock.left} are left.")],
    address: Annotated[Address, Elicit("Where do they go?")],
) -> str:
    """Buy copies of a book."""
    if quantity.copies > stock.left:
        raise ToolError(f"There are only {stock.left} copies of {title}.")
    return f"{quantity.copies} × {title} are on their way to {address.city}."

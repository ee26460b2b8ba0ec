r"""A seat map that is an ask: the tool asks a form, and a page draws it as a plan of the cabin (SEP-3118, a draft).

The question is a complete form, a list of the free seats. A client that draws forms by pages is told the page, too. All
others draw the list. The answer is the same, and counts whoever drew the question.

    uvicorn examples.seats:app

Round 1: the reply asks for a seat. `_meta` of the question names the page, since this client declares that it draws it.

    call() {
      curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -H 'MCP-Protocol-Version: 2026-07-28' \
        -H 'Mcp-Method: tools/call' -H 'Mcp-Name: book_seat' -d '{
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "book_seat", "arguments": {"flight": "MR12"}, "_meta": {
          "io.modelcontextprotocol/protocolVersion": "2026-07-28",
          "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "extensions": {
            "io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"], "elicitation": {}}
          }}}'"$1"'}}'
    }
    state=$(call | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2: the seat that was chosen. Send it as often as you like: it is booked once.

    call ', '"$state"', "inputResponses": {"seat": {"action": "accept", "content": {"seat": "3C"}}}'
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from mrtr_server import Apps, Context, IdempotencyKey, MRTRServer, ToolError

SEATS = [f"{row}{letter}" for row in range(1, 7) for letter in "ABCD"]
TAKEN = {"MR12": dict.fromkeys(["1A", "1B", "2D", "4C"], "earlier"), "MR34": dict.fromkeys(SEATS, "earlier")}
"""Which seats are taken on each flight, and by whom. A server of several processes keeps this in a database."""

# question=True: the list is drawn in a page where the host can't ask, also without a database that is shared.
app = MRTRServer("airline", apps=Apps(question=True))
seat_map = app.ui("pages/seats.html", title="Seats")


class Seat(BaseModel):
    """Where the passenger sits."""

    seat: str = Field(title="Seat", description="A free seat: its row, and its letter")


def form_of(free: list[str]) -> type[Seat]:
    """Return a form that offers the free seats."""
    seat: Any = Annotated[Literal[*free], Field(title="Seat", description="A free seat: its row, and its letter")]
    return create_model("Seat", __base__=Seat, seat=(seat, ...))


def free_seats(flight: str) -> list[str]:
    """Return what is free on a flight, by row."""
    return [seat for seat in SEATS if seat not in TAKEN[flight]]


def reserve(flight: str, seat: str, *, by: IdempotencyKey = IdempotencyKey()) -> bool:
    """Reserve a seat; return whether it was free. An answer that comes twice reserves once: `by` is the same then."""
    return TAKEN[flight].setdefault(seat, by) == by


@app.tool
async def book_seat(flight: Annotated[str, Field(description="Its number, such as MR12")], ctx: Context) -> str:
    """Book a seat on a flight. The person is asked which one."""
    if flight not in TAKEN:
        raise ToolError(f"There is no flight {flight}, but {', '.join(TAKEN)}.")
    free = await ctx.step(free_seats, flight)  # in a step, so that the next round has the same form
    if not free:
        raise ToolError(f"No seat is free on {flight}.")
    chosen = await ctx.elicit("Which seat?", form_of(free), key="seat", ui=seat_map)
    if not await ctx.step(reserve, flight, chosen.seat):
        raise ToolError(f"{chosen.seat} was taken meanwhile. Call again: the person chooses another one.")
    return f"Booked {chosen.seat} on {flight}"

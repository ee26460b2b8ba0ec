"""Tools that ask in apps, for replicas in processes of their own.

`ASKED_DIR` holds the shared store, the ledger of all effects and, while a shipment is to take its time, a file `hold`.
"""

import asyncio
import json
import os
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AnyUrl, BaseModel, Field, WithJsonSchema

from mrtr_server import BearerTokens, Context, MRTRServer, SQLStore
from mrtr_server.testing import replica, short_lease

LEASE = 1.0
"""In seconds."""

WITHIN = 1
"""How long the question of `hurry` waits for its answer, in seconds."""

FEE = "https://pay.example.com/fee?no=7"
PLACE = Path(os.environ["ASKED_DIR"])

app = replica(
    MRTRServer(
        "desk",
        store=SQLStore(f"sqlite:///{PLACE}/store.db"),
        auth=BearerTokens({"token of ann": "ann", "token of bob": "bob"}),
    ),
    limits=short_lease(LEASE),
)


class Meal(Enum):
    FISH = "fish"
    TOFU = "tofu"


class Trip(BaseModel):
    """Each kind of field."""

    name: str = Field(title="Name", min_length=2, max_length=5)
    seats: int = Field(title="Seats", ge=1, le=9)
    weight: float = Field(title="Weight")
    window: bool = Field(title="Window")
    fare: Literal["eco", "first"] = Field(title="Fare")
    meal: Meal | None = Field(None, title="Meal")
    extras: list[Literal["bag", "bike"]] = Field(title="Extras", min_length=1)
    mail: Annotated[str, WithJsonSchema({"type": "string", "format": "email"})] = Field(title="Mail")
    site: AnyUrl | None = Field(None, title="Site")
    day: date = Field(title="Day")
    at: datetime | None = Field(None, title="At")
    note: str = Field("", title="Note", max_length=500)


class Amount(BaseModel):
    copies: int = Field(title="Copies", ge=1, le=9)


class Receipt(BaseModel):
    copies: int


def note(title: str, what: str) -> str:
    """Add an effect to the ledger: for which call it is, what it is, and which process has it."""
    with (PLACE / "ledger").open("a") as ledger:
        ledger.write(json.dumps([title, what, os.getpid()]) + "\n")
    return what


async def ship(title: str) -> str:
    note(title, "begin")
    while (PLACE / "hold").exists():  # noqa: ASYNC110  the test is another process
        await asyncio.sleep(0.01)
    return note(title, "shipped")


@app.tool
async def plan(title: str, ctx: Context) -> str:
    """Plan a trip."""
    trip = await ctx.elicit(f"Where to, {title}?", Trip)
    return await ctx.step(note, title, trip.model_dump_json())


@app.tool
async def order(title: str, ctx: Context) -> Receipt:
    """Order books."""
    await ctx.step(note, title, "reserved", key="reserve")
    amount = await ctx.elicit(f"How many of {title}?", Amount)
    await ctx.confirm(f"Order {amount.copies} of {title}?")
    await ctx.step(note, title, f"ordered {amount.copies}", key="order")
    return Receipt(copies=amount.copies)


@app.tool
async def survey(title: str, ctx: Context) -> str:
    """Ask a form alone."""
    amount = await ctx.elicit(f"How many of {title}?", Amount)
    return await ctx.step(note, title, f"counted {amount.copies}")


@app.tool
async def dispatch(title: str, ctx: Context) -> str:
    """Ship something."""
    await ctx.confirm(f"Ship {title}?")
    return await ctx.step(ship, title)


@app.tool(answer_within=WITHIN)
async def hurry(title: str, ctx: Context) -> str:
    """Ask for a short time."""
    await ctx.confirm(f"Hurry {title}?")
    return await ctx.step(note, title, "hurried")


@app.tool
async def pay(title: str, ctx: Context) -> str:
    """Ask to pay on a page."""
    await ctx.elicit_url(f"Pay for {title}.", FEE)
    return await ctx.step(note, title, "paid")


@app.tool
async def greet(title: str, ctx: Context, sure: bool = True) -> str:
    """Ask only who is not sure."""
    if not sure:
        await ctx.confirm(f"Greet {title}?")
    return await ctx.step(note, title, "greeted")


SEATS = """<!doctype html><html><head><title>Seats</title></head><body><script>
mrtr.on("question", ({ message }) => new Promise((answer) => {
  const heading = document.createElement("h1");
  heading.textContent = message;
  document.body.append(heading);
  const answers = { "Take 2": { action: "accept", content: { copies: 2 } }, Leave: { action: "decline" } };
  for (const [text, what] of Object.entries(answers)) {
    const button = document.createElement("button");
    button.textContent = text;
    button.onclick = () => answer(what);
    document.body.append(button);
  }
}));
</script></body></html>"""


def seats() -> str:
    return SEATS


seat_map = app.ui(seats, name="seats")


@app.tool
async def reserve(title: str, ctx: Context) -> str:
    """Reserve seats by a map."""
    amount = await ctx.elicit(f"Which seats for {title}?", Amount, ui=seat_map)
    return await ctx.step(note, title, f"reserved {amount.copies}")

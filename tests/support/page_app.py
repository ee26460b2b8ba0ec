"""What the page shows in its tests and pictures: a tool for each kind of ask, tasks, failures, and things to read.

Run it with `MRTR_DEBUG=true uvicorn tests.support.page_app:app`.
"""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request

from mrtr_server import (
    Confirm,
    Context,
    Depends,
    Elicit,
    Header,
    ImageContent,
    MRTRServer,
    ResourceLink,
    Sample,
    ServerInfo,
    Task,
    TextContent,
    ToolError,
)

app = MRTRServer(
    "travel-desk",
    info=ServerInfo(
        title="Travel desk", description="Books trips, and asks before it spends anything.", version="1.4.0"
    ),
    docs=True,
)

PIXEL = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


class Traveller(BaseModel):
    """Who travels."""

    name: str = Field(min_length=2, description="As in the passport")
    email: str = Field(json_schema_extra={"format": "email"})
    seat: Literal["window", "aisle"] = "window"
    bags: int = Field(default=1, ge=0, le=3)
    newsletter: bool = False


class Mood(Enum):
    """How it should feel."""

    CALM = "calm"
    BUSY = "busy"


class Stop(BaseModel):
    """A stop on the way."""

    town: str
    nights: int = Field(default=1, ge=1)


class Hotel(BaseModel):
    """A hotel."""

    kind: Literal["hotel"] = "hotel"
    stars: int


class Tent(BaseModel):
    """A tent."""

    kind: Literal["tent"] = "tent"
    people: int


class Budget(BaseModel):
    """What may be spent."""

    limit: float
    currency: Literal["EUR", "USD"] = "EUR"


def search(town: str) -> list[str]:
    """Search for trains."""
    return [f"08:12 to {town}", f"11:40 to {town}"]


def charge(town: str) -> str:
    """Charge a card."""
    return f"ticket to {town}"


@app.tool
async def book_trip(town: Annotated[str, Field(description="Where to")], ctx: Context) -> str:
    """Book a train: searches, asks who travels, then asks for a yes before it pays."""
    trains = await ctx.step(search, town)
    traveller = await ctx.elicit(f"Who travels on the {trains[0]}?", Traveller)
    await ctx.confirm(f"Pay 49 EUR for {traveller.name}?")
    return f"{await ctx.step(charge, town)} for {traveller.name}, {traveller.seat}, {traveller.bags} bags"


@app.tool(annotations={"readOnlyHint": True})
def plan_route(
    stops: list[Stop],
    budget: Budget,
    place: Hotel | Tent,
    moods: list[Mood] | None = None,
    note: str | None = None,
    region: Annotated[str, Header("Region")] = "north",
    extra: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Plan a route with several stops. It only shows what arrived."""
    return {
        "stops": [stop.model_dump() for stop in stops],
        "budget": budget.model_dump(),
        "place": place.model_dump(),
        "moods": [mood.value for mood in moods or []],
        "note": note,
        "region": region,
        "extra": extra,
    }


@app.tool
async def introduce(ctx: Context) -> str:
    """Ask the person and the model at once."""
    budget, fact = await ctx.ask(
        Elicit("Who is there?", Budget, key="budget"),
        Sample("What is the capital of Norway?", max_tokens=50, system_prompt="Be brief.", key="capital"),
    )
    return f"{budget.limit:g} {budget.currency}. {fact.text}"


@app.tool
async def folders(ctx: Context) -> str:
    """List the folders of the client."""
    roots = await ctx.list_roots()
    return ", ".join(str(root.uri) for root in roots)


@app.tool
async def sign_in(ctx: Context) -> str:
    """Send the person to a page."""
    await ctx.elicit_url("Sign in at the airline", "https://airline.example/login")
    return "signed in"


@app.callback("airline")
def airline(request: Request) -> str:
    """Take what the airline sends the person back with."""
    return request.query_params.get("seat", "12C")


@app.tool
async def check_in(ctx: Context) -> str:
    """Send the person to a page that reports what they chose."""
    return await ctx.elicit_url("Choose your seat", lambda back: f"{back.link}&seat=14A", callback=airline)


@app.tool(single_use=True)
async def refund(ctx: Context, ticket: str = "A1") -> str:
    """Pay a ticket back, once."""
    await ctx.confirm(f"Refund {ticket}?")
    return await ctx.step(charge, ticket)


@app.tool
def lost_luggage() -> str:
    """Fail, with words for the model."""
    raise ToolError("No bag has that number.")


@app.tool
def broken() -> str:
    """Fail in a way that nobody expected."""
    raise RuntimeError("the conveyor stands still")


@app.tool
async def slow_search(ctx: Context) -> str:
    """Report progress, and say so in the log."""
    for done in range(1, 4):
        await ctx.progress(done, 3, f"Asked railway {done} of 3")
        await ctx.log(f"railway {done} answered")
    return "three railways"


@app.tool
async def forever(ctx: Context) -> str:
    """Wait until it is stopped."""
    await ctx.progress(0, 1, "waiting")
    await asyncio.sleep(600)
    return "never"


@app.tool(task=Task("optional", poll=0.3, rounds_first=True))
async def charter(ctx: Context, seats: int = 20) -> str:
    """Charter a bus in the background, and ask what it may cost."""
    await ctx.background()
    for done in range(1, 4):
        await ctx.step(search, f"stop {done}")
        await ctx.progress(message=f"Asked {done} of 3 companies")
    budget = await ctx.elicit("What may it cost?", Budget)
    return f"a bus with {seats} seats for at most {budget.limit:g} {budget.currency}"


goes_on = asyncio.Event()
"""That the journey of a diary goes on."""


@app.tool
async def diary() -> AsyncIterator[str | ImageContent]:
    """Tell of a journey piece by piece."""
    goes_on.clear()
    yield "Day 1: "
    yield "Hamar."
    yield ImageContent(data=PIXEL)
    await goes_on.wait()
    yield "Day 2: Oslo."


@app.tool(task=Task("optional", poll=0.3, rounds_first=True))
async def voyage(ctx: Context) -> AsyncIterator[str | ImageContent]:
    """Tell of a journey in the background, piece by piece."""
    await ctx.background()
    async for piece in diary():
        yield piece


@app.tool
async def go_on() -> str:
    """Let the journey of a diary go on."""
    goes_on.set()
    return "on the way"


@app.tool
def postcard() -> list[TextContent | ImageContent | ResourceLink]:
    """Return text that looks like markup, and an image."""
    return [
        TextContent(text='<img src=x onerror="document.title=1"><b>not bold</b>'),
        ImageContent(data=PIXEL),
        ResourceLink(uri="file:///etc/passwd", name="Not a link"),
        ResourceLink(uri="https://airline.example/map", name="A link"),
        ImageContent(data=b"<svg onload='alert(1)' xmlns='http://www.w3.org/2000/svg'/>", mime_type="image/svg+xml"),
    ]


def agree(sure: Annotated[bool, Confirm("Really?")]) -> bool:
    """Ask for a yes."""
    return sure


@app.tool
def declared(sure: Annotated[bool, Depends(agree)]) -> str:
    """Ask by the signature."""
    return f"sure: {sure}"


@app.tool
async def whoami(ctx: Context) -> str:
    """Say who calls."""
    return ctx.principal.subject if ctx.principal else "nobody"


@app.prompt
def itinerary(town: str, days: str = "3") -> str:
    """Write an itinerary."""
    return f"Write an itinerary of {days} days in {town}."


TOWNS = ("Bergen", "Bodø", "Hamar", "Oslo")


@app.completion("town", prompt="itinerary")
def suggest_town(value: str) -> list[str]:
    """Suggest towns."""
    return [town for town in TOWNS if town.lower().startswith(value.lower())]


@app.resource("timetable://today")
def timetable() -> str:
    """Today's trains."""
    return "08:12 Oslo\n11:40 Bergen"


@app.resource("weather://{city}")
def weather(city: str) -> dict[str, str]:
    """The weather of a city."""
    return {"city": city, "sky": "clear"}


@app.completion("city", resource="weather://{city}")
def suggest_city(value: str) -> list[str]:
    """Suggest cities, or fail."""
    if value == "?":
        raise ToolError("No city has that name.")
    return [town for town in TOWNS if value in town]

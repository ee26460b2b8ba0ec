"""A chart: the result of a tool, drawn as an SVG by its page, with the same numbers in a table for screen readers.

The page gets the structured content of the result. Its button calls the tool again, with the arguments of the model. A
host without apps, and the model, have the same numbers as text.

    uvicorn examples.chart:app

Round 1: there is one round only. What the page draws is in `structuredContent`.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "visitors", "arguments": {"museum": "ships", "days": 3}}
    }'
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from mrtr_server import MRTRServer

COUNTED = {
    "art": [412, 380, 455, 520, 610, 890, 940],
    "ships": [120, 95, 143, 150, 210, 480, 520],
    "trains": [301, 288, 315, 340, 402, 760, 805],
}
"""How many people came on each day of the last week, the latest day last."""


class Day(BaseModel):
    """A day, and who came."""

    day: str = Field(description="Which day: today, or how many days ago")
    visitors: int = Field(description="How many people came")


class Visitors(BaseModel):
    """What the chart shows."""

    museum: str = Field(description="The museum")
    days: list[Day] = Field(description="One entry a day, the latest day last")


app = MRTRServer("museums")
chart = app.ui("pages/chart.html", title="Visitors", border=True)


@app.tool(ui=chart)
def visitors(
    museum: Annotated[Literal["art", "ships", "trains"], Field(description="Which museum")],
    days: Annotated[int, Field(ge=1, le=7, description="How many days, up to today")] = 7,
) -> Visitors:
    """Count the visitors of a museum by day. The person sees a chart."""
    counted = COUNTED[museum][-days:]
    names = [f"{ago} days ago" if ago > 1 else "yesterday" if ago else "today" for ago in reversed(range(days))]
    return Visitors(museum=museum, days=[Day(day=day, visitors=n) for day, n in zip(names, counted, strict=True)])

"""Tools whose types used to cost much more than the size of what is sent for them."""

from decimal import Decimal
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Json, create_model

from mrtr_server import MRTRServer

FIELDS: dict[str, Any] = {f"field{each}": (int, ...) for each in range(18)}
Row: Any = create_model("Row", **FIELDS)
Other: Any = create_model("Other", **{f"other{each}": (int, ...) for each in range(18)})  # type: ignore[call-overload]


class Node(BaseModel):
    left: "Node | None" = None
    right: "Node | None" = None
    row: Row


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int


class Leaf(BaseModel):
    x: int = 1


class Closed2(BaseModel):
    model_config = ConfigDict(extra="forbid")
    y: int


app = MRTRServer("costly", keys=[bytes(32)])


@app.tool
def rows(it: list[Row]) -> str:
    return "ok"


@app.tool
def either(it: list[Row] | list[Other]) -> str:
    return "ok"


@app.tool
def table(it: dict[str, Row]) -> str:
    return "ok"


@app.tool
def tree(it: Node) -> str:
    return "ok"


@app.tool
def closed(it: Closed | Closed2) -> str:
    return "ok"


@app.tool
def text(it: Json[list[Leaf]]) -> str:
    return "ok"


@app.tool
def numbers(it: set[int]) -> str:
    return "ok"


@app.tool
def users(it: dict[UUID, int]) -> str:
    return "ok"


@app.tool
def sums(it: frozenset[Decimal]) -> str:
    return "ok"

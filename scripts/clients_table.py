"""What scripts/clients found, as rows: for the terminal, and between two markers of docs/clients-in-detail.md."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from clients_install import ROOT, Client

PAGE = ROOT / "docs" / "clients-in-detail.md"
BEGIN = "<!-- scripts/clients --write writes from here -->"
END = "<!-- to here -->"


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Args:
        begin: what stands before it.
        end: what stands after it.
        headings: its columns; the first has names, the last how long each waits for the person.
    """

    begin: str
    end: str
    headings: tuple[str, ...]

    def between(self, page: str) -> str:
        """Return what stands between the marks."""
        return page.split(self.begin, 1)[1].split(self.end, 1)[0]


class HasRow(Protocol):
    """What was found of a client or a host."""

    @property
    def row(self) -> tuple[str, ...]:
        """Its row in the table."""
        ...


LISTS = ("tools", "prompts", "resources")
CALLS = ("call", "elicit", "sample")
UNTRIED = {"ok": False, "said": "The program ended before it tried this"}
HEADINGS = ("client", "version", "speaks", "lists", "calls", "fills in forms", "samples", "can't", "waits")
CLIENTS = Table(BEGIN, END, HEADINGS)
NOT_MEASURED = "not measured"
_WORDS = {True: "yes", False: "FAILS", None: "no"}


@dataclass
class Result:
    """What became of one client.

    Args:
        client: the client.
        era: the versions of the protocol in which it called tools.
        outcomes: what its program reported, by what it tried: `ok` is True, False, or None for what it can't.
        missing: why it could not be installed.
        error: why its program did not come to its end.
        patience: how long the person took, in seconds; 0 if that was not tried.
    """

    client: Client
    era: str = ""
    outcomes: dict[str, Any] = field(default_factory=dict)
    missing: str = ""
    error: str = ""
    patience: float = 0

    @property
    def cannot(self) -> list[str]:
        """What the client has no way to do."""
        return [what for what, found in self._tried.items() if found["ok"] is None]

    @property
    def failed(self) -> dict[str, str]:
        """What did not work although the client can do it, each with what the client said."""
        failed = {what: found["said"] for what, found in self._tried.items() if found["ok"] is False}
        return {"run": self.error} if self.error else failed

    @property
    def _tried(self) -> dict[str, dict[str, Any]]:
        if self.missing or self.error:
            return {}
        lists = {what: self.outcomes.get(what, {"ok": None}) for what in LISTS}
        return lists | {what: self.outcomes.get(what, UNTRIED) for what in CALLS}

    @property
    def waits(self) -> str:
        """How long it waits for the person."""
        if not self.patience or "patience" not in self.outcomes:
            return NOT_MEASURED
        found = self.outcomes["patience"]
        return how_long(found["ok"], found["seconds"], self.patience)

    @property
    def row(self) -> tuple[str, ...]:
        """Its row in the table."""
        if self.missing:
            return (self.client.name, self.client.version, *["" for _ in HEADINGS[2:-2]], "not installed", "")
        cells = [_WORDS[self._tried.get(what, UNTRIED)["ok"]] for what in CALLS]
        listed = [what for what in LISTS if self._tried.get(what, UNTRIED)["ok"]]
        failed = [f"{what} FAIL" for what in LISTS if what in self.failed]
        lists = ", ".join([*(["all"] if len(listed) == len(LISTS) else listed), *failed]) or "FAILS"
        return (self.client.name, self.client.version, self.era, lists, *cells, _cannot(self.cannot), self.waits)

    def as_json(self) -> dict[str, Any]:
        """Return everything that is known."""
        return {
            "client": self.client.name,
            "version": self.client.version,
            "era": self.era,
            "missing": self.missing,
            "failed": self.failed,
            "cannot": self.cannot,
            "outcomes": self.outcomes,
        }


def how_long(ok: bool | None, seconds: float, patience: float) -> str:
    """Return how long a client waited for a person.

    Args:
        ok: whether it did until they answered.
        seconds: when it gave up otherwise.
        patience: when they answered, in seconds.
    """
    if ok:
        return f"over {patience:g} s"
    waited = int(seconds) // 5 * 5  # the rest is the load of the machine
    return f"{waited} s" if 0 < waited < patience else "FAILS"


def _cannot(what: Iterable[str]) -> str:
    words = {"elicit": "fill in forms", "sample": "sample"}
    return ", ".join(words.get(each, f"list {each}") for each in what)


def as_text(rows: Iterable[tuple[str, ...]], table: Table = CLIENTS) -> str:
    """Return a table for the terminal."""
    lines = [table.headings, *rows]
    widths = [max(len(row[column]) for row in lines) for column in range(len(table.headings))]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in lines]
    return "\n".join(line.rstrip() for line in padded)


def read_rows(page: str, table: Table = CLIENTS) -> dict[str, tuple[str, ...]]:
    """Return the rows of the page, by client."""
    lines = [line for line in table.between(page).splitlines() if "|" in line]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return {row[0].strip("`"): (row[0].strip("`"), *row[1:]) for row in rows[2:] if len(row) == len(table.headings)}


def write_rows(
    clients: Iterable[Client], results: Mapping[str, HasRow], page: Path = PAGE, table: Table = CLIENTS
) -> None:
    """Write what was found into the page; rows of others, and waits that were not measured, stay as they are."""
    text = page.read_text("utf-8")
    old = read_rows(text, table)
    lines = [_line(table.headings), _line(["---"] * len(table.headings))]
    notes: list[str] = []
    for client in clients:
        row = results[client.name].row if client.name in results else old.get(client.name)
        if row is None:
            continue
        if row[-1] == NOT_MEASURED and client.name in old:
            row = (*row[:-1], old[client.name][-1])
        lines.append(_line((f"`{row[0]}`", *row[1:])))
        notes.append(f"- `{client.name}`: {client.note}")
    written = "\n".join(["", "", *lines, "", "What their users set or know:", "", *notes, "", ""])
    before, after = (re.escape(mark) for mark in (table.begin, table.end))
    text = re.sub(f"({before}).*?({after})", lambda marks: f"{marks[1]}{written}{marks[2]}", text, flags=re.DOTALL)
    page.write_text(text, "utf-8")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

"""Draw the diagrams of docs/concepts into docs/images: SVG files that are readable on light and dark pages.

    .venv-test/bin/python scripts/diagrams.py

A diagram brings its own background, asks nothing of another host, and is read aloud by its title and description. The
page below it says the same in words, by the numbers in the diagram.
"""

from collections.abc import Sequence
from html import escape
from itertools import count
from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).parents[1] / "docs" / "images"

STYLE = """
.page{fill:#fff;stroke:#d0d7de}.lane,.box{fill:#f3f5f8;stroke:#8b95a1}.work{fill:#e3efff;stroke:#3f78c9}
.rest{fill:#fff7dd;stroke:#b58a1b}.sealed{fill:#e9f6ec;stroke:#3d8b57}.line{stroke:#8b95a1;stroke-dasharray:3 4}
.arrow{stroke:#30373f;fill:none;stroke-width:1.4}.head,.number{fill:#30373f}
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1c2229}.in{fill:#fff;font-weight:600}
.name{font-weight:600}.small{font-size:12px}
.label{paint-order:stroke;stroke:#fff;stroke-width:5px}
@media (prefers-color-scheme:dark){.page{fill:#1b1f26;stroke:#3a424d}.lane,.box{fill:#272d36;stroke:#7d8794}
.work{fill:#1d3352;stroke:#6fa3ec}.rest{fill:#3b3213;stroke:#d3aa3c}.sealed{fill:#173322;stroke:#68bd85}
.line{stroke:#7d8794}.arrow{stroke:#d5dae1}.head,.number{fill:#d5dae1}text{fill:#e6e9ee}.in{fill:#1b1f26}.label{stroke:#1b1f26}}
"""
LINE = 17
MARGIN = 16


class Says(NamedTuple):
    """An arrow from one lane to another.

    Args:
        source, target: the lanes, from 0.
        text: what is written above it, a line each.
    """

    source: int
    target: int
    text: Sequence[str]


class Does(NamedTuple):
    """A box on a lane, or over several.

    Args:
        first, last: the lanes, from 0.
        text: what is in it, a line each.
        kind: `work` runs, `rest` waits, `sealed` is kept.
    """

    first: int
    last: int
    text: Sequence[str]
    kind: str = "work"


class Box(NamedTuple):
    """A box at a place of its own.

    Args:
        x, y, width: in pixels; its height follows from its text.
        text: what is in it, a line each; the first one is bold.
        kind: as for `Does`, or `box`.
    """

    x: int
    y: int
    width: int
    text: Sequence[str]
    kind: str = "box"

    @property
    def height(self) -> int:
        """How high it is."""
        return len(self.text) * LINE + 14


class Arrow(NamedTuple):
    """A line with a head.

    Args:
        points: where it goes, in pixels.
        text: what is written beside its middle.
        at: where that begins, in pixels.
        anchor: `start`, `middle` or `end`, of the text.
    """

    points: Sequence[tuple[int, int]]
    text: Sequence[str] = ()
    at: tuple[int, int] = (0, 0)
    anchor: str = "middle"


class Diagram(NamedTuple):
    """A picture.

    Args:
        file: its name, without an ending.
        title: what it shows, in a few words.
        about: the same in a sentence or two, for those who do not see it.
        width: in pixels.
        lanes: who takes part, and what there is to say of each; empty for one of boxes.
        parts: what happens, from the top; or boxes and arrows.
    """

    file: str
    title: str
    about: str
    width: int
    lanes: Sequence[tuple[str, str]]
    parts: Sequence[Says | Does | Box | Arrow]


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    kept = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kept}>{escape(words)}</text>'


def _box(x: float, y: float, width: float, text: Sequence[str], kind: str, *, titled: bool) -> str:
    height = len(text) * LINE + 14
    lines = [f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height}" rx="6" class="{kind}"/>']
    for n, words in enumerate(text):
        lines.append(_text(x + width / 2, y + 20 + n * LINE, words, "name" if titled and n == 0 else "small"))
    return "\n".join(lines)


def _arrow(points: Sequence[tuple[float, float]]) -> str:
    (before_x, before_y), (x, y) = points[-2:]
    path = " ".join(f"{px:g},{py:g}" for px, py in points)
    if y == before_y:
        back = -8 if x > before_x else 8
        head = f"{x:g},{y:g} {x + back:g},{y - 4:g} {x + back:g},{y + 4:g}"
    else:
        back = -8 if y > before_y else 8
        head = f"{x:g},{y:g} {x - 4:g},{y + back:g} {x + 4:g},{y + back:g}"
    return f'<polyline points="{path}" class="arrow"/><polygon points="{head}" class="head"/>'


def _number(x: float, y: float, number: int) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="9" class="number"/>{_text(x, y + 4, str(number), "in small")}'


def _sequence(diagram: Diagram) -> tuple[list[str], int]:
    """Return what is drawn of a diagram with lanes, and how high it is."""
    space = (diagram.width - 2 * MARGIN) / len(diagram.lanes)
    middles = [MARGIN + space * (n + 0.5) for n in range(len(diagram.lanes))]
    top = MARGIN + 48
    y, drawn, numbers = top + 12, list[str](), count(1)
    for part in diagram.parts:
        if isinstance(part, Says):
            y += len(part.text) * LINE
            start, end = middles[part.source], middles[part.target]
            side = 1 if end > start else -1
            for n, words in enumerate(reversed(part.text)):
                drawn.append(_text((start + end) / 2, y - 6 - n * LINE, words, "small label"))
            drawn.append(_arrow([(start + side * 10, y), (end - side * 3, y)]))
            drawn.append(_number(start, y, next(numbers)))
            y += 16
        elif isinstance(part, Does):
            left, right = middles[part.first] - space / 2 + 6, middles[part.last] + space / 2 - 6
            drawn.append(_box(left, y, right - left, part.text, part.kind, titled=False))
            y += len(part.text) * LINE + 14 + 12
    lines = [f'<line x1="{x:g}" y1="{top}" x2="{x:g}" y2="{y:g}" class="line"/>' for x in middles]
    heads = [
        _box(x - space / 2 + 6, MARGIN, space - 12, [name, about], "lane", titled=True)
        for x, (name, about) in zip(middles, diagram.lanes, strict=True)
    ]
    return [*lines, *heads, *drawn], int(y + MARGIN)


def _free(diagram: Diagram) -> tuple[list[str], int]:
    """Return what is drawn of a diagram of boxes, and how high it is."""
    drawn, bottom = list[str](), 0
    for part in diagram.parts:
        if isinstance(part, Box):
            drawn.append(_box(part.x, part.y, part.width, part.text, part.kind, titled=True))
            bottom = max(bottom, part.y + part.height)
        elif isinstance(part, Arrow):
            drawn.append(_arrow(part.points))
            x, y = part.at
            drawn += [_text(x, y + n * LINE, words, "small", part.anchor) for n, words in enumerate(part.text)]
            bottom = max(bottom, *(point[1] for point in part.points))
    return drawn, bottom + MARGIN


def svg(diagram: Diagram) -> str:
    """Return the picture as a file of SVG."""
    drawn, height = _sequence(diagram) if diagram.lanes else _free(diagram)
    size = f"{diagram.width} {height}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{diagram.width}" height="{height}"'
            ' role="img" aria-labelledby="title about">',
            f'<title id="title">{escape(diagram.title)}</title>',
            f'<desc id="about">{escape(diagram.about)}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect x="0.5" y="0.5" width="{diagram.width - 1}" height="{height - 1}" rx="8" class="page"/>',
            *drawn,
            "</svg>\n",
        ]
    )


FLOW = Diagram(
    "flow",
    "A flow of three rounds, on two replicas",
    "The client sends a call, and gets a question with a sealed state. It sends the call again with the answer and the "
    "state, to another replica, and so on until there is a result. Between two rounds the server keeps nothing.",
    760,
    [("Client", "and its person"), ("Replica A", "has the key"), ("Replica B", "has the same key")],
    [
        Says(0, 1, ["tools/call: book Oslo"]),
        Does(1, 1, ["Round 1: runs from the top,", "stops at “Who travels?”"]),
        Says(1, 0, ["“Who travels?” + requestState"]),
        Does(0, 0, ["The person thinks.", "The client carries the state."], "rest"),
        Does(1, 2, ["Nothing of the flow is here: no memory, no row, no session."], "rest"),
        Says(0, 2, ["the same call + the answer + requestState"]),
        Does(
            2, 2, ["Round 2: runs from the top.", "The first answer returns, the", "step reserve runs, stops at “Pay?”"]
        ),
        Says(2, 0, ["“Pay?” + a new requestState"]),
        Says(0, 1, ["the same call + yes", "+ the new requestState"]),
        Does(1, 1, ["Round 3: runs from the top.", "Both answers return, reserve", "is replayed, the step pay runs"]),
        Says(1, 0, ["the result"]),
    ],
)

TASK = Diagram(
    "task",
    "A task that asks, and is answered at another replica",
    "Replica A stores the task as a row and begins to run it. It records each step in the row, writes a question into "
    "it, and lets go. The answer comes to replica B, which writes it into the row, takes the lease and continues.",
    860,
    [
        ("Client", "comes and goes"),
        ("Replica A", "serves and works"),
        ("Database", "a sealed row a task"),
        ("Replica B", "serves and works"),
    ],
    [
        Says(0, 1, ["tools/call"]),
        Says(1, 2, ["the row: call, journal, lease"]),
        Says(1, 0, ["a task id, at once"]),
        Does(1, 1, ["The worker of A runs", "the function: step 1, step 2"]),
        Says(1, 2, ["each result, when it has run"]),
        Says(1, 2, ["the question, and no lease"]),
        Does(1, 3, ["input_required: no worker, no memory, for hours if need be"], "rest"),
        Says(0, 3, ["tasks/get"]),
        Says(3, 0, ["the question, from the row"]),
        Says(0, 3, ["tasks/update: the answer"]),
        Says(3, 2, ["the answer, then the lease"]),
        Does(3, 3, ["The worker of B runs it from", "the top: steps 1 and 2 are", "replayed, step 3 runs"]),
        Says(3, 2, ["the result"]),
        Says(0, 1, ["tasks/get"]),
        Says(1, 0, ["completed, with the result"]),
    ],
)

STATES = Diagram(
    "task-states",
    "The states of a task",
    "A task is working or input_required, and changes between the two as often as it asks. It ends as completed, "
    "failed or cancelled, and never leaves these.",
    760,
    [],
    [
        Box(16, 60, 190, ["working", "runs, or is to run"], "work"),
        Box(16, 190, 190, ["input_required", "waits for a person"], "rest"),
        Arrow([(80, 108), (80, 190)], ["it asks"], (72, 153), "end"),
        Arrow([(142, 190), (142, 108)], ["an answer"], (150, 153), "start"),
        Box(510, 16, 234, ["completed", "a result, also of a no or an error"], "sealed"),
        Box(510, 112, 234, ["failed", "an error of the protocol"], "sealed"),
        Box(510, 208, 234, ["cancelled", "the client took it back"], "sealed"),
        Arrow([(206, 74), (360, 74), (360, 40), (510, 40)], ["the function returns"], (435, 33)),
        Arrow([(206, 90), (400, 90), (400, 136), (510, 136)], ["it can't continue"], (455, 128)),
        Arrow([(206, 204), (380, 204), (380, 148), (510, 148)], ["no answer in time"], (374, 196), "end"),
        Arrow([(206, 232), (510, 232)], ["tasks/cancel, in either state"], (358, 226)),
    ],
)

STATE = Diagram(
    "sealed-state",
    "What is inside of a requestState",
    "A version, the id of a key and a nonce can be read. All else is encrypted: what the state belongs to, when it "
    "expires, what was asked and answered, and what steps have returned.",
    760,
    [],
    [
        Box(16, 16, 84, ["version", "1 byte"]),
        Box(106, 16, 84, ["key id", "4 bytes"]),
        Box(196, 16, 100, ["nonce", "24 bytes"]),
        Box(302, 16, 332, ["the journal, encrypted", "as long as it is: never compressed"], "sealed"),
        Box(640, 16, 104, ["tag", "16 bytes"], "sealed"),
        Arrow([(380, 64), (380, 92)]),
        Arrow([(350, 64), (350, 78), (133, 78), (133, 92)]),
        Arrow([(586, 64), (586, 78), (627, 78), (627, 92)]),
        Box(
            16,
            92,
            234,
            [
                "Belongs to",
                "this server (audience)",
                "this user, by this client",
                "this method, this tool",
                "these arguments (a digest)",
            ],
            "sealed",
        ),
        Box(
            263,
            92,
            234,
            [
                "Counts until",
                "it expires (an hour)",
                "the flow expires (a day)",
                "the rounds are used up (10)",
                "it is redeemed (some: once)",
            ],
            "sealed",
        ),
        Box(
            510,
            92,
            234,
            [
                "Remembers",
                "open questions (digests)",
                "answers",
                "what each step returned",
                "State[T] of a pure function",
            ],
            "sealed",
        ),
    ],
)

KEYS = Diagram(
    "keys",
    "How keys come from MRTR_KEYS",
    "Each key of the ring gives one key for each purpose. The key of a purpose and the first half of a random nonce "
    "give the key of one token. What was sealed for one purpose does not open for another.",
    760,
    [],
    [
        Box(16, 90, 150, ["MRTR_KEYS", "the first one seals,", "every one opens"], "work"),
        *[Arrow([(166, 122), (264, 122), (264, y), (300, y)]) for y in (40, 97, 154)],
        Arrow(
            [(166, 122), (264, 122), (264, 211), (300, 211)],
            ["a key for each", "purpose, by", "HKDF-Expand"],
            (212, 70),
        ),
        Box(300, 16, 190, ["states", "of flows"]),
        Box(300, 73, 190, ["rows", "tasks, outcomes, answers"]),
        Box(300, 130, 190, ["ids", "sessions, questions, events"]),
        Box(300, 187, 190, ["cursors", "of lists in pages"]),
        *[Arrow([(490, y), (524, y), (524, 122), (594, 122)]) for y in (97, 154, 211)],
        Arrow([(490, 40), (524, 40), (524, 122), (594, 122)], ["a random", "nonce"], (562, 92)),
        Box(594, 90, 150, ["one token", "XAES-256-GCM, with", "a key of its own"], "sealed"),
    ],
)

OPEN_CALL = Diagram(
    "open-call",
    "A question while a call is open, answered at another replica",
    "The client keeps its call open at replica A, which sends the question on that stream. The answer comes to replica "
    "B, which stores it and notifies A. A runs the next round. If A dies, any replica continues from the event id.",
    860,
    [
        ("Client", "of 2025-11-25"),
        ("Replica A", "holds the stream"),
        ("Database", "of all replicas"),
        ("Replica B", "has the same key"),
    ],
    [
        Says(0, 1, ["tools/call; stays open"]),
        Does(1, 1, ["Round 1: stops at a question"]),
        Says(1, 0, ["elicitation/create", "+ an event id (sealed)"]),
        Does(0, 0, ["The person thinks."], "rest"),
        Does(1, 1, ["Holds the stream, and", "nothing of the function"], "rest"),
        Says(0, 3, ["the answer, in a POST of its own"]),
        Says(3, 2, ["stored, first"]),
        Says(3, 0, ["202: accepted"]),
        Says(2, 1, ["“it is answered”"]),
        Does(1, 1, ["Round 2: from the top"]),
        Says(1, 0, ["the result"]),
        Does(
            1,
            3,
            [
                "Or A has died: the client sends GET with the event id to any replica,",
                "which opens it, finds the answer, and runs round 2.",
            ],
            "sealed",
        ),
    ],
)

DIAGRAMS = [FLOW, TASK, STATES, STATE, KEYS, OPEN_CALL]


def main() -> None:
    """Write all of them."""
    for diagram in DIAGRAMS:
        file = IMAGES / f"{diagram.file}.svg"
        file.write_text(svg(diagram))
        print(f"docs/images/{file.name}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

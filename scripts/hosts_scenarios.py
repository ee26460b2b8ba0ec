"""What scripts/clients --hosts tries with each host: a column of its table each."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from hosts_hands import Chosen, Fields, Hand, Several, Typed
from hosts_model import WORDS

Act: TypeAlias = Callable[[Hand], Awaitable[None]]
"""What the person does with a question."""

ELSEWHERE = "this needs another client"
"""What it hears at last of a question that is asked in an app, which the person may not see."""
NO_FORM = f"form elicitation|can't show|{ELSEWHERE}"
"""What the model hears where the person can't be asked by a form."""
NOT_DONE = "declined|dismissed"


def filling(fields: Fields) -> Act:
    """Return the act of filling in a form."""
    return lambda hand: hand.fill(fields)


CONFIRMING = filling({"(?:confirm|Yes, do it)": True})


@dataclass(frozen=True)
class Scenario:
    """A tool that the model calls, what the person is asked, and how the call has to end.

    Args:
        name: what `can` and `fails` of `clients/hosts.toml` call it.
        column: the heading of its column.
        tool: the tool.
        arguments: what it gets.
        finishes: what it returns to the model, as a regular expression.
        message: the question; none if nobody is asked.
        draws: what the host draws of it besides.
        act: what the person does.
        words: what the model hears where the person can't be asked, as a regular expression.
        again: the arguments with which the model calls after these words, and it finishes; `{ask}` is the id in them.
        then: the tool that it calls so; the same one if left out.
        found: what the cell says of that.
        opens: the page that the host opens.
        quoted: whether the column quotes what the model heard, instead of yes.
        server: which of the two servers: `shop` over HTTP, or `local` on standard input and output.
        alone: whether the host runs without a terminal, with nobody to ask.
    """

    name: str
    column: str
    tool: str
    arguments: Mapping[str, str | int]
    finishes: str
    message: str = ""
    draws: tuple[str, ...] = ()
    act: Act | None = None
    words: str = NO_FORM
    again: Mapping[str, str | int] = field(default_factory=dict)
    then: str = ""
    found: str = "in the chat"
    opens: str = ""
    quoted: bool = False
    server: str = "shop"
    alone: bool = False

    def arguments_after(self, words: str) -> dict[str, str | int]:
        """Return the arguments with which the model calls after what it heard."""
        (ask,) = re.findall(r"mrtr-ask: ([\w-]+)", words) or [""]
        return {name: ask if value == "{ask}" else value for name, value in self.again.items()}


SCENARIOS = (
    Scenario(name="call", column="calls", tool="add", arguments={"a": 20, "b": 22}, finishes="42"),
    Scenario(
        name="text",
        column="asks for a text",
        tool="paint",
        arguments={"thing": "door"},
        finishes="Painted the door red",
        message="Which colour for the door?",
        draws=("Colour", "As on the label"),
        act=filling({"Colour": Typed("red")}),
        words=f"Call again with the colour|{ELSEWHERE}",
        again={"thing": "door", "colour": "red"},
    ),
    Scenario(
        name="form",
        column="a form",
        tool="pick",
        arguments={"thing": "cup"},
        finishes="Picked a large cup, wrapped, for ann@example.com",
        message="Which cup?",
        draws=("Size", "How big", "Gift", "Wrapped in paper", "Mail", "For the bill"),
        act=filling({"Size": Chosen("large"), "Gift": True, "Mail": Typed("ann@example.com")}),
    ),
    Scenario(
        name="model",
        column="a form that a model may ask",
        tool="wrap",
        arguments={"thing": "vase"},
        finishes="Wrapped the vase in stripes",
        message="Which paper for the vase?",
        draws=("Pattern", "Of the paper"),
        act=filling({"Pattern": Chosen("stripes")}),
        words="Ask the person in the chat, and make up no answer",
        again={"ask": "{ask}", "answers.paper.pattern": "stripes"},
        then="mrtr_answer",
        found="by the model",
    ),
    Scenario(
        name="numbers",
        column="numbers and lists",
        tool="brew",
        arguments={},
        finishes="Brewed 3 cups with milk",
        message="How do you want your tea?",
        draws=("Cups", "How many", "Extras", "What goes in"),
        act=filling({"Cups": Typed("3"), "Extras": Several("milk")}),
        words=f"{NO_FORM}|several choices",
    ),
    Scenario(
        name="yes",
        column="a yes",
        tool="wipe",
        arguments={"folder": "attic"},
        finishes="Wiped attic",
        message="Wipe the folder attic?",
        act=CONFIRMING,
    ),
    Scenario(
        name="no",
        column="a no is",
        tool="wipe",
        arguments={"folder": "study"},
        finishes=NOT_DONE,
        message="Wipe the folder study?",
        act=lambda hand: hand.decline(),
        quoted=True,
    ),
    Scenario(
        name="page",
        column="a page",
        tool="login",
        arguments={"site": "login.example.com"},
        finishes="Logged in to login.example.com",
        message="Log in to login.example.com",
        draws=("https://login.example.com/login",),
        act=lambda hand: hand.open(),
        words=f"URL elicitation|{ELSEWHERE}",
        opens="https://login.example.com/login",
    ),
    Scenario(
        name="sample",
        column="samples",
        tool="poem",
        arguments={"topic": "tea"},
        finishes=f"The poem: {WORDS}",
        words="sampling",
    ),
    Scenario(
        name="local",
        column="a yes over stdio",
        tool="wipe",
        arguments={"folder": "cellar"},
        finishes="Wiped cellar",
        message="Wipe the folder cellar?",
        act=CONFIRMING,
        server="local",
    ),
    Scenario(
        name="alone",
        column="with nobody there",
        tool="wipe",
        arguments={"folder": "garage"},
        finishes=NOT_DONE,
        quoted=True,
        alone=True,
    ),
)


def waiting(seconds: int, *, asked: bool) -> Scenario:
    """Return a scenario that takes so many seconds: the person's if they can be asked, else the tool's."""
    if not asked:
        return Scenario("call", "waits", "wait", {"seconds": seconds}, f"Waited {seconds} s")
    message = "Wipe the folder barn?"
    return Scenario("yes", "waits", "wipe", {"folder": "barn"}, "Wiped barn", message=message, act=CONFIRMING)

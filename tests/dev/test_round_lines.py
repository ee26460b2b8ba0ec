"""Each round has one line: what it is of, its number, its time, and what happened in it."""

import asyncio
import re

import pytest
from pydantic import BaseModel

from mrtr_server import Confirm, Context, InputRequired, Inputs, MRTRServer, ToolError
from mrtr_server.dev.console import Console, configure_log
from mrtr_server.dev.effects import EffectWatch
from mrtr_server.dev.rounds import RoundLines, SeenRound, SourceLine, Terminal, current_round, short, takes_colour
from mrtr_server.errors import InvalidParams
from mrtr_server.methods.middleware import Came, note_end
from mrtr_server.protocol.messages import Call, Complete, HandedOver, Outcome, Outlet
from mrtr_server.testing import Client, no, yes

from ..support.methods import Notes

TIME = re.compile(r"^\d\d:\d\d:\d\d  ")
MILLISECONDS = re.compile(r" +\d+\.\d ms  ")


class Amount(BaseModel):
    copies: int


def place(title: str) -> str:
    return f"{title} ordered"


def price(title: str) -> int:
    return len(title)


def server() -> MRTRServer:
    app = MRTRServer("lines", keys=[bytes(32)])

    @app.tool
    async def order(title: str, ctx: Context) -> str:
        await ctx.step(price, title)
        await ctx.step(price, title)
        amount = await ctx.elicit(f"How many of {title}?", Amount)
        await ctx.confirm(f"{amount.copies}?")
        return await ctx.step(place, title)

    @app.tool
    def pure(inputs: Inputs) -> str | InputRequired:
        sure = Confirm("Sure?")
        return "done" if inputs.get("confirm", sure) else InputRequired(confirm=sure)

    @app.tool(task="required")
    async def deploy(ctx: Context) -> str:
        await ctx.confirm("Deploy?")
        return await ctx.step(place, "x")

    @app.tool
    def fails() -> str:
        raise ToolError("no such thing")

    @app.tool
    def breaks() -> float:
        return 1 / 0

    @app.tool
    def numbers() -> list[int]:
        return [1, 2]

    @app.prompt
    async def letter(ctx: Context) -> str:
        await ctx.confirm("Write?")
        return "Dear"

    @app.resource("notes://all")
    def notes() -> str:
        return "text"

    return app


DONE = Complete({"content": []})


def ended(target: str, came: Came = DONE) -> SeenRound:
    """A round that has come to something."""
    call = Call("tools/call", {}, target)
    note_end(call, came)
    return SeenRound(call, came=came)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> "Lines":
    console = Console(Terminal(colour=False), EffectWatch())
    monkeypatch.setattr("mrtr_server.deployment.wiring.everywhere", [console.middleware])
    return Lines(capsys)


class Lines:
    """What was written to standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self) -> list[str]:
        """Return the lines without their times."""
        written = self._capsys.readouterr().err.splitlines()
        return [MILLISECONDS.sub("  ", TIME.sub("", line)) for line in written]


def test_the_rounds_of_a_call(lines: Lines) -> None:
    Client(server()).call("order", title="Dune", answers={"amount": {"copies": 2}, "confirm": yes})
    assert lines() == [
        'tool      order        round 1  ran price ×2 · asked amount "How many of Dune?"',
        'tool      order        round 2  answered amount: accept · replayed price ×2 · asked confirm "2?"',
        'tool      order        round 3  answered confirm: yes · replayed price ×2 · ran place · result "Dune ordered"',
    ]


def test_prompts_resources_and_pure_functions(lines: Lines) -> None:
    client = Client(server())
    client.get_prompt("letter", answers={"confirm": yes})
    client.read("notes://all")
    client.call("pure", answers={"confirm": no})
    client.call("numbers")
    assert lines() == [
        'prompt    letter       round 1  asked confirm "Write?"',
        "prompt    letter       round 2  answered confirm: yes · result 1 message",
        "resource  notes://all  round 1  result 1 content",
        'tool      pure         round 1  asked confirm "Sure?"',
        "tool      pure         round 2  answered confirm: no · the person said no",
        'tool      numbers      round 1  result "[1,2]"',
    ]


def test_a_task_has_lines_of_its_worker(lines: Lines) -> None:
    Client(server(), tasks=True).call("deploy", answers={"confirm": yes})
    created, *rounds = lines()
    reference = created.rpartition(" ")[2]
    assert created == f"tool      deploy       round 1  becomes task {reference}"
    assert rounds == [
        f'task      deploy       {reference}  asked confirm "Deploy?"',
        f'task      deploy       {reference}  answered confirm: yes · ran place · result "x ordered"',
    ]


def test_a_task_that_its_client_cancels(lines: Lines) -> None:
    flow = Client(server(), tasks=True).flow("deploy")
    flow.start()
    flow.wait()
    flow.cancel()
    assert lines()[-1].endswith("cancelled by its client")


def test_a_call_that_stays_open_has_a_line_for_each_question(lines: Lines) -> None:
    Client(server(), era="2025-11-25").call("pure", answers={"confirm": yes})
    assert lines() == [
        'tool      pure         round 1  asked confirm "Sure?"',
        'tool      pure         round 2  answered confirm: yes · result "done"',
    ]


def test_failures_in_one_line_with_their_reason(lines: Lines) -> None:
    configure_log(Terminal(colour=False), "error", full_tracebacks=False)
    client = Client(server())
    client.call("fails")
    client.call("breaks")
    client.call("nothing")
    written = [line for line in lines() if line.startswith(("tool", "refused"))]
    assert written == [
        "tool      fails        round 1  failed no such thing",
        "tool      breaks       round 1  failed ZeroDivisionError: division by zero",
        "tool      nothing      round 1  failed Unknown tool: nothing",
    ]


def test_other_requests_have_a_line_only_when_they_are_refused(lines: Lines) -> None:
    client = Client(server())
    client.request("tools/list")
    assert lines() == []
    client.request("tools/list", {"cursor": "forged"})
    (line,) = lines()
    assert line.startswith("refused   tools/list")
    assert "failed" in line


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (ended("slow", asyncio.CancelledError()), "cancelled"),
        (ended("bad", InvalidParams("no\x1b[2Jscreen")), r"failed no\x1b[2Jscreen"),
        (ended("x" * 99), "result 0 contents"),
    ],
)
def test_what_a_client_sends_is_plain_and_short(seen: SeenRound, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    RoundLines(Terminal(colour=False)).show(seen)
    line = capsys.readouterr().err
    assert line.endswith(f"  {said}\n")
    assert len(line) < 120


def test_columns_stay_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    show = RoundLines(Terminal(colour=False)).show
    for name in ("a", "a_name_that_is_long", "b"):
        show(ended(name))
    _, long, short_one = capsys.readouterr().err.splitlines()
    assert long.index("result") == short_one.index("result")


class TestColour:
    def test_only_on_a_terminal_and_where_nobody_says_no(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not takes_colour({})
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
        assert takes_colour({})
        assert not takes_colour({"NO_COLOR": "1"})
        assert not takes_colour({"TERM": "dumb"})

    def test_a_line_is_the_same_without_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        seen = ended("order")
        for colour in (True, False):
            RoundLines(Terminal(colour=colour)).show(seen)
        coloured, plain = capsys.readouterr().err.splitlines()
        assert "\x1b[" in coloured
        assert TIME.sub("", re.sub(r"\x1b\[[\d;]*m", "", coloured)) == TIME.sub("", plain)


@pytest.mark.anyio
async def test_an_effect_is_told_with_its_line_of_code(capsys: pytest.CaptureFixture[str]) -> None:
    line = place.__code__.co_firstlineno

    async def serve(call: Call, outlet: Outlet) -> Outcome:
        seen = current_round.get()
        assert seen is not None
        seen.effects[SourceLine(__file__, line)] = "opens orders.txt for writing"
        return HandedOver("a state")

    served = Console(Terminal(colour=False), EffectWatch()).middleware(serve)
    for _ in range(2):
        await served(Call("tools/call", {}, "order"), Notes())
    told = [TIME.sub("", each) for each in capsys.readouterr().err.splitlines() if "round 1" not in each]
    assert told[0] == (
        f"effect    tests/dev/test_round_lines.py:{line} opens orders.txt for writing outside of ctx.step: this runs "
        "again in every round"
    )
    assert told[1].strip() == "def place(title: str) -> str:"
    assert "ctx.step(function, ...)" in told[2]
    assert [each.strip() for each in told[3:]] == [
        "https://mrtr-server.github.io/mrtr_server/troubleshooting/#outside-of-ctxstep"
    ]


def test_texts_are_cut_on_one_line() -> None:
    assert short("a\nb\tc") == "a b c"
    assert short("x" * 100, 10) == "x" * 9 + "…"

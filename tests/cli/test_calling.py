"""The commands that call servers ask the person at a terminal, or take answers, and clean what servers say."""

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from select import select
from time import monotonic
from typing import Annotated, Any, Literal

import pytest
from click.testing import CliRunner, Result
from pydantic import BaseModel, Field

from mrtr_server import Confirm, Context, ElicitUrl, ImageContent, MRTRServer, Sample, SetupError, Task, ToolError
from mrtr_server.cli import main
from mrtr_server.cli.call_arguments import read_arguments
from mrtr_server.cli.calling import Bytes, Saver, bytes_of
from mrtr_server.cli.terminal_client import TerminalPieces
from mrtr_server.cli.terminal_form import problem_of
from mrtr_server.client import BadReply, Piece
from mrtr_server.wire import HANDSHAKES

from ..support.serving import TIMEOUT, in_thread, without_settings

HOSTILE = "\x1b[2Jred\x9b1m\u202e"

app = MRTRServer("shop", keys=[bytes(32)])


class Order(BaseModel):
    copies: Annotated[int, Field(ge=1, le=9)]
    cover: Literal["hard", "soft"] = "soft"
    note: str | None = None


@app.tool
async def order(ctx: Context, title: str) -> str:
    """Order copies of a book."""
    order = await ctx.elicit(f"How many of {title}?", Order)
    await ctx.ask(Confirm("Sure?"))
    return f"{order.copies} × {title} ({order.cover})"


@app.tool
async def terms(ctx: Context) -> str:
    await ctx.ask(ElicitUrl("Read this", "https://example.com/terms"))
    return "agreed"


@app.tool
async def trip(ctx: Context) -> str:
    name = await ctx.elicit("Your name?", str, key="name")
    days = await ctx.elicit("How many days?", int, key="days")
    meals = await ctx.elicit("Which meals?", list[Literal["lunch", "dinner"]], key="meals")
    return f"{name}, {days + 0} days, {' and '.join(meals)}"


@app.tool
async def story(ctx: Context) -> str:
    return f"Once: {(await ctx.ask(Sample('Tell it')))[0].text}"


@app.tool
def types(
    count: int, ratio: float = 0.5, wet: bool = False, tags: tuple[str, ...] = (), more: dict[str, int] | None = None
) -> str:
    return f"{count} {ratio} {wet} {list(tags)} {more}"


@app.tool
def settings() -> str:
    return os.environ.get("MRTR_CALL_TOKEN", "")


@app.tool
def hostile() -> str:
    return HOSTILE


@app.tool
def broken() -> str:
    raise ToolError(HOSTILE)


seen = threading.Event()
"""That the person has seen the first piece."""


@app.tool
async def itinerary(ctx: Context) -> AsyncIterator[str]:
    yield "First "
    await asyncio.to_thread(seen.wait, TIMEOUT)
    yield f"to Bergen.\n{HOSTILE}"
    order = await ctx.elicit("Which book for the train?", Order)
    yield f"\nWith {order.copies} books."


@app.tool(task=Task("required", poll=0.05, rounds_first=True))
async def print_book(ctx: Context) -> str:
    await ctx.background()
    await ctx.ask(Confirm("Print?"))
    return "printed"


@app.tool(confirm=Confirm("Bind it?", plain=True))
def bind() -> str:
    return "bound"


@app.tool
def pictures() -> list[ImageContent | str]:
    data = b64encode(b"a picture").decode()
    return [ImageContent(data=data, mime_type="image/png"), "a text", ImageContent(data=data, mime_type="image/png")]


@app.tool(task=Task("required", poll=0.05, rounds_first=True))
async def measure(ctx: Context) -> list[int]:
    await ctx.background()
    for year in range(3):
        await ctx.progress(message=f"reading {year}")
        await asyncio.sleep(0.2)
    return [1, 2]


@app.resource("shop://a/../../.profile", mime_type="application/pdf")
def catalog() -> bytes:
    return b"a catalog"


@app.prompt
def greeting(name: str) -> str:
    return f"Greet {name}"


@app.resource("shop://hours")
def hours() -> str:
    return "9 to 5"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with in_thread(app) as port:
        yield f"http://127.0.0.1:{port}/mcp"


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments, prog_name="mrtr-server")
    assert result.exit_code == code, result.output
    return result


class TestArguments:
    def test_values_are_read_by_the_schema(self, url: str) -> None:
        typed = ["count=3", "ratio=2", "wet=true", "tags=a", "tags=b", 'more={"x": 1}']
        assert run("call", url, "types", *typed).stdout == "3 2.0 True ['a', 'b'] {'x': 1}\n"
        assert run("call", url, "types", "count:=4", 'tags:=["1"]').stdout.startswith("4 0.5 False ['1']")

    def test_a_text_stays_one_even_if_it_looks_like_a_number(self) -> None:
        schema = {
            "properties": {"a": {"type": "string"}, "b": {"$ref": "#/$defs/B"}},
            "$defs": {"B": {"type": "string"}},
        }
        assert read_arguments(["a=1", "b=true", "c=2=3"], schema) == {"a": "1", "b": "true", "c": "2=3"}

    @pytest.mark.parametrize(
        ("typed", "why"), [("count", "write key=value"), ("count=x", "not of the type integer"), ("a:=[", "not JSON")]
    )
    def test_what_does_not_fit_is_named(self, typed: str, why: str) -> None:
        with pytest.raises(SetupError, match=why):
            read_arguments([typed], {"properties": {"count": {"type": "integer"}}})

    def test_a_schema_that_leads_back_to_itself_in_many_ways_is_followed_once(self) -> None:
        again = [{"$ref": "#/$defs/A"}] * 10_000
        schema = {
            "properties": {"count": {"$ref": "#/$defs/A"}, "name": {"anyOf": [{"type": "null"}, {"type": "string"}]}},
            "$defs": {"A": {"anyOf": [*again, {"anyOf": again}, {"type": "integer"}]}},
        }
        began = time.process_time()
        assert read_arguments(["count=5", "name=null"], schema) == {"count": 5, "name": None}
        assert time.process_time() - began < 1

    def test_a_tool_that_is_not_there_is_named_with_those_that_are(self, url: str) -> None:
        assert "It has: order, terms" in run("call", url, "oder", code=1).output


class TestScripts:
    def test_open_questions_are_printed_and_exit_with_3(self, url: str) -> None:
        printed = json.loads(run("call", url, "order", "title=Emma", "--json", code=3).stdout)
        (question,) = printed["asks"].values()
        assert question["params"]["message"] == "How many of Emma?"

    def test_without_a_terminal_they_are_printed_too(self, url: str) -> None:
        result = run("call", url, "order", "title=Emma", code=3)
        assert "asks" in json.loads(result.stdout)
        assert "--answer KEY=VALUE" in result.stderr

    def test_answers_are_given_by_key(self, url: str) -> None:
        answers = ["--answer", 'order={"copies": 2}', "--answer", "confirm=true"]
        printed = run("call", url, "order", "title=Emma", "--json", *answers).stdout
        assert json.loads(printed)["content"][0]["text"] == "2 × Emma (soft)"

    def test_one_value_is_given_as_an_argument_is(self, url: str) -> None:
        """Without quotes: its schema says what it is."""
        given = ("--answer", "name=Ann", "--answer", "days=3", "--answer")
        assert run("call", url, "trip", *given, "meals=lunch").stdout == "Ann, 3 days, lunch\n"
        assert run("call", url, "trip", *given, 'meals=["lunch", "dinner"]').stdout == "Ann, 3 days, lunch and dinner\n"
        assert run(
            "call", url, "trip", "--answer", "name=[1=2] true", *given[2:], 'meals={"value": ["dinner"]}'
        ).stdout == ("[1=2] true, 3 days, dinner\n")
        run("call", url, "trip", "--answer", "name=decline", code=1)
        wrong = run("call", url, "trip", "--answer", "name=Ann", "--answer", "days=three", code=1)
        assert "'three' is not of the type integer" in wrong.output

    def test_an_answer_that_can_t_be_read_is_told_before_the_call(self) -> None:
        for typed, why in (("name", "write KEY=VALUE"), ("order={", "is not JSON")):
            assert why in run("call", "http://127.0.0.1:9/mcp", "trip", "--answer", typed, code=1).output

    def test_a_sampling_and_a_task_take_answers_too(self, url: str) -> None:
        asked = json.loads(run("call", url, "story", "--json", code=3).stdout)["asks"]
        (key,) = asked
        assert run("call", url, "story", "--answer", f"{key}=upon a time").stdout == "Once: upon a time\n"
        assert run("call", url, "print_book", "--answer", "confirm=true").stdout == "printed\n"

    def test_a_form_without_fields_takes_a_yes_or_a_no(self, url: str) -> None:
        for yes in ("true", "accept", "{}"):
            assert run("call", url, "bind", "--answer", f"confirm={yes}").stdout == "bound\n"
        for no in ("false", "decline"):
            assert "declined" in run("call", url, "bind", "--answer", f"confirm={no}", code=1).output

    def test_a_task_with_open_questions_is_cancelled(self, url: str) -> None:
        result = run("call", url, "print_book", "--json", "--trace", code=3)
        assert '"method": "tasks/cancel"' in result.stderr
        assert list(json.loads(result.stdout)["asks"]) == ["confirm"]

    def test_a_no_is_a_no(self, url: str) -> None:
        (key,) = json.loads(run("call", url, "terms", "--json", code=3).stdout)["asks"]
        run("call", url, "terms", "--answer", f"{key}=decline", code=1)
        assert "it takes true, false" in run("call", url, "terms", "--answer", f"{key}=maybe", code=1).output

    def test_prompts_resources_and_lists_are_printed(self, url: str) -> None:
        assert run("get-prompt", url, "greeting", "name=Ann").stdout == "[user]\nGreet Ann\n"
        assert run("read", url, "shop://hours").stdout == "9 to 5\n"
        printed = run("list", url).stdout
        assert "tool      order title:string  Order copies of a book." in printed
        assert "tool      types count:integer [ratio:number] [wet:boolean] [tags:string[]] [more:object]" in printed
        assert "prompt    greeting name\n" in printed
        assert "resource  shop://hours" in printed
        listed = json.loads(run("list", url, "--json").stdout)
        assert listed["prompts"][0]["name"] == "greeting"

    def test_the_trace_shows_messages_with_states_cut(self, url: str) -> None:
        answers = ["--answer", 'order={"copies": 2}', "--answer", "confirm=true"]
        result = run("call", url, "order", "title=Emma", "--trace", *answers)
        assert result.stdout == "2 × Emma (soft)\n"
        states = re.findall(r'"requestState": "(.+?)"', result.stderr)
        assert len(states) == 4
        assert all(re.fullmatch(r".{24}\\u2026 \(\d+ characters\)", state) for state in states)


class TestServers:
    """What a command can call, besides a URL."""

    def test_an_application_runs_in_the_process(self) -> None:
        answers = ["--answer", 'order={"copies": 2}', "--answer", "confirm=true"]
        named = f"{__name__}:app"
        assert run("call", named, "order", "title=Emma", *answers).output == "2 × Emma (soft)\n"
        assert run("call", named, "print_book", "--answer", "confirm=true").stdout == "printed\n"
        assert "There is no module 'tests.nothing'" in run("list", "tests.nothing:app", code=1).output

    def test_an_older_era_asks_by_the_same_keys(self, url: str) -> None:
        given = ("--era", HANDSHAKES[0], "--answer", 'order={"copies": 2}', "--answer", "confirm=true")
        for server in (url, f"{__name__}:app"):
            assert run("call", server, "order", "title=Emma", *given).stdout == "2 × Emma (soft)\n"
        assert list(json.loads(run("call", url, "order", "title=Emma", *given[:4], code=3).stdout)["asks"]) == [
            "confirm"
        ]
        assert "choose from" in run("list", url, "--era", "2020-01-01", code=1).output

    @pytest.mark.processes
    def test_a_command_is_started_and_gets_no_token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MRTR_CALL_TOKEN", "secret")
        command = f"{sys.executable} -m mrtr_server stdio {__name__}:app"
        for era in ((), ("--era", HANDSHAKES[0])):
            assert run("call", "--stdio", command, "types", "count=3", *era).stdout.startswith("3 0.5")
        assert run("call", "--stdio", command, "settings").stdout == "\n"

    def test_what_is_none_is_told_with_what_can_be_named(self) -> None:
        assert "With --stdio, it is a command" in run("list", "localhost:8000/mcp", code=1).output
        assert "'no-such-command' can't be started" in run("list", "--stdio", "no-such-command", code=1).output


class TestSaving:
    def test_bytes_are_saved_and_no_file_is_overwritten(self, url: str, tmp_path: Path) -> None:
        (tmp_path / "pictures-1.png").symlink_to(tmp_path / "elsewhere")
        printed = run("call", url, "pictures", "--save", str(tmp_path)).stdout
        assert "a text\n" in printed
        assert f"[saved {tmp_path}/pictures-3.png: image/png, 9 bytes]" in printed
        saved = run("read", url, "shop://a/../../.profile", "--save", str(tmp_path / "new"), "--json").stdout
        assert json.loads(saved)["contents"][0]["mimeType"] == "application/pdf"
        assert (tmp_path / "new" / "profile-1.pdf").read_bytes() == b"a catalog"
        assert sorted(each.name for each in tmp_path.iterdir()) == [
            "new",
            "pictures-1.png",
            "pictures-2.png",
            "pictures-3.png",
        ]
        assert "[image image/png; --save DIR saves it]" in run("call", url, "pictures").stdout

    @pytest.mark.parametrize(
        ("name", "kind", "path"),
        [
            ("file:///etc/../con", "", "con-1.bin"),
            ("x:..\\..\\evil.exe", "text/plain; charset=x", "evil-1.txt"),
            ("x:///a/b.tar.gz?q=/../c", "no/kind", "b-tar-1.gz"),
            ("\x1b[2J/" + "é" * 300, "../../png", "of-tool-1.bin"),
            ("x" * 300, "image/png", f"{'x' * 80}-1.png"),
            ("http://[", "image/png", "of-tool-1.png"),
        ],
    )
    def test_a_name_of_a_server_stays_in_the_folder(self, tmp_path: Path, name: str, kind: str, path: str) -> None:
        assert Saver(tmp_path, "of tool").save(Bytes(b"", kind, name)) == tmp_path / path

    def test_there_is_an_end_of_files(self, tmp_path: Path) -> None:
        saver = Saver(tmp_path, "x")
        for _ in range(100):
            saver.save(Bytes(b"", "", ""))
        with pytest.raises(BadReply, match="more than 100 files"):
            saver.save(Bytes(b"", "", ""))

    def test_bytes_that_are_none_are_refused(self) -> None:
        with pytest.raises(BadReply, match="Base64"):
            bytes_of({"type": "image", "data": "&"})


class TestHostileServers:
    def test_control_characters_reach_no_terminal(self, url: str) -> None:
        said = run("call", url, "hostile").stdout + run("call", url, "broken", code=1).output
        said += run("call", url, "hostile", "--json").stdout + run("call", url, "broken", "--json", code=1).output
        assert "red" in said
        assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said) is None

    def test_a_server_that_is_not_there_is_named_in_a_line(self) -> None:
        output = run("list", "http://127.0.0.1:9/mcp", code=4).output
        assert output.startswith("Error: The server can't be reached: ")
        assert "Traceback" not in output


@pytest.mark.parametrize(
    ("text", "schema", "problem"),
    [
        ("", {"type": "string"}, "This field is required"),
        ("x", {"type": "integer"}, "This is no whole number"),
        ("x", {"type": "number"}, "This is no number"),
        ("nan", {"type": "number"}, "This is no number"),
        ("0", {"type": "integer", "minimum": 1}, "At least 1"),
        ("abc", {"type": "string", "maxLength": 2}, "At most 2 characters"),
        ("abc", {"type": "string", "format": "email"}, "This is no email"),
        ("a@b.c", {"type": "string", "format": "email"}, ""),
        ("3", {"type": "integer", "minimum": 1}, ""),
    ],
)
def test_a_field_is_checked_as_it_is_typed(text: str, schema: dict[str, Any], problem: str) -> None:
    assert problem_of(text, schema, required=True) == problem


class Terminal:
    """A person at a terminal of its own, with a command in it."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.master, slave = pty.openpty()
        settings = {"TERM": "xterm", "BROWSER": "true", "PROMPT_TOOLKIT_NO_CPR": "1", **environment}
        command = [sys.executable, "-m", "mrtr_server", *arguments]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=without_settings(**settings), start_new_session=True
        )
        os.close(slave)
        self.said = ""

    def type(self, after: str, text: str) -> None:
        """Wait until the command has said something new, and type a text."""
        self.read(after)
        self.said = ""
        os.write(self.master, text.encode())

    def read(self, until: str) -> None:
        deadline = monotonic() + TIMEOUT
        while until not in self.said:
            assert monotonic() < deadline, self.said
            if select([self.master], [], [], 1)[0]:
                try:
                    self.said += os.read(self.master, 65536).decode(errors="replace")
                except OSError:
                    raise AssertionError(self.said) from None

    def rest(self) -> str:
        """Return what an ended command has said since the last read."""
        rest = b""
        try:
            while part := os.read(self.master, 65536):
                rest += part
        except OSError:  # nobody has the other end open
            pass
        return rest.decode(errors="replace")

    def close(self) -> None:
        os.close(self.master)
        self.process.kill()
        self.process.wait()


@pytest.mark.processes
def test_a_person_fills_in_a_form_field_by_field_and_confirms(url: str) -> None:
    with closing(Terminal("call", url, "order", "title=Emma")) as terminal:
        terminal.type("opies", "0\r")
        terminal.type("At least 1", "\x7f3\r")
        terminal.type("over", "\x1b[A\r")  # one up, from the default
        terminal.type("ote", "\r")
        terminal.type("Send it", "\r")
        terminal.read("Sure?")
        terminal.type("(y/N)", "y")
        terminal.read("3 × Emma (hard)")
        assert terminal.process.wait(TIMEOUT) == 0


@pytest.mark.processes
@pytest.mark.parametrize(("typed", "read", "code"), [("y", "bound", 0), ("n", "declined", 1)])
def test_a_form_without_fields_is_a_yes_or_a_no(url: str, typed: str, read: str, code: int) -> None:
    with closing(Terminal("call", url, "bind")) as terminal:
        terminal.read("Bind it?")
        terminal.type("(y/N)", typed)
        terminal.read(read)
        assert terminal.process.wait(TIMEOUT) == code


@pytest.mark.processes
def test_pieces_of_a_result_are_printed_as_they_come_and_not_again(url: str) -> None:
    seen.clear()
    with closing(Terminal("call", url, "itinerary")) as terminal:
        terminal.read("First ")
        assert "Bergen" not in terminal.said
        seen.set()
        terminal.read("Which book")
        first = terminal.said
        assert HOSTILE not in first
        assert "First to Bergen.\r\n\\x1b[2Jred" in first
        terminal.type("opies", "3\r")
        terminal.type("over", "\r")
        terminal.type("ote", "\r")
        terminal.type("Send it", "\r")
        terminal.read("With 3 books.")
        assert terminal.process.wait(TIMEOUT) == 0
        rest = terminal.rest()
        assert "First" not in terminal.said + rest
        assert (terminal.said + rest).count("With 3 books.") == 1


def test_a_result_that_goes_elsewhere_is_printed_whole(url: str) -> None:
    seen.set()
    given = ("--answer", 'order={"copies": 3}')
    printed = run("call", url, "itinerary", *given).stdout
    assert printed.startswith("First to Bergen.\n")
    assert printed.endswith("\nWith 3 books.\n")
    reply = json.loads(run("call", url, "itinerary", "--json", *given).stdout)
    assert [block["type"] for block in reply["content"]] == ["text"]


class TestPieces:
    """What of a result is left to print once it is there."""

    def test_is_what_did_not_come_in_pieces(self) -> None:
        printed: list[str] = []
        pieces = TerminalPieces(printed.append)
        image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
        for at, (block, content) in enumerate([(0, _text("a")), (0, _text("b")), (1, image), (2, _text("c\n"))]):
            pieces.show(Piece(at, block, content))
        pieces.end_line()
        assert "".join(printed) == "ab\nc\n"
        assert pieces.unprinted([_text("ab"), image, _text("c\n"), _text("d")]) == [image, _text("d")]

    @pytest.mark.parametrize("content", [[], [{"type": "text", "text": "another"}]])
    def test_is_all_of_it_if_the_pieces_say_something_else(self, content: list[dict[str, Any]]) -> None:
        pieces = TerminalPieces(lambda text: None)
        pieces.show(Piece(0, 0, _text("a")))
        assert pieces.unprinted(content) == content


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@pytest.mark.processes
def test_a_link_is_shown_whole_and_opened_after_a_yes(url: str, tmp_path: Path) -> None:
    with closing(Terminal("call", url, "terms")) as terminal:
        terminal.read("https://example.com/terms")
        terminal.type("example.com?", "n")
        assert terminal.process.wait(TIMEOUT) == 1


@pytest.mark.processes
def test_a_task_is_followed_and_its_question_asked(url: str) -> None:
    with closing(Terminal("call", url, "print_book")) as terminal:
        terminal.read("Print?")
        terminal.type("(y/N)", "y")
        terminal.read("printed")
        assert terminal.process.wait(TIMEOUT) == 0


@pytest.mark.processes
def test_the_result_stands_alone_when_the_progress_of_its_task_is_gone(url: str) -> None:
    with closing(Terminal("call", url, "measure")) as terminal:
        terminal.read("reading")
        assert "━" not in terminal.said  # there is no bar without a total
        terminal.read("[1,2]")
        assert terminal.process.wait(TIMEOUT) == 0
        shown = (terminal.said + terminal.rest()).rpartition("\x1b[2K")
        assert shown[2].strip() == "[1,2]"  # after the last line was erased


@pytest.mark.processes
def test_a_sampling_is_answered_by_hand_and_ctrl_c_dismisses_a_form(url: str) -> None:
    with closing(Terminal("call", url, "story")) as terminal:
        terminal.read("Tell it")
        terminal.type("Message", "upon a time\r")
        terminal.read("Once: upon a time")
        assert terminal.process.wait(TIMEOUT) == 0
    with closing(Terminal("call", url, "order", "title=Emma")) as terminal:
        terminal.type("opies", "\x03")
        assert terminal.process.wait(TIMEOUT) == 1


@pytest.mark.parametrize(("missing", "extra"), [("httpx", "cli"), ("rich", "cli"), ("questionary", "cli")])
def test_a_missing_library_is_named_with_its_extra(missing: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from mrtr_server.cli import main; main()"
    command = [sys.executable, "-c", code, "list", "http://127.0.0.1:9/mcp"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 1
    assert f"needs {missing}. Install the extra '{extra}'" in done.stderr
    assert "Traceback" not in done.stderr

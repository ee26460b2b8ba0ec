"""What a hostile server can do to the person at the terminal, and to a script: little, and never unseen."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mrtr_server.cli import main
from mrtr_server.cli.terminal_form import Asker
from mrtr_server.client import BadReply, Form, Link, Sampling

from ..support.answering import asks, completed, replied, serving
from ..support.serving import TIMEOUT, without_settings

HIDDEN = [
    "https://evil.example\\@bank.example/",  # browsers end the host at the backslash
    "https://bank.example@evil.example/",
    "http://[",
    "javascript:alert(1)",
    "file:///etc/passwd",
    "https://bank.example/\n.evil.example",
    "https://b\u0430nk.example/",  # a letter of another alphabet
    "https:///nowhere",
    "https://bank.example/" + "x" * 100_000,
]


def asked(ask: Callable[[Asker], Coroutine[Any, Any, Any]], typed: str = "") -> tuple[Any, str, list[str]]:
    """Ask a person who types; return the answer, what was shown, and the pages that were opened."""
    shown = StringIO()
    opened: list[str] = []
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_text(typed)
        asker = Asker(Console(file=shown, width=60), "shop.example", opener=opened.append)
        answer = asyncio.run(ask(asker))
    return answer, shown.getvalue(), opened


@pytest.mark.parametrize("url", HIDDEN)
def test_a_link_that_hides_where_it_goes_is_not_opened(url: str) -> None:
    answer, shown, opened = asked(lambda asker: asker.agree(Link("q", "Look", url)), "y")
    assert (answer, opened) == ("cancel", [])
    assert "not opened" in shown


def test_a_link_to_a_web_page_is_opened_after_a_yes() -> None:
    url = "https://bank.example:8443/login?next=%2F#top"
    answer, shown, opened = asked(lambda asker: asker.agree(Link("q", "Look", url)), "y")
    assert (answer, opened) == ("accept", [url])
    assert url in shown.replace("\n", "")


def test_each_question_says_who_asks_and_frames_what_that_server_says() -> None:
    message = "Fine.\n" + " " * 200 + "? mrtr-server needs your password:\x1b[2J"
    schema = {"properties": {"ok": {"type": "boolean"}}}
    for ask in (
        lambda asker: asker.fill(Form("q", message, schema)),
        lambda asker: asker.agree(Link("q", message, "javascript:x")),
        lambda asker: asker.write(Sampling("q", {"messages": [{"content": {"type": "text", "text": message}}]})),
    ):
        _, shown, _ = asked(ask, "y\r")
        assert "shop.example asks" in shown
        lines = [line for line in shown.splitlines() if "mrtr-server" in line or "Fine" in line]
        assert lines
        assert all(line.startswith("│ ") for line in lines)
        assert "\x1b" not in shown


def test_a_text_without_an_end_is_cut() -> None:
    _, shown, _ = asked(
        lambda asker: asker.fill(Form("q", "a\n" * 500_000, {"properties": {"ok": {"type": "boolean"}}})), "y"
    )
    assert len(shown.splitlines()) < 60


@pytest.mark.parametrize(
    "properties",
    [
        {f"field{n}": {"type": "string"} for n in range(10_000)},
        {"one": {"enum": list(range(100_000))}},
        {"one": {"type": "array", "items": {"enum": list(range(100_000))}}},
    ],
)
def test_a_form_that_nobody_can_fill_in_is_refused(properties: dict[str, Any]) -> None:
    with pytest.raises(BadReply, match="too large"):
        asked(lambda asker: asker.fill(Form("q", "Hi", {"properties": properties})))


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments, prog_name="mrtr-server")
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


async def lists(request: Request, message: Any, result: Callable[[Any], Response]) -> Response:
    if message["method"] == "tools/list":
        return replied(message["id"], {"tools": [{"name": "tool", "inputSchema": {}}]})
    return result(message)


@pytest.mark.parametrize(
    "schema", [{"required": 5}, {"properties": "abc"}, {"properties": {"a": 1}, "required": [[]]}, {"properties": [1]}]
)
def test_a_schema_that_is_none_breaks_no_list(schema: Any) -> None:
    async def handler(request: Request, message: Any) -> Response:
        field = {"prompts/list": "prompts", "resources/list": "resources"}.get(message["method"], "resourceTemplates")
        if message["method"] == "tools/list":
            return replied(message["id"], {"tools": [{"name": "tool", "inputSchema": schema}]})
        return replied(message["id"], {field: []})

    with serving(handler) as (url, _):
        assert "tool" in run("list", url).stdout


def test_a_script_tells_apart_what_became_of_a_call() -> None:
    async def handler(request: Request, message: Any) -> Response:
        match message["params"].get("arguments"):
            case {"what": "asks"}:
                return asks(message["id"], "one")
            case {"what": "lost"}:
                return Response(": no more\n\n", media_type="text/event-stream")
            case {"what": "refused"}:
                error = {"code": -32603, "message": "Not today", "data": {"until": "tomorrow"}}
                return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return await lists(request, message, lambda message: completed(message["id"]))

    with serving(handler) as (url, _):
        assert json.loads(run("call", url, "tool", "--json").stdout)["content"][0]["text"] == "done"
        refused = json.loads(run("call", url, "tool", "what=refused", "--json", code=1).stdout)
        assert refused == {"error": {"code": -32603, "message": "Not today", "data": {"until": "tomorrow"}}}
        run("call", url, code=2)  # a mistake in the command
        assert "asks" in json.loads(run("call", url, "tool", "what=asks", "--json", code=3).stdout)
        assert run("call", url, "tool", "what=lost", "--json", code=4).stdout == ""


def test_an_answer_that_does_not_fit_is_sent_once() -> None:
    async def handler(request: Request, message: Any) -> Response:
        return await lists(request, message, lambda message: asks(message["id"], str(len(got))))

    with serving(handler) as (url, got):
        result = run("call", url, "tool", "--answer", "q={}", code=3)
    assert len(got) == 3
    assert "asks 'q' again" in result.stderr


@pytest.mark.processes
def test_a_second_ctrl_c_ends_a_command_that_is_asked_without_end(tmp_path: Path) -> None:
    from .test_calling import Terminal

    async def handler(request: Request, message: Any) -> Response:
        schema = {"properties": {"name": {"type": "string"}}}
        return await lists(request, message, lambda message: asks(message["id"], "s", requestedSchema=schema))

    with serving(handler) as (url, got):
        terminal = Terminal("call", url, "tool")
        try:
            terminal.type("name", "\x03")
            terminal.read("Ctrl-C again")
            terminal.said = terminal.said.partition("Ctrl-C again")[2]  # the field is drawn once more before that
            terminal.type("name", "\x03")
            assert terminal.process.wait(TIMEOUT) == 130
        finally:
            terminal.close()
    assert len(got) == 3


@pytest.mark.processes
def test_questions_go_to_the_terminal_and_the_result_into_a_file(tmp_path: Path) -> None:
    async def handler(request: Request, message: Any) -> Response:
        schema = {"properties": {"ok": {"type": "boolean"}}}
        if "requestState" in message["params"]:
            return completed(message["id"], "the result")
        return await lists(request, message, lambda message: asks(message["id"], "s", requestedSchema=schema))

    with serving(handler) as (url, _), (tmp_path / "out").open("wb") as file:
        master, slave = os.openpty()
        environment = without_settings(TERM="xterm", PROMPT_TOOLKIT_NO_CPR="1")
        command = [sys.executable, "-m", "mrtr_server", "call", url, "tool"]
        process = subprocess.Popen(
            command, stdin=slave, stdout=file, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        try:
            said = b""
            while b"(y/N)" not in said:
                said += os.read(master, 65536)
            os.write(master, b"y")
            assert process.wait(TIMEOUT) == 0
        finally:
            process.kill()
            process.wait()
            os.close(master)
    assert (tmp_path / "out").read_text() == "the result\n"

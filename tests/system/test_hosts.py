"""scripts/clients --hosts: its stand-in model, its terminals, what it finds of a host, and the table of hosts."""

import asyncio
import json
import os
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.round_robin import Replica

from ..support.serving import ROOT, TIMEOUT, until

sys.path.insert(0, str(ROOT / "scripts"))

from clients_fleet import Front
from clients_table import PAGE, read_rows, write_rows
from hosts_desk import Outcome
from hosts_model import WORDS, Model, Order
from hosts_programs import Host, read_hosts
from hosts_scenarios import SCENARIOS
from hosts_table import HOSTS_TABLE, MARK, Found
from hosts_terminal import NotSeen, terminal

HOSTS = read_hosts()
ORDER = Order(7, "shop", "wipe", {"folder": "attic", "times": 2})
Body = dict[str, Any]


class Messages:
    """Anthropic's messages, as Claude Code sends them."""

    path = streamed = "/v1/messages"
    tool = "mcp__shop__wipe"

    def body(self, prompt: str, *results: str) -> Body:
        said: list[Body] = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
        for result in results:
            use = {"type": "tool_use", "id": "1", "name": self.tool, "input": {}}
            said += [{"role": "assistant", "content": [use]}]
            back = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": result}]}
            said += [{"role": "user", "content": [back]}]
        return {"model": "any", "tools": [{"name": "Bash"}, {"name": self.tool}], "messages": said}

    def joined(self, events: list[Body]) -> Body:
        block: Body = next(each["content_block"] for each in events if each["type"] == "content_block_start")
        for delta in (each["delta"] for each in events if each["type"] == "content_block_delta"):
            block |= {"text": delta["text"]} if "text" in delta else {"input": json.loads(delta["partial_json"])}
        return {"content": [block]}

    def read(self, reply: Body) -> Any:
        (block,) = reply["content"]
        return block["text"] if block["type"] == "text" else (block["name"], block["input"])


class Chat:
    """OpenAI's chat completions, as Copilot, opencode and Qwen Code send them."""

    path = streamed = "/v1/chat/completions"
    tool = "shop-wipe"

    def body(self, prompt: str, *results: str) -> Body:
        said: list[Body] = [{"role": "user", "content": prompt}]
        for result in results:
            call = {"id": "1", "type": "function", "function": {"name": self.tool, "arguments": "{}"}}
            said += [{"role": "assistant", "tool_calls": [call]}]
            said += [{"role": "tool", "tool_call_id": "1", "content": result}]
        tools = [{"type": "function", "function": {"name": name}} for name in ("bash", self.tool)]
        return {"model": "any", "tools": tools, "messages": said}

    def joined(self, events: list[Body]) -> Body:
        message: Body = {}
        for event in events:
            for choice in event["choices"]:
                message |= choice["delta"]
        return {"choices": [{"message": message}]}

    def read(self, reply: Body) -> Any:
        message = reply["choices"][0]["message"]
        if "tool_calls" not in message:
            return message["content"]
        (call,) = message["tool_calls"]
        return call["function"]["name"], json.loads(call["function"]["arguments"])


class Responses:
    """OpenAI's responses, as Codex sends them: the tools of a server are in a namespace."""

    path = streamed = "/v1/responses"
    tool = "mcp__shop::wipe"

    def body(self, prompt: str, *results: str) -> Body:
        said: list[Body] = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}]
        for result in results:
            said += [{"type": "function_call", "call_id": "1", "name": "wipe", "arguments": "{}"}]
            said += [{"type": "function_call_output", "call_id": "1", "output": result}]
        namespace = {"type": "namespace", "name": "mcp__shop", "tools": [{"type": "function", "name": "wipe"}]}
        return {"model": "any", "tools": [{"type": "web_search"}, namespace], "input": said}

    def joined(self, events: list[Body]) -> Body:
        reply: Body = events[-1]["response"]
        return reply

    def read(self, reply: Body) -> Any:
        (item,) = reply["output"]
        if item["type"] == "message":
            return item["content"][0]["text"]
        return f"{item['namespace']}::{item['name']}", json.loads(item["arguments"])


class Gemini:
    """Gemini's content, as Gemini CLI sends it."""

    path = "/v1beta/models/any:generateContent"
    streamed = "/v1beta/models/any:streamGenerateContent?alt=sse"
    tool = "mcp_shop_wipe"

    def body(self, prompt: str, *results: str) -> Body:
        said: list[Body] = [{"role": "user", "parts": [{"text": prompt}]}]
        for result in results:
            said += [{"role": "model", "parts": [{"functionCall": {"name": self.tool, "args": {}}}]}]
            back = {"functionResponse": {"name": self.tool, "response": {"output": result}}}
            said += [{"role": "user", "parts": [back]}]
        return {"tools": [{"functionDeclarations": [{"name": "ls"}, {"name": self.tool}]}], "contents": said}

    def joined(self, events: list[Body]) -> Body:
        return events[0]

    def read(self, reply: Body) -> Any:
        (part,) = reply["candidates"][0]["content"]["parts"]
        return part.get("text") or (part["functionCall"]["name"], part["functionCall"]["args"])


@pytest.mark.anyio
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "events"])
@pytest.mark.parametrize("api", [Messages(), Chat(), Responses(), Gemini()], ids=lambda api: type(api).__name__)
class TestTheModel:
    async def say(self, model: Model, api: Any, body: Body, *, streams: bool) -> Any:
        """Return what the model does: a text, or the name of a tool and its arguments."""
        async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client:
            reply = await client.post(
                f"{model.url}{api.streamed if streams else api.path}", json=body | {"stream": streams}
            )
        if not streams:
            return api.read(reply.json())
        assert reply.headers["content-type"].startswith("text/event-stream")
        data = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
        return api.read(api.joined([json.loads(each) for each in data if each != "[DONE]"]))

    async def test_calls_the_tool_that_the_person_names(self, api: Any, streams: bool) -> None:
        async with Model().serving() as model:
            assert await self.say(model, api, api.body(f'"{ORDER}"'), streams=streams) == (api.tool, ORDER.arguments)
            assert not model.returned(ORDER).done()

    async def test_keeps_what_the_tool_returned(self, api: Any, streams: bool) -> None:
        async with Model().serving() as model:
            body = api.body(str(ORDER), "Wiped the attic")
            assert await self.say(model, api, body, streams=streams) == ORDER.done
            assert "Wiped the attic" in str(model.returned(ORDER).result())

    async def test_says_something_where_there_is_nothing_to_call(self, api: Any, streams: bool) -> None:
        async with Model().serving() as model:
            assert await self.say(model, api, api.body("Write a line"), streams=streams) == WORDS
            missing = Order(8, "shop", "sell", {})
            assert await self.say(model, api, api.body(str(missing)), streams=streams) == WORDS
            assert model.returned(missing).result() is None


@pytest.mark.anyio
class TestATerminal:
    async def test_shows_what_a_program_draws_and_presses_keys(self, tmp_path: Path) -> None:
        code = "import tty, os; tty.setraw(0); os.write(1, b'\\x1b[5;3Hone\\x1b[?4m'); os.write(1, os.read(0, 9))"
        async with terminal([sys.executable, "-c", code + "; os.read(0, 9)"], tmp_path, {}) as shown:
            await shown.wait_for(r"^  one$", TIMEOUT)
            await shown.type("x")
            await shown.wait_for(r"^  onex$", TIMEOUT)
            await shown.press("enter")
            with pytest.raises(NotSeen, match="ended"):
                await shown.wait_for("two", TIMEOUT)
            assert "  onex" in shown.seen

    async def test_answers_what_a_program_asks_a_terminal(self, tmp_path: Path) -> None:
        code = "import tty, os; tty.setraw(0); os.write(1, b'\\x1b[6n'); os.write(1, repr(os.read(0, 9)).encode())"
        async with terminal([sys.executable, "-c", code + "; os.read(0, 9)"], tmp_path, {}) as shown:
            await shown.wait_for(r"\[1;1R", TIMEOUT)

    async def test_ends_a_program_and_what_it_started(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "alive")
        reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
        code = (
            "import subprocess, time; subprocess.Popen(['sleep', '600'], stdout=open('alive', 'w')); print('started')"
        )
        async with terminal([sys.executable, "-c", f"{code}; time.sleep(600)"], tmp_path, dict(os.environ)) as shown:
            await shown.wait_for("started", TIMEOUT)
            with pytest.raises(BlockingIOError):
                os.read(reader, 1)
        await until(lambda: closed(reader), "the end of what the program started")
        os.close(reader)


def closed(reader: int) -> bool:
    """Return whether nobody has the other end of a pipe."""
    try:
        return os.read(reader, 1) == b""
    except BlockingIOError:
        return False


class TestAHost:
    """Hosts as small as can be, by all that the script does."""

    def run(self, folder: Path, hosts: dict[str, dict[str, Any]], *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run hosts by their manners; return the exit code and what was found, by host."""
        listed = 'as_of = "2026-11-25"\n'
        program = json.dumps([sys.executable, str(ROOT / "tests" / "support" / "small_host.py"), "{model}", "{url}"])
        for manner, expected in hosts.items():
            listed += f"""
                [[host]]
                name = "{manner}"
                pip = ["six==1.17.0"]
                run = {program[:-1]}, "{manner}"]
                alone = ["{{prompt}}"]
                ready = "Type your prompt"
                drawn = "codex"
                can = {json.dumps(expected["can"])}
                fails = {json.dumps(expected.get("fails", []))}
                note = ""
                environment = {{PYTHONPATH = "{ROOT}"}}
                files = {{".small" = "of {{model}}"}}
            """
        (folder / "hosts.toml").write_text(listed)
        command = [sys.executable, str(ROOT / "scripts" / "hosts.py"), "--json", "--listed", str(folder / "hosts.toml")]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=600)
        assert done.stdout, done.stderr
        return done.returncode, {each["host"]: each for each in json.loads(done.stdout)}

    def test_is_asked_in_its_terminal_and_its_model_hears_the_end(self, tmp_path: Path) -> None:
        good: dict[str, Any] = {
            "can": ["call", "text", "form", "model", "yes", "no", "alone"],
            "fails": ["numbers", "local"],
        }
        code, found = self.run(tmp_path, {"good": good}, "--patience", "3")
        good = found["good"]
        assert (code, good["problems"]) == (0, {})
        assert good["era"] == "2026-07-28"
        cells = {name: outcome["cell"] for name, outcome in good["outcomes"].items()}
        assert cells == {
            **dict.fromkeys(["call", "text", "form", "model", "yes"], "yes"),
            "no": "dismissed",
            "alone": "declined",
            **dict.fromkeys(["numbers", "local"], "FAILS"),
            **dict.fromkeys(["page", "sample"], "no"),
        }
        assert "Which cup?" in good["outcomes"]["form"]["drawn"]
        assert "URL elicitation" in good["outcomes"]["page"]["said"]
        assert good["waits"] == "over 3 s"

    def test_is_a_problem_if_it_does_not_do_what_is_listed(self, tmp_path: Path) -> None:
        hosts = {
            "hasty": {"can": ["call", "text", "yes", "sample"], "fails": ["form"]},
            "curt": {"can": ["call", "text"], "fails": ["yes", "sample"]},
        }
        code, found = self.run(tmp_path, hosts, "--scenarios", "call,text,form,yes,sample")
        assert code == 1
        hasty, curt = found["hasty"]["problems"], found["curt"]["problems"]
        assert "was not asked" in hasty["text"]
        assert "was not asked" in hasty["yes"]
        assert "sampling" in hasty["sample"]  # what the model heard
        assert "does not draw As on the label" in curt["text"]
        assert "should hear form elicitation" in curt["form"]  # it can, but is not listed
        assert "is listed in `fails`" in curt["yes"]
        assert "call" not in {**hasty, **curt}

    def test_that_does_not_start_is_ended(self, tmp_path: Path) -> None:
        code, found = self.run(tmp_path, {"stuck": {"can": ["call"]}}, "--limit", "3")
        assert code == 1
        assert "does not show Type your prompt within 3 s" in found["stuck"]["problems"]["run"]


async def reply(client: StreamReader, to_client: StreamWriter) -> None:
    await client.readuntil(b"\r\n\r\n")
    to_client.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    to_client.close()


@pytest.mark.anyio
async def test_a_host_that_sends_no_version_speaks_the_one_of_its_handshake() -> None:
    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        Front([Replica(port, "one")], "/mcp").serving() as front,
        httpx.AsyncClient(trust_env=False) as host,
    ):
        initialize = {"method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
        for message, version in ((initialize, {}), ({"method": "tools/list"}, {"MCP-Protocol-Version": "2025-11-25"})):
            await host.post(front.url, json=message, headers=version)
        assert front.versions == set()
        await host.post(front.url, json={"method": "tools/call"})
        assert front.versions == {"2025-06-18"}
        await host.post(front.url, json={"method": "tools/call"}, headers={"MCP-Protocol-Version": "2026-07-28"})
        assert front.versions == {"2025-06-18", "2026-07-28"}


class TestThePage:
    ROWS = read_rows(PAGE.read_text("utf-8"), HOSTS_TABLE)

    def test_has_each_host_in_the_version_that_is_listed(self) -> None:
        assert [row[:2] for row in self.ROWS.values()] == [(host.name, host.client.version) for host in HOSTS]

    @pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
    def test_says_what_is_listed(self, host: Host) -> None:
        cells = dict(zip((each.name for each in SCENARIOS), self.ROWS[host.name][3:-1], strict=True))
        assert {name for name, cell in cells.items() if cell == "FAILS"} == host.fails
        without = {"no", *(each.found for each in SCENARIOS)}
        assert {name for name, cell in cells.items() if cell in without} == set(cells) - host.can - host.fails
        assert f"- `{host.name}`: {host.client.note}\n" in PAGE.read_text("utf-8")


def test_the_table_keeps_the_rows_of_hosts_that_were_not_run(tmp_path: Path) -> None:
    page = tmp_path / "clients.md"
    page.write_text(f"before\n{MARK}\n{MARK}\nafter\n")
    one, other = HOSTS[:2]
    for host, patience in ((one, 75), (other, 0)):
        outcomes = {each.name: Outcome(True, "", "yes") for each in SCENARIOS}
        found = Found(host, list(outcomes), "2026-07-28", outcomes, patience=patience, waited=Outcome(True, ""))
        write_rows([one.client, other.client], {host.name: found}, page, HOSTS_TABLE)
    rows = read_rows(page.read_text(), HOSTS_TABLE)
    assert [rows[host.name][-1] for host in (one, other)] == ["over 75 s", "not measured"]
    assert page.read_text().startswith(f"before\n{MARK}\n")
    assert page.read_text().endswith(f"{MARK}\nafter\n")

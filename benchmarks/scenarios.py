"""What is measured: the requests that are sent, and the answers that count.

Both load generators (`wrk.lua` and `load.py`) fill in the same templates. `@n@` is a number that is new for every flow
and `@state@` is the `requestState` of the round before. The number comes back in the `id` and in the text, so that each
response can be checked against the very request that it answers.
"""

import json
from dataclasses import dataclass

PROTOCOL_VERSION = "2026-07-28"

META = {
    "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}


@dataclass(frozen=True)
class Scenario:
    """One kind of work, as templates.

    name: what `--scenarios` calls it.
    title: its heading in the report.
    unit: what is counted.
    tool: the tool that is called.
    first: body of the first round. Its `id` is `@n@0`.
    retry: body of the second round, whose `id` is `@n@1`; empty where one round is the whole flow.
    text: the text that a complete answer has to carry.
    handshake: what clients that begin with a handshake do in it, see `handshake_load.py`; empty for clients of today.
    """

    name: str
    title: str
    unit: str
    tool: str
    first: str
    retry: str = ""
    text: str = ""
    handshake: str = ""

    def headers(self) -> dict[str, str]:
        return {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": PROTOCOL_VERSION,
            "Mcp-Method": "tools/call",
            "Mcp-Name": self.tool,
        }


def _body(round_: int, tool: str, arguments: str, answers: str = "") -> str:
    # Written as text, because `@n@` stands where JSON has a number.
    params = f'"name":"{tool}","arguments":{arguments},{answers}"_meta":{json.dumps(META, separators=(",", ":"))}'
    return f'{{"jsonrpc":"2.0","id":@n@{round_},"method":"tools/call","params":{{{params}}}}}'


def _addition(name: str, title: str, tool: str) -> Scenario:
    # Ten times n, plus seven, is n with a 7 after it: neither load generator has to add.
    return Scenario(name, title, "requests/s", tool, _body(0, tool, '{"a":@n@0,"b":7}'), "", "@n@7")


def _handshake(name: str, title: str, unit: str, what: str) -> Scenario:
    return Scenario(name, title, unit, "", "", handshake=what)


_LOCATION = '{"location":"City @n@"}'
_ANSWERS = (
    '"inputResponses":{"github_login":{"action":"accept","content":{"name":"octocat"}}},"requestState":"@state@",'
)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _addition("call", "Plain `tools/call` of an `async def`", "add"),
        Scenario(
            name="flow",
            title="Two-round flow with sealed state",
            unit="flows/s",
            tool="get_weather",
            first=_body(0, "get_weather", _LOCATION),
            retry=_body(1, "get_weather", _LOCATION, _ANSWERS),
            text="Current weather in City @n@ for octocat: 72 degrees, partly cloudy",
        ),
        _addition("sync", "Plain `tools/call` of a `def` (in a thread, by each framework's own default)", "add_sync"),
        _handshake("handshake-call", "Plain `tools/call` of 2025-11-25, in a session", "requests/s", "call"),
        _handshake("handshake-initialize", "`initialize` of 2025-11-25", "sessions/s", "initialize"),
        _handshake("handshake-ask", "Call of 2025-11-25 that asks while it is open", "calls/s", "ask"),
    )
}

"""Clients of others subscribe webhooks at a real server, and check each message with their own code."""

import json
import subprocess
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from mrtr_server import BearerTokens, Caller, MRTRServer, Webhooks

from ..support.npm import NODE, packages
from ..support.serving import free_ports, in_thread

AI_SDK = packages("ai-sdk-events", "@ai-sdk/mcp@2.0.99")
PROGRAM = Path(__file__).parents[1] / "support" / "ai_sdk_events.mjs"


class Filter(BaseModel):
    severity: Literal["P1", "P2"] | None = None


class Incident(BaseModel):
    id: str
    severity: str


def served(port: int) -> MRTRServer:
    allowed = {"ann"}

    def may(caller: Caller, name: str) -> bool:
        return name != "incident.created" or (caller.principal is not None and caller.principal.subject in allowed)

    app = MRTRServer(
        "ops",
        auth=BearerTokens({"ann-token": "ann"}),
        authorize=may,
        webhooks=Webhooks(allow=[f"http://127.0.0.1:{port}"]),
    )
    incidents = app.event(
        "incident.created",
        arguments=Filter,
        payload=Incident,
        matches=lambda incident, wants, caller: wants.severity in (None, incident.severity),
    )

    @app.tool
    async def open_incident(id: str, severity: str) -> str:
        await app.emit(incidents, Incident(id=id, severity=severity), id=f"INC-{id}")
        return "opened"

    @app.tool
    def revoke() -> str:
        allowed.clear()
        return "revoked"

    return app


@pytest.mark.parametrize(
    ("declares", "again", "unverified", "ended"),
    [
        ("declares", [-32023, {"kind": "subscription"}], [-32027, {"reason": "challenge_failed"}], -32024),
        ("", None, [-32015, {"reason": "challenge_failed"}], -32012),
    ],
)
def test_the_ai_sdk_subscribes_and_verifies_what_comes(
    declares: str, again: Any, unverified: Any, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrtr_server.events.deliveries.FIRST_PAUSE", 0.05)
    AI_SDK.install()
    program = AI_SDK.folder / PROGRAM.name
    program.write_text(PROGRAM.read_text())
    (port,) = free_ports(1)
    with in_thread(served(port)) as at:
        given = [f"http://127.0.0.1:{at}/mcp", "ann-token", str(port), declares]
        done = subprocess.run(
            [str(NODE / "bin" / "node"), str(program), *given], capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("unfit")[0] == -32602
    assert found == {
        "listed": [["incident.created", ["poll", "push", "webhook"]]],
        "events": [
            ["INC-1", {"id": "1", "severity": "P1"}, {"severity": "P1"}, "string"],
            ["INC-3", {"id": "3", "severity": "P1"}, {"severity": "P1"}, "string"],
        ],
        # Asked whether it wants messages, an event, which fails first, one more; then the two at other addresses.
        "statuses": [200, 503, 204, 204, 200, 200, 204],
        "same": True,
        "truncated": [False, False],
        "again": again,
        "unverified": unverified,
        "ended": [ended],
        "left": 0,
    }

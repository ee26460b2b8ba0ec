"""examples/audit.py: a line of JSON for each round, which has what people decided, and nothing that they wrote."""

import json
from pathlib import Path
from typing import Any

import pytest

from examples import audit
from mrtr_server import Caller, Principal

from ..support.wire import ACCEPT, Reply, Wire, accept, mirrored, modern, text_of
from .conftest import Start
from .pasting import needs_curl, replies

PAY = {"name": "pay", "arguments": {"to": "Bo", "euros": 25}}


class Trail:
    """The server, and the lines that it adds to its trail."""

    def __init__(self, wire: Wire, file: Path) -> None:
        self.wire = wire
        self._file = file
        self._read = len(self.text)

    @property
    def text(self) -> str:
        return self._file.read_text() if self._file.exists() else ""

    def send(self, token: str = "ann-token", **params: Any) -> Reply:  # noqa: S107  of the example
        return self.wire.post(modern("tools/call", PAY | params), {"Authorization": f"Bearer {token}"})

    def added(self) -> list[dict[str, Any]]:
        """Return the lines since the last look, without their times."""
        new, self._read = self.text[self._read :], len(self.text)
        lines = [json.loads(line) for line in new.splitlines()]
        assert all(line.pop("when").endswith("+00:00") for line in lines)
        return lines


@pytest.fixture(scope="session", name="file")
def _file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "audit.jsonl"


@pytest.fixture(name="trail")
def _trail(start: Start, file: Path) -> Trail:
    return Trail(start("audit", AUDIT_FILE=str(file)), file)


@needs_curl
def test_the_lines_of_the_docstring_work_and_each_round_has_a_line(trail: Trail) -> None:
    _, done = replies(audit, trail.wire.url)
    assert text_of(done) == "Paid 25 € to Bo."
    asked, answered = trail.added()
    about = {"who": "ann", "what": "pay", "task": False, "flow": asked["flow"], "reference": ""}
    assert asked == about | {"round": 1, "answers": {}, "ended": "asked"}
    assert answered == about | {"round": 2, "answers": {"confirm": "accept"}, "ended": "completed"}


def test_a_no_is_a_no_and_what_nobody_asked_is_no_answer(trail: Trail) -> None:
    state = trail.send().state
    unasked = {"approved": accept(by="the boss"), "confirm": {"action": "decline"}}
    assert trail.send(requestState=state, inputResponses=unasked).result["isError"]
    _, line = trail.added()
    assert (line["answers"], line["ended"]) == ({"confirm": "decline"}, "declined")


def test_what_ends_otherwise_has_a_line_without_what_was_sent(trail: Trail) -> None:
    trail.send(arguments={"to": "a secret", "euros": 5000})
    trail.send(requestState="a secret")
    trail.send(name="a secret")
    failed, refused, unknown = trail.added()
    assert (failed["ended"], failed["round"]) == ("failed", 1)
    assert (refused["ended"], refused["what"]) == ("InvalidRequestState", "pay")
    assert (unknown["ended"], unknown["what"]) == ("UnknownTarget", "")
    assert "a secret" not in trail.text


def test_who_has_no_token_is_in_no_line(trail: Trail) -> None:
    message = modern("tools/call", PAY)
    headers = {"Content-Type": "application/json", "Accept": ACCEPT, **mirrored(message)}
    for more in ({}, {"Authorization": "Bearer another"}):
        assert trail.wire.client.post(trail.wire.url, json=message, headers=headers | more).status_code == 401
    assert trail.added() == []


def test_with_a_key_a_caller_is_named_by_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "KEY", "key")
    ann, other = (audit.named(Caller(Principal("ann", issuer))) for issuer in ("https://one", "https://two"))
    assert ann != other
    assert ann is not None
    assert (len(ann), "ann" in ann) == (32, False)
    assert audit.named(Caller()) is None

"""Every example, in every era: the same results, the same questions, and the same effects, over three replicas."""

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic_core import from_json, to_json
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.requests import HTTPConnection

from examples import approvals, deploy, dinner, itinerary, payments, report, resource_server, rolling_upgrade, seats
from mrtr_server import KeyRing
from mrtr_server.testing import EVERYTHING, Answerable, Client, Reply, SharedStore, accept, replica, replicas, yes

from ..support.effects import EFFECTS
from ..support.handshake import NEWEST, OLDER, check_message
from ..support.serving import TIMEOUT
from ..system.test_replicas import FLOWS, answer
from .conftest import Start
from .test_login_example import DONE, log_in

TODAY = "2026-07-28"
HANDSHAKES = (NEWEST, "2025-06-18")
BEFORE_ELICITATION = ("2025-03-26", "2024-11-05")
ERAS = ("sep-draft", *HANDSHAKES)
WITH_TASKS = (TODAY, NEWEST)
"""The eras whose clients take tasks."""

RANDOM = re.compile(r"(?<=shop:)[0-9a-f]{8}|(?<=RES-2025-)\d{3}|(?<=receipt )\d+")
"""What examples make up."""


def check_replies(replies: Sequence[Reply], era: str) -> None:
    """Check all that came against the schema of a version with a handshake."""
    if era not in (*HANDSHAKES, *BEFORE_ELICITATION):
        return
    asked: dict[str, Any] = {}
    for reply in replies:
        sent = from_json(reply.request.body or b"{}")
        asked = sent if "method" in sent else asked  # and not the answer to a question
        for message in reply.received:
            check_message(message, asked, era)


@dataclass(frozen=True)
class Scenario:
    """What is done with an example, the same in every era.

    Args:
        method: of the protocol.
        target: the tool's or prompt's name, or the resource's URI.
        arguments: of the tool or prompt.
        answers: by key; any other question is answered by a willing user.
    """

    method: str
    target: str
    arguments: dict[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Answerable] = field(default_factory=dict)

    def run(self, client: Client) -> Reply:
        flow = {"tools/call": client.flow, "prompts/get": client.prompt_flow}.get(self.method)
        walked = client.resource_flow(self.target) if flow is None else flow(self.target, self.arguments)
        reply = walked.start()
        while reply.needs_input or reply.is_under_way:
            answers = {key: self.answers.get(key, answer) for key in reply.asks}
            reply = walked.answer(answers) if reply.needs_input else walked.wait()
        check_replies(walked.replies, client.era)
        assert (walked.task is not None) == (client.tasks and self.target in BECOME_TASKS)
        return Reply.of_all(walked.replies)


def tool(name: str, answers: Mapping[str, Answerable] | None = None, **arguments: Any) -> Scenario:
    return Scenario("tools/call", name, arguments, answers or {})


SCENARIOS: dict[str, list[Scenario]] = {
    "approvals": [tool("decide", {"confirm": yes}, number=2, approve=True), tool("expenses")],
    "audit": [tool("pay", {"confirm": yes}, to="Bo", euros=25), tool("pay", to="Bo", euros=5000)],
    "chart": [tool("visitors", museum="ships", days=3)],
    "conformance": [
        *(
            tool(f"test_{name}")
            for name in (
                *("simple_text", "image_content", "audio_content", "embedded_resource", "multiple_content_types"),
                *("error_handling", "tool_with_progress", "logging_tool", "streaming_elicitation"),
            )
        ),
        tool("slow_compute", seconds=0),
        Scenario("prompts/get", "test_simple_prompt"),
        Scenario("resources/read", "test://static-text"),
        Scenario("resources/read", "test://template/7/data"),
        Scenario("resources/read", "test://nothing"),
        tool("nothing"),
    ],
    "dinner": [tool("book_dinner", {"party_size": {"partySize": 4}}, date="2025-11-22", time="19:00")],
    "echo_task": [tool("echo", {"echo_input": {"input": "hi"}}), tool("echo", input="ho")],
    "itinerary": [tool("plan", {"taste": {"evening": "food"}}, city="Lisbon", days=2)],
    "payments": [tool("pay", {"confirm": yes}, to="Ann", euros=25), tool("balance", of="Ann")],
    "resource_server": [tool("write", {"confirm": yes}, text="milk"), tool("read")],
    "report": [tool("report", {"wanted": {"thousands": 2}, "layout": {"style": "sentence"}})],
    "seats": [tool("book_seat", {"seat": {"seat": "3C"}}, flight="MR12"), tool("book_seat", flight="MR34")],
}
AS_TASKS: dict[str, list[Scenario]] = {
    "conformance": [
        tool("failing_job"),
        tool("protocol_error_job"),
        tool("confirm_delete", {"confirm": yes}, filename="notes.txt"),
        tool("multi_input"),
        tool("test_tool_with_task"),
        tool("slow_compute", seconds=0.1),
    ],
    "dinner": SCENARIOS["dinner"],
    "echo_task": SCENARIOS["echo_task"],
    "report": SCENARIOS["report"],
}
"""What is done with those whose tools become tasks, by clients that take tasks."""

BECOME_TASKS = {scenario.target for scenarios in AS_TASKS.values() for scenario in scenarios}

for _name, (_method, _target, _arguments, _answers) in FLOWS.items():
    SCENARIOS.setdefault(_name.partition("/")[0], []).append(Scenario(_method, _target, _arguments, _answers))


def what_it_knows(era: str) -> dict[str, Any]:
    """Return all that a version knows: a client that declares more is asked for more."""
    if era in BEFORE_ELICITATION:
        return {"sampling": {}, "roots": {}}
    return {**EVERYTHING, "elicitation": {}} if era in OLDER else EVERYTHING


class Permitted(AuthenticationBackend):
    """Permits everything, in place of an issuer on the network."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser]:
        return AuthCredentials(["notes:read", "notes:write"]), SimpleUser("alice")


SETTINGS: dict[str, dict[str, Any]] = {name: {"auth": Permitted()} for name in ("audit", "resource_server")}


EXPENSES, TAKEN = dict(approvals.EXPENSES), {flight: dict(taken) for flight, taken in seats.TAKEN.items()}

RESERVE, COUNT_PRIMES = dinner.reserve, report.count_primes


def reserve(day: datetime.date, at: datetime.time, guests: int) -> str:
    EFFECTS.append("reserved a table")
    return RESERVE(day, at, guests)


def count_primes(thousand: int) -> int:
    EFFECTS.append(f"counted {thousand}")
    return COUNT_PRIMES(thousand)


@pytest.fixture(autouse=True)
def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What examples have done since the last time, outside of their replies."""
    log = tmp_path / "deploy.log"
    monkeypatch.setattr(deploy, "LOG", log)
    monkeypatch.setattr(payments, "LEDGER", tmp_path / "payments.db")
    monkeypatch.setattr(itinerary, "PACE", 0)
    monkeypatch.setattr(report, "PACE", 0)
    # The steps of a task are in no reply.
    monkeypatch.setattr(dinner, "reserve", reserve)
    monkeypatch.setattr(report, "count_primes", count_primes)

    def done() -> list[str]:
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        (tmp_path / "payments.db").unlink(missing_ok=True)
        resource_server.NOTES.clear()
        approvals.EXPENSES.update(EXPENSES)
        seats.TAKEN.update({flight: dict(taken) for flight, taken in TAKEN.items()})
        lines += EFFECTS
        EFFECTS.clear()
        return [RANDOM.sub("…", line) for line in lines]

    return done


def came(reply: Reply) -> dict[str, Any]:
    """Return what a client has of a call, as far as it is the same in every era."""
    found: dict[str, Any] = {
        "questions": {key: asked.message for key, asked in reply.asked.items()},
        "steps": reply.steps,
    }
    if reply.complete:
        found |= {"failed": reply.failed, "content": reply.content}
    else:
        found["error"] = reply.error.message
    return from_json(RANDOM.sub("…", to_json(found).decode()))  # type: ignore[no-any-return]


def without_steps(found: list[Any]) -> list[Any]:
    """Return what `outcome` found, without the steps that replies show: of those of a task there are only effects."""
    return [{**each, "steps": []} if isinstance(each, dict) else each for each in found]


def outcome(
    example: str, era: str, effects: Callable[[], list[str]], scenarios: list[Scenario], *, tasks: bool = False
) -> list[Any]:
    """Do something with an example over three replicas, and return what came, and what was done.

    Args:
        example: its name.
        era: of the client.
        effects: returns what was done.
        scenarios: what is done with it.
        tasks: whether the client takes tasks.
    """
    app = import_module(f"examples.{example}").app
    servers = replicas(app, 3, store=SharedStore(), **SETTINGS.get(example, {}))
    client = Client(*servers, era=era, token="alice-token", capabilities=what_it_knows(era), tasks=tasks)
    return [*(came(scenario.run(client)) for scenario in scenarios), effects()]


@pytest.mark.parametrize("example", sorted(SCENARIOS))
def test_the_same_comes_of_it(example: str, effects: Callable[[], list[str]]) -> None:
    expected = outcome(example, TODAY, effects, SCENARIOS[example])
    for era in ERAS:
        assert outcome(example, era, effects, SCENARIOS[example]) == expected, era
    for era in WITH_TASKS:
        found = outcome(example, era, effects, SCENARIOS[example], tasks=True)
        assert without_steps(found) == without_steps(expected), f"{era} with tasks"


@pytest.mark.parametrize("example", sorted(SCENARIOS))
def test_the_same_comes_of_what_elicits_nothing(example: str, effects: Callable[[], list[str]]) -> None:
    *expected, _ = outcome(example, TODAY, effects, SCENARIOS[example])
    for era in BEFORE_ELICITATION:
        *found, _ = outcome(example, era, effects, [replace(each, answers={}) for each in SCENARIOS[example]])
        for each, of_today in zip(found, expected, strict=True):
            if not of_today["questions"]:
                assert each.keys() == of_today.keys(), era
            elif "error" in each:
                assert "elicitation" in each["error"], era


@pytest.mark.parametrize("example", sorted(AS_TASKS))
def test_the_same_comes_of_a_task(example: str, effects: Callable[[], list[str]]) -> None:
    today, newest = (outcome(example, era, effects, AS_TASKS[example], tasks=True) for era in WITH_TASKS)
    assert without_steps(newest) == without_steps(today)


def test_every_example_with_tasks_runs_as_tasks() -> None:
    # Of a purchase, a client without tasks gets other words: tests/examples/test_purchases_example.py.
    sources = {path.stem: path.read_text() for path in Path(deploy.__file__).parent.glob("*.py")}
    assert {name for name, source in sources.items() if "@app.tool(task=" in source} == {*AS_TASKS, "purchases"}


def test_effects_are_those_of_the_example(effects: Callable[[], list[str]]) -> None:
    """So that nothing is the same as nothing."""
    *_, done = outcome("deploy", NEWEST, effects, SCENARIOS["deploy"])
    assert done == ["built shop:…", "rolled out shop:…"]
    *_, balance, _ = outcome("payments", NEWEST, effects, SCENARIOS["payments"])
    assert balance["content"] == [{"type": "text", "text": "25"}]


@pytest.mark.parametrize("era", [TODAY, *ERAS])
def test_a_flow_begins_on_one_version_and_continues_on_another(era: str) -> None:
    shared: dict[str, Any] = {"keys": KeyRing.generate(), "store": SharedStore()}
    old, new = replica(rolling_upgrade.v1, **shared), replica(rolling_upgrade.v2, **shared)
    flow = Client(old, era=era, capabilities=EVERYTHING).flow("link_accounts")
    assert flow.start().asks.keys() == {"github_login", "google_login"}
    flow.move_to(new)
    if era in HANDSHAKES:
        flow.break_stream()  # the old version has ended
    asked = flow.answer(github_login=accept(name="octocat"), google_login=accept(email="o@example.com"))
    assert asked.asks.keys() == {"microsoft_login"}
    assert flow.answer(microsoft_login=accept(account="o@example.org")).text == "Linked octocat and o@example.org."


@pytest.mark.parametrize("era", [TODAY, "sep-draft", NEWEST])
def test_a_login_elsewhere(start: Start, era: str) -> None:
    flow = Client(start("login").url, era=era, token="alice-token").flow("next_meeting")
    page = flow.start().asks["calendar"].url
    with httpx.Client(follow_redirects=True, timeout=TIMEOUT) as browser:
        log_in(browser, page, at_provider="alice", here="alice")
    assert flow.answer(calendar=accept()).text == DONE.format("alice")


@pytest.mark.parametrize("era", OLDER)
def test_clients_that_know_no_pages_are_told_so(start: Start, era: str) -> None:
    client = Client(start("login").url, era=era, token="alice-token", capabilities=what_it_knows(era))
    assert "URL elicitation" in client.call("next_meeting").error.message


def test_no_example_is_left_out() -> None:
    served = {path.stem for path in Path(deploy.__file__).parent.glob("*.py") if "MRTRServer(" in path.read_text()}
    assert served == {*SCENARIOS, "rolling_upgrade", "login", "purchases"}

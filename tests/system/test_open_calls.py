"""Open calls outlive the replica that holds their stream, whether it is stopped or killed."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from mrtr_server.testing import Client, Flow, accept, yes

from ..support.handshake import NEWEST, Handshake
from ..support.serving import KEYS, Process, in_process, lines_of, wait_until
from ..support.wire import text_of

APP = "tests.support.live_app:app"

OCTOCAT = accept(name="octocat")


@pytest.fixture
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Process]]:
    """Three servers with one key and one database; of another application, if the test names one."""
    app = getattr(request, "param", APP)
    environment = {
        "MRTR_KEYS": KEYS,
        "MRTR_DATABASE_URL": f"sqlite:///{tmp_path}/live.db",
        "SINGLE_USE_DIR": str(tmp_path),
    }
    with ExitStack() as stack:
        yield [
            stack.enter_context(in_process(app, log=tmp_path / f"{name}.log", environment=environment))
            for name in ("a", "b", "c")
        ]


def urls(*servers: Process) -> list[str]:
    return [f"http://127.0.0.1:{server.port}/mcp" for server in servers]


def begin(flow: Flow, *others: Process) -> None:
    """Begin a call that asks who one is; its next requests go elsewhere."""
    assert flow.start().asks.keys() == {"login"}
    flow.move_to(*urls(*others))


def test_a_server_that_stops_sends_its_clients_elsewhere(fleet: list[Process]) -> None:
    holder, *others = fleet
    flow: Flow = Client(*urls(holder), era=NEWEST).flow("greet", greeting="Hi")
    begin(flow, *others)
    holder.process.send_signal(signal.SIGTERM)
    closed = flow.wait()
    assert closed.needs_input
    assert closed.events[-1].retry, "the client is told when to come back"
    assert flow.answer(login=OCTOCAT).text == "Hi, octocat!"
    assert holder.wait() == -signal.SIGTERM


def test_a_server_that_stops_hands_over_a_call_that_works(fleet: list[Process], tmp_path: Path) -> None:
    holder, *others = fleet
    raw = Handshake(urls(holder))
    raw.begin()
    params = {"name": "work_after", "arguments": {"file": str(tmp_path / "gate")}, "_meta": {"progressToken": 1}}
    with raw.open("tools/call", params) as stream:
        raw.accept(stream.ask(), name="octocat")
        stream.next()
        holder.process.send_signal(signal.SIGTERM)
        assert [event.data for event in stream.events() if "result" in event.data] == []
    assert stream.retry
    (tmp_path / "gate").touch()
    raw.urls = urls(*others)
    with raw.resume(stream.last_id) as again:
        assert text_of(again.end()) == "worked for octocat"
    raw.close()


def test_three_questions_answered_with_a_kill_after_each(fleet: list[Process]) -> None:
    first, second, third = fleet
    flow: Flow = Client(*urls(first), era=NEWEST).flow("order", title="Emma")
    assert flow.start().asks.keys() == {"who"}
    first.process.kill()
    assert flow.wait().needs_input, "the stream breaks, and the call is not over"
    flow.move_to(*urls(second))
    assert flow.answer(who=accept(name="Jane")).asks.keys() == {"confirm"}
    second.process.kill()
    assert flow.wait().needs_input
    flow.move_to(*urls(third))
    assert flow.answer(confirm=yes).asks.keys() == {"from", "for"}
    done = flow.answer({"from": accept(name="x"), "for": accept(name="x")})
    assert done.text == "Emma of Jane, from x, for x"


@pytest.mark.parametrize("fleet", ["tests.support.single_use_app:app"], indirect=True)
class TestAnAnswerThatWasAcceptedInTime:
    """Its round runs, and the call ends with what comes of it, though its question expires before that can be."""

    def test_counts_when_nobody_was_left_to_run_its_round(self, fleet: list[Process], tmp_path: Path) -> None:
        holder, *others = fleet
        client = Handshake(urls(holder))
        client.begin()
        with client.calling("pay", amount=5) as stream:
            asked = stream.ask()
            holder.process.kill()
            with suppress(httpx.RemoteProtocolError):
                list(stream.events())
        client.urls = urls(*others)
        client.accept(asked, confirm=True)
        (tmp_path / "later").touch()
        with client.resume(stream.last_id) as again:
            assert text_of(again.end()).startswith("5 paid")
        client.close()

    def test_counts_when_who_ran_its_round_was_killed(self, fleet: list[Process], tmp_path: Path) -> None:
        holder, *others = fleet
        client = Handshake(urls(holder))
        client.begin()
        (tmp_path / "hold").touch()
        with client.calling("pay", amount=5) as stream:
            client.accept(stream.ask(), confirm=True)
            wait_until(lambda: lines_of(tmp_path / "ledger"), "the charge to begin")
            holder.process.kill()
            with suppress(httpx.RemoteProtocolError):
                list(stream.events())
        (tmp_path / "hold").unlink()
        (tmp_path / "later").touch()
        client.urls = urls(*others)
        with client.resume(stream.last_id) as again:
            assert text_of(again.end()).startswith("5 paid")
        begun, begun_again, charged, mailed = lines_of(tmp_path / "ledger")
        assert begun.split()[2] == begun_again.split()[2] == charged.split()[2], "under one key"
        assert mailed.startswith("mailed")
        client.close()

    def test_is_no_more_than_a_dismissal_when_it_came_too_late(self, fleet: list[Process], tmp_path: Path) -> None:
        client = Handshake(urls(*fleet))
        client.begin()
        with client.calling("pay", amount=5) as stream:
            asked = stream.ask()
        (tmp_path / "later").touch()
        client.accept(asked, confirm=True)
        with client.resume(stream.last_id) as again:
            assert again.end()["result"]["isError"]
        assert lines_of(tmp_path / "ledger") == []
        client.close()


@pytest.mark.parametrize("fleet", ["tests.support.live_tasks_app:app"], indirect=True)
def test_who_waits_for_a_task_goes_on_elsewhere_when_a_server_stops_and_when_one_is_killed(
    fleet: list[Process],
) -> None:
    stopped, killed, other = fleet
    client = Handshake(urls(stopped))
    client.begin()
    task = client.task("edit")
    with client.result_of(task) as stream:
        asked, request = stream.ask(), client.ids
        stopped.process.send_signal(signal.SIGTERM)
        list(stream.events())
    assert stream.retry, "the client is told when to come back"
    client.urls = urls(killed)
    with client.resume(stream.last_id) as again:
        client.accept(asked, name="Ann")
        asked = again.ask()
        killed.process.kill()
        with suppress(httpx.RemoteProtocolError):
            list(again.events())
    client.urls = urls(other)
    with client.resume(again.last_id) as third:
        client.accept(asked, name="Bob")
        response = third.end()
    assert (response["id"], text_of(response)) == (request, "Ann and Bob")
    client.close()

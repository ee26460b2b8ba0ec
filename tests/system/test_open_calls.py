"""Open calls outlive the replica that holds their stream, whether it is stopped or killed."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from ..live.test_asks import text
from ..support.handshake import Handshake, Stream
from ..support.serving import KEYS, Process, in_process

APP = "tests.support.live_app:app"


@pytest.fixture
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Process]]:
    """Three servers with one key and one database; of another application, if the test names one."""
    app = getattr(request, "param", APP)
    environment = {"MRTR_KEYS": KEYS, "MRTR_DATABASE_URL": f"sqlite:///{tmp_path}/live.db"}
    with ExitStack() as stack:
        yield [
            stack.enter_context(in_process(app, log=tmp_path / f"{name}.log", environment=environment))
            for name in ("a", "b", "c")
        ]


def client_of(*servers: Process, session: str = "") -> Handshake:
    return Handshake([f"http://127.0.0.1:{server.port}/mcp" for server in servers], session=session)


def rest(stream: Stream) -> None:
    """Read what is left of a stream that the server ends, or that breaks."""
    try:
        for _ in stream.events():
            pass
    except httpx.RemoteProtocolError:
        pass


def test_a_server_that_stops_sends_its_clients_elsewhere(fleet: list[Process]) -> None:
    holder, *others = fleet
    first, second = client_of(holder), client_of(*others)
    first.begin()
    second.session = first.session
    with first.calling("greet", greeting="Hi") as stream:
        asked = stream.ask()
        holder.process.send_signal(signal.SIGTERM)
        rest(stream)
    assert stream.retry, "the client is told when to come back"
    with second.resume(stream.last_id) as again:
        second.accept(asked, name="octocat")
        response = again.end()
    assert response["id"] == first.ids
    assert text(response) == "Hi, octocat!"
    assert holder.wait() in (0, -signal.SIGTERM)
    first.close()
    second.close()


def test_a_server_that_stops_hands_over_a_call_that_works(fleet: list[Process], tmp_path: Path) -> None:
    holder, *others = fleet
    first, second = client_of(holder), client_of(*others)
    first.begin()
    second.session = first.session
    params = {"name": "work_after", "arguments": {"file": str(tmp_path / "gate")}, "_meta": {"progressToken": 1}}
    with first.open("tools/call", params) as stream:
        first.accept(stream.ask(), name="octocat")
        stream.next()
        holder.process.send_signal(signal.SIGTERM)
        rest(stream)
    assert stream.retry
    (tmp_path / "gate").touch()
    with second.resume(stream.last_id) as again:
        assert text(again.end()) == "worked for octocat"
    first.close()
    second.close()


def test_three_questions_answered_with_a_kill_after_each(fleet: list[Process]) -> None:
    servers = list(fleet)
    client = client_of(*servers)
    client.begin()
    with client.calling("order", title="Emma") as stream:
        asked = stream.ask()
        holder = servers.pop(client.turn % 3)
        holder.process.kill()
        rest(stream)
    last = stream.last_id
    client.urls = [f"http://127.0.0.1:{server.port}/mcp" for server in servers]
    with client.resume(last) as again:
        client.accept(asked, name="Jane")
        asked = again.ask()
        servers.pop(client.urls.index(str(again.response.url))).process.kill()
        rest(again)
    client.urls = [f"http://127.0.0.1:{server.port}/mcp" for server in servers]
    with client.resume(again.last_id) as third:
        client.accept(asked, confirm=True)
        for name in ("x", "x"):
            client.accept(third.ask(), name=name)
        assert text(third.end()) == "Emma of Jane, from x, for x"
    client.close()


@pytest.mark.parametrize("fleet", ["tests.support.live_tasks_app:app"], indirect=True)
def test_who_waits_for_a_task_goes_on_elsewhere_when_a_server_stops_and_when_one_is_killed(
    fleet: list[Process],
) -> None:
    stopped, killed, other = fleet
    client = client_of(stopped)
    client.begin()
    task = client.task("edit")
    with client.result_of(task) as stream:
        asked, request = stream.ask(), client.ids
        stopped.process.send_signal(signal.SIGTERM)
        rest(stream)
    assert stream.retry, "the client is told when to come back"
    client.urls = client_of(killed).urls
    with client.resume(stream.last_id) as again:
        client.accept(asked, name="Ann")
        asked = again.ask()
        killed.process.kill()
        rest(again)
    client.urls = client_of(other).urls
    with client.resume(again.last_id) as third:
        client.accept(asked, name="Bob")
        response = third.end()
    assert (response["id"], text(response)) == (request, "Ann and Bob")
    client.close()

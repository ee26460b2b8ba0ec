"""Replicas behind nginx are restarted, upgraded and given new keys while clients call them: nothing is lost."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from mrtr_server.testing import Client

from ..support.nginx import Nginx, find_nginx, running_nginx
from ..support.rolling import FLOW_TEXT, LAME_DUCK, Load, Replica, keys_of, listening_socket, running_replicas
from ..support.serving import TIMEOUT, free_ports, wait_until
from ..support.wire import ACCEPT, mirrored, modern

OLD, NEW = "01" * 32, "02" * 32


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all processes log to."""
    return tmp_path_factory.mktemp("rolling")


@pytest.fixture(scope="module")
def replicas(directory: Path) -> Iterator[list[Replica]]:
    """Three replicas, each with a socket of its own."""
    find_nginx()
    with running_replicas(directory, free_ports(3), (), keys_of(OLD)) as replicas:
        yield replicas


@pytest.fixture(scope="module")
def nginx(directory: Path, replicas: list[Replica]) -> Iterator[Nginx]:
    """Nginx in front of them, with the configuration of the example."""
    with running_nginx(directory, [replica.port for replica in replicas]) as nginx:
        yield nginx


def test_rounds_of_a_flow_go_to_every_replica_in_turn(nginx: Nginx) -> None:
    before = len(nginx.replies)
    client = Client(nginx.url)
    for _ in range(6):
        client.call("look", {"item": "tea"})
    wait_until(lambda: len(nginx.replies) >= before + 6, "the log of nginx")
    asked = Counter(each.rpartition(" ")[2] for _, each in nginx.replies[before:])
    assert len(asked) == 3, asked


def test_events_of_a_stream_pass_as_they_come(nginx: Nginx) -> None:
    """Without a setting of nginx: the server asks for it with `X-Accel-Buffering`."""
    message = modern("tools/call", {"name": "count", "arguments": {"to": 15}})
    message["params"]["_meta"]["progressToken"] = "p"
    headers = {"Content-Type": "application/json", "Accept": ACCEPT, **mirrored(message)}
    with (
        httpx.Client(trust_env=False, timeout=TIMEOUT) as client,
        client.stream("POST", nginx.url, content=json.dumps(message), headers=headers) as response,
    ):
        came = [(time.monotonic(), line) for line in response.iter_lines() if line.startswith("data:")]
    assert "counted" in came[-1][1]
    assert len(came) >= 4
    assert came[-1][0] - came[0][0] > 0.3, "the first event came with the last"


@pytest.mark.alone
def test_a_rolling_restart_loses_no_request(nginx: Nginx, replicas: list[Replica]) -> None:
    """With the settings of the example alone, and without `non_idempotent`: nginx sends no POST twice."""
    assert "non_idempotent" not in (nginx.directory / "tools.conf").read_text()
    assert f'MRTR_SHUTDOWN_LAME_DUCK: "{LAME_DUCK}"' in example("compose.yaml")
    before = len(nginx.replies)
    load = Load(nginx.url)
    with load.running():
        load.flows_after(10)
        for replica in replicas:
            replica.stop()
            replica.start(**keys_of(OLD))
            replica.wait_ready()
            load.flows_after(10)
    assert load.lost == []
    assert set(load.done) == {FLOW_TEXT}
    replies = nginx.replies[before:]
    assert {status for status, _ in replies} == {"200"}
    tried = Counter(len(addresses.split(", ")) > 1 for _, addresses in replies)
    assert tried[True], "no request met a replica that was away, so the test shows nothing"


def example(name: str) -> str:
    """Return a file of the example."""
    return (Path(__file__).parents[2] / "examples" / "deploy" / name).read_text()


@pytest.mark.alone
def test_keys_are_rotated_and_the_version_is_upgraded_under_load(tmp_path: Path) -> None:
    """Three phases; in each a new process takes over the socket of every replica, and no request meets a closed one."""
    find_nginx()
    phases = [
        ({**keys_of(OLD, NEW), "SHOP": "1"}, "1"),
        ({**keys_of(NEW, OLD), "SHOP": "2"}, "2"),
        ({**keys_of(NEW), "SHOP": "2"}, "2"),
    ]
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(listening_socket())) for _ in range(2)]
        ports = [int(each.getsockname()[1]) for each in sockets]
        first = {**keys_of(OLD), "SHOP": "1"}
        replicas = stack.enter_context(running_replicas(tmp_path, ports, sockets, first))
        nginx = stack.enter_context(running_nginx(tmp_path, ports))
        begun = Client(nginx.url).flow("buy", {"item": "tea"})
        asked = begun.start()
        load = Load(nginx.url)
        with load.running():
            for environment, version in phases:
                load.flows_after(10)
                replaced = [replica.process for replica in replicas]
                for replica in replicas:
                    replica.start(**environment, MRTR_SHUTDOWN_LAME_DUCK="0.3")
                for replica in replicas:
                    replica.wait_ready()
                for replica, process in zip(replicas, replaced, strict=True):
                    replica.end(process)
                assert f"version {version}" in Client(nginx.url).call("look", {"item": "tea"}).text
                if asked.questions:  # a flow of the old version and key goes on, a question in each phase
                    asked = begun.answer(load.answers_to(asked))
            load.flows_after(10)
        assert asked.text == FLOW_TEXT
    assert load.lost == []
    assert set(load.done) == {FLOW_TEXT}
    assert Counter(status for status, _ in nginx.replies).keys() == {"200"}
    assert all(", " not in tried for _, tried in nginx.replies), "a replica was away, though its socket was not"

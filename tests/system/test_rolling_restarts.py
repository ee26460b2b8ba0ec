"""Replicas behind a proxy are restarted, upgraded and given new keys while clients call them: nothing is lost."""

import json
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from mrtr_server.testing import Client

from ..support.haproxy import HAProxy, running_haproxy
from ..support.nginx import Nginx, find_nginx, running_nginx
from ..support.rolling import FLOW_TEXT, LAME_DUCK, Load, Replica, keys_of, listening_socket, running_replicas
from ..support.serving import TIMEOUT, free_ports, wait_until
from ..support.wire import ACCEPT, mirrored, modern
from ..transport.test_endpoint import raw_request

OLD, NEW = "01" * 32, "02" * 32
SHOWN = {"MRTR_METRICS_PATH": "/metrics"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all processes log to."""
    return tmp_path_factory.mktemp("rolling")


@pytest.fixture(scope="module")
def replicas(directory: Path) -> Iterator[list[Replica]]:
    """Three replicas, each with a socket of its own."""
    with running_replicas(directory, free_ports(3), (), {**keys_of(OLD), **SHOWN}) as replicas:
        yield replicas


@pytest.fixture(scope="module")
def nginx(directory: Path, replicas: list[Replica]) -> Iterator[Nginx]:
    """Nginx in front of them, with the configuration of the example."""
    with running_nginx(directory, [replica.port for replica in replicas]) as nginx:
        yield nginx


@pytest.fixture(scope="module")
def haproxy(directory: Path, replicas: list[Replica]) -> Iterator[HAProxy]:
    """HAProxy in front of them, with the configuration of the example."""
    with running_haproxy(directory, [replica.port for replica in replicas]) as haproxy:
        yield haproxy


@pytest.fixture(params=["nginx", "haproxy"])
def proxy(request: pytest.FixtureRequest) -> Nginx | HAProxy:
    """Each of them."""
    running: Nginx | HAProxy = request.getfixturevalue(request.param)
    return running


def test_rounds_of_a_flow_go_to_every_replica_in_turn(proxy: Nginx | HAProxy) -> None:
    before = len(proxy.replies)
    client = Client(proxy.url)
    for _ in range(6):
        client.call("look", {"item": "tea"})
    wait_until(lambda: len(proxy.replies) >= before + 6, "the log of the proxy")
    asked = Counter(each.rpartition(" ")[2] for _, each in proxy.replies[before:])
    assert len(asked) == 3, asked


def test_events_of_a_stream_pass_as_they_come(proxy: Nginx | HAProxy) -> None:
    """Without a setting of nginx: the server asks for it with `X-Accel-Buffering`."""
    message = modern("tools/call", {"name": "count", "arguments": {"to": 15}})
    message["params"]["_meta"]["progressToken"] = "p"
    headers = {"Content-Type": "application/json", "Accept": ACCEPT, **mirrored(message)}
    with (
        httpx.Client(trust_env=False, timeout=TIMEOUT) as client,
        client.stream("POST", proxy.url, content=json.dumps(message), headers=headers) as response,
    ):
        came = [(time.monotonic(), line) for line in response.iter_lines() if line.startswith("data:")]
    assert "counted" in came[-1][1]
    assert len(came) >= 4
    assert came[-1][0] - came[0][0] > 0.3, "the first event came with the last"


def test_a_client_that_leaves_ends_its_call(proxy: Nginx | HAProxy, replicas: list[Replica]) -> None:
    call = modern("tools/call", {"name": "count", "arguments": {"to": 1000}})  # for 200 seconds, in silence
    with closing(socket.create_connection(("127.0.0.1", proxy.port), TIMEOUT)) as connection:
        connection.sendall(raw_request(call))
        wait_until(lambda: in_flight(replicas) == 1, "the call")
    wait_until(lambda: in_flight(replicas) == 0, "the replica to notice")


def test_a_body_that_is_too_large_comes_to_no_replica(proxy: Nginx | HAProxy) -> None:
    before = len(proxy.replies)
    with closing(socket.create_connection(("127.0.0.1", proxy.port), TIMEOUT)) as connection:
        connection.sendall(b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 4194305\r\n\r\n")
        assert connection.recv(1024).startswith(b"HTTP/1.1 413 ")
    wait_until(lambda: len(proxy.replies) > before, "the log of the proxy")
    assert proxy.replies[-1] in (["413", "- -"], ["413", "<NOSRV>"])


def in_flight(replicas: list[Replica]) -> float:
    """Return how many requests the replicas serve, by their metrics."""
    shown = "\n".join(httpx.get(f"http://127.0.0.1:{each.port}/metrics", trust_env=False).text for each in replicas)
    return sum(map(float, re.findall(r"^mrtr_server_requests_in_flight (\S+)$", shown, re.MULTILINE)))


@pytest.mark.alone
def test_a_rolling_restart_loses_no_request(nginx: Nginx, replicas: list[Replica]) -> None:
    """With the settings of the example alone, and without `non_idempotent`: nginx sends no POST twice."""
    assert "non_idempotent" not in (nginx.directory / "tools.conf").read_text()
    assert f'MRTR_SHUTDOWN_LAME_DUCK: "{LAME_DUCK}"' in example("compose.yaml")
    before = len(nginx.replies)
    restart_each(replicas, nginx.url)
    replies = nginx.replies[before:]
    assert {status for status, _ in replies} == {"200"}
    tried = Counter(len(addresses.split(", ")) > 1 for _, addresses in replies)
    assert tried[True], "no request met a replica that was away, so the test shows nothing"


@pytest.mark.alone
def test_a_rolling_restart_behind_haproxy_loses_no_request(haproxy: HAProxy, replicas: list[Replica]) -> None:
    """It notices that a replica leaves by `/ready`, before the replica stops accepting."""
    before = len(haproxy.replies)
    restart_each(replicas, haproxy.url)
    assert {status for status, _ in haproxy.replies[before:]} == {"200"}
    text = haproxy.log.read_text()
    assert [name for name in ("tools-1", "tools-2", "tools-3") if f"Server tools/{name} is DOWN" not in text] == []


def restart_each(replicas: list[Replica], url: str) -> None:
    """Restart one replica after the other while clients walk flows, and check that all of these end well."""
    load = Load(url)
    with load.running():
        load.flows_after(10)
        for replica in replicas:
            replica.stop()
            replica.start(**keys_of(OLD), **SHOWN)
            replica.wait_ready()
            load.flows_after(10)
    assert load.lost == []
    assert set(load.done) == {FLOW_TEXT}


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

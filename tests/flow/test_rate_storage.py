"""Rate limits that replicas count together, in a real Redis and a real Valkey."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis as redis_client

from mrtr_server import MRTRServer, RateLimits
from mrtr_server.flow import rate_counters, rate_limiter
from mrtr_server.testing import AsyncClient, Reply

from ..support.rate_storage import SERVERS, RateStorage, running
from ..support.serving import TIMEOUT
from ..support.users import Bearer

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


@pytest.fixture
def anyio_backend() -> str:
    """In real time: Redis and Valkey are other processes."""
    return "asyncio"


@pytest.fixture(scope="module", params=SERVERS)
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RateStorage]:
    with running(request.param, tmp_path_factory.mktemp("storage")) as server:
        yield server


@pytest.fixture(autouse=True)
def empty(storage: RateStorage) -> None:
    with redis_client.Redis(port=storage.port) as client:
        client.flushall()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is very busy is no outage."""
    monkeypatch.setattr(rate_counters, "REDIS_TIMEOUT", 30.0)


def replica(storage: RateStorage, name: str = "site", **limits: Any) -> MRTRServer:
    rates = RateLimits(storage=storage.url, **limits)
    app = MRTRServer(name, keys=[bytes(32)], auth=Bearer(), rate_limits=rates)

    @app.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return app


@asynccontextmanager
async def started(*apps: MRTRServer) -> AsyncIterator[None]:
    """Let servers live as under a web server, so that they close what they open."""
    try:
        yield
    finally:
        for app in apps:
            await app._parts.rates.close()


async def call(app: MRTRServer, user: str = "ann") -> Reply:
    return await AsyncClient(app, token=user).flow("add", a=1, b=2).start()


async def test_replicas_count_together(storage: RateStorage) -> None:
    apps = [replica(storage, per_principal="3/hour") for _ in range(3)]
    async with started(*apps):
        statuses = [(await call(app)).status for app in apps * 2]
        assert statuses == [200] * 3 + [429] * 3
        refused = await call(apps[0])
        assert 1 <= int(refused.headers["retry-after"]) <= 7200
        assert (await call(apps[0], "bob")).status == 200


async def test_of_calls_at_the_same_time_as_many_run_as_may(storage: RateStorage) -> None:
    apps = [replica(storage, per_principal="10/hour") for _ in range(3)]
    async with started(*apps):
        replies = await asyncio.gather(*(call(app) for app in apps * 10))
        assert sorted(reply.status for reply in replies) == [200] * 10 + [429] * 20


async def test_servers_of_other_names_count_apart(storage: RateStorage) -> None:
    apps = [replica(storage, name, per_principal="1/hour") for name in ("one", "other")]
    async with started(*apps):
        assert [(await call(app)).status for app in apps * 2] == [200, 200, 429, 429]


async def test_what_is_stored_names_nobody_and_expires(storage: RateStorage) -> None:
    app = replica(storage, per_principal="5/minute", per_address="5/minute")
    async with started(app):
        await call(app, "ann@example.com")
    with redis_client.Redis(port=storage.port, decode_responses=True) as client:
        keys: list[str] = list(client.scan_iter())
        assert len(keys) == 2
        assert not [key for key in keys if "ann" in key or "127.0.0.1" in key]
        assert all(0 < int(client.ttl(key)) <= 120 for key in keys)


async def test_several_event_loops_may_use_one_server(storage: RateStorage) -> None:
    app = replica(storage, per_principal="1/hour")

    async def once() -> int:
        async with started(app):
            return (await call(app)).status

    statuses = [await asyncio.to_thread(asyncio.run, once()) for _ in range(2)]
    assert statuses == [200, 429]


class TestWhileItIsAway:
    @pytest.fixture(autouse=True)
    def _at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rate_limiter, "LOOK_AGAIN", 0.0)

    async def test_each_process_counts_by_itself_and_says_so_once(
        self, storage: RateStorage, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "mrtr_server")
        apps = [replica(storage, per_principal="2/hour") for _ in range(2)]
        async with started(*apps):
            assert (await call(apps[0])).status == 200
            storage.stop()
            try:
                for app in apps:
                    assert [(await call(app)).status for _ in range(3)] == [200, 200, 429]
            finally:
                storage.start()
            assert [(await call(apps[0])).status for _ in range(3)] == [200, 200, 429]
        away = [each for each in caplog.messages if "storage of the rate limits is unavailable" in each]
        back = [each for each in caplog.messages if "storage of the rate limits is back" in each]
        assert (len(away), len(back)) == (2, 1)
        assert "until it is back, each process counts by itself. Check RateLimits(storage=...)" in away[0]

    async def test_what_has_a_limit_is_refused_where_that_is_the_rule(
        self, storage: RateStorage, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = replica(storage, per_principal="2/hour", while_away="refuse")
        async with started(app):
            storage.stop()
            try:
                replies = [await call(app) for _ in range(3)]
                assert [(reply.status, reply.error.code) for reply in replies] == [(503, -32603)] * 3
                assert replies[0].headers["retry-after"] == "2"
                assert str(replies[0].error.data["reference"]) in caplog.text
                assert (await AsyncClient(app, token="ann").request("tools/list")).status == 200
            finally:
                storage.start()
            assert (await call(app)).status == 200
        assert caplog.text.count("is unavailable; until it is back, what has a rate limit is refused") == 1

    async def test_a_storage_that_does_not_answer_is_waited_for_once(
        self, storage: RateStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(rate_limiter, "LOOK_AGAIN", 60.0)
        monkeypatch.setattr(rate_counters, "REDIS_TIMEOUT", 4.0)
        app = replica(storage, per_principal="50/hour")
        async with started(app):
            with storage.frozen():
                async with asyncio.timeout(TIMEOUT):  # 164 seconds, if each waited
                    assert {(await call(app)).status for _ in range(41)} == {200}
            assert "it did not answer within 4 s" in caplog.text

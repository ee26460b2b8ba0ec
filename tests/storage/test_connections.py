"""Connections that stay open: who gets the next one, and when one is not used again."""

import asyncio
from typing import Any

import pytest

from mrtr_server.storage.sql.connections import Connections

from ..support.virtual_time import VirtualTime

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(virtual_time: VirtualTime) -> Any:
    """Nothing here waits for anything but time."""
    return virtual_time.backend


class Connection:
    """A connection, as far as it is opened and closed."""

    is_open = True

    def is_closed(self) -> bool:
        return not self.is_open

    def terminate(self) -> None:
        self.is_open = False

    async def close(self) -> None:
        self.terminate()


class Server:
    """Opens connections, unless it is away."""

    def __init__(self) -> None:
        self.opened: list[Connection] = []
        self.is_away = False

    async def open(self) -> Connection:
        await asyncio.sleep(0.01)
        if self.is_away:
            raise OSError("away")
        self.opened.append(Connection())
        return self.opened[-1]

    @property
    def open_now(self) -> int:
        return sum(each.is_open for each in self.opened)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def connections(server: Server) -> Connections:
    return Connections(server.open, 2, 60.0)


async def test_there_are_no_more_than_it_may_have_and_who_waits_longest_is_next(
    server: Server, connections: Connections
) -> None:
    served: list[int] = []

    async def use(number: int) -> None:
        connection = await connections.acquire()
        served.append(number)
        await asyncio.sleep(1)
        connections.release(connection)

    await asyncio.gather(*map(use, range(7)))
    assert served == list(range(7))
    assert len(server.opened) == 2


async def test_who_leaves_while_waiting_takes_none_with_them(server: Server, connections: Connections) -> None:
    used = [await connections.acquire() for _ in range(2)]
    first, second = (asyncio.create_task(connections.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    connections.release(used.pop())
    first.cancel()  # who has just got it
    assert await second in server.opened
    third = asyncio.create_task(connections.acquire())
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.wait([third])
    connections.release(used.pop())
    connections.release(second.result())
    assert {await connections.acquire(), await connections.acquire()} == set(server.opened)


async def test_a_place_outlives_a_connection_that_was_lost_or_could_not_be_opened(
    server: Server, connections: Connections
) -> None:
    used = [await connections.acquire() for _ in range(2)]
    server.is_away = True
    waiting = [asyncio.create_task(connections.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    for connection in used:
        connection.terminate()
        connections.release(connection)
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in done] == [OSError] * 3
    server.is_away = False
    assert await connections.acquire() is not await connections.acquire()


async def test_one_that_its_server_has_closed_is_not_used_again(server: Server, connections: Connections) -> None:
    connections.release(await connections.acquire())
    server.opened[0].terminate()
    assert await connections.acquire() is server.opened[1]


async def test_none_that_has_expired_is_used_again(server: Server, connections: Connections) -> None:
    used, idle = await connections.acquire(), await connections.acquire()
    connections.release(idle)
    connections.expire()
    assert (used.is_open, idle.is_open) == (True, False)
    connections.release(used)
    assert server.open_now == 0
    assert await connections.acquire() is server.opened[2]


async def test_those_without_use_are_closed_in_time(server: Server, connections: Connections) -> None:
    used = [await connections.acquire() for _ in range(2)]
    connections.release(used[0])
    await asyncio.sleep(30)
    connections.release(used[1])
    await asyncio.sleep(31)
    assert [each.is_open for each in used] == [False, True]
    await asyncio.sleep(30)
    assert server.open_now == 0


async def test_at_the_end_those_without_use_are_closed_and_the_others_cut_off(
    server: Server, connections: Connections
) -> None:
    used = [await connections.acquire() for _ in range(2)]
    connections.release(used[0])
    await connections.close()
    assert server.open_now == 1
    connections.cut_off()
    assert server.open_now == 0

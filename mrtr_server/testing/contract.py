"""What the contracts of stores share: how stores are made, how time passes, and tests that any pytest runs."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from secrets import token_hex
from typing import TypeVar
from unittest import SkipTest

from ..errors import Full
from ..storage.base import Store
from ..storage.quotas import Quota

C = TypeVar("C", bound="Contract")

LEASE, KEEP = 240.0, 4000.0  # what no test waits for, in the contract's own seconds


class Contract(ABC):
    """Makes stores for the tests of a contract."""

    second: float = 0.25
    """How long one second of the contract lasts, in seconds. A lease that must still hold has one of them left, so
    that is how long a store may take for a few calls. The tests sleep for some hundred of them in all. Where
    `pass_time` waits for nothing, a long one costs nothing: `second = 60.0`."""

    enforces_quotas: bool = True
    """Whether the store refuses what is beyond a `quota`, and claims tasks by their callers. With False, the tests of
    that are skipped."""

    enforces_tenants: bool = True
    """Whether it refuses what is beyond the share of a `tenant` as well. A server that names no tenants needs no store
    that does."""

    largest: int = 4 * 2**20
    """How large an outcome or a value may be, in bytes: the tests keep one of that size. A store that keeps less can't
    record larger results of tools."""

    @abstractmethod
    async def new_store(self) -> Store:
        """Return a store that can be used: another replica's at each call, all on the same data.

        A test calls it twice, on an event loop of its own, and closes both stores when it ends. The data may be left
        from other tests. A store that only its own process sees is returned twice.

        Returns:
            The store.
        """

    async def pass_time(self, seconds: float) -> None:
        """Let time pass by the clock of the stores. By default it sleeps; a clock that a test can move needs no wait.

        Args:
            seconds: how long, in seconds.
        """
        await asyncio.sleep(seconds)

    async def begin_epoch(self) -> None:
        """Begin another epoch in the data, as after a failover that lost writes.

        Raises:
            SkipTest: it is not overridden, so the test of it is skipped.
        """
        raise SkipTest(f"{type(self).__name__} does not begin epochs: override begin_epoch")

    async def forget(self, caller: str) -> None:
        """Forget a caller in the data, as of now; see `Store.forgotten`.

        Args:
            caller: the keyed digest in a `Quota`.

        Raises:
            SkipTest: it is not overridden, so the tests of it are skipped.
        """
        raise SkipTest(f"{type(self).__name__} forgets nobody: override forget")

    async def _pass(self, seconds: float) -> None:
        await self.pass_time(seconds * self.second)

    def _need_quotas(self) -> None:
        if not self.enforces_quotas:
            raise SkipTest(f"{type(self).__name__} enforces no quotas")

    def _need_tenants(self) -> None:
        self._need_quotas()
        if not self.enforces_tenants:
            raise SkipTest(f"{type(self).__name__} enforces no shares of tenants")


def promise(test: Callable[[C, Store, Store], Awaitable[None]]) -> Callable[[C], None]:
    """Make a test of a function that takes the stores of two replicas, on an event loop of its own."""

    async def failure_of(contract: C) -> Exception | None:
        __tracebackhide__ = True
        try:
            async with AsyncExitStack() as stack:
                stores = []
                for _ in range(2):
                    stores.append(await contract.new_store())
                    stack.push_async_callback(stores[-1].close)
                await test(contract, *stores)
        except Exception as failure:
            return failure
        return None

    def run(self: C) -> None:
        __tracebackhide__ = True
        if failure := asyncio.run(failure_of(self)):
            raise failure  # here, so that the event loop has no part in its traceback

    for name in ("__name__", "__qualname__", "__module__"):  # not `wraps`: pytest would take the stores for fixtures
        setattr(run, name, getattr(test, name))
    return run


async def refusal_of(work: Awaitable[object]) -> Full | None:
    """Return why something was refused; None if it was done."""
    try:
        await work
    except Full as refused:
        return refused
    return None


def three_of(caller: str) -> Quota:
    """Return a quota of which a caller's share is three of each."""
    return Quota(caller, tasks=2**16, states=2**16, share=3 / 2**16)


def three_of_tenant(tenant: str) -> Quota:
    """Return a quota of another caller of a tenant, whose share is three of each."""
    return Quota(token_hex(16), tasks=2**16, states=2**16, tenant=tenant, tenant_share=3 / 2**16)

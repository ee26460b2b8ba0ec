"""The life of a server: its startup, SIGTERM, draining, and the end within one deadline."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.types import Receive, Send

from ..addresses import root_url
from ..concurrency.running import watch_loop
from ..concurrency.threads import Threads
from ..errors import SetupError
from ..events.courier import Courier
from ..flow.admission import Admission
from ..flow.rate_limiter import RateLimiter
from ..flow.single_use import Redeemer
from ..logs.formats import plain
from ..logs.refusals import SERVERS, bound_lines_of
from ..tasks.worker import Worker
from ..transport.web_server import drain_on_sigterm, forget_sigterm
from .shared_resources import SharedResources

logger = logging.getLogger("mrtr_server")

LIFESPAN = 2 / 3  # the part of the seconds that are left at the end of a shutdown for leaving `lifespan=`


_page_is_shown = False


def note_page_is_shown() -> None:
    global _page_is_shown
    _page_is_shown = True


class Lifecycle:
    """Starts a server, and ends it. `page` is the path of the page that shows its inside, with its token; or empty."""

    def __init__(
        self,
        name: str,
        enter: Callable[[], AbstractAsyncContextManager[Any]],
        shared: SharedResources,
        threads: Threads,
        admission: Admission,
        redeemers: Sequence[Redeemer],
        worker: Worker,
        courier: Courier,
        rates: RateLimiter,
        *,
        observe: Callable[[], None],
        page: str,
        lame_duck: float,
        close_login: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._close_login = close_login
        self._name = name
        self._enter = enter
        self._shared = shared
        self._threads = threads
        self._admission = admission
        self._redeemers = redeemers
        self._worker = worker
        self._courier = courier
        self._rates = rates
        self._observe = observe
        self._page = page
        self._lame_duck = lame_duck
        self._told_draining = False
        self._runs = 0
        self._unbound: Callable[[], None]  # ends the bound of what the web server logs; there from the startup on
        self.hears_sigterm = False  # from the startup on; or from the first request, where the server is mounted

    async def serve(self, receive: Receive, send: Send, *, run_tasks: bool) -> None:
        await receive()
        if refusal := self._shared.refusal or await self._shared.check():
            await send({"type": "lifespan.startup.failed", "message": refusal})
            return
        phase = "startup"
        self.hear_sigterm()
        self._show_page(_root_of(receive))
        try:
            async with self.run(run_tasks=run_tasks):
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
        except Exception as error:
            message = plain(f"{self._name}: lifespan= failed at {phase}: {type(error).__name__}: {error}")
            logger.error("%s", message, exc_info=error)
            await send({"type": f"lifespan.{phase}.failed", "message": message})
        else:
            await send({"type": "lifespan.shutdown.complete"})
        finally:
            self._leave_server()

    @property
    def is_running(self) -> bool:
        return self._runs > 0

    @asynccontextmanager
    async def embed(self, *, run_tasks: bool) -> AsyncIterator[None]:
        """Run the server within another application, for as long as the block lasts; see `run`. Raises `SetupError`."""
        if refusal := self._shared.refusal or await self._shared.check():
            raise SetupError(refusal)
        self.hear_sigterm()
        self._show_page("")
        try:
            async with self.run(run_tasks=run_tasks):
                yield
        finally:
            self._leave_server()

    @asynccontextmanager
    async def run(self, *, run_tasks: bool) -> AsyncIterator[None]:
        """Run the server for as long as the block lasts: enter `lifespan=`, run tasks, and at the end drain."""
        shutdown = self._admission.shutdown
        self._runs += 1
        self._admission.reopen()
        self._told_draining = False
        try:
            async with AsyncExitStack() as stack:
                entered = self._enter()
                await entered.__aenter__()
                stack.push_async_exit(
                    lambda *raised: shutdown.in_time(entered.__aexit__(*raised), f"{self._name}: lifespan=", LIFESPAN)
                )
                self._observe()
                if run_tasks:
                    self._worker.start()
                self._courier.start()
                stop = self._admission.on_drain(self._log_draining)
                try:
                    yield
                finally:
                    stop()
                    self._admission.shut_down()
                    finishing = [redeemer.finish(shutdown) for redeemer in self._redeemers]
                    await asyncio.gather(self._worker.close(), self._courier.close(), *finishing)  # in the same seconds
            await shutdown.in_time(self._shared.watched.close(), f"{self._name}: the store")
            await shutdown.in_time(self._rates.close(), f"{self._name}: the storage of the rate limits")
            if self._close_login is not None:
                await shutdown.in_time(self._close_login(), f"{self._name}: the connections for logins")
        finally:
            self._runs -= 1
            if busy := self._threads.busy:
                logger.warning("%s: %d plain functions still run, and end with the process", self._name, busy)
            self._threads.close()
            self._admission.reopen()

    @asynccontextmanager
    async def work(self) -> AsyncIterator[None]:
        """Run tasks for as long as the block lasts, without serving requests."""
        watch_loop()
        async with self.run(run_tasks=True):
            yield

    def hear_sigterm(self) -> None:
        """Begin to drain on SIGTERM; see `drain_on_sigterm`. From now on, clients come by a network."""
        self.hears_sigterm = True
        self._unbound = bound_lines_of(*SERVERS)
        self._shared.serve_many()
        watch_loop()
        drain_on_sigterm(self._admission, self._lame_duck)

    def _leave_server(self) -> None:
        forget_sigterm(self._admission)
        self.hears_sigterm = False
        self._unbound()

    def _show_page(self, root: str) -> None:
        """Log the address of the page with its token, at a level at which its author sees it under any web server."""
        if self._page and not _page_is_shown:
            where = "" if root else " below where this server is mounted or served"
            logger.warning(
                "%s: debug=True, so the page to try it also shows what is inside. Open it with its token, at %s%s",
                self._name,
                f"{root}{self._page}",
                where,
            )

    def _log_draining(self) -> None:
        """Log that the server drains, unless it shuts down, which is logged with the signal."""
        if self._admission.draining and self._admission.shutdown.began is None and not self._told_draining:
            self._told_draining = True
            logger.info("Draining: calls continue in other replicas", extra={"fields": {"event": "drain"}})


def _root_of(receive: Receive) -> str:
    config: Any = getattr(getattr(receive, "__self__", None), "config", None)
    if type(config).__module__ != "uvicorn.config" or "gunicorn" in sys.modules or not config.port:
        return ""
    if config.uds is not None or config.fd is not None:
        return ""
    return root_url(config.host, config.port, "https" if config.is_ssl else "http")

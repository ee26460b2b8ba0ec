"""What all replicas of a server share: its keys and its store; and how many workers this process can see there are."""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import PurePath
from types import FrameType
from typing import Any

from ..crypto.keys import ENVIRONMENT as KEYS
from ..crypto.keys import KeyRing
from ..errors import SetupError, StoreUnavailable, WrongVersion
from ..storage import ENVIRONMENT as DATABASE
from ..storage import store_of
from ..storage.base import Store
from ..storage.health import Outage
from ..storage.memory import InProcessStore
from ..storage.watched import WatchedStore
from ..tally import Tally

logger = logging.getLogger("mrtr_server")


class SharedResources:
    """Uses the keys and the store that are given, or makes this process's own where that does no harm.

    What is given and can't be used raises `SetupError` where there is one worker only; with several, `refusal` says so.
    """

    def __init__(
        self,
        name: str,
        keys: KeyRing | Sequence[bytes] | None,
        store: Store | str | None,
        lease: float,
        clock: Callable[[], float],
        tally: Tally,
    ) -> None:
        self._name = name
        self._workers = worker_count()
        self._told_of_store = self._told_of_keys = self._told_of_events = False
        # Lines about servers that may have replicas; None once this is known to be one.
        self._untold: list[str] | None = []
        self.has_keys = True  # whether it was given keys; otherwise it has made one of its own
        self._store_failed = False
        self.refusal = ""  # why the server may not start
        self.waits: Mapping[str, object] = {}  # what flows may wait for that somebody else answers, by name
        self.ring = self._ring(keys)
        given = self._given_store(store)
        self._is_alone = given is None
        self.store: Store = given or InProcessStore(clock=clock)
        # Whether all workers see what one of them keeps.
        self.reaches_all_workers = self.store.shared or self._workers == 1
        self._outage = Outage(name)
        # The same store, for all who use it.
        self.watched = WatchedStore(self.store, self._outage, lease=lease, tally=tally)

    async def check(self) -> str:
        """Reach for the store at the start; return why the server may not start. An outage is only logged."""
        if why := self.lacks_store:
            logger.error("%s: %s", self._name, why)
            return f"{self._name}: {why}"
        try:
            await self.store.check()
        except WrongVersion as error:
            logger.error("%s: %s", self._name, error)
            return f"{self._name}: {error}"
        except StoreUnavailable as error:
            self._outage.failed("check", error)
        return ""

    async def is_usable(self) -> bool:
        """Return whether the store that replicas share can be used. A store of our own always can."""
        return not self.store.shared or await self.watched.is_usable()

    def require_shared_store(self, name: str, *, needed: bool = False) -> None:
        """Note that states of a tool, prompt or resource are redeemed once; `needed` where its author asked for that.

        Several workers without one store must not start then. Otherwise the log says once how far it goes.
        """
        if self.store.shared or self._store_failed:
            return
        if needed and self._workers > 1:
            self._refuse(
                f"{name!r} is single_use, and {self._workers} workers need one shared store for that: without it, "
                f"each of them may run the same request again. Give them a database with {DATABASE} or store=, or a "
                "store of your own that is shared"
            )
        elif not self._told_of_store:
            self._told_of_store = True
            self._tell(
                f"{self._name}: there is no shared store, so a state of {name!r}, as of every confirmation or "
                "single-use tool, is redeemed once in each process, not once in the fleet. With several replicas, set "
                f"{DATABASE}"
            )

    def runs_tasks(self, tool: str, *, run_tasks: bool) -> None:
        if not self.store.keeps_tasks:
            raise SetupError(f"{tool!r} has tasks, and the store= can't keep any; derive its class from TaskStore")
        self.keeps(f"the tasks of {tool!r}")
        if not run_tasks and self._is_alone and not self.refusal:
            self._refuse(
                f"run_tasks=False leaves the tasks of {tool!r} to other processes, and they share no store. "
                f"Give them a database with {DATABASE} or store=, or a store of your own that is shared"
            )
        if self.store.shared and not self.has_keys and not self.refusal and not self._told_of_keys:
            self._told_of_keys = True
            logger.warning(
                "%s: the tasks of %r are in a database, but this process made its own key, so nobody can open them "
                "after a restart. Set %s",
                self._name,
                tool,
                KEYS,
            )

    def keeps_events(self, name: str) -> None:
        """Note that events are kept in the store. Raises `SetupError` for one that keeps none."""
        if not self.store.keeps_events:
            raise SetupError(
                f"app.event({name!r}): the store= can't keep events; implement the methods of Store from add_event on, "
                "and set keeps_events"
            )
        self.keeps(f"the event {name!r}")
        if not (self.store.shared or self._store_failed or self._told_of_events):
            self._told_of_events = True
            self._tell(
                f"{self._name}: there is no database, so events such as {name!r} are kept in this process, and end "
                f"with it, and so do webhooks. Set {DATABASE}"
            )

    @property
    def lacks_store(self) -> str:
        """Why the server may not start with this store; empty where nothing waits for somebody else, or it can."""
        if not self.waits or self._store_failed:
            return ""
        named = f"app.wait({min(self.waits)!r})"
        if not self.store.keeps_waits:
            return (
                f"{named}: the store= can't list waits; implement put_wait, list_waits and remove_wait, and set "
                "keeps_waits"
            )
        if not self.store.shared and (self._is_alone or self._workers > 1):
            return (
                f"{named} needs a database, since flows wait for longer than a process lives, and any process may get "
                f"the answer. Set {DATABASE} or store="
            )
        return ""

    def keeps(self, what: str) -> None:
        """Note that something is kept in the store, which several workers must share."""
        if self._workers > 1 and not self.store.shared and not self.refusal:
            self._refuse(
                f"{self._workers} workers need one shared store for {what}: without it, no worker sees what another "
                f"one keeps. Give them a database with {DATABASE} or store=, or a store of your own that is shared"
            )

    def keeps_logins(self, base_url: str | None) -> None:
        """Note that codes and refresh tokens are redeemed once, by people who log in in their browsers."""
        self.keeps("logins")
        if not self.store.shared and not self._store_failed and not self.refusal:
            self._tell(
                f"{self._name}: there is no shared store, so a refresh token is redeemed once in each process, and "
                f"what was redeemed or revoked is forgotten at a restart. With several replicas, set {DATABASE}"
            )
        if base_url is None or not base_url.startswith("https://"):
            why = "missing" if base_url is None else "no https address"
            self._tell(
                f"{self._name}: base_url= is {why}, so people can log in on this machine alone, and their browsers "
                "keep cookies without the protection that https gives them"
            )

    def check_worker(self) -> None:
        """Check that a process that serves no requests can work on what others start. Raises `SetupError`."""
        if not self.store.shared:
            raise SetupError(
                f"{self._name}: there is no store that the servers share with their workers. Give them a database with "
                f"{DATABASE} or store=, or a store of your own that is shared"
            )
        if not self.has_keys:
            raise SetupError(
                f"{self._name}: workers can't open what the servers have sealed without their keys. Set {KEYS} to the "
                "same value for servers and workers; `mrtr-server keygen` makes a key"
            )

    def _given_store(self, store: Store | str | None) -> Store | None:
        try:
            return store if isinstance(store, Store) else store_of(store)
        except SetupError as error:
            self.refuse(error)
            self._store_failed = True
            return None

    def _ring(self, keys: KeyRing | Sequence[bytes] | None) -> KeyRing:
        given: Any = keys
        if isinstance(given, str | bytes | bytearray) or (
            isinstance(given, list | tuple) and any(isinstance(key, str) for key in given)
        ):
            raise SetupError(
                "keys= takes a KeyRing or a list of 32-byte secrets; text of hex digits is keys=KeyRing.parse(text), "
                "one secret is keys=[secret]"
            )
        try:
            if isinstance(keys, KeyRing):
                return keys
            ring = KeyRing.from_environment() if keys is None else KeyRing(keys)
        except SetupError as error:
            self.refuse(error)
            return KeyRing.generate()
        if ring is not None:
            return ring
        self.has_keys = False
        if self._workers > 1:
            self._refuse(
                f"{self._workers} workers need one shared key: without it, a flow that begins in one can't continue "
                f"in another. Start them with {KEYS}=$(mrtr-server keygen)"
            )
        else:
            self._tell(
                f"{self._name}: no keys are given, so this process made its own: flows end when it restarts, and no "
                f"other replica can continue them. Make a key with `mrtr-server keygen` and set {KEYS}"
            )
        return KeyRing.generate()

    def serve_many(self) -> None:
        """Note that clients reach this process by a network, so that it may have replicas; log what concerns these."""
        untold, self._untold = self._untold, None
        for line in untold or ():
            logger.warning("%s", line)

    def _tell(self, line: str) -> None:
        """Log what concerns servers that may have replicas: a process of one client's own never has any."""
        if self._untold is None:
            logger.warning("%s", line)
        else:
            self._untold.append(line)

    def refuse(self, error: SetupError) -> None:
        """Raise an error of the setup; or fail at the start: at import uvicorn would make workers for ever."""
        if self._workers == 1:
            raise error
        self._refuse(str(error))

    def _refuse(self, why: str) -> None:
        self.refusal = f"{self._name}: {why}"
        logger.error("%s", self.refusal)


DECLARED = "MRTR_WORKERS"  # how many workers there are, where `mrtr-server run` or an operator says so

WEB_CONCURRENCY = "WEB_CONCURRENCY"  # how many workers uvicorn starts, where nothing else says so

_OURS = ("mrtr-server", "mrtr_server")
_SERVERS = ("uvicorn", "gunicorn", "hypercorn", "granian")


def worker_count() -> int:
    """Return the number of workers that the web server was told to start; 1 where nothing says otherwise.

    What is said first counts: by `MRTR_WORKERS`; by the arguments of the command, which new processes inherit; by the
    settings of the server, which loads the application, so that its own frames are on the stack; by `WEB_CONCURRENCY`.
    """
    declared = _in_environment(DECLARED) or _in_arguments(sys.argv) or _in_frames()
    return declared or (_in_environment(WEB_CONCURRENCY) if "uvicorn" in sys.modules else 0) or 1


def _in_environment(name: str) -> int:
    given = os.environ.get(name, "")
    return max(1, int(given)) if given.isdecimal() else 0  # anything else is refused by whoever starts workers


def _in_arguments(arguments: Sequence[str]) -> int:
    """Return the number that a command was given; 0 where it was given none, or is no command of a web server."""
    path = PurePath(arguments[0])
    command = path.parent.name if path.name == "__main__.py" else path.stem
    if command in _OURS or (command == "uvicorn" and "--reload" in arguments):
        return 1
    if command not in _SERVERS:
        return 0
    for argument, following in zip_longest(arguments[1:], arguments[2:], fillvalue=""):
        given = following if argument in ("--workers", "-w") else argument.removeprefix("--workers=").removeprefix("-w")
        if given != argument and given.isdecimal():
            return int(given)
    return 0


def _in_frames() -> int:
    """Return the number in the settings of the server that is on the stack, such as those in a file; 0 if none is."""
    most = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        most = max(most, *(_in_settings(frame.f_locals.get(name)) for name in ("self", "config")))
        frame = frame.f_back
    return most


def _in_settings(owner: Any) -> int:
    packages = {each.__module__.partition(".")[0] for each in type(owner).__mro__}
    if packages.isdisjoint(_SERVERS):
        return 0
    if "uvicorn" in packages and getattr(owner, "reload", False):  # there is one, whatever its settings say
        return 1
    found = getattr(getattr(owner, "cfg", owner), "workers", 0)  # a worker of gunicorn has its settings
    return found if isinstance(found, int) else 0

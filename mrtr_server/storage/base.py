"""What a store is: it keeps what must be the same on all replicas, and grants the right to run something."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from ..errors import StoreUnavailable
from .pubsub import Fanout, InProcessFanout
from .quotas import ANY, Quota
from .rows import FREE, EventPage, EventRow, Places, Position, Redemption, SubscriptionRow, TaskRow, Vitals, WaitRow


class Store(ABC):
    """Keeps what must be the same on all replicas.

    A store of your own subclasses this class, and implements what is abstract: redeemed states, and values. The other
    methods have a default, which is right for a store that needs no connection, carries no changes and keeps no tasks.
    One that keeps tasks subclasses `TaskStore`.

    Keys are digests, and values are sealed before they come here, see `in_memory`. All durations are in seconds. What
    has expired counts as absent. A method that can't do its work raises `StoreUnavailable`: then either nothing is
    done, or all of it is and only the reply was lost. A grant whose reply was lost ends with its lease.
    """

    shared: bool = False
    """Whether other processes see what this one keeps. Set it to true for a store that replicas share: several workers
    refuse to start without one where they need it."""

    in_memory: bool = False
    """Whether what it keeps never leaves the memory of this process, so that the answers and outcomes of open calls
    come here as they are."""

    one_machine: bool = False
    """Whether all processes that share it must run on one machine, as with a file."""

    keeps_tasks: bool = False
    """Whether it keeps tasks; see `TaskStore`."""

    keeps_events: bool = False
    """Whether it keeps events and their subscriptions; one that does implements all methods from `add_event` on."""

    keeps_waits: bool = False
    """Whether it lists waits for somebody else; one that does implements `put_wait`, `list_waits` and `remove_wait`."""

    default_room: int = 1
    """By how much the defaults of `Limits(stored_tasks=..., stored_states=..., stored_bytes=...)` are multiplied, since
    a fleet with a database server keeps more than one machine does. A limit that is set counts as it is."""

    has_epochs: bool = False
    """Whether it returns an `epoch`, and takes one in `redeem`. Otherwise nothing names one here, and what names one is
    of another store."""

    async def epoch(self) -> str:
        """Return what names this life of the store: another one in each store, and after what it kept was lost.

        States that are redeemed once name it, and so do the ids of tasks. So none of them counts in another store, or
        after a failover that lost what was redeemed.

        Returns:
            The epoch, of letters and digits; empty in a store that has none. It may be half a minute old.

        Raises:
            StoreUnavailable: it is not known.
        """
        return ""

    async def forgotten(self) -> Mapping[str, float]:
        """Return who was forgotten, so that no flow of theirs from before continues. By default nobody was.

        It is called twice a minute at most, and when a server hears that somebody was forgotten. A store that forgets
        compares `Quota.begun` with it, too, so that nothing of before is stored afterwards: in `redeem`, whose verdict
        is `"forgotten"` then; in `put` and `replace`, which keep nothing; and in `add_task`, which raises
        `InvalidRequestState`. So do `put_wait`, by the wait's `created`, which lists nothing; and `put_subscription`,
        by `updated`, which raises as `add_task` does.

        Returns:
            When each was, in seconds since the epoch, by the keyed digest in a `Quota`.

        Raises:
            StoreUnavailable: it is not known.
        """
        return {}

    # Redeemed states

    @abstractmethod
    async def redeem(
        self,
        state: str,
        answers: str,
        *,
        lease: float,
        keep: float,
        lapsed: bool = True,
        quota: Quota = ANY,
        epoch: str = "",
    ) -> Redemption:
        """Grant a delivery of a sealed state, or return why it is not granted; atomically.

        Args:
            state: digest of the state.
            answers: digest of the answers that came with it.
            lease: how long a grant is valid unless it is renewed, in seconds. Where a lease ended without an outcome,
                its replica has died, or could not reach the store: the next delivery of the same answers is granted
                again, with another token.
            keep: how long the record is kept, from the first delivery, in seconds. It is at least as long as the state
                can be opened.
            lapsed: whether it is granted again where a lease ended without an outcome. Otherwise the verdict is
                `"running"`, and the former holder may still renew it.
            quota: who delivers it, and how much may be stored before a state that is new is refused. No state is
                removed early to make room, or it could be redeemed again.
            epoch: what the state names; empty where it names none, and never given to a store without epochs. If it is
                not the store's own at this moment, the state is not granted: compare them in the same transaction.

        Returns:
            Whether it may run, and if not, why; see `Redemption`.

        Raises:
            Full: the state is new, and the quota is used up. See `OverShare`, too.
            StoreUnavailable: it could not be done, or its reply was lost.
        """

    @abstractmethod
    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        """Extend the lease of a grant, from now on.

        A grant whose lease has ended is this token's until another delivery takes it.

        Args:
            state: digest of the state.
            token: of the grant.
            lease: how long it is valid, in seconds.

        Returns:
            Whether it was extended; False if the grant is not this token's any more, or an outcome is recorded.

        Raises:
            StoreUnavailable: as for `redeem`.
        """

    @abstractmethod
    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        """Keep the outcome of a granted delivery, for all later ones.

        The first outcome stays. Recording the same one again is not an error.

        Args:
            state: digest of the state.
            token: of the grant.
            outcome: its outcome, sealed.

        Returns:
            Whether that outcome is kept; False, and nothing is changed, if the grant is not this token's any more.

        Raises:
            StoreUnavailable: as for `redeem`.
        """

    @abstractmethod
    async def release(self, state: str, token: str) -> None:
        """Remove a grant, as if the state had never been delivered.

        Nothing happens if it is not this token's any more, or an outcome is recorded.

        Args:
            state: digest of the state.
            token: of the grant.

        Raises:
            StoreUnavailable: as for `redeem`.
        """

    # Values

    @abstractmethod
    async def put(self, key: str, value: bytes, *, keep: float, quota: Quota = ANY) -> bool:
        """Keep a value, if there is none for the key; atomically.

        Args:
            key: a digest.
            value: sealed.
            keep: how long it is kept, in seconds.
            quota: who it is kept for, and how much may be stored before a value that is new is refused.

        Returns:
            Whether it was kept: there was none, and its caller was not forgotten.

        Raises:
            Full: as for `redeem`.
            StoreUnavailable: as for `redeem`.
        """

    @abstractmethod
    async def get(self, key: str) -> bytes | None:
        """Return the value of a key.

        Args:
            key: a digest.

        Returns:
            The value; None if there is none, or it has expired.

        Raises:
            StoreUnavailable: as for `redeem`.
        """

    async def replace(self, key: str, value: bytes, *, keep: float, quota: Quota = ANY) -> None:
        """Keep a value in place of the one that is there for the key. By default none can be replaced.

        Args:
            key: a digest, after `login-` for a login; none that `put` is called with.
            value: sealed.
            keep: how long it is kept, in seconds.
            quota: who it is kept for, and how much may be stored before a value for a new key is refused.

        Raises:
            Full: as for `redeem`.
            StoreUnavailable: as for `redeem`.
        """
        raise StoreUnavailable(f"{type(self).__name__} can't replace values; implement its method replace")

    # Connections: none, unless a subclass has some

    async def check(self) -> None:  # noqa: B027  not every store has connections
        """Connect, so that what is wrong is known when the server starts.

        Raises:
            WrongVersion: another release made what is stored, so the server must not start.
            StoreUnavailable: the store can't be used for now. The server starts, and the log says so.
        """

    async def close(self) -> None:  # noqa: B027  nor something to end
        """End the connections. The store may be used again afterwards."""

    async def measure(self, tools: Sequence[str]) -> Vitals:
        """Return what operators want to know of the store. It is called a few times a minute.

        Args:
            tools: the tools whose waiting tasks are counted.

        Returns:
            What is stored, and what waits; by default nothing.

        Raises:
            StoreUnavailable: it can't be found.
        """
        return Vitals()

    # Changes: within this process, unless a subclass carries them further

    def fanout(self) -> Fanout:
        """Return what carries change notifications. By default it reaches the listeners of this process."""
        return InProcessFanout()

    # Tasks: none, unless a subclass keeps some

    async def add_task(self, row: TaskRow, *, seconds: float = 0.0, quota: Quota = ANY) -> bool:
        """Keep a new task. When this returns, every replica finds it, and it survives a crash.

        Args:
            row: the task.
            seconds: how long its lease is valid, if it has one, in seconds.
            quota: how much may be stored before a task that is new is refused; of the row's `caller`.

        Returns:
            Whether it is new. If there is one of that id already, that one stays as it is.

        Raises:
            Full: as for `redeem`.
            StoreUnavailable: it could not be done, or its reply was lost.
        """
        # Methods with a default answer for an empty store. This one has none: a server whose tools have tasks refuses
        # such a store when it is made.
        raise NotImplementedError(f"{type(self).__name__} keeps no tasks")

    async def find_task(self, id: str) -> TaskRow | None:
        """Return a task.

        Args:
            id: whatever a client sent.

        Returns:
            The task; None if there is none, or it has expired.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        return None

    async def find_tasks(self, ids: Sequence[str], *, most_bytes: int) -> list[TaskRow]:
        """Return tasks as their clients may see them, in one go.

        Args:
            ids: sorted, each once.
            most_bytes: about how large they may be together, in bytes; the first is returned however large it is.

        Returns:
            Those of the first ids that exist, in the order of the ids, without request and journal. If there may be
            more, ask again with the ids after the last one.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        found: list[TaskRow] = []
        for id in ids:
            row = await self.find_task(id)
            if row is not None and found and most_bytes < row.visible_bytes:
                break
            if row is not None:
                most_bytes -= row.visible_bytes
                found.append(row)
        return found

    async def list_owned_tasks(
        self, owner: str, *, before: tuple[float, str], most: int, most_bytes: int
    ) -> list[TaskRow]:
        """Return tasks of one owner as their client may see them, the newest first.

        Args:
            owner: whose they are; never empty.
            before: when the task was created after which to begin, in seconds since the epoch, and its id.
            most: how many to return.
            most_bytes: about how large they may be together, in bytes; the first is returned however large it is.

        Returns:
            The tasks, without request and journal. Those of one moment come in an order that stays.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        return []

    async def change_task(self, row: TaskRow, *, seconds: float | None = None, **changes: Any) -> TaskRow | None:
        """Change fields of a task, atomically, if it still has the version of `row`.

        Args:
            row: the task as it was.
            seconds: how long the lease among the changes is valid, from now on, in seconds; None leaves its end as
                it is.
            changes: the fields, by name.

        Returns:
            The task with the changes and its next version. None, and nothing is changed, if it has another version by
            now or is gone.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        return None

    async def claim_tasks(
        self,
        lease: str,
        *,
        seconds: float,
        most: int,
        tools: Sequence[str],
        without: Sequence[str] = (),
        lapsed: bool = True,
        places: Places = FREE,
    ) -> list[TaskRow]:
        """Lease tasks of some tools that are working and that nobody runs.

        The next task is always of the caller that has the fewest, counting those that it has already and those that it
        gets with this claim; and of callers that have as many, the task that waits longest. Each task gets the lease,
        its end, one attempt more, and its next version. No other claim gets it before the lease has ended. Its deadline
        may have passed.

        Args:
            lease: names who takes them.
            seconds: how long the lease is valid, in seconds.
            most: how many to take.
            tools: the tools, by name.
            without: the ids of tasks to leave.
            lapsed: whether to take tasks over whose lease has ended. Otherwise those are left to their workers, which
                may live and have been unable to renew it.
            places: how many tasks each caller has already, and how many it may have.

        Returns:
            The tasks as they are now; none if there is nothing to do.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        return []

    async def renew_tasks(self, lease: str, ids: list[str], *, seconds: float) -> set[str]:
        """Extend a lease on tasks, from now on. Their version stays.

        It is extended on those that are working, and on those that were cancelled: of these, a step may still run.

        Args:
            lease: names who has taken them.
            ids: of the tasks.
            seconds: how long it is valid, in seconds.

        Returns:
            The ids of those that are still working under it.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        return set()

    async def holds_task(self, lease: str, id: str) -> bool:
        """Check whether a task is still working under a lease.

        By default the whole task is looked up.

        Args:
            lease: names who has taken it.
            id: of the task.

        Returns:
            Whether it was so at a moment after this was called: what had been changed by then is seen.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        row = await self.find_task(id)
        return row is not None and row.lease == lease and row.status == "working"

    async def overdue_tasks(self, *, most: int) -> list[TaskRow]:
        """Return tasks that have not ended and whose deadline has passed; and delete, now and then, what has expired.

        Args:
            most: how many to return.

        Returns:
            The tasks, those first whose deadline passed first.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        return []

    async def wait_for_tasks(
        self, seconds: float, *, tools: Sequence[str], without: Sequence[str] = (), lapsed: bool = True
    ) -> None:
        """Wait until there may be something to claim of some tools, without some tasks.

        The wait ends at once where something came after the last claim on this event loop began, or where that claim
        left something because it took its most.

        Args:
            seconds: how long to wait at most, in seconds.
            tools: the tools, by name.
            without: the ids of tasks to leave.
            lapsed: whether tasks count whose lease has ended.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        await asyncio.sleep(seconds)

    # Waits for somebody else: none, unless a subclass lists some

    async def put_wait(self, row: WaitRow) -> None:
        """List a wait. If there is one of that id already, its `who` changes, and nothing else.

        Args:
            row: the wait.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        raise NotImplementedError(f"{type(self).__name__} lists no waits")

    async def list_waits(self, name: str, who: str, *, before: tuple[float, str], most: int) -> list[WaitRow]:
        """Return waits of one name, the newest first.

        Args:
            name: what `app.wait` called them.
            who: only those with this `who`; an empty one is one, too.
            before: when the wait began after which to begin, in seconds since the epoch, and its id.
            most: how many to return.

        Returns:
            The waits. Those of one moment come in an order that stays.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        return []

    async def remove_wait(self, id: str) -> None:  # noqa: B027  nor something to remove
        """Remove a wait; nothing happens if there is none.

        Args:
            id: names it.

        Raises:
            StoreUnavailable: as for `add_task`.
        """

    # Events: none, unless a subclass keeps some

    async def add_event(self, row: EventRow) -> bool:
        """Keep an event. When this returns, every replica can read it, or will once older transactions have ended.

        Args:
            row: the event. Its position does not count.

        Returns:
            Whether it is new. If there is one of that id already, that one stays as it is.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        raise NotImplementedError(f"{type(self).__name__} keeps no events")

    async def read_events(
        self, names: Sequence[str], after: Position | None, *, most: int, most_bytes: int
    ) -> EventPage:
        """Return events after a position, in the order of their positions.

        No event ever comes to be readable before one that was: whoever continues from `reached` misses none.

        Args:
            names: of the types to read.
            after: where to begin; None for the end of the log, where there is nothing yet.
            most: how many to return.
            most_bytes: about how large they may be together, in bytes; the first is returned however large it is.

        Returns:
            The page.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        raise NotImplementedError(f"{type(self).__name__} keeps no events")

    async def trim_events(self, name: str, most: int) -> None:
        """Remove the oldest events of a type, until no more than so many are left.

        Args:
            name: of the type.
            most: how many to leave.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        raise NotImplementedError(f"{type(self).__name__} keeps no events")

    async def put_subscription(
        self, row: SubscriptionRow, *, most: int | None = None, most_in_all: int | None = None
    ) -> SubscriptionRow | None:
        """Keep a subscription. If there is one of that id, its `body`, `updated` and `expires` change, nothing else.

        One that has ended is as good as none: the new one takes its place.

        Args:
            row: the subscription.
            most: how many of its kind its caller may have, where it is a new one; None for any number.
            most_in_all: how many of its kind there may be.

        Returns:
            The subscription as it was before; None if it is new.

        Raises:
            Full: it is new, and there are as many already; an `OverShare` where it is its caller who has them.
            StoreUnavailable: as for `add_task`.
        """
        raise NotImplementedError(f"{type(self).__name__} keeps no events")

    async def find_subscription(self, id: str) -> SubscriptionRow | None:
        """Return a subscription.

        Args:
            id: names it.

        Returns:
            The subscription; None if there is none, or it has ended.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        return None

    async def list_subscriptions(self, *, after: str = "", most: int, since: float = 0.0) -> list[SubscriptionRow]:
        """Return subscriptions in the order of their ids, and those that ended within `ENDED_SECONDS`.

        Args:
            after: the id after which to begin.
            most: how many to return.
            since: only those that were updated then or later, in seconds since the epoch.

        Returns:
            The subscriptions.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        return []

    async def remove_subscription(self, id: str, *, updated: float | None = None) -> bool:
        """Remove a subscription, whether it has ended or not.

        Args:
            id: names it.
            updated: only if it was not updated again since this `updated` of it, by whoever has subscribed meanwhile.

        Returns:
            Whether it was removed.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        return False

    async def advance_subscriptions(self, lease: str, holder: str, progress: Mapping[str, str]) -> bool:
        """Change the progress of subscriptions, all at once, if somebody still has a lease.

        Args:
            lease: its name.
            holder: who should have it.
            progress: by the ids of the subscriptions. Those that are gone are left out.

        Returns:
            Whether it was changed; False, and nothing is changed, if somebody else has the lease by now.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        return False

    async def take_lease(self, lease: str, holder: str, *, seconds: float) -> bool:
        """Take a lease that nobody has, or extend it, from now on.

        Args:
            lease: its name.
            holder: who takes it.
            seconds: how long it is valid, in seconds; 0 gives it back.

        Returns:
            Whether the holder has it; False if somebody else has.

        Raises:
            StoreUnavailable: as for `add_task`.
        """
        return False


class TaskStore(Store):
    """A store that keeps tasks as well. It implements all methods that concern them, as `Store` describes them.

    A method that can't do its work raises `StoreUnavailable`; nothing is half done then. Anything past its `expires`
    counts as absent. Leases are by the store's own clock.
    """

    keeps_tasks = True

    @override
    @abstractmethod
    async def add_task(self, row: TaskRow, *, seconds: float = 0.0, quota: Quota = ANY) -> bool: ...

    @override
    @abstractmethod
    async def find_task(self, id: str) -> TaskRow | None: ...

    @override
    @abstractmethod
    async def list_owned_tasks(
        self, owner: str, *, before: tuple[float, str], most: int, most_bytes: int
    ) -> list[TaskRow]: ...

    @override
    @abstractmethod
    async def change_task(self, row: TaskRow, *, seconds: float | None = None, **changes: Any) -> TaskRow | None: ...

    @override
    @abstractmethod
    async def claim_tasks(
        self,
        lease: str,
        *,
        seconds: float,
        most: int,
        tools: Sequence[str],
        without: Sequence[str] = (),
        lapsed: bool = True,
        places: Places = FREE,
    ) -> list[TaskRow]: ...

    @override
    @abstractmethod
    async def renew_tasks(self, lease: str, ids: list[str], *, seconds: float) -> set[str]: ...

    @override
    @abstractmethod
    async def overdue_tasks(self, *, most: int) -> list[TaskRow]: ...

    @override
    @abstractmethod
    async def wait_for_tasks(
        self, seconds: float, *, tools: Sequence[str], without: Sequence[str] = (), lapsed: bool = True
    ) -> None: ...

"""How much a request and a flow may use, and what JSON costs: how many values it has, and how deep it is."""

import math
from dataclasses import dataclass
from typing import Any

from .errors import OverBudget, ParseError, SetupError
from .fields import Group, having
from .well_formed import read_json

LONGEST_KEY = 256
"""Characters of a progress token, of the id of a request, of a key; or digits, where it is a number."""

LONGEST_NAME = 2048

LONGEST_RESPONSE_ID = 4096
"""Characters of the id of a response: it may be one that a server sealed."""

LARGEST_META = 64 * 1024
"""Bytes of all that a task keeps of its request besides the arguments: its `_meta` above all."""

MOST_IN_BATCH = 100

STORED = ("stored_tasks", "stored_states", "stored_bytes")
"""The limits of what a store keeps, for all processes that share it."""

LARGEST_LIMIT = 10**15
"""What any limit may be at most: more of it than a process can ever have or wait for."""

_PROSE = bytes(set(range(256)) - set(b'"\\,[{/bfnrtu'))
"""All bytes but those that tell values apart, and those that a backslash makes an escape with."""

_LARGEST_KEY = 10**LONGEST_KEY
_LEAST_KEY = -_LARGEST_KEY


def is_longer(value: str | int, longest: int) -> bool:
    """Return whether an id has more than so many characters, or a number more digits than a key may have."""
    return len(value) > longest if isinstance(value, str) else not _LEAST_KEY < value < _LARGEST_KEY


def check_length(value: str | int, longest: int, what: str) -> None:
    if is_longer(value, longest):
        raise too_long(what, longest)


def too_long(what: str, longest: int) -> OverBudget:
    return OverBudget(f"{what} is longer than {longest} characters", what, longest)


def share_of(total: int, part: float) -> int:
    return max(1, int(total * part))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Group):
    """Limits of requests and flows. Every default is safe to keep.

    Args:
        body_bytes: size of a request body, or of a line on standard input, in bytes.
        json_depth: how deep arrays and objects may nest in a request; 200 at most.
        values: how many JSON values a request may hold, an empty array or object counting twice.
        answers: how many `inputResponses` one request may have.
        rounds: how often a flow may ask for input. The official clients give up after 10.
        state_only_rounds: how often the server may return a state without a question. Rounds that a handler ends
            itself, by keeping another state, are not counted here.
        unanswered_asks: how often in a minute the same request of the same caller may be answered with questions, in
            each process, while none of them is answered; likewise for the same state. Ten times as often for callers of
            whom an address alone is known. A request beyond that is refused with a 429. Where anything has a rate,
            `RateLimits(per_flow=...)` counts in its place. None for any number.
        state_bytes: size of a journal before it is sealed, in bytes.
        streamed_bytes: how large the pieces of a result may be together that an async generator yields, in bytes of
            JSON.
        state_seconds: how long a sealed state can be used, in seconds; a tool's `answer_within` overrides it.
        flow_seconds: how long a whole flow may take in rounds, in seconds. A task lives as long as its time to live.
        lease_seconds: how long a replica that runs a single-use round or a task may be silent before another one may
            run it, in seconds; at least 3. While it runs, it renews its lease every third of that.
        write_seconds: how long a client may read nothing of what is sent to it, in seconds, before it is disconnected.
        hold_seconds: how long a client is held that retries before a page has reported, in seconds. Keep it below the
            timeouts of the proxies in between.
        held_streams: how many streams a process holds open at once for clients of the handshake era: of calls that wait
            for a person, and of notifications.
        held_bytes: how large the requests may be together that a process holds in memory, in bytes: those that come in,
            run or wait, and what listeners listen to. A call that waits for a person is not held, since the store has
            it. Requests of up to 4 KiB do not count, nor does the first one of a caller, however large it is.
        open_requests: how many requests of a client on standard input are served at once, without those that wait for a
            person; no more is read meanwhile.
        threads: how many plain `def` handlers and steps run at once.
        task_seconds: how long a task is kept, from its creation, in seconds; `Task(ttl=...)` of a tool overrides it.
        poll_seconds: how often a client should ask for its task, in seconds; `Task(poll=...)` of a tool overrides it.
        first_ask_seconds: how long a call waits for the first ask of its task, if its client would rather see that than
            an empty task; and how long `tasks/get` with an answer waits; in seconds.
        result_wait_seconds: how long a request for a task's result waits while the task runs, in seconds. Keep it below
            the timeouts of the proxies in between.
        task_waits: how many requests wait for tasks at once in a process.
        tasks: how many tasks run at once in a process.
        task_attempts: how often a task may end its worker before it is failed.
        stored_tasks: how many tasks are stored at once, from their creation until they expire.
        stored_states: how many states that were redeemed, reports of callbacks, and values of open calls and sessions
            are stored at once. They are never removed before they expire, so new ones are refused.
        stored_bytes: how large tasks, outcomes and reports may be together for new ones to be stored, in bytes. On
            PostgreSQL, ten times of each of these three are stored, unless you give it.
        listeners: how many `subscriptions/listen` and `events/stream` streams are open at once in a process.
        subscriptions: how many webhooks are subscribed to events at once.
        caller_share: which part of `stored_tasks`, `stored_states`, `stored_bytes`, `listeners`, `subscriptions`,
            `task_waits`, `held_streams` and `held_bytes` one authenticated caller may use, above 0 and at most 1; and
            which part of `tasks` is kept for callers that use less than it. Callers without authentication may use all.
        tenant_share: which part of `stored_tasks`, `stored_states` and `stored_bytes` all callers of one tenant may use
            together, above 0 and at most 1; see `Principal`. Such a caller may use `caller_share` of that part.
        max_concurrency: how many calls of tools, prompts and resources run at once in a process; the others wait their
            turn. None for any number.
        max_queue: how many calls wait at most, for `max_concurrency`. A call above that is handed to another replica;
            if that has too much to do as well, or the call can't continue elsewhere, it is refused with a 503. Twice
            as many may wait in which something was answered or done before. None for any number.
        queue_seconds: how long a call waits for its turn at most, in seconds; twice as long if something was answered
            or done in it before. One that would wait for longer, as far as that is known, is handed over or refused at
            once. None for any time.
        shed_above: how many such calls, running or waiting, a process takes before it hands calls to other replicas. A
            new call is handed back at once. If there are still too many, since some can't continue elsewhere, running
            calls are handed back at their next step or `ctx.checkpoint()`. None for never.

    Raises:
        SetupError: a limit is no number, not positive or over 10**15, `json_depth` is over what the parser accepts,
            `lease_seconds` is below 3, a share is over 1, or there is a queue without `max_concurrency`.
    """

    _SHORTEST_LEASE = 3.0

    body_bytes: int = 4 * 1024 * 1024
    json_depth: int = 64
    values: int = 100_000
    answers: int = 64
    rounds: int = 10
    state_only_rounds: int = 3
    unanswered_asks: int | None = 20
    state_bytes: int = 256 * 1024
    streamed_bytes: int = 4 * 1024 * 1024
    state_seconds: float = 3600.0
    flow_seconds: float = 24 * 3600.0
    lease_seconds: float = 30.0
    write_seconds: float = 30.0
    hold_seconds: float = 25.0
    held_streams: int = 10_000
    held_bytes: int = 256 * 1024 * 1024
    open_requests: int = 1000
    threads: int = 40
    task_seconds: float = 3600.0
    poll_seconds: float = 1.0
    first_ask_seconds: float = 1.0
    result_wait_seconds: float = 30.0
    task_waits: int = 1000
    tasks: int = 100
    task_attempts: int = 5
    stored_tasks: int = 1_000_000
    stored_states: int = 1_000_000
    stored_bytes: int = 4 * 1024 * 1024 * 1024
    listeners: int = 1000
    subscriptions: int = 10_000
    caller_share: float = 0.1
    tenant_share: float = 0.5
    max_concurrency: int | None = None
    max_queue: int | None = None
    queue_seconds: float | None = None
    shed_above: int | None = None

    def __post_init__(self) -> None:
        for name, field in self.__dataclass_fields__.items():
            _check(name, getattr(self, name), optional=field.default is None or name == "unanswered_asks")
        if self.json_depth > 200:
            raise SetupError("Limits(json_depth=...) can be 200 at most: the JSON parser stops there")
        if self.lease_seconds < self._SHORTEST_LEASE:
            raise SetupError(
                f"Limits(lease_seconds={self.lease_seconds:g}) must be at least {self._SHORTEST_LEASE:g}: otherwise a "
                "process that is busy for a moment, or whose database is slow, loses its leases, and others run its "
                "tasks and rounds again. For tests, there is short_lease() in mrtr_server.testing"
            )
        for name in ("caller_share", "tenant_share"):
            if getattr(self, name) > 1:
                raise SetupError(f"Limits({name}=...) can be 1 at most: the whole")
        for name in ("max_queue", "queue_seconds"):
            if self.max_concurrency is None and getattr(self, name) is not None:
                raise SetupError(f"Limits({name}=...) needs max_concurrency=...: without it, no call ever waits")

    def share_of(self, total: int) -> int:
        """Return how much of a total one authenticated caller may use.

        Args:
            total: one of these limits, in its unit.

        Returns:
            Its `caller_share`, and at least 1.
        """
        return share_of(total, self.caller_share)


def with_room(limits: Limits, times: int) -> Limits:
    """Return limits with the defaults of what is stored multiplied; what was given stays as it is."""
    return having(limits, **{name: times * getattr(limits, name) for name in STORED if name not in limits.given})


def _check(name: str, value: object, *, optional: bool) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise SetupError(f"Limits({name}={value!r}) must be a number")
    if value <= 0:
        raise SetupError(f"Limits({name}=...) must be positive")
    if value > LARGEST_LIMIT:
        none = ", or None for no limit" if optional else ""
        raise SetupError(f"Limits({name}=...) can be 10**15 at most{none}")


# What JSON costs


def has_more_values(body: bytes, most: int) -> bool:
    """Check whether a JSON text has more values than are allowed: each costs many times its bytes once it is parsed."""
    if len(body) < 2 * most:
        return False
    body = body.translate(None, _PROSE)  # a third of a nanosecond a byte, and what follows is several times that
    if most_values(body) <= most:
        return False
    # Commas and brackets within strings were counted, too: count again without the strings.
    body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if body.count(b'"') > 4 * most:  # each value has a string and a key at most
        return True
    return most_values(b"".join(body.split(b'"')[::2])) > most


def most_values(body: bytes) -> int:
    """Return how many values there are at most: the outermost, and in each array or object one more than commas."""
    return 1 + body.count(b",") + body.count(b"[") + body.count(b"{")


def check_depth(value: Any, most: int) -> None:
    _check_within([value], most + 1, most)


def _check_within(holder: Any, depth: int, limit: int) -> None:
    for item in holder.values() if type(holder) is dict else holder:
        kind = type(item)
        if kind is dict or kind is list:
            if depth == 1:
                raise OverBudget(f"JSON nests deeper than {limit}", "json_depth", limit)
            _check_within(item, depth - 1, limit)
        elif kind is float and not math.isfinite(item):
            raise ParseError("The body holds a number that overflows")


def read_value(text: str, depth: int, values: int) -> Any:
    """Read a JSON text within a message, at the cost that a message may have. Raises `ParseError`, `OverBudget`."""
    if has_more_values(text.encode(errors="replace"), values):
        raise OverBudget(f"The text holds more than {values} JSON values", "values", values)
    try:
        value = read_json(text, allow_inf_nan=False)
    except ValueError:
        raise ParseError("The text is not JSON") from None
    check_depth(value, depth)
    return value

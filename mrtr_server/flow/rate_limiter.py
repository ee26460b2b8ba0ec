"""How often callers may call, as an operator says it; which requests count, and what happens beyond a rate."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Literal, get_args

from ..concurrency.running import PerLoop
from ..crypto.digests import digest
from ..errors import NotExecuted, RateLimited, SetupError, StoreUnavailable
from ..logs.failures import report_failure
from ..protocol.messages import Call

if TYPE_CHECKING:
    from .rate_counters import Counters, Rate, SharedCounters

    Act = Callable[[Counters | SharedCounters], Awaitable[float]]

logger = logging.getLogger("mrtr_server")

WhileAway = Literal["count_here", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """How often callers may call. It needs the extra `limits`.

    A rate is a text such as `"5/minute"`, `"100 per hour"` or `"10 per 30 seconds"`, of any span of that length. Beyond
    it, a request gets a 429 that says when there is room again, and nothing is done.

    A call of a tool, a prompt or a resource counts once, however many rounds it takes: when it begins. Its later rounds
    count for `per_flow`.

    Args:
        per_principal: calls of each authenticated caller, whatever application acts for them. A caller without
            authentication is known by its address.
        per_address: calls from each address: the one that the web server names as its client's. An address of IPv6
            counts with all others of its /64 network.
        per_tool: calls of each tool by each caller, by the name of the tool. It overrides `rate_limit=` of the tool.
        per_flow: rounds of one call that carry its state, whichever state that is; and how often the same request
            without a state, by the same caller, may be answered with a question. It counts as soon as anything has a
            rate.
        other_requests: of each caller, all that begins no call: lists, completions, later rounds, questions about tasks
            and subscriptions. Cancellations and pings are not counted.
        storage: where it is counted for all replicas together: the URL of a Redis or Valkey server, such as
            `redis://user:password@host:6379/0`; also `rediss://`, `redis+unix://`, `redis+cluster://` and
            `redis+sentinel://`. None to count in each process.
        while_away: what happens while that storage is unavailable. `"count_here"`: each process counts by itself.
            `"refuse"`: what has a limit is refused with a 503.

    Raises:
        SetupError: a rate or the URL can't be read, or a library is missing.
    """

    per_principal: str | None = None
    per_address: str | None = None
    per_tool: Mapping[str, str] = field(default_factory=dict)
    per_flow: str = "20/minute"
    other_requests: str | None = None
    storage: str | None = field(default=None, repr=False)
    while_away: WhileAway = "count_here"

    def __post_init__(self) -> None:
        from .rate_counters import check_storage, read_rate  # which need a library that not everybody has

        for name in ("per_principal", "per_address", "per_flow", "other_requests"):
            text = getattr(self, name)
            if text is not None or name == "per_flow":
                read_rate(f"RateLimits({name}=...)", text)
        if not isinstance(self.per_tool, Mapping):
            raise SetupError('RateLimits(per_tool=...) takes a rate by the name of a tool: {"search": "5/minute"}')
        for tool, text in self.per_tool.items():
            read_rate(f"RateLimits(per_tool={{{tool!r}: ...}})", text)
        if self.while_away not in get_args(WhileAway):
            choices = ", ".join(f'"{each}"' for each in get_args(WhileAway))
            raise SetupError(f"RateLimits(while_away={self.while_away!r}): choose from {choices}")
        if self.storage is not None:
            check_storage(self.storage)


LOOK_AGAIN = 2.0
"""For how many seconds an unavailable storage is not asked again."""


class RateLimiter:
    """Counts requests. As long as nothing has a rate, it counts none and loads no library.

    The counters belong to the server: others may count in the same storage. The clock is for what is counted here.
    """

    is_on = False

    def __init__(self, limits: RateLimits | None, server: str, clock: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._server = server
        self._clock = clock
        self._rates: dict[str, Rate] = {}
        self._tools: dict[str, Rate] = {}
        self._local: Counters | None = None
        self._shared = PerLoop["SharedCounters"]()
        self._share: Callable[[], SharedCounters] | None = None
        self._asked: set[str] = set()
        """The tools, prompts and resources that have asked something in their first round."""
        self._away_since: float | None = None
        self._look_at = 0.0
        if limits is not None:
            self.turn_on()

    def turn_on(self) -> None:
        if self.is_on:
            return
        from .rate_counters import Counters, SharedCounters, read_rate

        limits = self._limits or RateLimits()
        for name in ("per_principal", "per_address", "per_flow", "other_requests"):
            if (text := getattr(limits, name)) is not None:
                self._rates[name] = read_rate(name, text)
        self._tools = {tool: read_rate(tool, text) for tool, text in limits.per_tool.items()}
        self._local = Counters(self._clock)
        if limits.storage is not None:
            self._share = partial(SharedCounters, limits.storage)
        self.is_on = True

    @property
    def counts_calls(self) -> bool:
        return bool({"per_principal", "per_address"} & self._rates.keys())

    @property
    def counts_others(self) -> bool:
        return "other_requests" in self._rates

    # What counts

    async def admit_call(self, call: Call) -> None:
        """Count a call that begins. Raises `RateLimited`, or `NotExecuted` where nothing may go uncounted."""
        # The address last: a caller that is refused uses up nothing that it shares with others.
        await self._take("per_principal", [_who(call)])
        if address := _address(call):
            await self._take("per_address", [address])

    async def admit_other(self, call: Call) -> None:
        await self._take("other_requests", [_who(call)])

    async def admit_to_tool(self, call: Call, own: "Rate | None") -> None:
        """Count a call of a tool, by the rate of the operator or else its own."""
        rate = self._tools.get(call.target, own)
        if rate is not None:
            await self._take("per_tool", [call.target, _who(call)], rate)

    async def admit_round(self, flow: str) -> None:
        await self._take("per_flow", ["flow", flow])

    async def admit_repetition(self, call: Call, bound_to: Sequence[str]) -> None:
        """Check how often a request without a state, bound to the same, has been answered with a question."""
        if call.target in self._asked:  # most ask nothing, and need no look
            await self._take("per_flow", _repeated(call, bound_to), look=True)

    async def count_question(self, call: Call, bound_to: Sequence[str]) -> None:
        """Count a request without a state that is answered with a question. It has run, so it is never refused."""
        self._asked.add(call.target)
        key = self._key("per_flow", _repeated(call, bound_to))
        await self._count(lambda counters: counters.take(self._rates["per_flow"], key), may_refuse=False)

    async def close(self) -> None:
        if (shared := self._shared.pop()) is not None:
            await shared.close()

    # Where it is counted

    async def _take(self, limit: str, what: Sequence[str], rate: "Rate | None" = None, *, look: bool = False) -> None:
        chosen = self._rates.get(limit) if rate is None else rate
        if chosen is None:
            return
        key = self._key(limit, what)
        act: Act = (
            (lambda counters: counters.look(chosen, key)) if look else (lambda counters: counters.take(chosen, key))
        )
        seconds = await self._count(act, may_refuse=True)
        if seconds:
            raise RateLimited(limit, chosen.text, seconds)

    def _key(self, limit: str, what: Sequence[str]) -> str:
        return digest([self._server, limit, *what])  # so a storage knows no names, and holds keys of one length

    async def _count(self, act: "Act", *, may_refuse: bool) -> float:
        assert self._local is not None  # noqa: S101  it is on
        if self._share is None:
            return await act(self._local)
        if self._away_since is None or time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_AGAIN  # others need not wait for the same answer
            try:
                seconds = await act(self._shared.here(self._share))
            except StoreUnavailable as error:
                self._note_outage(error)
            else:
                self._note_return()
                return seconds
        if may_refuse and self._refuses:
            raise NotExecuted(self._reference)
        return await act(self._local)

    @property
    def _refuses(self) -> bool:
        return self._limits is not None and self._limits.while_away == "refuse"

    _reference = ""

    def _note_outage(self, error: StoreUnavailable) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            rule = "what has a rate limit is refused" if self._refuses else "each process counts by itself"
            self._reference = report_failure(
                "The storage of the rate limits is unavailable; until it is back, %s. Check RateLimits(storage=...)",
                rule,
                why=str(error),
                fields={"event": "rate_storage_away"},
            )

    def _note_return(self) -> None:
        if self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            self._away_since = None
            fields = {"event": "rate_storage_back", "seconds": round(seconds, 1)}
            logger.warning("The storage of the rate limits is back, after %.0f s", seconds, extra={"fields": fields})


def _repeated(call: Call, bound_to: Sequence[str]) -> list[str]:
    return ["request", *bound_to, "" if call.principal is not None else _address(call)]


def _who(call: Call) -> str:
    """Return who calls: the person, whatever application acts for them; or else the address."""
    if call.principal is not None:
        return digest(["person", *call.principal.person])
    return digest(["address", _address(call)])


def _address(call: Call) -> str:
    if call.peer is None:
        return ""
    host = str(call.peer[0])
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host  # such as the path of a socket
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(int(address) >> 64)  # one network has more addresses than can be counted
    return str(address)

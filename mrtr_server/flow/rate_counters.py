"""Counters of what was sent in a time: in the process, or as the `limits` library keeps them in Redis or Valkey."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..errors import SetupError, StoreUnavailable, lacking

try:
    from limits import RateLimitItem, parse
    from limits.aio.storage import SlidingWindowCounterSupport, Storage
    from limits.aio.strategies import SlidingWindowCounterRateLimiter
    from limits.errors import ConfigurationError, StorageError
    from limits.storage import storage_from_string
except ImportError as error:
    raise lacking("A rate limit", "limits", error) from error

MOST_COUNTERS = 100_000
"""How many counters a process keeps: beyond that, the least used are reset."""

REDIS_TIMEOUT = 1.0

CONNECTIONS = 8
"""How many connections to it an event loop opens at most; beyond that, a request waits for one."""

_SCHEMES = {"valkey": "redis", "valkeys": "rediss"}
"""One client speaks to both, since they speak the same protocol."""

_EXAMPLE = '"5/minute", "100 per hour" or "10 per 30 seconds"'


@dataclass(frozen=True, slots=True)
class Rate:
    text: str
    item: RateLimitItem


def read_rate(where: str, text: Any) -> Rate:
    """Return the rate that a text such as "5/minute" says. Raises `SetupError`, whose message has an example."""
    try:
        if not isinstance(text, str) or len(text) > 100 or any(mark in text for mark in ",;|"):
            raise ValueError
        item = parse(text)
        if item.amount < 1 or item.get_expiry() < 1:
            raise ValueError
    except ValueError:
        shown = repr(text) if isinstance(text, str | int | float | None) else type(text).__name__
        raise SetupError(f"{where}: {shown} is no rate; write one such as {_EXAMPLE}") from None
    return Rate(text, item)


def check_storage(url: str) -> None:
    """Check the URL of a storage, and its library. Raises `SetupError` without the URL: it may hold a password."""
    _redis(url)


def _redis(url: str) -> Storage:
    scheme, _, rest = str(url).partition("://")
    first, _, more = scheme.partition("+")
    scheme = "+".join(filter(None, (_SCHEMES.get(first, first), more)))
    if not rest or scheme not in ("redis", "rediss", "redis+unix", "redis+cluster", "redis+sentinel"):
        raise SetupError(
            "RateLimits(storage=...) takes the URL of a Redis or Valkey server, such as redis://localhost:6379/0"
        )
    try:
        from redis.asyncio import BlockingConnectionPool
    except ImportError as error:
        raise lacking("RateLimits(storage=...)", "limits", error) from error
    options: dict[str, Any] = {"socket_connect_timeout": REDIS_TIMEOUT, "socket_timeout": REDIS_TIMEOUT}
    try:
        if scheme in ("redis", "rediss", "redis+unix"):  # or each request that waits would open a connection
            address = f"{scheme.replace('redis+unix', 'unix')}://{rest}"
            pool = BlockingConnectionPool.from_url(
                address, max_connections=CONNECTIONS, timeout=REDIS_TIMEOUT, **options
            )
            options = {"connection_pool": pool}
        made = storage_from_string(
            f"async+{scheme}://{rest}", implementation="redispy", wrap_exceptions=True, key_prefix="mrtr", **options
        )
    except (ConfigurationError, ValueError):
        raise SetupError(
            "RateLimits(storage=...): the URL can't be read; it needs a host and a port, such as redis://localhost:6379"
        ) from None
    assert isinstance(made, Storage)  # noqa: S101  for the type checker
    return made


@dataclass(slots=True)
class _Window:
    """What was counted under one key: in the present window, by its number, and in the one before it."""

    number: int
    count: int
    before: int
    ends: float
    limit: int = 1

    @property
    def used(self) -> float:
        return (self.count + self.before) / self.limit


class Counters:
    """Counts in the memory of this process, as `limits` does in Redis. Any event loop may use it.

    The storage in memory of `limits` looks through all of its counters at each hit: 0.9 ms where there are 10,000.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}
        self._sweep_at = 1000

    async def take(self, rate: Rate, key: str) -> float:
        """Count one more; return 0 if there was room for it, and otherwise in how many seconds there will be."""
        window, seconds = self._look(rate, key)
        if not seconds:
            window.count += 1
            window.limit = rate.item.amount
        return seconds

    async def look(self, rate: Rate, key: str) -> float:
        """Return as `take`, and count nothing."""
        return self._look(rate, key)[1]

    def _look(self, rate: Rate, key: str) -> tuple[_Window, float]:
        now, span = self._clock(), rate.item.get_expiry()
        window = self._window(rate.item.key_for(key), span, now)
        weight = 1 - now / span % 1
        if window.before * weight + window.count < rate.item.amount:
            return window, 0.0
        return window, _wait(rate, window.before, weight * span, window.count, (weight + 1) * span)

    def _window(self, key: str, span: int, now: float) -> _Window:
        number = int(now // span)
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= self._sweep_at:
                self._sweep(now)
            window = self._windows[key] = _Window(number, 0, 0, (number + 2) * span)
        elif window.number != number:
            window.before = window.count if window.number == number - 1 else 0
            window.number, window.count, window.ends = number, 0, (number + 2) * span
        return window

    def _sweep(self, now: float) -> None:
        """Drop the counters that count nothing any more, and a quarter of too many.

        Counters that are used up stay: a caller could reset its own by causing many others.
        """
        kept = {key: window for key, window in self._windows.items() if window.ends > now}
        if len(kept) >= MOST_COUNTERS:
            for key in sorted(kept, key=lambda key: kept[key].used)[: MOST_COUNTERS // 4]:
                del kept[key]
        self._windows = kept
        self._sweep_at = min(max(1000, 2 * len(kept)), MOST_COUNTERS)


class SharedCounters:
    """Counts in Redis or Valkey, for all replicas together, on one event loop; as `Counters`, or `StoreUnavailable`."""

    def __init__(self, url: str) -> None:
        self._storage = _redis(url)
        self._limiter = SlidingWindowCounterRateLimiter(self._storage)

    async def take(self, rate: Rate, key: str) -> float:
        return await self._in_time(self._limiter.hit, rate, key)

    async def look(self, rate: Rate, key: str) -> float:
        return await self._in_time(self._limiter.test, rate, key)

    async def _in_time(self, has_room: Callable[..., Awaitable[bool]], rate: Rate, key: str) -> float:
        storage, item = self._storage, rate.item
        assert isinstance(storage, SlidingWindowCounterSupport)  # noqa: S101  for the type checker
        try:
            async with asyncio.timeout(REDIS_TIMEOUT):
                if await has_room(item, key):
                    return 0.0
                return _wait(rate, *await storage.get_sliding_window(item.key_for(key), item.get_expiry()))
        except TimeoutError:
            raise StoreUnavailable(f"it did not answer within {REDIS_TIMEOUT:g} s") from None
        except (StorageError, OSError) as error:
            cause = error.storage_error if isinstance(error, StorageError) else error
            raise StoreUnavailable(f"{type(cause).__name__}: {cause}") from None

    async def close(self) -> None:
        client: Any = self._storage.bridge.storage  # type: ignore[attr-defined]
        await client.aclose()
        if (pool := getattr(client, "connection_pool", None)) is not None:  # that of a cluster is closed with it
            await pool.aclose()


def _wait(rate: Rate, before: int, before_left: float, count: int, left: float) -> float:
    """Return in how many seconds there is room for one more, by the windows before and now, where there is none."""
    span, most = rate.item.get_expiry(), rate.item.amount
    if count < most:  # the count of the window before fades away
        seconds = before_left - (most - count) * span / before if before else 0.0
    else:  # until this window is the one before, and has begun to fade
        seconds = left - span + span * (1 - most / count)
    return max(1.0, seconds)

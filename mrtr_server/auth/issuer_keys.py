"""The keys of an issuer: discovered, kept, and fetched again by age, or when none of them verifies a token."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence

from ..concurrency.running import PerLoop
from ..errors import IssuerUnavailable
from .discovery import discover
from .fetching import fetch_json
from .jwt_keys import MOST_KEYS, VerifyingKey, read_keys

logger = logging.getLogger("mrtr_server")

FLOOR = 10.0
"""How often the issuer is asked at most, in seconds: once in that time, however many tokens no known key verifies."""

RENEW = 300.0
"""After how long keys are fetched again beside the requests, in seconds, so that hardly any request waits for that."""

FRESH = 600.0
"""After how long no key counts before the issuer was asked again, in seconds: it may have withdrawn the key."""

MOST_TRIED = 10
"""How many keys of an issuer are tried for one token, if it does not name one."""


class IssuerKeys:
    """The keys of one issuer. They are kept for as long as it can't be reached.

    Args:
        issuer: its identifier.
        jwks_uri: where its keys are; None to find that in its metadata.
        algorithms: those to accept.
        on_change: called when other keys came.
        clock: returns the time in seconds, from any beginning.
    """

    def __init__(
        self,
        issuer: str,
        jwks_uri: str | None,
        algorithms: Sequence[str],
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._jwks_uri = jwks_uri
        self._algorithms = algorithms
        self._on_change = on_change
        self._clock = clock
        self._keys: list[VerifyingKey] = []
        self._fetched = self._asked = float("-inf")
        self._found_at: str | None = None
        self._is_away = self._told_of_more = False
        self._fetching = PerLoop[asyncio.Task[None]]()

    async def find(self, id: str, algorithm: str, tried: Collection[VerifyingKey] = ()) -> list[VerifyingKey]:
        """Return the keys that a token may be signed with, at most `MOST_TRIED`.

        Args:
            id: of the key that the token names; empty if it names none.
            algorithm: that the token is signed with.
            tried: keys that do not verify the token. Others may have come since, so the issuer is asked for them.

        Raises:
            IssuerUnavailable: no such key is known, and the issuer can't be asked now.
        """
        keys, age = self._lookup(id, algorithm, tried), self._clock() - self._fetched
        if not keys or (age >= FRESH and not self._is_away):
            await self._refresh()
            keys = self._lookup(id, algorithm, tried)
            if not (keys or tried) and (self._is_away or self._fetched == float("-inf")):
                raise IssuerUnavailable(f"{self._issuer} may have a key that is not known here")
        elif age >= RENEW:
            self._start()  # beside the request, which has its key
        return keys

    @property
    def trusted_for(self) -> float:
        """For how long a token may count as verified by these keys, in seconds; then they may have to be renewed."""
        return max(self._fetched + RENEW - self._clock(), FLOOR)

    def _lookup(self, id: str, algorithm: str, tried: Collection[VerifyingKey]) -> list[VerifyingKey]:
        fitting = [key for key in self._keys if algorithm in key.algorithms and (key.id == id or not (key.id and id))]
        fitting.sort(key=lambda key: key.id != id)  # those of its name first
        known = {key.thumbprint for key in tried}
        return [key for key in fitting[:MOST_TRIED] if key.thumbprint not in known]

    async def _refresh(self) -> None:
        fetching = self._start()
        if fetching is not None:
            await asyncio.shield(fetching)  # for all who wait, whichever of them leaves

    def _start(self) -> "asyncio.Task[None] | None":
        """Begin to fetch, or join in; None if it is too soon to ask again."""
        if (fetching := self._fetching.get()) is not None and not fetching.done():
            return fetching
        now = self._clock()
        if now - self._asked < FLOOR:
            return None
        self._asked = now
        return self._fetching.put(asyncio.create_task(self._fetch()))

    async def _fetch(self) -> None:
        try:
            keys = await self._ask()
        except IssuerUnavailable as error:
            self._found_at = None  # it may have moved
            if not self._is_away:
                what = "the keys that are known are kept" if self._keys else "no token can be verified until then"
                logger.error("The keys of %s can't be fetched, and %s: %s", self._issuer, what, error)
            self._is_away = True
            return
        if self._is_away:
            logger.warning("The keys of %s can be fetched again", self._issuer)
        self._is_away, self._fetched = False, self._clock()
        self._take(keys)

    def _take(self, keys: list[VerifyingKey]) -> None:
        if {key.thumbprint for key in keys} != {key.thumbprint for key in self._keys}:
            self._keys = keys
            self._on_change()

    async def _ask(self) -> list[VerifyingKey]:
        if self._found_at is None:
            self._found_at = self._jwks_uri or _jwks_uri_of(await discover(self._issuer))
        document = await fetch_json(self._found_at)
        keys, listed = read_keys(document, self._algorithms), document.get("keys")
        if isinstance(listed, list) and len(listed) > MOST_KEYS and not self._told_of_more:
            self._told_of_more = True
            logger.warning(
                "%s lists %d keys, and only the first %d are used: tokens signed with one of the others are rejected",
                self._found_at,
                len(listed),
                MOST_KEYS,
            )
        if not keys:
            if isinstance(
                listed, list
            ):  # the issuer has withdrawn those that are known; anything else is no set of keys
                self._take([])
            raise IssuerUnavailable(f"{self._found_at} has no key for {', '.join(self._algorithms)}")
        return keys


def _jwks_uri_of(metadata: dict[str, object]) -> str:
    uri = metadata.get("jwks_uri")
    if not isinstance(uri, str):
        raise IssuerUnavailable("the metadata has no jwks_uri")
    return uri

"""The documents at addresses that are clients' ids (OAuth Client ID Metadata Document), fetched seldom and safely."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic_core import from_json

from ..concurrency.running import PerLoop
from ..errors import OAuthError
from ..fetcher import Fetcher, UnfitUrl, Unreachable
from .recent import Recent

MOST_BYTES = 5 * 1024

FRESH = 300.0  # for how long a document counts before it is fetched again, in seconds, if its server does not say

LEAST_FRESH, MOST_FRESH = 60.0, 3600.0  # whatever its server says

FAILED = 60.0  # for how long a document that was none is not asked for again, in seconds

MOST_KNOWN = 1000  # documents, and failures

PER_HOST, PER_HOST_SECONDS = 10, 60.0  # fetches from one host, in a time

IN_ALL, IN_ALL_SECONDS = 100, 60.0

LONGEST = 500  # characters of an address


class _Known(NamedTuple):
    at: float  # when it was asked for
    until: float
    document: Mapping[str, Any] | None = None
    why: str = ""
    is_away: bool = False  # it may be there in a moment


class _Rate:
    """How often something happened lately, by a name; the names that have been quiet longest are forgotten."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._windows = Recent[str, tuple[float, int]](MOST_KNOWN)

    def take(self, name: str) -> bool:
        now = self._clock()
        began, count = self._windows.get(name, (now, 0))
        if now - began >= self._seconds:
            began, count = now, 0
        if count >= self._most:
            return False
        self._windows[name] = began, count + 1
        return True


class Documents:
    """Fetches documents through the fetcher, which connects to no private address."""

    def __init__(self, fetcher: Fetcher, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetcher = fetcher
        self._clock = clock
        self._good = Recent[str, _Known](MOST_KNOWN)  # documents that there were, by when they were last used
        self._failed = Recent[str, _Known](MOST_KNOWN)
        self._by_host = _Rate(PER_HOST, PER_HOST_SECONDS, clock)
        self._in_all = _Rate(IN_ALL, IN_ALL_SECONDS, clock)
        self._fetching = PerLoop[dict[str, asyncio.Task[_Known]]]()

    async def find(self, id: str) -> Mapping[str, Any]:
        """Return the document of a client. Raises `OAuthError`."""
        if not self._is_address(id):
            raise OAuthError("invalid_client", "The client_id is no address of a client's document", 401)
        document = await self._look(id)
        if document.get("client_id") != id:
            raise OAuthError("invalid_client", f"{id} is the document of another client", 401)
        if "client_secret" in document or not isinstance(document.get("client_name", ""), str):
            raise OAuthError("invalid_client", f"{id} is no document of a client", 401)
        return document

    def _is_address(self, id: str) -> bool:
        """Return whether an id is an address with a path, in the plain letters in which no host looks like another."""
        try:
            parts = urlsplit(id) if len(id) <= LONGEST and "#" not in id else None
            if parts is None or self._fetcher.check(id) != id:
                return False
        except (ValueError, UnfitUrl):  # brackets without an address
            return False
        segments = parts.path.split("/")
        return parts.path not in ("", "/") and "." not in segments and ".." not in segments and "@" not in parts.netloc

    async def keys(self, document: Mapping[str, Any], *, anew: bool = False) -> Mapping[str, Any]:
        """Return the keys of a client: those in its document, or at the address that this names.

        `anew`: those that were known did not do, so they are fetched again, once a minute.
        """
        inside, address = document.get("jwks"), document.get("jwks_uri")
        if isinstance(inside, dict) == isinstance(address, str):
            raise OAuthError("invalid_client", "A client with private_key_jwt has jwks or jwks_uri", 401)
        return inside if isinstance(inside, dict) else await self._look(str(address), anew=anew)

    async def close(self) -> None:
        await self._fetcher.close()

    async def _look(self, url: str, *, anew: bool = False) -> Mapping[str, Any]:
        known, now = self._latest(url), self._clock()
        if known is None or known.until <= now or (anew and known.at + FAILED <= now):
            fetching = self._fetching.here(dict)
            if (task := fetching.get(url)) is None:
                task = fetching[url] = asyncio.create_task(self._fetch(url))
                task.add_done_callback(lambda _: fetching.pop(url, None))
            known = await asyncio.shield(task)
        if known.document is not None:
            return known.document
        why = f"{url[:200]}: {known.why}"
        if known.is_away:  # and not `invalid_client`, at which clients drop their tokens
            raise OAuthError("temporarily_unavailable", why, 503, {"Retry-After": str(int(FAILED))})
        raise OAuthError("invalid_client", why, 401)

    def _latest(self, url: str) -> _Known | None:
        """Return what came of the last fetch, unless it was forgotten."""
        good, failed = self._good.get(url), self._failed.get(url)
        if good is not None:
            self._good.move_to_end(url)
        return failed if good is None or (failed is not None and failed.at > good.at) else good

    async def _fetch(self, url: str) -> _Known:
        before = self._good.get(url)
        now, kind = self._clock(), "new" if before is None else "known"
        known = _Known(now, now, why="too many documents were asked for; try again in a minute", is_away=True)
        if self._by_host.take(f"{kind} {urlsplit(url).hostname}") and self._in_all.take(kind):
            known = await self._ask(url, now)
        if known.document is None and before is not None and before.until > now - FRESH:
            return before  # of a host that is away for a moment
        if known.until > now:
            kept = self._failed if known.document is None else self._good
            kept[url] = known
        return known

    async def _ask(self, url: str, now: float) -> _Known:
        failed = _Known(now, now + FAILED)
        try:
            fetched = await self._fetcher.fetch("GET", url, headers={"Accept": "application/json"}, most=MOST_BYTES + 1)
        except UnfitUrl as error:
            return failed._replace(why=str(error))
        except Unreachable:  # why is nobody's business who could look around by it
            return failed._replace(why="it can't be fetched", is_away=True)
        if (status := fetched.status) != _OK:
            is_away = status >= _THEIR_FAULT or status == _TOO_MANY
            return failed._replace(why=f"its server answered with the status {status}", is_away=is_away)
        try:
            document = from_json(fetched.body) if len(fetched.body) <= MOST_BYTES else None
        except ValueError:
            document = None
        if not isinstance(document, dict):
            return failed._replace(why=f"it is no JSON object of at most {MOST_BYTES} bytes")
        return _Known(now, now + _fresh(fetched.cache_control), document)


_OK, _TOO_MANY, _THEIR_FAULT = 200, 429, 500


def _fresh(cache_control: str) -> float:
    """Return for how long a document counts, in seconds (OAuth Client ID Metadata Document, Metadata Caching)."""
    parts = (each.partition("=") for each in cache_control.split(","))
    said = {name.strip().lower(): value for name, _, value in parts}
    age = said.get("max-age", "").strip(' "')
    if "no-store" in said or "no-cache" in said:
        return LEAST_FRESH
    return min(max(float(age), LEAST_FRESH), MOST_FRESH) if age.isascii() and age.isdigit() else FRESH

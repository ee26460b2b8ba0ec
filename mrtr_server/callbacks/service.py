"""Pages that report back: the way back to a callback, and what came over it."""

import asyncio
import logging
import math
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Generic, Protocol, TypeVar

from pydantic_core import from_json, to_json

from ..crypto.codec import SealedCodec
from ..crypto.digests import digest
from ..crypto.keys import KeyRing
from ..crypto.signing import Link, Links
from ..errors import FlowError, InvalidRequestState, LinkRefused, StoreUnavailable
from ..limits import Limits
from ..protocol.messages import JSON, Call, Principal
from ..schema.arguments import Stored
from ..storage.base import Store
from .base_url import BaseUrl

logger = logging.getLogger("mrtr_server")

T_co = TypeVar("T_co", covariant=True)

PATH = "/callbacks/"
"""Where the callbacks are, each under its name."""

KIND = "callback"
"""The kind of a question whose answer is what a callback reports."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""How long a held client waits between two looks into the store, in seconds: it grows from the first to the longest."""


class FlowRecord(Protocol):
    """What callbacks need to know of a flow."""

    @property
    def flow(self) -> str:
        """The flow's id."""
        ...

    @property
    def started(self) -> float:
        """When it began, in seconds since the epoch."""
        ...

    @property
    def answers(self) -> Mapping[str, Mapping[str, JSON]]:
        """Its answers, by key and question."""
        ...


@dataclass(frozen=True, slots=True)
class CallbackLink:
    """The way back from a page to the callback that waits for it.

    Args:
        url: the callback's own address: the redirect URI that is registered with a provider, the same for everybody.
        state: the signed token that says who is back, and for what. A provider hands it back as its `state`.
        verifier: a secret of this link alone, for the exchange of a code (RFC 7636, `code_verifier`). Keep it out of
            every address.
    """

    url: str
    state: str
    verifier: str

    @property
    def link(self) -> str:
        """The callback's address with the token: for a page of your own, without a provider."""
        return f"{self.url}?state={self.state}"

    @property
    def challenge(self) -> str:
        """What a provider is told of the verifier (RFC 7636, `code_challenge` with the method S256)."""
        return urlsafe_b64encode(sha256(self.verifier.encode()).digest()).decode().rstrip("=")


NOWHERE = CallbackLink("https://callback.invalid/", "state", "verifier")
"""A way back of nobody's: an address made with it has only what is the same for everybody."""


class Callback(Generic[T_co]):
    """A function that is called when the person is back from a page: what `@app.callback` makes of one.

    Args:
        name: names it, in its address and as an ask's default key.
        function: takes the request, and the way back if it has a second parameter.
        takes_way_back: whether it has.
        returns: the type of what it reports.
        stored: how that goes to JSON and back.
        methods: the HTTP methods that it takes.
        origins: from where browsers may POST to it, besides its own.
        page: makes the page that the person sees when it is done; None for a plain one.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        takes_way_back: bool,
        returns: Any,
        stored: Stored,
        methods: frozenset[str],
        origins: frozenset[str],
        page: Callable[..., Any] | None,
    ) -> None:
        self.name = name
        self.function = function
        self.takes_way_back = takes_way_back
        self.returns = returns
        self.stored = stored
        self.methods = methods
        self.origins = origins
        self.page = page

    def __call__(self, *args: Any) -> Any:
        """Call the function, as it was written."""
        return self.function(*args)

    def __repr__(self) -> str:
        return f"Callback({self.name!r})"


class Report(JSON):
    """What a callback has reported, in the shape of an answer. A client's answers are plain dictionaries."""


@dataclass(slots=True)
class Reports:
    """What is known of the pages that a person agreed to open.

    Args:
        found: the reports that are there, by the ask's key and the digest of its question.
        unfinished: the same of those that are not.
    """

    found: dict[tuple[str, str], Report] = field(default_factory=dict)
    unfinished: tuple[tuple[str, str], ...] = ()


class Callbacks:
    """Makes the ways back, and keeps what comes over them.

    Args:
        known: the server's callbacks by name; more may come.
        ring: signs the links, and seals what is kept.
        store: where it is kept.
        audience: what the links belong to.
        base: where browsers reach the server.
        identifies: whether the server can tell whose browser opens a link.
        limits: how long a flow lives, a client is held, and how large a report may be.
        clock: gives the time in seconds since the epoch.
    """

    def __init__(
        self,
        known: Mapping[str, Callback[Any]],
        ring: KeyRing,
        store: Store,
        *,
        audience: str,
        base: BaseUrl,
        identifies: bool,
        limits: Limits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._known = known
        self._store = store
        self._links = Links(ring, audience)
        self._codec = SealedCodec(ring, "callback report")
        self._audience = audience
        self._base = base
        self._identifies = identifies
        self._limits = limits
        self._clock = clock
        self._held: dict[asyncio.Future[None], Mapping[Any, str]] = {}

    def __bool__(self) -> bool:
        """Say whether there are any."""
        return bool(self._known)

    # Links

    def callback_link(
        self, callback: Callback[Any], key: str, question: str, call: Call, flow: FlowRecord
    ) -> CallbackLink:
        """Make the way back for an ask of a flow. It is the same in each round.

        Args:
            callback: where it leads.
            key: the ask's key.
            question: the question's digest.
            call: the request that asks.
            flow: the flow that it belongs to.

        Raises:
            FlowError: nobody could find this way back, or somebody else could.
        """
        name = callback.name
        if self._known.get(name) is not callback:
            raise FlowError(f"The callback {name!r} belongs to another server; use a callback of this server")
        if call.principal is not None and not self._identifies:
            raise FlowError(
                f"The callback {name!r} can't tell whose browser opens its link: if the link reached somebody else, "
                "the caller would get that person's login. Give MRTRServer an identify= function"
            )
        if call.principal is None and self._identifies:
            raise FlowError(
                f"The callback {name!r} can't compare the browser's user with the caller, since this call is "
                "anonymous. Require authentication, or ask only if ctx.principal is not None"
            )
        host = call.headers.get(b"host", b"").decode("latin-1")
        base = self._base.at(host, call.root)
        if base is None:
            raise FlowError(
                f"The address at which a browser reaches the callback {name!r} is not known: this request came to the "
                f"host {host!r}, which is not loopback. Give MRTRServer its base_url="
            )
        expires = math.ceil(flow.started + self._limits.flow_seconds)
        id = self._id(flow, key, question)
        return _callback_link(callback, base, self._links.seal(name, id, owner(call.principal), expires))

    def unseal_link(self, callback: Callback[Any], token: str) -> Link:
        """Read the token of a link that somebody opened.

        Raises:
            LinkRefused: it is none of this callback's, or too old.
        """
        link = self._links.unseal(callback.name, token)
        if link.expires <= self._clock():
            raise LinkRefused("expired")
        return link

    def callback_link_of(self, callback: Callback[Any], link: Link, host: str, root: str) -> CallbackLink:
        """Give the way back over which a browser came; `host` and `root` as in `BaseUrl.at`."""
        return _callback_link(callback, self._base.at(host, root) or "", link)

    def _id(self, flow: FlowRecord, key: str, question: str) -> str:
        return digest([KIND, self._audience, flow.flow, key, question])

    # Reports

    async def report(self, link: Link, report: JSON) -> bool:
        """Keep what a callback reports, unless there is a report already. Say whether it was kept.

        Args:
            link: the link that was opened.
            report: in the shape of an answer.

        Raises:
            FlowError: it is too large.
            StoreUnavailable: it could not be kept.
        """
        payload = to_json([link.id, report])
        if len(payload) > self._limits.state_bytes:
            raise FlowError(
                f"The callback returned {len(payload)} bytes; Limits(state_bytes=...) allows {self._limits.state_bytes}"
            )
        sealed = self._codec.seal(payload).encode("ascii")
        kept = await self._store.put(link.id, sealed, keep=max(1.0, link.expires - self._clock()))
        self.wake(link.id)
        return kept

    async def find(self, id: str) -> Report | None:
        """Give the report that is kept under a link's id, if there is one.

        Raises:
            StoreUnavailable: the store can't be asked, or what it has is not what was kept there.
        """
        sealed = await self._store.get(id)
        if sealed is None:
            return None
        try:
            kept_for, report = from_json(self._codec.unseal(sealed.decode("ascii", "replace")))
        except InvalidRequestState as refused:
            raise StoreUnavailable(f"The report of a callback can't be unsealed: {refused.reason}") from None
        if kept_for != id:
            raise StoreUnavailable("The report of a callback is stored under the key of another report")
        return Report(report)

    # Waiting

    async def wait(self, flow: FlowRecord, should_yield: Callable[[], bool] = lambda: False) -> Reports:
        """Collect the reports for the pages that a person agreed to open; hold the call for those that are not there.

        Args:
            flow: has the answers.
            should_yield: says whether the call is to go on elsewhere, which ends the waiting; see `wake`, too.
        """
        waiting = {
            (key, question): self._id(flow, key, question)
            for key, answers in flow.answers.items()
            for question, raw in answers.items()
            if question.startswith(f"{KIND}.") and raw.get("action") == "accept"
        }
        reports = Reports()
        if not waiting:
            return reports
        deadline, pause = time.monotonic() + self._limits.hold_seconds, FIRST_PAUSE
        while True:
            for asked, id in list(waiting.items()):
                report = await self.find(id)
                if report is not None:
                    reports.found[asked] = report
                    del waiting[asked]
            left = deadline - time.monotonic()
            if not waiting or left <= 0 or should_yield():
                reports.unfinished = tuple(waiting)
                return reports
            await self._pause(min(pause, left), waiting)
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def wake(self, id: str | None = None) -> None:
        """Let those that wait for a report look again now, or all that wait. May be called from any thread."""
        for future, waiting in tuple(self._held.items()):
            if id is None or id in waiting.values():
                with suppress(RuntimeError):  # its loop is closed
                    future.get_loop().call_soon_threadsafe(_resolve, future)

    async def _pause(self, seconds: float, waiting: Mapping[Any, str]) -> None:
        future = asyncio.get_running_loop().create_future()
        self._held[future] = waiting
        try:
            await asyncio.wait((future,), timeout=seconds)
        finally:
            del self._held[future]


def owner(principal: Principal | None) -> str:
    """Give a digest of the person that a principal stands for, whatever application acts for them; "" for nobody."""
    return "" if principal is None else digest([principal.issuer, principal.subject])


def _callback_link(callback: Callback[Any], base: str, link: Link) -> CallbackLink:
    return CallbackLink(f"{base}{PATH}{callback.name}", link.token, link.secret)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)

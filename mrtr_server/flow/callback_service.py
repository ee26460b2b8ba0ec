"""Pages that report back: the links to callbacks, and the reports that are stored."""

import logging
import math
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Generic, Protocol, TypeVar

from pydantic_core import from_json, to_json

from ..addresses import BaseUrl
from ..concurrency.running import running_loop
from ..concurrency.waiting import Ending, growing, wait_until
from ..crypto.digests import digest
from ..crypto.keys import REPORT, KeyRing
from ..crypto.place_codec import PlaceCodec, SealedRows
from ..crypto.signing import Link, Links
from ..errors import FlowError, LinkRefused
from ..limits import Limits
from ..logs.failures import calls_author
from ..protocol.ask_kinds import CALLBACK
from ..protocol.callers import Principal
from ..protocol.messages import JSON, Call, Change
from ..schema.stored import Stored
from ..storage.base import Store
from ..storage.pubsub import Fanout
from ..storage.quotas import Quotas

logger = logging.getLogger("mrtr_server")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PATH = "/callbacks/"
"""The path of the callbacks, each under its name."""

KIND = CALLBACK.name
"""The kind of a question whose answer is what a callback reports."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""How often the store is polled for a held client that hears of nothing, in seconds: the pauses grow."""


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
    def task_ends(self) -> float:
        """When the time of the task ends that it is, in seconds since the epoch; 0 in rounds."""
        ...

    @property
    def answers(self) -> Mapping[str, Mapping[str, JSON]]:
        """Its answers, by key and question."""
        ...


@dataclass(frozen=True, slots=True)
class CallbackLink:
    """A link to the callback that waits for a page to report back.

    Args:
        url: the callback's own address: the redirect URI that is registered with a provider, the same for everybody.
        state: the signed token that identifies the person and the ask. A provider returns it as its `state`.
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
        """What a provider receives of the verifier (RFC 7636, `code_challenge` with the method S256)."""
        return urlsafe_b64encode(sha256(self.verifier.encode()).digest()).decode().rstrip("=")


NOWHERE = CallbackLink("https://callback.invalid/", "state", "verifier")
"""A link for nobody: an address made with it has only what is the same for everybody."""


class Callback(Generic[T_co]):
    """A function that is called when a person returns from a page: what `@app.callback` makes.

    Args:
        name: its name, in its address and as an ask's default key.
        function: takes the request, and the `CallbackLink` if it has a second parameter.
        takes_link: whether it has a second parameter.
        returns: the type of what it reports.
        stored: how reports are dumped to JSON and loaded.
        methods: the HTTP methods that it accepts.
        origins: the origins from which browsers may POST to it, besides its own.
        page: makes the page that the person sees at the end; None for a plain one.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        takes_link: bool,
        returns: Any,
        stored: Stored,
        methods: frozenset[str],
        origins: frozenset[str],
        page: Callable[..., Any] | None,
    ) -> None:
        self.name = name
        self.function = function
        self.takes_link = takes_link
        self.returns = returns
        self.stored = stored
        self.methods = methods
        self.origins = origins
        self.page = page

    @calls_author
    def __call__(self, *args: Any) -> Any:
        """Call the function, as it was written."""
        return self.function(*args)

    def __repr__(self) -> str:
        return f"Callback({self.name!r})"


class Report(JSON):
    """What a callback has reported, in the shape of an answer. A client's answers are plain dictionaries."""


@dataclass(slots=True)
class Reports(Generic[T]):
    """The reports from the pages that a person agreed to open."""

    found: dict[tuple[str, str], Report] = field(default_factory=dict)
    unfinished: tuple[tuple[str, str], ...] = ()
    """The same keys and digests, for those that have not."""
    left: T | None = None
    """Why the call no longer waits for those, where it continues elsewhere; None otherwise."""


class Callbacks:
    """Makes the links to callbacks, and stores what callbacks report."""

    def __init__(
        self,
        known: Mapping[str, Callback[Any]],
        ring: KeyRing,
        store: Store,
        *,
        audience: str,
        base: BaseUrl,
        identifies: bool,
        fanout: Fanout,
        limits: Limits,
        on_drain: Ending,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.known = known
        self._store = store
        self._links = Links(ring, audience)
        moved = "it is stored under the key of another report"
        self._sealed = SealedRows(PlaceCodec(ring, REPORT), "The report of a callback", moved)
        self._quotas = Quotas(ring, limits)
        self._audience = audience
        self._base = base
        self._identifies = identifies
        self._fanout = fanout
        self._limits = limits
        self._on_drain = on_drain
        self._clock = clock

    # Links

    def callback_link(
        self, callback: Callback[Any], key: str, question: str, call: Call, flow: FlowRecord
    ) -> CallbackLink:
        """Return the link for an ask of a flow. It is the same in each round. A task has one of its own.

        Raises `FlowError`.
        """
        name = callback.name
        if self.known.get(name) is not callback:
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
            came = f"this request came to the host {host!r}, which is not loopback"
            raise FlowError(
                f"The address at which a browser reaches the callback {name!r} is not known: "
                f"{came if host else 'this request did not come over HTTP'}. Give MRTRServer its base_url="
            )
        expires = math.ceil(max(flow.started + self._limits.flow_seconds, flow.task_ends))
        id = self.page(flow, key, question)
        return _callback_link(callback, base, self._links.seal(name, id, owner(call.principal), expires))

    def unseal_link(self, callback: Callback[Any], token: str) -> Link:
        """Check the token of a link that a browser opened; return the link. Raises `LinkRefused`."""
        link = self._links.unseal(callback.name, token)
        if link.expires <= self._clock():
            raise LinkRefused("expired")
        return link

    def callback_link_of(self, callback: Callback[Any], link: Link, host: str, root: str) -> CallbackLink:
        """Return the link that a browser opened, as its callback receives it."""
        return _callback_link(callback, self._base.at(host, root) or "", link)

    def page(self, flow: FlowRecord, key: str, question: str) -> str:
        """Return the name that the report of an ask's page is stored under."""
        return digest([KIND, self._audience, flow.flow, key, question])

    # Reports

    async def report(self, link: Link, report: JSON, person: Principal | None) -> bool:
        """Store what a callback reports, unless there is a report already; return whether it was stored.

        Raises `FlowError`, `Full`, `StoreUnavailable`.
        """
        payload = to_json(report)
        if len(payload) > self._limits.state_bytes:
            raise FlowError(
                f"The callback returned {len(payload)} bytes; Limits(state_bytes=...) allows {self._limits.state_bytes}"
            )
        sealed = self._sealed.seal(link.id, payload).encode()
        keep, quota = max(1.0, link.expires - self._clock()), self._quotas.of(person)
        kept = await self._store.put(link.id, sealed, keep=keep, quota=quota)
        self._fanout.publish(Change("page", link.id))
        return kept

    async def find(self, id: str) -> Report | None:
        """Return the report that is stored under a link's id. Raises `StoreUnavailable`."""
        found = await self._store.get(id)
        return None if found is None else Report(from_json(self._sealed.unseal(id, found)))

    async def reports(self, flow: FlowRecord, should_yield: Callable[[], T | None] = lambda: None) -> Reports[T]:
        """Collect the reports from the pages that a person agreed to open, and hold the call until they have arrived.

        Return what has arrived in the time that `Limits(hold_seconds=)` allows, and what has not.
        """
        waiting = {
            (key, question): self.page(flow, key, question)
            for key, answers in flow.answers.items()
            for question, raw in answers.items()
            if question.startswith(f"{KIND}.") and raw.get("action") == "accept"
        }
        reports = Reports[T]()
        if not waiting:
            return reports

        async def look(heard: object) -> bool | None:
            for asked, id in list(waiting.items()):
                if (report := await self.find(id)) is not None:
                    reports.found[asked] = report
                    del waiting[asked]
            if waiting:
                reports.left = should_yield()
            return True if not waiting or reports.left else None

        loop = running_loop()
        deadline = loop.time() + self._limits.hold_seconds
        for endings in ((self._on_drain,), ()):  # where a call may not leave, a server that drains holds it on
            with closing(self._fanout.subscribe(frozenset(Change("page", id) for id in waiting.values()))) as changes:
                pauses = growing(FIRST_PAUSE, LONGEST_PAUSE, 1.5)
                is_done = await wait_until(look, changes, deadline=deadline, pauses=pauses, endings=endings)
            if is_done or loop.time() >= deadline:
                break
        reports.unfinished = tuple(waiting)
        return reports


def owner(principal: Principal | None) -> str:
    """Return a digest of the person behind a principal, whatever application acts for them; empty for nobody."""
    return "" if principal is None else digest([principal.issuer, principal.subject])


def _callback_link(callback: Callback[Any], base: str, link: Link) -> CallbackLink:
    return CallbackLink(f"{base}{PATH}{callback.name}", link.token, link.secret)

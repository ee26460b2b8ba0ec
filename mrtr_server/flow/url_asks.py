"""Asks for a page to be opened: the links that lead back from it, and what it reports."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, Generic, Self, TypeVar, cast, overload

from pydantic import ValidationError
from pydantic_core import from_json, to_json
from typing_extensions import override

from ..addresses import BaseUrl
from ..concurrency.running import running_loop
from ..concurrency.waiting import Ending, growing, wait_until
from ..crypto.digests import challenge_of, digest
from ..crypto.keys import REPORT, KeyRing
from ..crypto.place_codec import PlaceCodec, SealedRows
from ..crypto.signing import Links, SignedLink
from ..errors import FlowError, InvalidAnswer, LinkRefused, SetupError
from ..limits import Limits
from ..logs.failures import calls_author
from ..protocol.ask_kinds import CALLBACK, URL
from ..protocol.callers import Principal
from ..protocol.messages import JSON, Call, Change, Question
from ..protocol.outgoing import fault_of_page
from ..schema.misfits import describe
from ..schema.stored import Stored
from ..storage.base import Store
from ..storage.pubsub import Fanout
from ..storage.quotas import Quotas
from .asks import Ask, Text, accepted, written
from .journal import Journal

logger = logging.getLogger("mrtr_server")

T = TypeVar("T")
A = TypeVar("A")
T_co = TypeVar("T_co", covariant=True)

PATH = "/callbacks/"

KIND = CALLBACK.name

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""How often the store is polled for a held client that hears of nothing, in seconds."""


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
        return challenge_of(self.verifier)


NOWHERE = CallbackLink("https://callback.invalid/", "state", "verifier")
"""A link for nobody: an address made with it has only what is the same for everybody."""


@dataclass(eq=False, repr=False)
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

    name: str
    function: Callable[..., Any]
    _: KW_ONLY
    takes_link: bool
    returns: Any
    stored: Stored
    methods: frozenset[str]
    origins: frozenset[str]
    page: Callable[..., Any] | None

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
    found: dict[tuple[str, str], Report] = field(default_factory=dict)
    unfinished: tuple[tuple[str, str], ...] = ()
    left: T | None = None
    """Why the call no longer waits for those, where it continues elsewhere."""


@dataclass(eq=False, repr=False)
class Callbacks:
    known: Mapping[str, Callback[Any]]
    ring: InitVar[KeyRing]
    store: Store
    _: KW_ONLY
    audience: str
    base: BaseUrl
    identifies: bool
    fanout: Fanout
    limits: Limits
    on_drain: Ending
    clock: Callable[[], float] = time.time

    def __post_init__(self, ring: KeyRing) -> None:
        self._links = Links(ring, self.audience)
        moved = "it is stored under the key of another report"
        self._sealed = SealedRows(PlaceCodec(ring, REPORT), "The report of a callback", moved)
        self._quotas = Quotas(ring, self.limits)

    # Links

    def callback_link(
        self, callback: Callback[Any], key: str, question: str, call: Call, flow: Journal
    ) -> CallbackLink:
        """Return the link for an ask of a flow, the same in each round. A task has its own. Raises `FlowError`."""
        name = callback.name
        if self.known.get(name) is not callback:
            raise FlowError(f"The callback {name!r} belongs to another server; use a callback of this server")
        if call.principal is not None and not self.identifies:
            raise FlowError(
                f"The callback {name!r} can't tell whose browser opens its link: if the link reached somebody else, "
                "the caller would get that person's login. Give MRTRServer an identify= function"
            )
        if call.principal is None and self.identifies:
            raise FlowError(
                f"The callback {name!r} can't compare the browser's user with the caller, since this call is "
                "anonymous. Require authentication, or ask only if ctx.principal is not None"
            )
        host = call.headers.get(b"host", b"").decode("latin-1")
        base = self.base.at(host, call.root)
        if base is None:
            came = f"this request came to the host {host!r}, which is not loopback"
            raise FlowError(
                f"The address at which a browser reaches the callback {name!r} is not known: "
                f"{came if host else 'this request did not come over HTTP'}. Give MRTRServer its base_url="
            )
        expires = math.ceil(max(flow.started + self.limits.flow_seconds, flow.task_ends))
        id = self.page(flow, key, question)
        return _callback_link(callback, base, self._links.seal(name, id, owner(call.principal), expires))

    def unseal_link(self, callback: Callback[Any], token: str) -> SignedLink:
        link = self._links.unseal(callback.name, token)
        if link.expires <= self.clock():
            raise LinkRefused("expired")
        return link

    def callback_link_of(self, callback: Callback[Any], link: SignedLink, host: str, root: str) -> CallbackLink:
        return _callback_link(callback, self.base.at(host, root) or "", link)

    def page(self, flow: Journal, key: str, question: str) -> str:
        """Return the name that the report of an ask's page is stored under."""
        return digest([KIND, self.audience, flow.flow, key, question])

    # Reports

    async def report(self, link: SignedLink, report: JSON, person: Principal | None) -> bool:
        """Store what a callback reports; False if there is a report. Raises `FlowError`, `Full`, `StoreUnavailable`."""
        payload = to_json(report)
        if len(payload) > self.limits.state_bytes:
            raise FlowError(
                f"The callback returned {len(payload)} bytes; Limits(state_bytes=...) allows {self.limits.state_bytes}"
            )
        sealed = self._sealed.seal(link.id, payload).encode()
        now = self.clock()
        begun = min(
            link.expires - self.limits.flow_seconds, now
        )  # when its flow began; of a task, which lives longer, a later moment
        keep, quota = max(1.0, link.expires - now), self._quotas.of(person, begun)
        kept = await self.store.put(link.id, sealed, keep=keep, quota=quota)
        self.fanout.publish(Change("page", link.id))
        return kept

    async def find(self, id: str) -> Report | None:
        found = await self.store.get(id)
        return None if found is None else Report(from_json(self._sealed.unseal(id, found)))

    async def reports(self, flow: Journal, should_yield: Callable[[], T | None] = lambda: None) -> Reports[T]:
        """Hold the call until the pages that a person agreed to open have reported, for `hold_seconds` at most."""
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
        deadline = loop.time() + self.limits.hold_seconds
        for endings in ((self.on_drain,), ()):  # where a call may not leave, a server that drains holds it on
            with closing(self.fanout.subscribe(frozenset(Change("page", id) for id in waiting.values()))) as changes:
                pauses = growing(FIRST_PAUSE, LONGEST_PAUSE, 1.5)
                is_done = await wait_until(look, changes, deadline=deadline, pauses=pauses, endings=endings)
            if is_done or loop.time() >= deadline:
                break
        reports.unfinished = tuple(waiting)
        return reports


def owner(principal: Principal | None) -> str:
    """Return a digest of the person behind a principal, whatever application acts for them; empty for nobody."""
    return "" if principal is None else digest([principal.issuer, principal.subject])


def _callback_link(callback: Callback[Any], base: str, link: SignedLink) -> CallbackLink:
    return CallbackLink(f"{base}{PATH}{callback.name}", link.token, link.secret)


# Asks


UNFINISHED = "The page that you opened has not reported back yet. Please finish there first"
"""Prefix of the message of an ask that is repeated because its callback has not been called."""


class ElicitUrl(Ask[T]):
    """Ask the person to open a page; for what must not pass through the client (Elicitation, URL Mode).

    Without a callback, an accepted answer says that the person agreed to open the page, not that they are done there.

    Args:
        message: why, in words for the person; for a parameter, also a function as for `Elicit`.
        url: the page, with `https:` or `http:`; likewise. With a callback: a function that makes it from the
            `CallbackLink`, the same page each time; left out, the page is the callback itself.
        callback: what `@app.callback` made; the answer is what it returns once the person is back.
        key: see `Ask`; the callback's name by default, `open_url` without one.

    Raises:
        SetupError: the url is no function though there is a callback, or the other way round; or it is no address of
            a web page.
    """

    default_key = "open_url"
    needs_state = True
    may_be_declined = True

    @overload
    def __init__(self: "ElicitUrl[bool]", message: Text, url: Text, *, key: str | None = None) -> None: ...
    @overload
    def __init__(
        self: "ElicitUrl[A]",
        message: Text,
        url: Callable[[CallbackLink], str] | None = None,
        *,
        callback: Callback[A],
        key: str | None = None,
    ) -> None: ...
    def __init__(
        self, message: Text, url: Any = None, *, callback: Callback[Any] | None = None, key: str | None = None
    ) -> None:
        super().__init__(key)
        if callback is None and not (isinstance(url, str) or callable(url)):
            raise SetupError("ElicitUrl needs the url as a string, or a callback= that the page leads to")
        if isinstance(url, str) and (fault := fault_of_page(url)):
            raise SetupError(f"The url of an ElicitUrl {fault}")
        if callback is not None and not isinstance(callback, Callback):
            raise SetupError(f"callback={callback!r} is not a callback; put @app.callback(...) before the function")
        if callback is not None:
            if url is not None and not callable(url):
                raise SetupError(
                    "With callback=, url= must be a function of the CallbackLink, such as lambda back: "
                    'f"https://example.com/?redirect_uri={back.url}&state={back.state}"'
                )
            self.default_key = callback.name
        self.texts = ("message", "url") if callback is None else ("message",)
        self.types = (bool if callback is None else callback.returns,)
        self.message = message
        self.url = url
        self.callback = callback

    @override
    def filled(self, texts: Mapping[str, Any]) -> Self:
        """Return the same ask with these texts, as `Ask` does.

        Args:
            texts: what the functions in their place have made, by attribute.

        Returns:
            A copy. This ask does not change.

        Raises:
            FlowError: the url is not the address of a page.
        """
        if "url" in texts and (fault := fault_of_page(texts["url"])):
            raise FlowError(f"The url that a function made for an ElicitUrl {fault}")
        return super().filled(texts)

    def question(self) -> Question:
        """Return the ask as it goes to the client; with a callback, still without the page's address.

        Raises:
            SetupError: a text is still a function.
            FlowError: the `url=` function failed, or returned something else than the address of a page.
        """
        params = {"mode": "url", "message": written(self.message)}
        if self.callback is None and callable(self.url):
            raise SetupError("url= can be a function only with callback=, or in the annotation of a parameter")
        if self.callback is None:
            return URL.question({**params, "url": self.url})
        # The answer counts while the page stays what it was, but for the way back.
        shape = digest([self.callback.name, self._address(self.callback, NOWHERE)])
        return CALLBACK.question(params, shape=shape)

    def leading(self, question: Question, back: CallbackLink) -> Question:
        """Return the ask's question with the page's address, which leads back by this link.

        Args:
            question: the ask as it goes to the client, still without an address.
            back: the link of the callback for this flow.

        Returns:
            A copy of the question. The one that was passed does not change.

        Raises:
            FlowError: the `url=` function failed, or returned something else than the address of a page.
        """
        assert self.callback is not None  # noqa: S101  nothing leads back without one
        return question.having(url=self._address(self.callback, back))

    @calls_author
    def _address(self, callback: Callback[Any], back: CallbackLink) -> str:
        if self.url is None:
            return back.link
        try:
            address = self.url(back)
        except Exception as error:
            raise FlowError(f"The url= function for the callback {callback.name!r} failed: {error!r}") from error
        if not isinstance(address, str):
            kind = type(address).__name__  # not the address itself: it may have the token in it, or an answer
            raise FlowError(f"The url= function for the callback {callback.name!r} returned a {kind}, not a string")
        if fault := fault_of_page(address):
            raise FlowError(f"The url that the url= function for the callback {callback.name!r} returned {fault}")
        return address

    @override
    def parse(self, raw: JSON) -> T:
        content = accepted(raw)
        if self.callback is None:
            return cast(T, True)
        if not isinstance(raw, Report):  # the client's word is not enough
            raise InvalidAnswer(UNFINISHED)
        try:
            return cast(T, self.callback.stored.load(content, raw.get("exact")))
        except ValidationError as error:  # another version of the callback reported it
            raise FlowError(
                f"What the callback {self.callback.name!r} reported no longer fits its declared type: "
                f"{describe(error)}. Let the type accept what flows in progress have reported"
            ) from None

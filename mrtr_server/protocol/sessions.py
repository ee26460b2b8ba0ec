"""Session ids of the handshake era: what a client said of itself, sealed, so that nothing is stored."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from ..crypto.digests import digest, digest_bytes
from ..crypto.keys import KeyRing
from ..crypto.place_codec import PlaceCodec
from ..errors import InvalidRequestState
from .ask_kinds import ASKABLE
from .callers import ClientInfo, Principal
from .messages import Call

_LONGEST_ID = 1_500  # characters of a session id; nginx takes 4 KB of response headers
_LONGEST_NAME = 128  # characters that are remembered of the client's name, and of its version
_LONGEST_EXTENSIONS = 192  # characters that are remembered of the extensions that it declares, as JSON
_REMEMBERED = 4_096  # opened ids, so that the requests of a busy session need not open theirs


@dataclass(frozen=True, slots=True)
class Session:
    """What is known of the client of a request."""

    version: str = ""  # the version that was negotiated; empty if that is not known
    # Who it is, and what it can do; its capabilities are None if they are not known.
    client: ClientInfo = field(default_factory=lambda: ClientInfo(capabilities=None))
    issued: float = 0.0  # when the session began, in seconds since the epoch
    key: str = ""  # names the session in the store; empty for none
    _dumped: list[bytes] = field(default_factory=list, init=False, repr=False, compare=False)

    def of(self, version: str, client: ClientInfo) -> "Session":
        """Return the session as a request has it, which may name a version or describe its client itself."""
        if version == self.version and client is self.client:
            return self
        return Session(version, client, self.issued, self.key)

    def dump(self) -> bytes:
        """Return the session as JSON; `load` reads it. A client has one for all of its calls."""
        if not self._dumped:
            client = [self.client.info, self.client.capabilities]
            self._dumped.append(to_json([self.version, client, self.issued, self.key], inf_nan_mode="constants"))
        return self._dumped[0]

    @classmethod
    def load(cls, parts: list[Any]) -> "Session":
        """Return the session that JSON was made of."""
        version, client, issued, key = parts
        return cls(version, ClientInfo(*client), issued, key)


NO_SESSION = Session(client=ClientInfo())  # its client has declared nothing, unless the request does
UNOPENED = Session()  # its client has declared what it can do, and nobody knows what


def owner_of(principal: Principal | None) -> str:
    """Return a digest of a principal; empty without authentication."""
    return "" if principal is None else digest([principal.issuer, principal.subject, principal.client_id])


def owner_of_call(call: Call) -> str:
    """Return a digest of whose a call is: its principal's, or else its session's; empty for nobody's."""
    return owner_of(call.principal) or (digest(["session", call.session]) if call.session else "")


class OwnerPlaces:
    """The places that ids are sealed for: each belongs to one server, and to who was asked there; see `PlaceCodec`."""

    def __init__(self, audience: str) -> None:
        self._audience = audience
        self._nobodys = to_json([audience, owner_of(None)])

    def of(self, principal: Principal | None) -> bytes:
        """Return the place of what belongs to a principal; None for requests without authentication."""
        return self._nobodys if principal is None else to_json([self._audience, owner_of(principal)])


class Sessions:
    """Makes session ids, and unseals them: the first key seals, every key opens."""

    # An id grants nothing and never expires. One that does not open tells no more than that its client has begun.

    def __init__(self, ring: KeyRing, audience: str, clock: Callable[[], float] = time.time) -> None:
        self._codec = PlaceCodec(ring, "live session")
        self._places = OwnerPlaces(audience)
        self._clock = clock
        self._opened: OrderedDict[tuple[bytes, Principal | None], Session | bytes] = OrderedDict()
        """The sessions of opened ids; the sealed payload of one that nobody has named yet."""

    def seal(self, version: str, client: ClientInfo, principal: Principal | None) -> bytes:
        """Return the id of a new session."""
        kept = remembered(client)
        payload = to_json([version, kept.capabilities, kept.info, self._clock()])
        id = self._codec.seal(self._places.of(principal), payload).encode()
        if len(id) > _LONGEST_ID:  # of a name in an alphabet whose characters take many bytes
            return self.seal(version, ClientInfo(capabilities=client.capabilities), principal)
        self._remember(id, principal, payload)
        return id

    def unseal(self, id: bytes | None, principal: Principal | None) -> Session:
        """Return the session of an id: `NO_SESSION` without one, `UNOPENED` if it does not open for this principal."""
        if not id:
            return NO_SESSION
        if len(id) > _LONGEST_ID:
            return UNOPENED
        known = self._opened.get((id, principal))
        if isinstance(known, Session):
            return known
        if known is None:
            try:
                known = self._codec.unseal(self._places.of(principal), id, "belongs to another principal")
            except InvalidRequestState:
                return UNOPENED
        version, capabilities, info, issued = from_json(known)
        session = Session(version, ClientInfo(info, capabilities), issued, digest_bytes(id))
        self._remember(id, principal, session)
        return session

    def _remember(self, id: bytes, principal: Principal | None, session: Session | bytes) -> None:
        self._opened[id, principal] = session
        if len(self._opened) > _REMEMBERED:
            with suppress(KeyError):  # other threads have dropped as many
                self._opened.popitem(last=False)


def remembered(client: ClientInfo) -> ClientInfo:
    """Return what is kept of how a client describes itself: its known capabilities, its name and its version."""
    info = {"name": client.name[:_LONGEST_NAME], "version": client.version[:_LONGEST_NAME]}
    declared = client.capabilities or {}
    known, extensions = _known_capabilities(declared), _known_extensions(declared.get("extensions"))
    return ClientInfo(info, {**known, "extensions": extensions} if extensions else known)


def _known_capabilities(declared: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for name, parts in ASKABLE.items():
        found = declared.get(name)
        if isinstance(found, dict):
            known[name] = {part: {} for part in parts if found.get(part) is not None} if found else {}
    return known


def _known_extensions(declared: Any) -> dict[str, Any]:
    """Return the extensions that a client declares, the protocol's first, as far as there is room for them."""
    known: dict[str, Any] = {}
    left = _LONGEST_EXTENSIONS
    objects = declared.items() if isinstance(declared, dict) else ()
    for id, settings in sorted(objects, key=lambda item: not item[0].startswith("io.modelcontextprotocol/")):
        if isinstance(settings, dict) and len(id) < left:
            size = len(to_json({id: settings}, inf_nan_mode="constants"))
            known[id] = settings if size <= left else {}
            left -= size if size <= left else len(id) + len('{"":{}}')
    return known

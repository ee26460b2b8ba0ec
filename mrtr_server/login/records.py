"""What a login remembers between its steps: sealed records, each kind under a purpose of its own.

Fields that came later have a default, so that records of before can be read. What is redeemed once names the `epoch` of
the store: that of an earlier one may have been redeemed in writes that were lost.
"""

from base64 import urlsafe_b64decode
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic_core import from_json, to_json

from ..crypto.keys import KEY_ID_BYTES, KeyRing
from ..crypto.place_codec import PlaceCodec
from ..errors import InvalidRequestState


class Registration(NamedTuple):
    """A client that registered itself (RFC 7591). Its id is this record, sealed."""

    name: str
    redirects: list[str]
    method: str  # how it authenticates at the token endpoint
    issued: int  # when, in seconds since the epoch


class Asked(NamedTuple):
    """What a client asked for at `/authorize`, checked."""

    client: str  # the address of its document, or the digest of its id
    method: str
    name: str
    redirect: str
    state: str | None
    challenge: str  # of PKCE
    scopes: list[str]
    jkt: str = ""  # the thumbprint of the key that its tokens are to be bound to


class Question(NamedTuple):
    """What the page asks a person. The form has it, and the cookie what it must come back with."""

    secret: str  # digest of what the cookie has
    expires: float
    asked: list[Any]  # an `Asked`
    name: str = ""  # of the cookie: a browser may be asked several things at a time


class Remembered(NamedTuple):
    """What a person has allowed before in one browser; the browser keeps it in a cookie."""

    expires: float
    consents: list[str]


class Transaction(NamedTuple):
    """A login that the person has agreed to, on its way through the provider. The browser keeps it in a cookie."""

    state: str  # its short name, which the provider passes on
    verifier: str  # of PKCE at the provider
    nonce: str
    expires: float
    asked: list[Any]
    epoch: str = ""


class Upstream(NamedTuple):
    """What the provider gave: tokens of the person's own, for the server to use there."""

    access: str = ""
    refresh: str = ""
    expires: float = 0.0  # in seconds since the epoch; 0 where it does not
    scopes: Sequence[str] = ()


class About(NamedTuple):
    """What an operator is shown of a login. It is in the row with the person's tokens, sealed as they are."""

    family: str
    began: float
    issuer: str  # the provider
    subject: str
    person: str = ""  # as the provider calls them
    client: str = ""  # the address of its document, or what it calls itself
    used: float = 0.0  # when its tokens were last refreshed, in seconds since the epoch


class Grant(NamedTuple):
    """What a person has let a client do: the same in its code and in all its tokens, which are one family."""

    family: str
    began: float
    client: str
    method: str
    jkt: str
    issuer: str  # the provider
    subject: str
    claims: dict[str, Any]  # what else is known of the person
    scopes: list[str]


class Code(NamedTuple):
    expires: float
    redirect: str
    challenge: str
    grant: list[Any]
    upstream: list[Any]  # an `Upstream`; empty where the store keeps it
    epoch: str = ""


class Access(NamedTuple):
    expires: float
    grant: list[Any]
    upstream: str  # the access token at the provider; empty where the store keeps it
    upstream_scopes: list[str]


class Refresh(NamedTuple):
    expires: float
    generation: int  # how often the family was refreshed before
    grant: list[Any]
    upstream: list[Any]
    epoch: str = ""


T = TypeVar("T")


class Sealed(Generic[T]):
    """Seals the records of one kind. `used` is told the id of the key that each was sealed under."""

    def __init__(self, ring: KeyRing, purpose: str, kind: Callable[..., T], used: Callable[[str], None]) -> None:
        self._codec = PlaceCodec(ring, f"login {purpose}")
        self._kind: Any = kind
        self._used = used

    def seal(self, issuer: str, record: T) -> str:
        """Seal a record for an issuer: no other server opens it, whatever keys they share."""
        values: Any = record
        return self._codec.seal(_place(issuer), to_json(list(values)))

    def open(self, issuer: str, token: str) -> T | None:
        """Return the record of any text; None if it is none of this kind and issuer."""
        try:
            values = from_json(self._codec.unseal(_place(issuer), token, "it belongs to another issuer"))
        except InvalidRequestState:
            return None
        self._used(key_id(token))
        found: T = self._kind(*values[: len(self._kind._fields)])  # without what a later release has added
        return found


def _place(issuer: str) -> bytes:
    return f"{issuer} ".encode()


def key_id(token: str) -> str:
    """Return the id of the key that a token names, as hex digits."""
    return urlsafe_b64decode(token[:8])[1 : 1 + KEY_ID_BYTES].hex()


class Seals:
    """All kinds, and which keys of the ring are in use."""

    def __init__(self, ring: KeyRing, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.used: dict[str, float] = {}
        """When something was last opened under a key, in seconds since the epoch, by the key's id."""
        self.registration = Sealed(ring, "registration", Registration, self._note)
        self.question = Sealed(ring, "question", Question, self._note)
        self.remembered = Sealed(ring, "remembered consent", Remembered, self._note)
        self.transaction = Sealed(ring, "transaction", Transaction, self._note)
        self.code = Sealed(ring, "code", Code, self._note)
        self.access = Sealed(ring, "access token", Access, self._note)
        self.refresh = Sealed(ring, "refresh token", Refresh, self._note)

    def _note(self, key: str) -> None:
        self.used[key] = self._clock()

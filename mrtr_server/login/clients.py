"""Who a client is: by its registration, which is its id, or by the document at the address that is its id."""

import hmac
import re
import time
import unicodedata
from base64 import b64decode
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote_plus, urlsplit

from pydantic_core import from_json

from ..auth.dpop import Once
from ..auth.jwt_keys import ALGORITHMS, read_header, read_keys, verify
from ..crypto.digests import digest_bytes
from ..crypto.keys import KeyRing
from ..crypto.place_codec import RowNames
from ..errors import OAuthError
from .documents import Documents
from .records import Registration, Seals
from .redirects import MOST, fault_of

PUBLIC = "none"
BASIC = "client_secret_basic"
POST = "client_secret_post"
PRIVATE_KEY = "private_key_jwt"

METHODS = (PUBLIC, BASIC, POST, PRIVATE_KEY)

LONGEST_ID = 1500  # characters

LONGEST_NAME = 80

_JWT_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

_ASSERTION_SECONDS = 300.0
"""How long an assertion of a client may be valid, in seconds: it is remembered for as long."""


class Client(NamedTuple):
    """A client, as far as it said who it is."""

    key: str
    """Names it in records: the address of its document, or the digest of its id."""
    id: str
    name: str
    redirects: list[str]
    method: str
    document: Mapping[str, Any] | None = None  # where its id is the address of one

    @property
    def host(self) -> str:
        """The host that vouches for it; empty for one that registered itself."""
        return (urlsplit(self.id).hostname or "") if self.document is not None else ""


def is_document(id: str) -> bool:
    return id.startswith("https://")


class Clients:
    def __init__(
        self,
        seals: Seals,
        ring: KeyRing,
        documents: Documents,
        schemes: Collection[str],
        once: Once,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._seals = seals
        self._secrets = RowNames(ring, "login client secret")
        self.documents = documents
        self._schemes = schemes
        self._once = once
        self._clock = clock

    # Registration (RFC 7591)

    def register(self, issuer: str, wanted: object) -> dict[str, Any]:
        """Return what a client is told that registers itself: nothing is stored. Raises `OAuthError`."""
        if not isinstance(wanted, dict):
            raise OAuthError("invalid_client_metadata", "Send a JSON object")
        redirects = self._redirects(wanted)
        method = wanted.get("token_endpoint_auth_method", BASIC)
        if method not in (PUBLIC, BASIC, POST):
            raise OAuthError("invalid_client_metadata", f"token_endpoint_auth_method: one of {PUBLIC}, {BASIC}, {POST}")
        _check_types(wanted)
        name, issued = shown_name(wanted.get("client_name")), int(self._clock())
        id = self._seals.registration.seal(issuer, Registration(name, redirects, method, issued))
        if len(id) > LONGEST_ID:
            raise OAuthError("invalid_redirect_uri", "The redirect_uris are too long together: register fewer")
        told = {
            "client_id": id,
            "client_id_issued_at": issued,
            "client_name": name,
            "redirect_uris": redirects,
            "token_endpoint_auth_method": method,
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
        }
        if method != PUBLIC:
            told |= {"client_secret": self._secrets.of([id])[0], "client_secret_expires_at": 0}
        return told

    def _redirects(self, wanted: Mapping[str, Any]) -> list[str]:
        redirects = wanted.get("redirect_uris")
        if not isinstance(redirects, list) or not 0 < len(redirects) <= MOST:
            raise OAuthError("invalid_redirect_uri", f"redirect_uris: give 1 to {MOST} addresses")
        for each in redirects:
            if fault := fault_of(each, self._schemes):
                raise OAuthError("invalid_redirect_uri", f"{str(each)[:200]!r} {fault}")
        return redirects

    # To look one up

    async def find(self, issuer: str, id: str) -> Client:
        """Return the client of an id. Raises `OAuthError`."""
        if is_document(id):
            document = await self.documents.find(id)
            method = document.get("token_endpoint_auth_method", PUBLIC)
            if method not in (PUBLIC, PRIVATE_KEY):
                raise OAuthError(
                    "invalid_client", f"{id}: token_endpoint_auth_method: one of {PUBLIC}, {PRIVATE_KEY}", 401
                )
            try:
                redirects = self._redirects(document)
            except OAuthError as error:
                raise OAuthError("invalid_client", f"{id}: {error.description}", 401) from None
            return Client(id, id, shown_name(document.get("client_name")), redirects, method, document)
        found = self._registered(issuer, id)
        return Client(digest_bytes(id.encode()), id, found.name, found.redirects, found.method)

    def _registered(self, issuer: str, id: str) -> Registration:
        found = self._seals.registration.open(issuer, id) if len(id) <= LONGEST_ID else None
        if found is None:
            raise OAuthError("invalid_client", "This client is not known here: register it", 401)
        return found

    # At the token endpoint

    async def authenticate(
        self, issuer: str, endpoint: str, form: Mapping[str, str], authorization: str | None
    ) -> tuple[str, str]:
        """Return the key of the client that sends a form, and how it proved that. Raises `OAuthError`."""
        if authorization is not None:
            id, secret = _basic(authorization)
            if form.get("client_id", id) != id or "client_secret" in form or "client_assertion" in form:
                raise OAuthError("invalid_request", "The client authenticates in two ways")
            return self._check_secret(issuer, id, secret, BASIC), BASIC
        if "client_assertion" in form or "client_assertion_type" in form:
            id = await self._check_assertion(issuer, endpoint, form)
            return id, PRIVATE_KEY
        id = form.get("client_id", "")
        if "client_secret" in form:
            return self._check_secret(issuer, id, form["client_secret"], POST), POST
        if is_document(id):  # what it may do without a key is in its code, or refresh token
            return id, PUBLIC
        if self._registered(issuer, id).method != PUBLIC:
            raise OAuthError("invalid_client", "This client has a secret: send it", 401)
        return digest_bytes(id.encode()), PUBLIC

    def _check_secret(self, issuer: str, id: str, secret: str, method: str) -> str:
        registered = self._registered(issuer, id)
        known = [hmac.compare_digest(each.encode(), secret.encode()) for each in self._secrets.of([id])]
        if registered.method != method or not any(known):
            headers = {"WWW-Authenticate": 'Basic realm="clients"'} if method == BASIC else {}
            raise OAuthError("invalid_client", "The client's secret, or the way of sending it, is wrong", 401, headers)
        return digest_bytes(id.encode())

    async def _check_assertion(self, issuer: str, endpoint: str, form: Mapping[str, str]) -> str:
        """Check the JWT by which a client authenticates (RFC 7523, section 3)."""
        id = form.get("client_id", "")
        refused = OAuthError("invalid_client", "The client_assertion is not valid", 401)
        if form.get("client_assertion_type") != _JWT_BEARER or not is_document(id):
            raise refused
        client = await self.find(issuer, id)
        if client.method != PRIVATE_KEY or client.document is None:
            raise refused
        token = form.get("client_assertion", "").encode()
        try:
            kid, algorithm = read_header(token, ALGORITHMS)
            keys = read_keys(await self.documents.keys(client.document), [algorithm])
            fitting = [key for key in keys if not kid or not key.id or key.id == kid]
            claims = verify(token, fitting[:10], algorithm, issuer=id, has_audience=True, leeway=30.0)
        except OAuthError:
            raise
        except Exception:  # whatever is wrong with it
            raise refused from None
        if claims is None or claims.get("sub") != id:
            raise refused
        audience = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        left, jti = claims["exp"] - self._clock(), claims.get("jti")
        if audience not in ([issuer], [endpoint]) or left > _ASSERTION_SECONDS or not isinstance(jti, str):
            raise refused
        if not await self._once(f"assertion {id} {jti}", left + 60.0):
            raise refused
        return id


def _check_types(wanted: Mapping[str, Any]) -> None:
    """Check that a client wants no more than there is: it would otherwise wait for it in vain."""
    grants, responses = wanted.get("grant_types", ["authorization_code"]), wanted.get("response_types", ["code"])
    if not isinstance(grants, list) or "authorization_code" not in grants:
        raise OAuthError("invalid_client_metadata", "grant_types: authorization_code, and refresh_token")
    if responses != ["code"]:
        raise OAuthError("invalid_client_metadata", "response_types: code alone")


def _basic(header: str) -> tuple[str, str]:
    scheme, _, given = header.partition(" ")
    try:
        id, colon, secret = b64decode(given, validate=True).decode("ascii").partition(":")
    except ValueError:
        colon = ""
    if scheme.lower() != "basic" or not colon:
        raise OAuthError("invalid_client", "The Authorization header is not Basic", 401)
    return unquote_plus(id), unquote_plus(secret)


_SPACES = re.compile(r"\s+")


def shown_name(given: object) -> str:
    """Return a name that a client gave itself, as people may be shown it: nothing in it turns or hides text."""
    if not isinstance(given, str):
        return ""
    plain = "".join(each if unicodedata.category(each)[0] != "C" else " " for each in given[:200])
    return _SPACES.sub(" ", plain).strip()[:LONGEST_NAME]


def read_json(body: bytes) -> object:
    try:
        return from_json(body)
    except ValueError:
        raise OAuthError("invalid_client_metadata", "The body is not JSON") from None

"""Clients: by their registration, or the document at their id; and where browsers may be sent back to (RFC 8252)."""

import hmac
import re
import time
import unicodedata
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote_plus, urlsplit

from pydantic_core import from_json

from ..addresses import is_loopback_address
from ..auth.dpop import Once
from ..auth.jwt_keys import ALGORITHMS, read_header, read_keys, verify
from ..crypto.digests import digest_bytes
from ..crypto.keys import KeyRing
from ..crypto.place_codec import RowNames
from ..errors import OAuthError, SetupError
from .documents import Documents
from .records import Registration, Seals

LONGEST_REDIRECT = 1000  # characters of an address

MOST_REDIRECTS = 20  # addresses of a client

_PLAIN = re.compile(r"[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]+")
"""What an address may have (RFC 3986, section 2), without a fragment: no backslash, which browsers read as a slash."""

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:.]+")
"""A name, or an address as `urlsplit` returns it: without its brackets, and checked by it."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")

_NEVER = frozenset(
    (
        "about",
        "blob",
        "data",
        "file",
        "filesystem",
        "ftp",
        "http",
        "https",
        "javascript",
        "mailto",
        "vbscript",
        "ws",
        "wss",
    )
)
"""No schemes of applications: what runs in the browser, or is not the application's alone."""


def check_schemes(given: Iterable[str]) -> frozenset[str]:
    """Return the private-use schemes of `allow_redirects=`. Raises `SetupError`."""
    if isinstance(given, str):
        raise SetupError(f"allow_redirects={given!r} is one string; give a list: allow_redirects=[{given!r}]")
    schemes = frozenset(each.lower().removesuffix("://").removesuffix(":") for each in given)
    for scheme in schemes:
        if not _SCHEME.fullmatch(scheme) or scheme in _NEVER:
            raise SetupError(
                f"allow_redirects={scheme!r}: name schemes of applications, such as 'com.example.app' or 'cursor'. "
                "Redirects to https, and to this machine, are allowed in any case"
            )
    return schemes


def fault_of(uri: object, schemes: Collection[str]) -> str:
    """Return why a client may not have an address to be sent to, for its developer; empty if it may."""
    if not isinstance(uri, str) or not uri or len(uri) > LONGEST_REDIRECT or not _PLAIN.fullmatch(uri):
        return f"must be an address of at most {LONGEST_REDIRECT} plain characters, without a fragment"
    try:
        parts = urlsplit(uri)
        port_is_wrong = parts.port == 0
    except ValueError:
        return "is no address"
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        return "must not have a user name"
    if parts.scheme in ("https", "http"):
        if port_is_wrong or not _HOST.fullmatch(parts.hostname or "") or parts.netloc.endswith(":"):
            return "must have a plain host"
        if parts.scheme == "http" and not is_loopback(parts):
            return "must be https, unless it is on this machine"
        return ""
    if parts.scheme not in schemes:
        return f"has the scheme {parts.scheme!r}, which this server does not allow"
    return ""


def is_loopback(parts: SplitResult) -> bool:
    return parts.scheme == "http" and is_loopback_address(parts.hostname or "")


def fits(uri: str, registered: Iterable[str]) -> bool:
    """Return whether an address is one that a client has registered: the same text, but on loopback for the port."""
    # One that was not registered as it is has to be checked as those that were.
    return any(uri == each or (not fault_of(uri, ()) and _differ_in_port(uri, each)) for each in registered)


def _differ_in_port(uri: str, registered: str) -> bool:
    here, there = urlsplit(uri), urlsplit(registered)
    if not (is_loopback(here) and is_loopback(there)):
        return False
    return (here.hostname, here.path, here.query) == (there.hostname, there.path, there.query)


def host_of(uri: str) -> str:
    """Return what a person is shown of where the browser goes."""
    parts = urlsplit(uri)
    if is_loopback(parts):
        return "this computer"
    return parts.netloc if parts.scheme == "https" else f"{parts.scheme}:"


def is_on_this_computer(uri: str) -> bool:
    """Return whether an address is on the computer of the browser, so that no other site can be there."""
    return is_loopback(urlsplit(uri))


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
        if not isinstance(redirects, list) or not 0 < len(redirects) <= MOST_REDIRECTS:
            raise OAuthError("invalid_redirect_uri", f"redirect_uris: give 1 to {MOST_REDIRECTS} addresses")
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
        # What is allowed may have changed since.
        redirects = [each for each in found.redirects if not fault_of(each, self._schemes)]
        return Client(digest_bytes(id.encode()), id, found.name, redirects, found.method)

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
            claims = await self._verified(id, token, client.document)
            if claims is None:  # its keys may have changed
                claims = await self._verified(id, token, client.document, anew=True)
        except OAuthError:
            raise
        except Exception:  # whatever is wrong with it
            raise refused from None
        if claims is None or claims.get("sub") != id:
            raise refused
        audience = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        left, jti = float(claims["exp"]) - self._clock(), claims.get("jti")
        if audience not in ([issuer], [endpoint]) or left > _ASSERTION_SECONDS or not isinstance(jti, str):
            raise refused
        if not await self._once(f"assertion {id} {jti}", left + 60.0, None):
            raise refused
        return id

    async def _verified(
        self, id: str, token: bytes, document: Mapping[str, Any], *, anew: bool = False
    ) -> Mapping[str, Any] | None:
        kid, algorithm = read_header(token, ALGORITHMS)
        keys = read_keys(await self.documents.keys(document, anew=anew), [algorithm])
        fitting = [key for key in keys if not kid or not key.id or key.id == kid]
        return verify(token, fitting[:10], algorithm, issuer=id, has_audience=True, leeway=30.0)


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

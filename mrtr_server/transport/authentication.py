"""Who gets in: requests without good credentials are challenged (RFC 6750), and learn where to get some (RFC 9728)."""

import logging
import re
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, BaseUser
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..addresses import escape_path
from ..auth.dpop import ALGORITHMS, Mode
from ..auth.fixed_tokens import Acting
from ..auth.token_backend import NEXT_NONCE
from ..errors import Busy, IssuerUnavailable, ProofRefused
from ..logs.refusals import RefusalLog
from ..protocol.callers import scopes_of
from ..protocol.handshake import HandshakeDialect
from .gate import drain_body

logger = logging.getLogger("mrtr_server")

WELL_KNOWN = "/.well-known/oauth-protected-resource"

NOT_SERVED = (
    "clients can't find out where to get a token: the site around this server does not serve {path!r}. Add "
    f'Mount("{WELL_KNOWN}", server.resource_metadata) to its routes'
)
"""What is wrong where a site passes on the path of the endpoint alone, and what to do."""

_SHOWN = 200  # characters of a path, which its client may have chosen

_DOCUMENT = WELL_KNOWN.rpartition("/")[2]

_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")

# The metadata is public, and clients in browsers read it before they have a token.
_OPEN_TO_ALL = {"Access-Control-Allow-Origin": "*"}


RETRY_AFTER = 5  # when to come again while nobody can tell whether a token is valid, in seconds

_UNVERIFIED = "The token can't be verified now; try again"


class ResourceMetadata:
    """Serves the metadata, at the well-known path and at the one that ends with the path of the endpoint."""

    def __init__(
        self,
        path: str,  # of the endpoint, without a slash at its end
        base_url: str | None,  # of the application; None to take it from each request
        *,
        audience: Sequence[str],  # what tokens are meant for; clients ask tokens for the first that is an address
        authorization_servers: Sequence[str],  # empty where it is the application itself
        scopes: Sequence[str],  # those that every request needs
        name: str,
        documentation: str | None,  # where people can read about the server
        dpop: Mode | None = None,  # whether tokens may, or must, be bound to a key of the client
    ) -> None:
        self._path = path
        self._has_warned = False
        self._base_url = None if base_url is None else base_url.rstrip("/")
        self._base_path = "/".join(["", *(self._base_url or "").split("/", 3)[3:]])
        self._resource = next((each for each in audience if each.startswith(("https://", "http://"))), None)
        more = {
            "scopes_supported": list(scopes),
            "resource_documentation": documentation,
            "dpop_signing_alg_values_supported": list(ALGORITHMS) if dpop else [],
            "dpop_bound_access_tokens_required": dpop == "require",
        }
        self._servers = list(authorization_servers)
        self._document = {
            "bearer_methods_supported": ["header"],
            "resource_name": name,
            **{field: value for field, value in more.items() if value},
        }

    def claims(self, below: str) -> bool:
        return below.startswith(WELL_KNOWN) and below.rstrip("/") in (WELL_KNOWN, WELL_KNOWN + self._path)

    def url(self, scope: Scope) -> str:
        """Return where the metadata is, for the client of a request to the endpoint; empty if that can't be known."""
        root = scope.get("root_path", "")
        base = self._base(scope, root)
        below = scope["path"].removeprefix(root).rstrip("/")
        own = base and base + WELL_KNOWN + escape_path(below)
        if not own or "router" not in scope or is_served(scope, root + WELL_KNOWN + below):
            return own
        # A Route passes on the path of the endpoint alone, so the site has to serve the metadata: at its root
        # (RFC 9728, section 3.1), which is another place if the Route itself is below a Mount.
        site = scope.get("app_root_path", root)
        mount = root.removeprefix(site)
        path = site + WELL_KNOWN + mount + below
        if is_served(scope, path):
            return base.removesuffix(escape_path(mount)) + WELL_KNOWN + escape_path(mount + below)
        if not self._has_warned:
            self._has_warned = True
            logger.warning("With auth=, %s", NOT_SERVED.format(path=path[:_SHOWN]))
        return own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._respond(scope)(scope, receive, send)

    def _respond(self, scope: Scope) -> Response:
        if scope["method"] == "OPTIONS":
            allowed = {"Access-Control-Allow-Methods": "GET", "Access-Control-Allow-Headers": "*"}
            return Response(status_code=204, headers={**_OPEN_TO_ALL, **allowed})
        if scope["method"] not in ("GET", "HEAD"):
            return Response(status_code=405, headers={"Allow": "GET, HEAD, OPTIONS"})
        resource = self._resource or self._named(scope)
        if not resource:
            return JSONResponse({"error": "Not found"}, 404)
        # Made of the request's own Host, it is for nobody else.
        kept = "no-store" if self._resource is None and self._base_url is None else "max-age=300"
        servers = self._servers or [resource.removesuffix(escape_path(self._path))]
        document: dict[str, Any] = {"resource": resource, "authorization_servers": servers, **self._document}
        return JSONResponse(document, headers={**_OPEN_TO_ALL, "Cache-Control": kept})

    def _named(self, scope: Scope) -> str:
        """Return the address of the endpoint that the path of a request is about; empty if that can't be known."""
        _, found, after = scope["path"].rstrip("/").partition(WELL_KNOWN)
        about = escape_path(after) if found else ""
        root = scope.get("root_path", "")
        if root.endswith(WELL_KNOWN):  # mounted there by an outer application, so the path is that of a whole address
            base = self._base(scope, root.removesuffix(WELL_KNOWN))
            if f"{about}/".startswith(f"{self._base_path}/"):
                base = base.removesuffix(self._base_path)
            return base and base + (about or self._path)
        base = self._base(scope, root)
        return base and base + (about if about or root else self._path)

    def _base(self, scope: Scope, root: str) -> str:
        if self._base_url is not None:
            return self._base_url
        host = Headers(scope=scope).get("host", "")
        return f"{scope['scheme']}://{host}{escape_path(root.rstrip('/'))}" if _HOST.fullmatch(host) else ""


def is_served(scope: Scope, path: str) -> bool:
    """Return whether the site that passes a request on would serve the metadata at a path; True if it has no routes."""
    from .sites import routes_of, serves  # loads the routes of Starlette; the site has done that

    outside = {key: value for key, value in scope.items() if key not in ("app_root_path", "raw_path", "path_params")}
    root = scope.get("app_root_path", scope.get("root_path", ""))
    asked = {**outside, "method": "GET", "path": path, "root_path": root}
    routes = routes_of(scope["router"])
    return not routes or serves(routes, asked, scope.get("endpoint"), _DOCUMENT)


class Challenges:
    def __init__(self, metadata: ResourceMetadata | None, scopes: Sequence[str], dpop: Mode | None = None) -> None:
        self._dpop = dpop
        self._metadata = metadata  # None where nothing is known of an authorization server
        self.scopes = tuple(scopes)  # those that every request needs

    def authenticate(self, scope: Scope, error: str = "") -> str:
        """Return the challenge for a request that nobody has authenticated. RFC 6750 names the `error`, if any."""
        return self._write(scope, error, self.scopes)

    def proof(self, scope: Scope, error: str) -> str:
        """Return the challenge for a request whose token needs a proof, or has a wrong one (RFC 9449, section 7.1)."""
        return self._write(scope, error, self.scopes, by_proof=True)

    def insufficient_scope(self, scope: Scope, needed: Sequence[str] = ()) -> str:
        """Return the challenge for lacking scopes: all of them, at once (Authorization, Scope Challenge Handling)."""
        return self._write(scope, "insufficient_scope", tuple(dict.fromkeys((*self.scopes, *needed))))

    def _write(self, scope: Scope, error: str, scopes: Sequence[str], *, by_proof: bool = False) -> str:
        by_proof = by_proof or self._dpop == "require"
        parameters = {
            "realm": "mcp",
            "error": error,
            "scope": " ".join(scopes),
            "resource_metadata": self._metadata.url(scope) if self._metadata is not None else "",
            "algs": " ".join(ALGORITHMS) if by_proof else "",
        }
        return ("DPoP " if by_proof else "Bearer ") + ", ".join(
            f'{name}="{value}"' for name, value in parameters.items() if value
        )


class Authentication:
    """Serves only requests that are authenticated and have the scopes that every request needs."""

    def __init__(
        self,
        app: ASGIApp,
        backend: AuthenticationBackend | None,  # None where a middleware around the application finds out who calls
        challenges: Challenges,
        refusals: RefusalLog,
        handshake: HandshakeDialect | None = None,  # whose clients end their session at an HTTP error
        body_bytes: int = 0,
    ) -> None:
        self._app = app
        self._backend = backend
        self._challenges = challenges
        self._needed = frozenset(challenges.scopes)
        self._refusals = refusals
        self._handshake = handshake
        self._body_bytes = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._check(scope)
        if scope.get(NEXT_NONCE):
            send = partial(_with_nonce, send, scope[NEXT_NONCE].encode())
        await (self._app if refusal is None else refusal)(scope, receive, send)

    async def _check(self, scope: Scope) -> ASGIApp | None:
        if scope["query_string"] and _has_token(scope["query_string"]):
            self._refusals.count("unauthenticated")
            self._refusals.note("Refused a token in the address, where logs show it: clients send it in a header")
            challenge = self._challenges.authenticate(scope, "invalid_request")
            return _refusal(400, "Send the token in the Authorization header", challenge)
        try:
            found = await self._authenticate(scope)
        except AuthenticationError as error:
            return self._rejected(scope, error)
        if found is None or not found[1].is_authenticated:
            self._refusals.count("unauthenticated")
            return _refusal(401, "Authentication is required", self._challenges.authenticate(scope))
        if self._needed and not self._needed <= scopes_of(found[0]):
            self._refusals.count("insufficient_scope")
            return _refusal(403, "The scopes are insufficient", self._challenges.insufficient_scope(scope))
        scope["auth"], scope["user"] = found
        return None

    async def _authenticate(self, scope: Scope) -> tuple[AuthCredentials, BaseUser] | None:
        if isinstance(acting := scope.get("auth"), Acting):
            return acting, scope["user"]
        if self._backend is not None:
            return await self._backend.authenticate(HTTPConnection(scope))
        return (scope["auth"], scope["user"]) if "auth" in scope and "user" in scope else None

    def _rejected(self, scope: Scope, error: AuthenticationError) -> ASGIApp:
        reason = str(error)
        for part in HTTPConnection(scope).headers.get("authorization", "").split():
            reason = reason.replace(part, "…") if len(part) > len("Bearer") else reason  # a token is never logged
        self._refusals.note("Credentials were rejected: %r", reason)
        away = isinstance(error.__cause__, IssuerUnavailable)
        self._refusals.count("issuer_unavailable" if away else "unauthenticated")
        if isinstance(proof := error.__cause__, ProofRefused):
            challenge = self._challenges.proof(scope, proof.error)
            return _refusal(401, "Authentication is required", challenge, proof.nonce)
        if away:  # it may well hold: a 401 would send the person to log in
            return self._put_off
        return _refusal(401, "Authentication is required", self._challenges.authenticate(scope, "invalid_token"))

    async def _put_off(self, scope: Scope, receive: Receive, send: Send) -> None:
        later = {"Retry-After": str(RETRY_AFTER)}
        form, request_id = self._handshake, None
        if form is not None and scope["method"] == "POST" and form.is_of(dict(scope["headers"])):
            request_id = await drain_body(receive, self._body_bytes)
        if form is None or request_id is None:
            response: Response = JSONResponse({"error": _UNVERIFIED}, 503, later)
        else:  # at an HTTP error, its client would end its session
            reply = form.error(request_id, Busy(RETRY_AFTER, _UNVERIFIED))
            response = Response(reply.body, reply.status, later, "application/json")
        await response(scope, receive, send)


def _has_token(query: bytes) -> bool:
    if b"access_token" not in query and b"%" not in query:
        return False
    return any(name == "access_token" for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))


def _refusal(status: int, message: str, challenge: str, nonce: str = "") -> Response:
    more = {"DPoP-Nonce": nonce, "Cache-Control": "no-store"} if nonce else {}
    return JSONResponse({"error": message}, status, {"WWW-Authenticate": challenge, **more})


async def _with_nonce(send: Send, nonce: bytes, message: Message) -> None:
    if message["type"] == "http.response.start":
        message = {**message, "headers": [*message["headers"], (b"dpop-nonce", nonce)]}
    await send(message)

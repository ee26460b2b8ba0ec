"""Authentication of requests: those without good credentials are challenged."""

from urllib.parse import parse_qsl

from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, BaseUser
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..auth.fixed_tokens import Acting
from ..errors import Busy, IssuerUnavailable
from ..logs.refusals import RefusalLog
from ..protocol.callers import scopes_of
from ..protocol.handshake import HandshakeDialect
from .challenges import Challenges
from .refused_bodies import drain_body

RETRY_AFTER = 5
"""When to come again while nobody can tell whether a token is valid, in seconds."""

_UNVERIFIED = "The token can't be verified now; try again"


class Authentication:
    """Serves only requests that are authenticated and have the scopes that every request needs.

    Args:
        app: what is behind it.
        backend: finds out who calls; None where a middleware around the application has done so.
        challenges: tell others how to get in.
        refusals: logs refused requests.
        handshake: the form of clients that end their session at an HTTP error; None where they are not served.
        body_bytes: how large a body may be.
    """

    def __init__(
        self,
        app: ASGIApp,
        backend: AuthenticationBackend | None,
        challenges: Challenges,
        refusals: RefusalLog,
        handshake: HandshakeDialect | None = None,
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
        """Serve one request."""
        refusal = await self._check(scope)
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
        if away:  # it may well hold: a 401 would send the person to log in
            return self._put_off
        return _refusal(401, "Authentication is required", self._challenges.authenticate(scope, "invalid_token"))

    async def _put_off(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond that the client is to come again."""
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


def _refusal(status: int, message: str, challenge: str) -> Response:
    return JSONResponse({"error": message}, status, {"WWW-Authenticate": challenge})

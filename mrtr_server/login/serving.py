"""One server's logins: its endpoints, and who calls by its tokens."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..addresses import BaseUrl, escape_path
from ..auth.dpop import ALGORITHMS, Proofs
from ..auth.fixed_tokens import TokenUser
from ..auth.token_backend import IssuedUser, check_proof, read_authorization
from ..errors import Full, OAuthError, StoreUnavailable
from ..logs.failures import report_failure, report_outage
from ..logs.refusals import RefusalLog
from . import pages
from .authorize import CALLBACK, CONSENT, Authorizing, Site, comparable
from .clients import METHODS, Clients, read_json
from .records import Grant, Seals, Upstream
from .token_endpoint import RETRY_AFTER, TOKEN, TokenEndpoint, away
from .tokens import principal_of
from .upstream_tokens import UpstreamTokens
from .web import json_response, preflight, read_body, respond

METADATA = "/.well-known/oauth-authorization-server"

OPENID = "/.well-known/openid-configuration"

_NO_KEYS = "/login/keys"

_Handler = Callable[[Request, Site], Awaitable[Response]]


class LoginUser(IssuedUser):
    """A person who logged in here. Their tokens at the provider are for `ctx.upstream_token` alone."""

    def __init__(self, grant: Grant, expires: float, client_id: str, upstream: Upstream, login: str) -> None:
        claims = {**grant.claims, "iss": grant.issuer, "sub": grant.subject, "client_id": grant.client}
        super().__init__(claims, client_id)
        self.expires_at = expires
        self.login = login
        """Names the login, for tasks that need the person's tokens later on."""
        self.upstream = upstream

    def __repr__(self) -> str:
        return f"LoginUser({self._identity!r})"


class LoginServer(AuthenticationBackend):
    authorization_servers: tuple[str, ...] = ()
    """None by a name: the server itself, wherever it is reached."""

    audience: tuple[str, ...] = ()

    def __init__(
        self,
        base: BaseUrl,
        path: str,
        seals: Seals,
        clients: Clients,
        authorizing: Authorizing,
        tokens: TokenEndpoint,
        upstream: UpstreamTokens,
        proofs: Proofs,
        refusals: RefusalLog,
        own_scopes: Callable[[], set[str]],
        clock: Callable[[], float],
        *,
        bind_client: bool,
        registers: bool,
    ) -> None:
        self._base = base
        self._base_path = "/".join(["", *(base.at("", "") or "").split("/", 3)[3:]])
        self._path = path
        self._seals = seals
        self._clients = clients
        self.upstream = upstream
        self.proofs = proofs
        self._refusals = refusals
        self._own_scopes = own_scopes
        self._clock = clock
        self._bind_client = bind_client
        self._pages: Mapping[tuple[str, str], _Handler] = {
            ("GET", "/authorize"): authorizing.authorize,
            ("POST", CONSENT): authorizing.answer,
            ("GET", CALLBACK): authorizing.callback,
        }
        self._calls: dict[tuple[str, str], _Handler] = {
            ("POST", TOKEN): tokens.token,
            ("POST", "/revoke"): tokens.revoke,
            ("GET", METADATA): self._metadata,
            ("GET", OPENID): self._openid,
            ("GET", _NO_KEYS): self._no_keys,
        }
        self._registers = registers
        if registers:
            self._calls["POST", "/register"] = self._register
        self._paths = {path for _, path in (*self._pages, *self._calls)}

    @property
    def keys_used(self) -> Mapping[str, float]:
        """When something was last opened under each key, in seconds since the epoch, by the key's id."""
        return self._seals.used

    async def close(self) -> None:
        """End the connections of this event loop."""
        await self._clients.documents.close()

    # Who calls

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, TokenUser] | None:
        """Return who logged in, by the access token of a request: no store is asked."""
        presented = read_authorization(conn, with_proofs=True)
        if presented is None:
            return None
        scheme, token = presented
        issuer = self._issuer(conn.scope)
        found = self._seals.access.open(issuer, token.decode("ascii")) if issuer is not None else None
        if found is None:
            raise AuthenticationError("the token is not one of this server, or its key is not in the ring")
        if found.expires <= self._clock():
            raise AuthenticationError("the token has expired")
        grant = Grant(*found.grant)
        await check_proof(self.proofs, conn, scheme, token, grant.jkt, principal_of(grant))
        client = grant.client if self._bind_client else ""
        upstream = Upstream(found.upstream, scopes=found.upstream_scopes)
        login = self.upstream.login_of(grant, upstream, found.expires)
        user = LoginUser(grant, found.expires, client, upstream, login)
        return AuthCredentials(grant.scopes), user

    # The endpoints

    def claims(self, scope: Scope) -> bool:
        return self._endpoint(scope) is not None

    def _endpoint(self, scope: Scope) -> str | None:
        path, root = scope["path"].rstrip("/"), scope.get("root_path", "")
        below = path.removeprefix(root)
        if below in self._paths:
            return str(below)
        for each in (METADATA, OPENID):
            # Of an address with a path, clients look for the metadata between its host and its path (RFC 8414).
            if path == each + self._base_path or (root.endswith(each) and below == self._base_path):
                return each
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._respond(request, str(self._endpoint(scope)))
        await response(scope, receive, send)

    async def _respond(self, request: Request, path: str) -> Response:
        site, method = self._site(request.scope), request.method
        page = self._pages.get((method, path))
        call = self._calls.get(("GET" if method == "HEAD" else method, path))
        if method == "OPTIONS":
            return preflight()
        if page is None and call is None:
            allowed = [each for each, at in (*self._pages, *self._calls) if at == path]
            return Response(status_code=405, headers={"Allow": ", ".join((*allowed, "OPTIONS"))})
        if site is None or (page is not None and not self._base.is_of(request.headers.get("host", ""))):
            self._refusals.note(
                "Refused a login at the host %r: if people reach this server by that name, set base_url=",
                request.headers.get("host", ""),
            )
            return pages.failed(403, "This address is not served here")
        if page is not None:
            return await self._page(page, request, site)
        return await self._call(call, request, site) if call is not None else Response(status_code=405)

    async def _page(self, page: _Handler, request: Request, site: Site) -> Response:
        try:
            return await page(request, site)
        except (StoreUnavailable, Full) as error:
            if isinstance(error, StoreUnavailable):
                report_outage(error, "A login failed")
            response = pages.failed(503, "Please try again in a moment.")
            response.headers["Retry-After"] = str(RETRY_AFTER)
            return response
        except Exception as error:
            reference = report_failure("A login failed", error=error)
            return pages.failed(500, f"Something is wrong here (reference {reference}).")

    async def _call(self, call: _Handler, request: Request, site: Site) -> Response:
        try:
            return await call(request, site)
        except OAuthError as error:
            self._refusals.note("An OAuth request was refused: %r", f"{error.error}: {error.description}")
            return respond(error)
        except (StoreUnavailable, Full) as error:
            if isinstance(error, StoreUnavailable):
                report_outage(error, "Tokens could not be given")
            return respond(away("What must happen once can't be noted now"))
        except Exception as error:
            reference = report_failure("An OAuth request failed", error=error)
            return respond(OAuthError("server_error", f"Something is wrong here (reference {reference})", 500))

    async def _register(self, request: Request, site: Site) -> Response:
        return json_response(self._clients.register(site.issuer, read_json(await read_body(request))), 201)

    # What clients need to know first (RFC 8414)

    async def _metadata(self, request: Request, site: Site) -> Response:
        return json_response(self._document(site), headers={"Cache-Control": "max-age=300"})

    async def _openid(self, request: Request, site: Site) -> Response:
        # Below a mount, clients find it here alone. They take no document without these members of OpenID Connect;
        # there are no id_tokens.
        more = {
            "jwks_uri": site.issuer + _NO_KEYS,
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }
        return json_response({**self._document(site), **more}, headers={"Cache-Control": "max-age=300"})

    async def _no_keys(self, request: Request, site: Site) -> Response:
        return json_response({"keys": []})

    def _document(self, site: Site) -> dict[str, Any]:
        issuer = site.issuer
        more = {"registration_endpoint": f"{issuer}/register"} if self._registers else {}
        scopes = sorted(self._own_scopes())
        return {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": issuer + TOKEN,
            "revocation_endpoint": f"{issuer}/revoke",
            **more,
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": list(METHODS),
            "token_endpoint_auth_signing_alg_values_supported": ["ES256", "RS256", "PS256", "EdDSA"],
            "revocation_endpoint_auth_methods_supported": list(METHODS),
            "authorization_response_iss_parameter_supported": True,
            "client_id_metadata_document_supported": True,
            "dpop_signing_alg_values_supported": list(ALGORITHMS),
            **({"scopes_supported": scopes} if scopes else {}),
        }

    def _issuer(self, scope: Scope) -> str | None:
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        root = scope.get("root_path", "")
        for each in (METADATA, OPENID):
            root = root.removesuffix(each)
        return self._base.at(host, root)

    def _site(self, scope: Scope) -> Site | None:
        issuer = self._issuer(scope)
        if issuer is None:
            return None
        base = comparable(issuer)  # the root of a mount is the endpoint, too
        return Site(issuer, frozenset({base, base + escape_path(self._path)}))

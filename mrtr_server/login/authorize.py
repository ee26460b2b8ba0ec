"""The person's way: the question, the provider, and back to the client (RFC 6749, section 4.1; RFC 9700)."""

import asyncio
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from ..addresses import BaseUrl
from ..concurrency.running import PerLoop
from ..crypto.digests import digest_bytes
from ..errors import (
    IssuerUnavailable,
    NotAdmitted,
    OAuthError,
    ProviderRefused,
    SetupError,
    check_scopes,
)
from ..logs.refusals import RefusalLog
from . import cookies, pages
from .clients import Client, Clients, fits, is_on_this_computer
from .families import OTHER_EPOCH, Families
from .providers import Oidc
from .records import Asked, Question, Remembered, Seals, Transaction
from .tokens import Issuing
from .web import members, read_form, read_parameters, redirect, with_parameters

SECONDS = 600  # that a person may take

MOST_EXCHANGES = 20  # at once: anybody can come back with a code that is none

REMEMBERED_SECONDS = 30 * 24 * 3600

MOST_REMEMBERED = 8

_DIGEST = re.compile(r"[A-Za-z0-9_-]{43}")  # a SHA-256 in Base64

_LONGEST_STATE = 1024

_LONGEST_SCOPE = 1000
_MOST_SCOPES = 50

CALLBACK = "/login/callback"
CONSENT = "/login/consent"


class Site(NamedTuple):
    """Where a request came to."""

    issuer: str
    resources: frozenset[str]  # what tokens may be asked for, in lower case


class Authorizing:
    def __init__(
        self,
        name: str,  # of the server, for people
        provider: Oidc,
        clients: Clients,
        seals: Seals,
        families: Families,
        issuing: Issuing,
        base: BaseUrl,
        refusals: RefusalLog,
        default_scopes: Callable[[], list[str]],
        own_scopes: Callable[[], set[str]],
        clock: Callable[[], float],
        *,
        remember: bool,
    ) -> None:
        self._name = name
        self._provider = provider
        self._clients = clients
        self._seals = seals
        self._families = families
        self._issuing = issuing
        self._base = base
        self._refusals = refusals
        self._default_scopes = default_scopes
        self._own_scopes = own_scopes
        self._clock = clock
        self._remember = remember
        self._exchanging = PerLoop[asyncio.Semaphore]()

    # The request of a client

    async def authorize(self, request: Request, site: Site) -> Response:
        """Ask the person whether a client may act for them; nothing is sent to the provider before."""
        try:
            given = read_parameters(request.scope["query_string"])
            client = await self._clients.find(site.issuer, given.get("client_id", ""))
            target = self._target(client, given)
        except OAuthError as error:  # nobody knows where to send the browser
            self._refusals.note("A login was refused: %r", error.description)
            return pages.failed(503 if error.status == 503 else 400, error.description)
        try:
            asked = self._checked(client, target, given, site)
        except OAuthError as error:
            return self._refused(site, target, given.get("state"), error)
        if self._is_remembered(request, site, asked):
            return await self._leave(request, site, asked)
        return self._ask(request, site, client, asked)

    def _target(self, client: Client, given: Mapping[str, str]) -> str:
        named = given.get("redirect_uri")
        if named is None and len(client.redirects) == 1:
            return client.redirects[0]
        if named is None or not fits(named, client.redirects):
            raise OAuthError("invalid_request", "The address to go back to is not one that the application registered")
        return named

    def _checked(self, client: Client, target: str, given: Mapping[str, str], site: Site) -> Asked:
        if given.get("response_type") != "code":
            raise OAuthError("unsupported_response_type", "response_type: code")
        if given.get("response_mode", "query") != "query":
            raise OAuthError("invalid_request", "response_mode: query")
        if "request" in given or "request_uri" in given:
            raise OAuthError("request_not_supported", "Send the parameters themselves")
        if given.get("code_challenge_method") != "S256" or not _DIGEST.fullmatch(given.get("code_challenge", "")):
            raise OAuthError("invalid_request", "PKCE with the code_challenge_method S256 is needed")
        if "none" in given.get("prompt", "").split():
            raise OAuthError("interaction_required", "A person is always asked")
        check_resource(given, site)
        state, jkt = given.get("state"), given.get("dpop_jkt", "")
        if state is not None and len(state) > _LONGEST_STATE:
            raise OAuthError("invalid_request", f"The state has more than {_LONGEST_STATE} characters")
        if jkt and not _DIGEST.fullmatch(jkt):
            raise OAuthError("invalid_request", "dpop_jkt is no thumbprint")
        scopes = self._scopes(given.get("scope", ""))
        return Asked(client.key, client.method, client.name, target, state, given["code_challenge"], scopes, jkt)

    def _scopes(self, given: str) -> list[str]:
        try:
            scopes = list(check_scopes("scope", given.split(" ") if given else self._default_scopes()))
        except SetupError:
            raise OAuthError("invalid_scope", "The scope is malformed") from None
        if len(given) > _LONGEST_SCOPE or len(scopes) > _MOST_SCOPES:
            raise OAuthError("invalid_scope", "There are too many scopes")
        return scopes

    def _refused(self, site: Site, target: str, state: str | None, error: OAuthError) -> Response:
        """Return the error to the client; by a link where anybody could have registered the address."""
        back = with_parameters(target, {**members(error), "state": state, "iss": site.issuer})
        return redirect(back) if is_on_this_computer(target) else pages.failed(400, error.description, back)

    # The question

    def _ask(self, request: Request, site: Site, client: Client, asked: Asked) -> Response:
        secret, name = secrets.token_urlsafe(24), secrets.token_urlsafe(6)
        question = Question(digest_bytes(secret.encode()), self._clock() + SECONDS, list(asked), name)
        response = pages.consent(
            self._name,
            client.name,
            client.host,
            asked.redirect,
            asked.scopes,
            self._provider.issuer.partition("://")[2],
            site.issuer + CONSENT,
            self._seals.question.seal(site.issuer, question),
        )
        cookies.Cookies(site.issuer).add(response, cookies.QUESTION, name, secret, SECONDS, request.cookies)
        return response

    async def answer(self, request: Request, site: Site) -> Response:
        """Return what follows the person's answer, which must come from the page that this browser was shown."""
        origin = request.headers.get("origin")
        if origin is not None and not self._base.is_origin(origin, request.headers.get("host", "")):
            self._refusals.note("An answer to a login was refused: it is from the origin %r", origin)
            return pages.failed(403, "The answer came from another site. Begin again in your application.")
        try:
            form = await read_form(request)
        except OAuthError as error:
            return pages.failed(error.status, error.description)
        question = self._seals.question.open(site.issuer, form.get("question", ""))
        jar = cookies.Cookies(site.issuer)
        secret = "" if question is None else jar.get(request.cookies, cookies.QUESTION + question.name)
        if question is None or not hmac.compare_digest(question.secret, digest_bytes(secret.encode())):
            self._refusals.note("An answer to a login was refused: this browser was not asked that")
            return pages.failed(403, "This browser was not asked that. Begin again in your application.")
        asked = Asked(*question.asked)
        if question.expires < self._clock():
            return pages.failed(400, "That took too long. Begin again in your application.")
        if form.get("answer") != "yes":
            refused = {"error": "access_denied", "error_description": "The person did not allow it"}
            return redirect(self._back(site, asked, refused))
        response = await self._leave(request, site, asked)
        if response.status_code < 500:  # or the person may answer once more
            if not await self._families.once(f"question {question.secret}", SECONDS):
                return pages.failed(403, "This was answered already. Begin again in your application.")
            jar.drop(response, cookies.QUESTION + question.name)
        if self._remember and asked.redirect.startswith("https://"):
            kept = [_named(asked), *self._remembered(request, site)]
            remembered = Remembered(self._clock() + REMEMBERED_SECONDS, list(dict.fromkeys(kept))[:MOST_REMEMBERED])
            value = self._seals.remembered.seal(site.issuer, remembered)
            jar.set(response, cookies.REMEMBERED, value, REMEMBERED_SECONDS)
        return response

    def _is_remembered(self, request: Request, site: Site, asked: Asked) -> bool:
        """Return whether this browser was asked the same before, and opens the page by itself, not by a link."""
        if not self._remember or not asked.redirect.startswith("https://"):
            return False
        return request.headers.get("sec-fetch-site") == "none" and _named(asked) in self._remembered(request, site)

    def _remembered(self, request: Request, site: Site) -> list[str]:
        given = cookies.Cookies(site.issuer).get(request.cookies, cookies.REMEMBERED)
        found = self._seals.remembered.open(site.issuer, given) if given else None
        return found.consents if found is not None and found.expires > self._clock() else []

    # The provider

    async def _leave(self, request: Request, site: Site, asked: Asked) -> Response:
        """Send the browser to the provider, with what it must bring back in a cookie."""
        state, verifier, nonce = secrets.token_urlsafe(12), secrets.token_urlsafe(48), secrets.token_urlsafe(12)
        own = self._own_scopes()
        upstream = [scope for scope in asked.scopes if scope not in own]
        try:
            page = await self._provider.page(site.issuer + CALLBACK, state, verifier, nonce, upstream)
        except IssuerUnavailable as error:
            self._refusals.note("A login did not begin: %r", str(error))
            return pages.failed(503, "Where you log in can't be reached now. Try again in a moment.")
        epoch = await self._families.epoch()
        transaction = Transaction(state, verifier, nonce, self._clock() + SECONDS, list(asked), epoch)
        sealed = self._seals.transaction.seal(site.issuer, transaction)
        if len(sealed) > cookies.LONGEST:
            return pages.failed(
                400, "The application asks for too much at once: its state, address and scopes are too long"
            )
        response, jar = redirect(page), cookies.Cookies(site.issuer)
        jar.add(response, cookies.TRANSACTION, state, sealed, SECONDS, request.cookies)
        return response

    async def callback(self, request: Request, site: Site) -> Response:
        """Check that a browser that comes back was sent to the provider from here; send it to the client, once."""
        try:
            given = read_parameters(request.scope["query_string"])
        except OAuthError as error:
            return pages.failed(400, error.description)
        jar, state = cookies.Cookies(site.issuer), given.get("state", "")
        sealed = jar.get(request.cookies, cookies.TRANSACTION + state)
        transaction = self._seals.transaction.open(site.issuer, sealed) if sealed else None
        if transaction is None or not hmac.compare_digest(transaction.state.encode(), state.encode()):
            self._refusals.note("A login was refused: the browser that came back did not begin it")
            return pages.failed(400, "This browser did not begin this login. Begin again in your application.")
        if transaction.expires < self._clock():
            return pages.failed(400, "That took too long. Begin again in your application.")
        response = await self._return(request, site, sealed, transaction, given)
        if response.status_code < 500:
            jar.drop(response, cookies.TRANSACTION + state)
        return response

    async def _return(
        self, request: Request, site: Site, sealed: str, transaction: Transaction, given: Mapping[str, str]
    ) -> Response:
        asked = Asked(*transaction.asked)
        try:
            await self._provider.check_response(given)
            if "error" in given or "code" not in given:
                refused = OAuthError("access_denied", f"The provider said: {given.get('error', 'nothing')[:100]}")
                return redirect(self._back(site, asked, members(refused)))
            redeemed = await self._families.redeem(sealed, given["code"], transaction.epoch, keep=SECONDS)
            if redeemed.verdict == "other_epoch":
                self._refusals.note("A login was refused: %s", OTHER_EPOCH)
                return pages.failed(400, "This login can't go on here. Begin again in your application.")
            if redeemed.verdict != "granted":
                return pages.failed(400, "This login has come to its end before. Begin again in your application.")
            response = await self._end(request, site, transaction, given["code"], is_repeated=redeemed.attempt > 1)
        except IssuerUnavailable as error:
            self._refusals.note("A login did not come to its end: %r", str(error))
            if isinstance(error, ProviderRefused):
                return pages.failed(400, "Where you logged in did not confirm it. Begin again in your application.")
            return pages.failed(503, "Where you logged in can't be reached now. Begin again in your application.")
        # Once the browser has it: if this process ends before, the browser may come again.
        response.background = BackgroundTask(self._families.record_used, sealed, redeemed)
        return response

    async def _end(
        self, request: Request, site: Site, transaction: Transaction, code: str, *, is_repeated: bool
    ) -> Response:
        asked = Asked(*transaction.asked)
        try:
            async with self._exchanging.here(lambda: asyncio.Semaphore(MOST_EXCHANGES)):
                upstream, claims = await self._provider.exchange(
                    code, site.issuer + CALLBACK, transaction.verifier, transaction.nonce
                )
            own = await self._issuing.code(site.issuer, asked, upstream, claims, self._own_scopes())
        except NotAdmitted as error:
            self._refusals.note("A login was refused: %r", str(error))
            return redirect(self._back(site, asked, {"error": "access_denied", "error_description": error.told}))
        except ProviderRefused:
            if is_repeated:  # a process that ended since may have used the provider's code up
                return await self._leave(request, site, asked)
            raise
        return redirect(self._back(site, asked, {"code": own}))

    def _back(self, site: Site, asked: Asked, more: Mapping[str, str]) -> str:
        return with_parameters(asked.redirect, {**more, "state": asked.state, "iss": site.issuer})


def check_resource(given: Mapping[str, str], site: Site) -> None:
    """Check what tokens are asked for (RFC 8707). Where nothing is named, it is the only resource that there is."""
    named = given.get("resource")
    if named is None:
        return
    if comparable(named) not in site.resources:
        raise OAuthError("invalid_target", f"The resource is not {max(site.resources, key=len)}")


def comparable(address: str) -> str:
    """Return an address with its scheme and host in lower case, and no slash at its end."""
    scheme, separator, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}{separator}{host.lower()}{slash}{path}".rstrip("/")


def _named(asked: Asked) -> str:
    return digest_bytes("\n".join((asked.client, asked.redirect, *sorted(asked.scopes))).encode())

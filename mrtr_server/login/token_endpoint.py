"""Tokens for codes and for refresh tokens, once each (RFC 6749, section 5; RFC 9700, section 4.14), and their end."""

import hmac
from collections.abc import Callable, Mapping
from contextlib import suppress

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from ..auth.dpop import Proof, Proofs
from ..crypto.digests import challenge_of
from ..errors import IssuerUnavailable, NotAdmitted, OAuthError, ProofRefused, ProviderRefused, StoreUnavailable
from ..logs.refusals import RefusalLog
from ..protocol.callers import Principal
from ..storage.rows import Redemption
from .authorize import Site, check_resource
from .clients import PUBLIC, Clients
from .families import OTHER_EPOCH, REDEEMED, REPEATED, Families
from .records import Grant, Refresh, Seals
from .tokens import CODE_SECONDS, Issuing, principal_of
from .web import json_response, read_form

TOKEN = "/token"  # noqa: S105  a path

RETRY_AFTER = 2  # in seconds

_Form = Mapping[str, str]


class TokenEndpoint:
    def __init__(
        self,
        clients: Clients,
        seals: Seals,
        families: Families,
        issuing: Issuing,
        proofs: Proofs,
        refusals: RefusalLog,
        clock: Callable[[], float],
    ) -> None:
        self._clients = clients
        self._seals = seals
        self._families = families
        self._issuing = issuing
        self._proofs = proofs
        self._refusals = refusals
        self._clock = clock

    async def token(self, request: Request, site: Site) -> Response:
        form = await read_form(request)
        kind = form.get("grant_type")
        if kind not in ("authorization_code", "refresh_token"):
            raise OAuthError("unsupported_grant_type", "grant_type: authorization_code or refresh_token")
        check_resource(form, site)
        client, method = await self._client(request, site, form)
        give = self._for_code if kind == "authorization_code" else self._for_refresh
        try:
            return await give(site, form, client, method, self._proof(request, site))
        except ProviderRefused as error:
            self._refusals.note("A login has ended: %r", str(error))
            raise OAuthError("invalid_grant", "The provider does not know this login any more") from None
        except IssuerUnavailable as error:
            self._refusals.note("Tokens could not be refreshed: %r", str(error))
            raise away("The provider can't be reached now") from None
        except NotAdmitted as error:
            self._refusals.note("Tokens were refused: %r", str(error))
            raise OAuthError("invalid_grant", error.told) from None

    async def _client(self, request: Request, site: Site, form: _Form) -> tuple[str, str]:
        listed = request.headers.getlist("authorization")
        return await self._clients.authenticate(site.issuer, site.issuer + TOKEN, form, listed[0] if listed else None)

    def _proof(self, request: Request, site: Site) -> Proof:
        """Return the proof of the key that the client holds; one without a key for a client that has none."""
        given = [each.encode("latin-1") for each in request.headers.getlist("dpop")]
        if not given and self._proofs.mode == "accept":
            return _NO_PROOF
        try:
            return self._proofs.verify(given, "POST", site.issuer + TOKEN)
        except ProofRefused as error:
            raise _refused(error) from None

    async def _use(self, proof: Proof, who: Principal) -> None:
        """Note that a proof was used: of whoever has a code or a token, or anybody could fill what is noted."""
        try:
            if proof.jkt:
                await self._proofs.use(proof, who)
        except ProofRefused as error:
            raise _refused(error) from None

    # A code

    async def _for_code(self, site: Site, form: _Form, client: str, method: str, proof: Proof) -> Response:
        text, jkt = form.get("code", ""), proof.jkt
        code = self._seals.code.open(site.issuer, text)
        if code is None or code.expires < self._clock():
            raise _invalid("The code is not valid, or too old")
        grant, verifier = Grant(*code.grant), form.get("code_verifier", "")
        if (grant.client, grant.method) != (client, method):
            raise _invalid("The code is of another client")
        if form.get("redirect_uri", code.redirect) != code.redirect:
            raise _invalid("The redirect_uri is not that of the request for the code")
        # A wrong verifier does not use the code up: whoever has stolen it could otherwise end the login.
        if not 43 <= len(verifier) <= 128 or not hmac.compare_digest(challenge_of(verifier), code.challenge):
            raise _invalid("The code_verifier does not fit")
        if grant.jkt not in ("", jkt):
            raise _invalid("The code is bound to another key")
        who = principal_of(grant)
        await self._use(proof, who)
        redeemed = await self._families.redeem(
            text, client, code.epoch, keep=2 * CODE_SECONDS, who=who, began=grant.began
        )
        if redeemed.verdict == "running":
            raise away("The same code is being redeemed")
        self._check_known(redeemed)
        if redeemed.verdict != "granted":
            await self._issuing.end(grant)
            self._refusals.note("A code came twice, so its login has ended")
            raise _invalid("The code was used before")
        if await self._families.is_ended(grant.family, grant.began, who):
            raise _invalid("The login has ended")
        response = json_response(await self._issuing.first(site.issuer, code, jkt))
        # Once the client has it: if this process ends before, the client may come again.
        response.background = BackgroundTask(self._families.record_used, text, redeemed)
        return response

    def _check_known(self, redeemed: Redemption) -> None:
        """Check that the store knows whether something was used. Raises `OAuthError`: the person logs in again."""
        if redeemed.verdict == "other_epoch":
            self._refusals.note("A login has ended: %s", OTHER_EPOCH)
            raise _invalid("The login is of before, or of another region")
        if redeemed.verdict == "forgotten":
            raise _invalid("The login has ended")

    # A refresh token

    async def _for_refresh(self, site: Site, form: _Form, client: str, method: str, proof: Proof) -> Response:
        text, jkt = form.get("refresh_token", ""), proof.jkt
        token = self._seals.refresh.open(site.issuer, text)
        if token is None or token.expires < self._clock():
            raise _invalid("The refresh token is not valid, or too old")
        grant = Grant(*token.grant)
        if (grant.client, grant.method) != (client, method):
            raise _invalid("The refresh token is of another client")
        if method == PUBLIC and grant.jkt != jkt:
            raise _invalid("The refresh token is bound to another key")
        scopes = form["scope"].split(" ") if "scope" in form else list(grant.scopes)
        if not set(scopes) <= set(grant.scopes):
            raise OAuthError("invalid_scope", "The person did not allow that: let them log in again")
        who = principal_of(grant)
        await self._use(proof, who)
        redeemed = await self._families.redeem(text, client, token.epoch, keep=REDEEMED, who=who, began=grant.began)
        if redeemed.verdict == "running":
            raise away("The same token is being refreshed")
        self._check_known(redeemed)
        if redeemed.verdict == "recorded":
            reply, latest = self._families.recorded(text, redeemed), await self._families.generation(grant.family)
            # Whoever has used the tokens of the reply since does not repeat the request for them.
            is_repeated = self._clock() - reply.at <= REPEATED and latest <= token.generation + 1
            if is_repeated and not await self._has_ended(grant):
                await self._advance(grant, token)  # whoever recorded the reply may have ended before it did
                return json_response(reply.body)
        if redeemed.verdict != "granted" or await self._families.generation(grant.family) > token.generation:
            await self._issuing.end(grant)
            self._refusals.note("A refresh token came again after it was used, so its login has ended")
            raise _invalid("The refresh token was used before, so the login has ended")
        return await self._refresh(site, text, token, scopes, jkt, redeemed)

    async def _has_ended(self, grant: Grant) -> bool:
        return await self._families.is_ended(grant.family, grant.began, principal_of(grant))

    async def _refresh(
        self, site: Site, text: str, token: Refresh, scopes: list[str], jkt: str, redeemed: Redemption
    ) -> Response:
        grant = Grant(*token.grant)
        try:
            if await self._has_ended(grant):
                raise _invalid("The login has ended")
            reply = await self._issuing.next(site.issuer, token, scopes, jkt)
        except BaseException:  # nothing was given, so the same token may come again
            with suppress(StoreUnavailable):
                await self._families.release(text, redeemed)
            raise
        if not await self._families.record(text, redeemed, reply):
            raise away("Another process refreshed the same token")
        await self._advance(grant, token)
        return json_response(reply)

    async def _advance(self, grant: Grant, token: Refresh) -> None:
        with suppress(StoreUnavailable):  # the redemption tells as much, for as long as the store is likely to be away
            await self._families.advance(grant.family, token.generation + 1, principal_of(grant), grant.began)

    # The end (RFC 7009)

    async def revoke(self, request: Request, site: Site) -> Response:
        """End the family of a token: at once for refreshes, and for calls when its access tokens end."""
        form = await read_form(request)
        client, method = await self._client(request, site, form)
        text = form.get("token", "")
        found = self._seals.refresh.open(site.issuer, text) or self._seals.access.open(site.issuer, text)
        if found is not None:
            grant = Grant(*found.grant)
            if (grant.client, grant.method) == (client, method):
                await self._issuing.end(grant)
        return json_response({})  # also for a token that is none (RFC 7009, section 2.2)


_NO_PROOF = Proof("", "", "")


def _refused(error: ProofRefused) -> OAuthError:
    return OAuthError(error.error, f"DPoP: {error}", headers={"DPoP-Nonce": error.nonce})


def _invalid(description: str) -> OAuthError:
    return OAuthError("invalid_grant", description)


def away(description: str) -> OAuthError:
    """Return the refusal for what may work in a moment: never `invalid_grant`, at which clients drop their tokens."""
    return OAuthError("temporarily_unavailable", f"{description}; try again", 503, {"Retry-After": str(RETRY_AFTER)})

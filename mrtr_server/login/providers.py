"""Where people log in: any issuer of OpenID Connect. The presets beside this module are small differences of it."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from starlette.authentication import AuthenticationError

from ..auth.fetching import check_issuer, discover, fetch_json
from ..auth.jwt_keys import ALGORITHMS, IssuerKeys, read_header, verify
from ..crypto.digests import challenge_of
from ..errors import IssuerUnavailable, ProviderRefused, SetupError, check_scopes
from .records import Upstream
from .web import with_parameters

JSON = dict[str, Any]

Keep = Callable[[Upstream], Awaitable[None]]

KEPT = ("name", "preferred_username", "email", "email_verified", "hd", "tid", "groups", "roles")
"""The claims that are kept of a person, besides `sub`."""

MOST_CLAIMS = 100  # characters of one that is text, and of an entry of a list

MOST_LISTED = 20


_NOT_TAKEN = 401

_OVER = frozenset({"invalid_grant", "bad_verification_code", "bad_refresh_token"})
"""What a token endpoint says of a code or a refresh token that does not count; the last two are GitHub's."""


class Oidc:
    """An issuer of OpenID Connect, by its URL: `Login(Oidc("https://login.example.com", client_id=..., ...))`.

    Register the server there as a web application, with the redirect address `BASE_URL/login/callback`.

    Args:
        issuer: the issuer, exactly as its metadata names it.
        client_id: what the issuer calls this server.
        client_secret: what proves that; empty for a public client.
        scopes: what is asked of every person, besides `openid`.

    Raises:
        SetupError: a setting can't be right, or the extra `auth` is not installed.
    """

    parameters: Mapping[str, str] = MappingProxyType({})
    """Further parameters of the page to log in."""

    asks_again_offline = True
    """Whether the person is asked for `offline_access` each time (OpenID Connect Core, section 11)."""

    is_public: bool = False
    """Whether anybody can get an account there, as far as that is known."""

    def __init__(
        self, issuer: str, *, client_id: str, client_secret: str = "", scopes: Iterable[str] = ("profile", "email")
    ) -> None:
        check_issuer(issuer)
        if not client_id:
            raise SetupError(f"{type(self).__name__} needs client_id=: register this server at {issuer}")
        self.issuer = issuer
        self._issuers: tuple[str, ...] = (issuer,)  # how its id_tokens name it
        self.scopes = ("openid", *check_scopes("scopes", scopes))
        self._credentials = client_id, client_secret
        self._keys = IssuerKeys(issuer, None, ALGORITHMS, lambda: None)
        self._metadata: tuple[float, JSON] | None = None
        self.clock: Callable[[], float] = time.time
        """Returns the time, in seconds since the epoch; that of the server."""

    async def metadata(self) -> JSON:
        """Return what the issuer says of itself, which is asked for every ten minutes (Discovery, section 4).

        Returns:
            The members of its metadata.

        Raises:
            IssuerUnavailable: it can't be reached, or is another issuer.
        """
        if self._metadata is None or self._metadata[0] < time.monotonic():
            self._metadata = time.monotonic() + 600.0, await discover(self.issuer)
        return self._metadata[1]

    # The person's way (Authorization Code Flow)

    async def page(self, redirect: str, state: str, verifier: str, nonce: str, scopes: Sequence[str]) -> str:
        """Return the address at which a person logs in (OpenID Connect Core, section 3.1.2.1).

        Args:
            redirect: where the person comes back to.
            state: the short name of this login, which comes back.
            verifier: the secret of PKCE, whose challenge goes into the address.
            nonce: what the id_token is to name.
            scopes: what is asked besides `scopes` of the provider.

        Returns:
            The address.

        Raises:
            IssuerUnavailable: the metadata can't be had.
        """
        metadata = await self.metadata()
        more = dict(self.parameters)
        wanted = [*self.scopes, *scopes]
        if "offline_access" in _texts(metadata, "scopes_supported") and "offline_access" not in wanted:
            wanted.append("offline_access")
            more |= {"prompt": "consent"} if self.asks_again_offline else {}
        return with_parameters(
            _text(metadata, "authorization_endpoint"),
            {
                "response_type": "code",
                "response_mode": "query",
                "client_id": self._credentials[0],
                "redirect_uri": redirect,
                "scope": " ".join(dict.fromkeys(wanted)),
                "state": state,
                "nonce": nonce,
                "code_challenge": challenge_of(verifier),
                "code_challenge_method": "S256",
                **more,
            },
        )

    async def check_response(self, given: Mapping[str, str]) -> None:
        """Check that a response is of this issuer (RFC 9207, section 2.4).

        Args:
            given: the parameters with which the person came back.

        Raises:
            IssuerUnavailable: it is of another one, or the metadata can't be had.
        """
        named = given.get("iss")
        must = (await self.metadata()).get("authorization_response_iss_parameter_supported") is True
        if (named is None and must) or (named is not None and named != self.issuer):
            raise ProviderRefused(f"a response is not of {self.issuer}: it names {str(named)[:100]!r}")

    async def exchange(self, code: str, redirect: str, verifier: str, nonce: str) -> tuple[Upstream, JSON]:
        """Return the person's tokens and claims for a code (OpenID Connect Core, section 3.1.3).

        Args:
            code: the code that the provider sent the browser back with.
            redirect: as in `page`.
            verifier: as in `page`.
            nonce: as in `page`.

        Returns:
            The tokens, and the claims, among them `sub`.

        Raises:
            IssuerUnavailable: the issuer gave none, or what it gave is not valid.
        """
        given = await self._tokens(
            {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "code_verifier": verifier}
        )
        upstream = self._upstream(given)
        claims = await self._verified(given.get("id_token"))
        if claims.get("nonce") != nonce:
            raise ProviderRefused("the id_token is of another login: its nonce is wrong")
        return upstream, await self._complete(upstream, claims)

    async def renew(self, upstream: Upstream, subject: str, keep: Keep | None = None) -> tuple[Upstream, JSON | None]:
        """Return newer tokens of a person, and what is known of them now (OpenID Connect Core, section 12).

        Args:
            upstream: the tokens as they are.
            subject: whose they are.
            keep: stores the newer tokens. It is called before anything else is asked, which may fail while the issuer
                does not take the former ones any more.

        Returns:
            The tokens, and the claims; None in their place where the issuer says nothing of the person.

        Raises:
            IssuerUnavailable: the issuer can't be reached, or does not refresh these any more.
        """
        if not upstream.refresh:
            return upstream, await self.told(upstream, subject)
        given = await self._tokens({"grant_type": "refresh_token", "refresh_token": upstream.refresh})
        renewed = self._upstream(given, upstream)
        if keep is not None:
            await keep(renewed)
        if (token := given.get("id_token")) is None:
            return renewed, await self.told(renewed, subject)
        claims = await self._verified(token)
        if claims["sub"] != subject:
            raise ProviderRefused("the id_token of a refresh is of somebody else")
        return renewed, await self._complete(renewed, claims)

    async def told(self, upstream: Upstream, subject: str) -> JSON | None:
        """Return what the issuer says of a person now (OpenID Connect Core, section 5.3).

        Args:
            upstream: the person's tokens.
            subject: whose they are.

        Returns:
            The claims; None where the issuer says nothing of people.

        Raises:
            IssuerUnavailable: it can't be reached, or does not take the token any more.
        """
        if upstream.expires and upstream.expires <= self.clock():
            raise ProviderRefused("the token of the person has ended, and can't be refreshed")
        found = await self._told(upstream)
        if found and found.get("sub") != subject:
            raise ProviderRefused("what the issuer says is of somebody else")
        return found or None

    async def admits(self, claims: JSON, upstream: Upstream, allowed: Sequence[str]) -> bool:
        """Return whether a person is of one of some domains, or in one of some groups.

        Args:
            claims: what is known of the person.
            upstream: the person's tokens, to ask for more.
            allowed: the names in `Login(allow=[...])`.

        Returns:
            Whether one of them fits.

        Raises:
            IssuerUnavailable: what has to be asked for can't be had.
        """
        email, groups = str(claims.get("email", "")), claims.get("groups")
        mine = set(map(str, groups)) if isinstance(groups, list) else set()
        domain = email.rpartition("@")[2].lower() if claims.get("email_verified") is True else ""  # or it is anybody's
        return not mine.isdisjoint(allowed) or (domain != "" and domain in {each.lower() for each in allowed})

    def covers(self, granted: Sequence[str], scope: str) -> bool:
        """Return whether scopes that a person has allowed include one.

        Args:
            granted: those of a token.
            scope: the one that is needed.

        Returns:
            Whether the token is good for it.
        """
        return scope in granted

    async def _tokens(self, form: Mapping[str, str]) -> JSON:
        metadata = await self.metadata()
        return await self._post(
            _text(metadata, "token_endpoint"), form, _texts(metadata, "token_endpoint_auth_methods_supported")
        )

    async def _post(self, url: str, form: Mapping[str, str], methods: Sequence[str] = ()) -> JSON:
        id, secret = self._credentials
        basic = not methods or "client_secret_basic" in methods
        body, credentials = {**form, "client_id": id}, None
        if secret and basic:
            credentials = quote(id, safe=""), quote(secret, safe="")
        elif secret:
            body["client_secret"] = secret
        try:
            given = await fetch_json(url, body, credentials)
        except IssuerUnavailable as error:
            raise self._refused(url, error.error) or error from None
        if "error" in given:  # as GitHub says it, with the status 200
            said = str(given["error"])[:100]
            raise self._refused(url, said) or IssuerUnavailable(f"{url} says {said!r}")
        return given

    def _refused(self, url: str, said: str) -> ProviderRefused | None:
        # Any other error, such as a secret that has changed, is nothing that a person can end by a new login.
        return ProviderRefused(f"{url} says {said!r}") if said in _OVER else None

    def _upstream(self, given: JSON, before: Upstream = Upstream()) -> Upstream:  # noqa: B008  it never changes
        access, refresh, seconds, scope = (
            given.get(each) for each in ("access_token", "refresh_token", "expires_in", "scope")
        )
        if not isinstance(access, str) or not access:
            raise IssuerUnavailable(f"{self.issuer} gave no access token")
        known = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        expires = self.clock() + max(float(seconds or 0), 0.0) if known else 0.0
        # GitHub says of a GitHub App's tokens: "This value will always be an empty string".
        scopes = scope.replace(",", " ").split() if isinstance(scope, str) and scope else list(before.scopes)
        return Upstream(access, refresh if isinstance(refresh, str) else before.refresh, expires, scopes)

    async def _verified(self, token: object) -> JSON:
        """Return the claims of an id_token (OpenID Connect Core, section 3.1.3.7). Raises `IssuerUnavailable`."""
        if not isinstance(token, str):
            raise IssuerUnavailable(f"{self.issuer} gave no id_token")
        written = token.encode()
        try:
            id, algorithm = read_header(written, ALGORITHMS)
            keys = await self._keys.find(id, algorithm)
            claims = verify(written, keys, algorithm, issuer=self._issuers, has_audience=True, leeway=60.0)
            if claims is None:
                again = await self._keys.find(id, algorithm, keys)
                claims = verify(written, again, algorithm, issuer=self._issuers, has_audience=True, leeway=60.0)
        except AuthenticationError as error:
            raise ProviderRefused(f"the id_token is not valid: {error}") from None
        if claims is None:  # or its keys are changing now: no reason to end a login that is refreshed
            raise IssuerUnavailable(f"no known key of {self.issuer} has signed the id_token")
        if not isinstance(claims["sub"], str) or not claims["sub"]:
            raise ProviderRefused("the id_token is about nobody")
        own, audience = self._credentials[0], claims["aud"]
        if own not in (audience if isinstance(audience, list) else [audience]) or claims.get("azp", own) != own:
            raise ProviderRefused("the id_token is for another client")
        return claims

    async def _complete(self, upstream: Upstream, claims: JSON) -> JSON:
        """Return the claims, with those that the issuer tells at its userinfo alone."""
        more = {} if "name" in claims else await self._told(upstream)
        return {**more, **claims} if more.get("sub") == claims["sub"] else claims

    async def _told(self, upstream: Upstream) -> JSON:
        address = (await self.metadata()).get("userinfo_endpoint")
        return await self._asked_as(upstream, address) if isinstance(address, str) else {}

    async def _asked_as(self, upstream: Upstream, url: str) -> JSON:
        """Return what an address says to a person. Raises `IssuerUnavailable`."""
        try:
            return await fetch_json(url, bearer=upstream.access)
        except IssuerUnavailable as error:
            if error.status == _NOT_TAKEN:
                raise ProviderRefused(f"{self.issuer} does not take the person's token any more") from None
            raise


def kept(claims: JSON) -> JSON:
    """Return what is kept of a person: a few claims, each of a bounded size."""
    found: JSON = {}
    for name in KEPT:
        value = claims.get(name)
        if isinstance(value, str):
            found[name] = value[:MOST_CLAIMS]
        elif isinstance(value, bool):
            found[name] = value
        elif isinstance(value, list):
            found[name] = [str(each)[:MOST_CLAIMS] for each in value[:MOST_LISTED]]
    return found


def _text(metadata: JSON, name: str) -> str:
    found = metadata.get(name)
    if not isinstance(found, str):
        raise IssuerUnavailable(f"the metadata has no {name}")
    return found


def _texts(metadata: JSON, name: str) -> list[str]:
    found = metadata.get(name)
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

"""Providers that people have, each as it differs from any other issuer."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from urllib.parse import quote

from ..auth.fetching import check_issuer, fetch_json
from ..crypto.digests import challenge_of
from ..errors import IssuerUnavailable, ProviderRefused, SetupError
from .providers import JSON, Oidc
from .records import Upstream
from .web import with_parameters

_INCLUDED: Mapping[str, tuple[str, ...]] = {
    "repo": ("repo:status", "repo_deployment", "public_repo", "repo:invite", "security_events"),
    "admin:repo_hook": ("write:repo_hook", "read:repo_hook"),
    "write:repo_hook": ("read:repo_hook",),
    "admin:org": ("write:org", "read:org"),
    "write:org": ("read:org",),
    "admin:public_key": ("write:public_key", "read:public_key"),
    "write:public_key": ("read:public_key",),
    "user": ("read:user", "user:email", "user:follow"),
    "project": ("read:project",),
    "write:packages": ("read:packages",),
}
"""What GitHub leaves out of the scopes of a token, since another one includes it ("Scopes for OAuth apps")."""


_PUBLIC = "https://github.com"


class GitHub(Oidc):
    """GitHub, as an OAuth app or a GitHub App: `Login(GitHub(client_id=..., client_secret=...), allow=["my-org"])`.

    It has no id_token: a person is who owns the access token, by a number that stays.

    Args:
        client_id: the app's.
        client_secret: the app's.
        scopes: what is asked of every person; `read:org`, so that organisations can be looked up, with `allow=`.
        url: where people log in; that of an Enterprise Server.
        api: the address of its interface.

    Raises:
        SetupError: a setting can't be right.
    """

    def __init__(
        self,
        *,
        client_id: str,
        client_secret: str,
        scopes: Iterable[str] = ("read:user",),
        url: str = _PUBLIC,
        api: str = "https://api.github.com",
    ) -> None:
        super().__init__(url, client_id=client_id, client_secret=client_secret, scopes=scopes)
        check_issuer(api)
        self._api = api
        self.is_public = url == _PUBLIC
        self.scopes = self.scopes[1:]  # without openid

    async def page(self, redirect: str, state: str, verifier: str, nonce: str, scopes: Sequence[str]) -> str:
        wanted = " ".join(dict.fromkeys((*self.scopes, *scopes)))
        given = {"client_id": self._credentials[0], "redirect_uri": redirect, "scope": wanted, "state": state}
        given |= {"code_challenge": challenge_of(verifier), "code_challenge_method": "S256"}
        return with_parameters(f"{self.issuer}/login/oauth/authorize", given)

    async def check_response(self, given: Mapping[str, str]) -> None:
        if given.get("iss", self.issuer) not in (self.issuer, f"{self.issuer}/login/oauth"):
            raise ProviderRefused("a response is not of GitHub")

    async def exchange(self, code: str, redirect: str, verifier: str, nonce: str) -> tuple[Upstream, JSON]:
        form = {"code": code, "redirect_uri": redirect, "code_verifier": verifier}
        upstream = self._upstream(await self._tokens(form))
        return upstream, await self._person(upstream)

    async def told(self, upstream: Upstream, subject: str) -> JSON | None:
        found = await self._person(upstream)
        if found["sub"] != subject:
            raise ProviderRefused("the token at GitHub is of somebody else")
        return found

    async def admits(self, claims: JSON, upstream: Upstream, allowed: Sequence[str]) -> bool:
        """Return whether a person is an active member of one of some organisations."""
        for each in allowed:
            try:
                found = await fetch_json(
                    f"{self._api}/user/memberships/orgs/{quote(each, safe='')}", bearer=upstream.access
                )
            except IssuerUnavailable as error:
                if error.status not in (403, 404):
                    raise
                continue
            if found.get("state") == "active":
                return True
        return False

    def covers(self, granted: Sequence[str], scope: str) -> bool:
        return scope in granted or any(scope in _INCLUDED.get(each, ()) for each in granted)

    async def _tokens(self, form: Mapping[str, str]) -> JSON:
        return await self._post(f"{self.issuer}/login/oauth/access_token", form, ["client_secret_post"])

    async def _person(self, upstream: Upstream) -> JSON:
        found = await self._asked_as(upstream, f"{self._api}/user")
        if not isinstance(found.get("id"), int):
            raise IssuerUnavailable("GitHub did not say who it is")
        names = {"preferred_username": found.get("login"), "name": found.get("name") or found.get("login")}
        return {"sub": str(found["id"]), **names}


class Google(Oidc):
    """Google: `Login(Google(client_id=..., client_secret=...), allow=["example.com"])`, by the domain of Workspace.

    Args:
        client_id: of the web application in the Cloud Console.
        client_secret: its secret.
        scopes: what is asked of every person, besides `openid`.
        issuer: another address, for tests.

    Raises:
        SetupError: a setting can't be right.
    """

    is_public = True
    # It gives a refresh token no other way.
    parameters: Mapping[str, str] = MappingProxyType({"access_type": "offline", "prompt": "consent"})

    def __init__(
        self,
        *,
        client_id: str,
        client_secret: str,
        scopes: Iterable[str] = ("profile", "email"),
        issuer: str = "https://accounts.google.com",
    ) -> None:
        super().__init__(issuer, client_id=client_id, client_secret=client_secret, scopes=scopes)
        # "Always https://accounts.google.com or accounts.google.com".
        self._issuers = issuer, issuer.partition("://")[2]

    def covers(self, granted: Sequence[str], scope: str) -> bool:
        # It calls `email` and `profile` otherwise in the scopes of a token ("OAuth 2.0 Scopes for Google APIs").
        return scope in granted or f"https://www.googleapis.com/auth/userinfo.{scope}" in granted

    async def admits(self, claims: JSON, upstream: Upstream, allowed: Sequence[str]) -> bool:
        """Return whether a person is of one of some domains: by `hd` alone, since an e-mail may be anybody's."""
        return str(claims.get("hd", "")).lower() in {each.lower() for each in allowed}


class Entra(Oidc):
    """Microsoft Entra ID: `Login(Entra(tenant="...", client_id=..., client_secret=...), allow=["group id"])`.

    Args:
        tenant: the id of the directory; `common` and the like would let in everybody.
        client_id: of the app registration, whose tokens have the version 2.
        client_secret: its secret.
        scopes: what is asked of every person, besides `openid`.
        authority: another address, of a national cloud.

    Raises:
        SetupError: a setting can't be right.
    """

    asks_again_offline = False

    def __init__(
        self,
        *,
        tenant: str,
        client_id: str,
        client_secret: str,
        scopes: Iterable[str] = ("profile", "email"),
        authority: str = "https://login.microsoftonline.com",
    ) -> None:
        if tenant.lower() in ("", "common", "organizations", "consumers"):
            raise SetupError(f"tenant={tenant!r} is everybody: give the id of your directory")
        super().__init__(f"{authority}/{tenant}/v2.0", client_id=client_id, client_secret=client_secret, scopes=scopes)

    def covers(self, granted: Sequence[str], scope: str) -> bool:
        # It writes scopes of Graph with its address, or without.
        return scope in granted or any(each.endswith(f"/{scope}") or scope.endswith(f"/{each}") for each in granted)

    async def admits(self, claims: JSON, upstream: Upstream, allowed: Sequence[str]) -> bool:
        """Return whether a person is in one of some groups, or has one of some roles, by the claims that you map."""
        listed = [each for name in ("groups", "roles") for each in claims.get(name) or ()]
        return not set(map(str, listed)).isdisjoint(allowed)

"""`Login`: people log in at a provider that they have, and clients get tokens of this server."""

import time
from collections.abc import Callable, Iterable
from typing import Literal

from starlette.authentication import AuthenticationBackend
from starlette.requests import HTTPConnection

from ..addresses import BaseUrl
from ..auth.dpop import Mode, Proofs, check_mode
from ..auth.fetching import is_safe
from ..crypto.keys import KeyRing
from ..errors import SetupError, check_scopes
from ..fetcher import Fetcher
from ..logs.refusals import RefusalLog
from ..storage.base import Store
from ..storage.quotas import Quotas
from .authorize import Authorizing
from .clients import Clients, check_schemes
from .documents import Documents
from .families import Families
from .providers import Oidc
from .records import Seals
from .serving import LoginServer
from .token_endpoint import TokenEndpoint
from .tokens import Allow, Issuing
from .upstream_tokens import UpstreamRows, UpstreamTokens

ACCESS_SECONDS = 600.0


class Login(AuthenticationBackend):
    """Logs people in at a provider, and gives clients tokens: `MRTRServer(auth=Login(GitHub(...)))`. Extra: `auth`.

    The server is then an authorization server of OAuth 2.1, too. What it remembers of a login travels sealed under its
    keys (`MRTR_KEYS`), so that any replica serves any step. The store keeps what must happen once.

    Args:
        provider: where people log in: `GitHub(...)`, `Google(...)`, `Entra(...)`, or any `Oidc(...)`.
        allow: who may use the server: the names of organisations (GitHub), domains (Google), groups (Entra), domains or
            groups (others), or a function of a person's claims, sync or async, that returns True or False. It is asked
            at the login and at each refresh. Default: whoever has an account at the provider.
        scopes: scopes of this server, besides those that it and its tools name. All others are asked of the provider.
        allow_redirects: the private-use schemes, such as `"cursor"`, that clients may go back to.
        remember_consent: whether a person who has allowed the same in the same browser is not asked again, where the
            browser opened the page by itself and goes back to an https address.
        refresh_days: for how long a client that does not refresh its tokens stays logged in, in days.
        bind_client: whether states, tasks and sessions belong to the client, too, and not just to the person.
        register: whether clients may register themselves (Client Registration, Dynamic Client Registration).
        dpop: whether clients may (`"accept"`), or must (`"require"`), bind their tokens to a key of theirs (RFC 9449).
        dpop_replay: where it is noted that a proof was used: `"process"`, or `"store"` for once in the fleet.
        fetcher: fetches the documents of clients. Default: one that connects to no private address.

    Raises:
        SetupError: a setting can't be right, or the extra is not installed.
    """

    def __init__(
        self,
        provider: Oidc,
        *,
        allow: Allow | None = None,
        scopes: Iterable[str] = (),
        allow_redirects: Iterable[str] = (),
        remember_consent: bool = False,
        refresh_days: float = 30.0,
        bind_client: bool = False,
        register: bool = True,
        dpop: Mode = "accept",
        dpop_replay: Literal["process", "store"] = "process",
        fetcher: Fetcher | None = None,
    ) -> None:
        if not isinstance(provider, Oidc):
            raise SetupError("Login takes a provider: Login(GitHub(client_id=..., client_secret=...))")
        if isinstance(allow, str):
            raise SetupError(f"allow={allow!r} is one string; give a list: allow=[{allow!r}]")
        if not 0 < refresh_days < 3650:
            raise SetupError("refresh_days must be a positive number of days, and less than ten years")
        self._provider = provider
        self._allow = allow
        self._scopes = check_scopes("scopes", scopes)
        self._schemes = check_schemes(allow_redirects)
        self._remember = remember_consent
        self._refresh_seconds = refresh_days * 24 * 3600
        check_mode(dpop, dpop_replay)
        self._dpop: Mode = dpop
        self._dpop_replay = dpop_replay
        self._bind_client = bind_client
        self._register = register
        self._documents = Documents(fetcher or Fetcher())

    @property
    def everybody_of(self) -> Oidc | None:
        """The provider, all of whose people may use the server; None where `allow=` chooses among them."""
        return self._provider if self._allow is None else None

    async def authenticate(self, conn: HTTPConnection) -> None:
        """Raise an error: a `Login` belongs to a server, which has its keys.

        Args:
            conn: the request.

        Raises:
            SetupError: always. Give it to a server as `auth=`.
        """
        raise SetupError("Login works as MRTRServer(auth=Login(...)) alone, since it needs the server's keys and store")

    def _bound_to(
        self,
        *,
        name: str,
        path: str,
        base_url: str | None,
        ring: KeyRing,
        store: Store,
        quotas: Quotas,
        refusals: RefusalLog,
        default_scopes: tuple[str, ...],
        registered_scopes: Callable[[], set[str]],
        clock: Callable[[], float] = time.time,
    ) -> LoginServer:
        """Return the logins of one server. Raises `SetupError`."""
        if base_url is not None and not is_safe(base_url):
            raise SetupError(f"base_url={base_url!r} must be an https address: people log in there")
        base = BaseUrl(base_url)
        self._provider.clock = clock
        seals = Seals(ring, clock)
        families = Families(store, ring, quotas, self._refresh_seconds, clock)
        rows = None
        if store.shared:  # otherwise the tokens of people would be gone when this process ends
            rows = UpstreamRows(store, ring, quotas, families, self._provider, self._refresh_seconds, clock)

        def own_scopes() -> set[str]:
            return {*self._scopes, *default_scopes, *registered_scopes()}

        clients = Clients(seals, ring, self._documents, self._schemes, families.once, clock)
        issuing = Issuing(
            self._provider,
            seals,
            families,
            rows,
            self._allow,
            clock,
            access_seconds=ACCESS_SECONDS,
            refresh_seconds=self._refresh_seconds,
        )
        authorizing = Authorizing(
            name,
            self._provider,
            clients,
            seals,
            families,
            issuing,
            base,
            refusals,
            lambda: list(default_scopes),
            own_scopes,
            clock,
            remember=self._remember,
        )
        proofs = Proofs(self._dpop, ring, base_url, families.once if self._dpop_replay == "store" else None, clock)
        tokens = TokenEndpoint(clients, seals, families, issuing, proofs, refusals, clock)
        return LoginServer(
            base,
            path,
            seals,
            clients,
            authorizing,
            tokens,
            UpstreamTokens(self._provider, rows, families, refusals, clock),
            proofs,
            refusals,
            own_scopes,
            clock,
            bind_client=self._bind_client,
            registers=self._register,
        )

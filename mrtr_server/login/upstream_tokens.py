"""The tokens of people at the provider, as the handlers of a server get them."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import InsufficientScope, IssuerUnavailable, ProviderRefused, ToolError
from ..logs.refusals import RefusalLog
from ..protocol.callers import Principal
from ..protocol.messages import Call
from .families import Families
from .providers import Oidc
from .records import Grant, Upstream
from .upstream_rows import UpstreamRows

MOST_BROUGHT = 1000  # logins whose tokens are at hand for their tasks, each of 2 KB at most


class _Brought(NamedTuple):
    """A token that came within one of ours, and until when that counts."""

    until: float
    began: float  # when the login began
    upstream: Upstream


class UpstreamTokens:
    def __init__(
        self,
        provider: Oidc,
        rows: UpstreamRows | None,
        families: Families,
        refusals: RefusalLog,
        clock: Callable[[], float],
    ) -> None:
        self.question = f"This needs your account at {provider.issuer}. Go on?"
        self._provider = provider
        self._rows = rows  # None where the token travels within that of the client
        self._families = families
        self._refusals = refusals
        self._clock = clock
        self._brought: OrderedDict[str, _Brought] = OrderedDict()

    def note(self, grant: Grant, upstream: Upstream, until: float) -> None:
        """Keep what a request brought at hand, for the tasks of the same login, which run in this process, too."""
        if self._rows is None and upstream.access:
            self._brought[grant.family] = _Brought(until, grant.began, upstream)
            self._brought.move_to_end(grant.family)
            if len(self._brought) > MOST_BROUGHT:
                self._brought.popitem(last=False)

    async def token(self, call: Call, scopes: Sequence[str], *, in_task: bool) -> str | None:
        """Return the access token of whoever calls; None where a task has to ask, since each request brings one.

        Raises `InsufficientScope`, `ToolError`, `StoreUnavailable`.
        """
        found = await self._find(call, in_task=in_task)
        if found is None and in_task and self._rows is None:
            return None
        if found is not None and all(self._provider.covers(found.scopes, scope) for scope in scopes):
            return found.access
        if in_task:  # whose client can't be sent to log in: it has no request that waits
            raise ToolError("The person has to log in again, and to allow what this needs. Then start this once more.")
        raise InsufficientScope(*dict.fromkeys((*sorted(call.scopes), *(scopes or self._provider.scopes))))

    async def _find(self, call: Call, *, in_task: bool) -> Upstream | None:
        login = getattr(call.user, "login", "")
        if not login or call.principal is None:
            return None
        if self._rows is None:
            if in_task:
                return await self._latest(login, call.principal)
            given: Upstream | None = getattr(call.user, "upstream", None)
            return given if given is not None and given.access else None
        try:
            return await self._rows.fresh(login, call.principal)
        except ProviderRefused as error:
            self._refusals.note("The token of a person has ended: %r", str(error))
            return None
        except IssuerUnavailable as error:
            self._refusals.note("The token of a person could not be refreshed: %r", str(error))
            raise ToolError("The account of the person can't be reached now. Try again in a moment.") from None

    async def _latest(self, login: str, who: Principal) -> Upstream | None:
        found = self._brought.get(login)
        if found is None:
            return None
        if await self._families.is_ended(login, found.began, who):
            raise ToolError("The login that this was started with has ended. Start this once more.")
        return found.upstream if found.until > self._clock() else None

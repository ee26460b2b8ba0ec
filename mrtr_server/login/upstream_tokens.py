"""The tokens of people at the provider, as the handlers of a server get them."""

from collections.abc import Sequence

from ..errors import InsufficientScope, IssuerUnavailable, ProviderRefused, ToolError
from ..logs.refusals import RefusalLog
from ..protocol.messages import Call
from .providers import Oidc
from .records import Upstream
from .upstream_rows import UpstreamRows


class UpstreamTokens:
    def __init__(self, provider: Oidc, rows: UpstreamRows | None, refusals: RefusalLog) -> None:
        self._provider = provider
        self._rows = rows  # None where the token travels within that of the client
        self._refusals = refusals

    async def token(self, call: Call, scopes: Sequence[str], *, in_task: bool) -> str:
        """Return the access token of whoever calls. Raises `InsufficientScope`, `ToolError`, `StoreUnavailable`."""
        found = await self._find(call, in_task=in_task)
        if found is not None and all(self._provider.covers(found.scopes, scope) for scope in scopes):
            return found.access
        if in_task:  # whose client can't be sent to log in: it has no request that waits
            raise ToolError("The person has to log in again, and to allow what this needs. Then start this once more.")
        raise InsufficientScope(*dict.fromkeys((*sorted(call.scopes), *(scopes or self._provider.scopes))))

    async def _find(self, call: Call, *, in_task: bool) -> Upstream | None:
        if self._rows is None:
            if in_task:
                raise ToolError(
                    "A task can't use the account of the person: the server has no database, which would keep their "
                    "token. Call a tool without a task."
                )
            given: Upstream | None = getattr(call.user, "upstream", None)
            return given if given is not None and given.access else None
        login = getattr(call.user, "login", "")
        if not login or call.principal is None:
            return None
        try:
            return await self._rows.fresh(login, call.principal)
        except ProviderRefused as error:
            self._refusals.note("The token of a person has ended: %r", str(error))
            return None
        except IssuerUnavailable as error:
            self._refusals.note("The token of a person could not be refreshed: %r", str(error))
            raise ToolError("The account of the person can't be reached now. Try again in a moment.") from None

"""The table of methods: one function serves each."""

from collections.abc import Awaitable, Mapping, Sequence

from ..errors import InvalidRequestState, UnknownMethod
from ..flow.rate_limiter import RateLimiter
from ..logs.refusals import RefusalLog
from ..protocol.messages import LISTEN, STATE_METHODS, Call, Outcome, Outlet
from .discovery import Discoverer, ListRequests
from .middleware import Method, Middleware, compose, count
from .prompts_and_resources import Completions, PromptsAndResources
from .sessions import SessionRequests
from .subscriptions import Subscriptions
from .tools import Tools

_NO_REQUESTS = frozenset({"sessions/listen"})  # ours, which no message names


class Dispatcher:
    """Answers calls. It knows no version of the protocol and no transport."""

    def __init__(
        self,
        tools: Tools,
        prompts_and_resources: PromptsAndResources,
        lists: ListRequests,
        completions: Completions,
        discoverer: Discoverer,
        subscriptions: Subscriptions,
        sessions: SessionRequests,
        extensions: Mapping[str, Method],
        rates: RateLimiter,
    ) -> None:
        self._refusals = RefusalLog()
        methods: Mapping[str, Method] = {
            "tools/call": tools.call,
            "prompts/get": prompts_and_resources.get,
            "resources/read": prompts_and_resources.read,
            "tools/list": lists.tools,
            "prompts/list": lists.prompts,
            "resources/list": lists.resources,
            "resources/templates/list": lists.resource_templates,
            "completion/complete": completions.complete,
            "server/discover": discoverer.discover,
            LISTEN: subscriptions.listen,
            "initialize": discoverer.discover,
            "ping": sessions.ping,
            "logging/setLevel": sessions.set_level,
            "resources/subscribe": sessions.subscribe,
            "resources/unsubscribe": sessions.unsubscribe,
            "sessions/listen": sessions.listen,
            **extensions,
        }
        counted = [count(rates)] if rates.counts_calls or rates.counts_others else []
        self._counted = {name: compose(method, counted) for name, method in methods.items()}
        self._methods = self._counted

    def serve_within(self, around: Sequence[Middleware]) -> None:
        """Serve every request within middlewares from now on, of which the first is the outermost."""
        self._methods = {
            name: method if name in _NO_REQUESTS else compose(method, around) for name, method in self._counted.items()
        }

    def dispatch(self, call: Call, outlet: Outlet) -> Awaitable[Outcome]:
        """Answer a call. Raises `RequestError` for the client; whatever else went wrong is in the log by then."""
        method = self._methods.get(call.method)
        if method is None:
            raise UnknownMethod(call.method)
        if call.state is not None and call.method not in STATE_METHODS:
            self._refusals.note("%s: refused a requestState: this method issues none", call.method)
            raise InvalidRequestState("this method issues none")
        return method(call, outlet)

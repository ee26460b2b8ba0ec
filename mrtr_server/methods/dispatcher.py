"""The table of methods: one function serves each."""

from collections.abc import Awaitable, Mapping, Sequence

from ..errors import InvalidRequestState, UnknownMethod
from ..flow.rate_limiter import RateLimiter
from ..logs.refusals import RefusalLog
from ..protocol.messages import STATE_METHODS, Call, Outcome, Outlet
from .discovery import Discoverer, ListRequests
from .middleware import Method, Middleware, compose, count
from .prompts_and_resources import Completions, Prompts, Resources
from .sessions import SessionRequests
from .subscriptions import Subscriptions
from .tasks import TaskRequests
from .tools import Tools

_NO_REQUESTS = frozenset({"sessions/listen"})
"""Methods of ours that no message names."""


class Dispatcher:
    """Answers calls. It knows no version of the protocol and no transport."""

    def __init__(
        self,
        tools: Tools,
        prompts: Prompts,
        resources: Resources,
        lists: ListRequests,
        completions: Completions,
        discoverer: Discoverer,
        subscriptions: Subscriptions,
        tasks: TaskRequests,
        sessions: SessionRequests,
        rates: RateLimiter,
    ) -> None:
        self._refusals = RefusalLog()
        methods: Mapping[str, Method] = {
            "tools/call": tools.call,
            "prompts/get": prompts.get,
            "resources/read": resources.read,
            "tools/list": lists.tools,
            "prompts/list": lists.prompts,
            "resources/list": lists.resources,
            "resources/templates/list": lists.resource_templates,
            "completion/complete": completions.complete,
            "server/discover": discoverer.discover,
            "subscriptions/listen": subscriptions.listen,
            "initialize": discoverer.discover,
            "ping": sessions.ping,
            "logging/setLevel": sessions.set_level,
            "resources/subscribe": sessions.subscribe,
            "resources/unsubscribe": sessions.unsubscribe,
            "sessions/listen": sessions.listen,
            "tasks/get": tasks.get,
            "tasks/list": tasks.list,
            "tasks/result": tasks.result,
            "tasks/update": tasks.update,
            "tasks/answer": tasks.answer,
            "tasks/respond": tasks.respond,
            "tasks/cancel": tasks.cancel,
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
        """Answer a call.

        Return the outcome. Raises `RequestError` where there is none, for the client. Whatever else went wrong is in
        the log by then.
        """
        method = self._methods.get(call.method)
        if method is None:
            raise UnknownMethod(call.method)
        if call.state is not None and call.method not in STATE_METHODS:
            self._refusals.note("%s: refused a requestState: this method issues none", call.method)
            raise InvalidRequestState("this method issues none")
        return method(call, outlet)

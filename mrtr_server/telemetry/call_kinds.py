"""What calls of a kind have in common, and the labels of how a call ended: both are made once, and looked up."""

from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple, TypeGuard, TypeVar

from ..errors import Declined, InternalFault, OverBudget, ProtocolError, RequestError
from ..methods.middleware import Came
from ..protocol.messages import ASKING_METHODS, Call, Outlet
from ..protocol.trace import End, Trace
from ..tally import Count, Tally
from .meters import Histogram, Record
from .names import ENDED_ROUNDS, FLOWS, METHOD, PROMPT, RESUMES, TOOL, WAITS, Metric, reason_of

K = TypeVar("K")
V = TypeVar("V")

_NO_ROOM = frozenset({"busy", "overloaded"})
"""The errors of calls for which there is no room, and no other replica that the client could be sent to."""


class Labels(NamedTuple):
    outcome: End
    error: str = ""  # the class of its error
    code: str = ""  # of its JSON-RPC error
    ends_flow: bool = False  # whether no further round of its flow is to come
    had_no_room: bool = False  # whether it was refused since too much runs


_LABELS: Mapping[End, Labels] = {
    "completed": Labels("completed", ends_flow=True),
    "declined": Labels("declined", "tool_error", ends_flow=True),
    "tool_error": Labels("tool_error", "tool_error", ends_flow=True),
    "task": Labels("task", ends_flow=True),
    "asked": Labels("asked"),
    "handed_over": Labels("handed_over"),
    "listening": Labels("listening"),
    "cancelled": Labels("cancelled", "cancelled"),
}
"""Those of each end but of an error."""


def labels_of_task(trace: Trace, came: Came) -> Labels:
    return Labels(trace.end, reason_of(came)) if _is_error(came, trace) else _LABELS[trace.end]


def labels_of_call(trace: Trace, came: Came, form: Any) -> Labels:
    """Return the labels of a call, and note the reference of an error in its trace. `form` has the codes of errors."""
    if not _is_error(came, trace):
        return _LABELS[trace.end]
    known = came if isinstance(came, RequestError) else InternalFault("")
    trace.reference = trace.reference or str((known.data or {}).get("reference") or "")
    code = "" if form is None else str(form.dump_error(known)[1]["code"])
    ends = isinstance(came, Declined | ProtocolError | InternalFault) or (
        isinstance(came, OverBudget) and trace.journal is not None
    )
    return Labels(trace.end, code or reason_of(known), code, ends, reason_of(came) in _NO_ROOM)


def _is_error(came: Came, trace: Trace) -> TypeGuard[BaseException]:
    return isinstance(came, BaseException) and trace.end != "cancelled"


class Offered(NamedTuple):
    """What a server offers, now or later: only such names are shown, since any other is whatever a client sent."""

    tools: Container[str]
    prompts: Container[str]
    resources: Container[str]


class CallKind:
    """A kind of call. `tool` and `prompt` are empty for one that is not offered, `http` for other transports."""

    def __init__(
        self, method: str, tool: str, prompt: str, version: str, http: str, tally: Tally, durations: Histogram
    ) -> None:
        operation = "execute_tool" if method == "tools/call" else ""
        protocol, transport = ("http", "tcp") if http else ("", "pipe")
        attributes = {
            METHOD: method,
            TOOL: tool,
            PROMPT: prompt,
            "gen_ai.operation.name": operation,
            "mcp.protocol.version": version,
            "network.transport": transport,
            "network.protocol.name": protocol,
            "network.protocol.version": http,
        }
        self.name = f"{method} {tool or prompt}".rstrip()  # of its spans, and in the log
        self.attributes = {name: value for name, value in attributes.items() if value}  # of its spans
        fields = {"event": "call", "method": method, "tool": tool, "prompt": prompt}
        self.fields = {name: value for name, value in fields.items() if value}  # of its lines in the log
        self.labels = (method, tool, prompt)
        self.asks = method in ASKING_METHODS  # whether such a call is a round of a flow
        self.waits = _numbered(tally, WAITS, self.labels)  # its rounds that end with a state, by their number
        # Its rounds that begin with a state, by the number of the round that gave it out.
        self.resumes = _numbered(tally, RESUMES, self.labels)

        def counted(end: Labels) -> EndCounts:
            labels = (*self.labels, end.outcome)
            took = durations.of(
                method, end.error, prompt, tool, end.code, operation, version, protocol, http, transport
            )
            return EndCounts(tally.count_of(ENDED_ROUNDS.name, *labels), _numbered(tally, FLOWS, labels), took)

        self.ended = _Made(counted)  # its calls, by how they ended


class _Made(dict[K, V]):
    """What is made when it is first looked up."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make

    def __missing__(self, key: K) -> V:
        found = self[key] = self._make(key)
        return found


def _numbered(tally: Tally, metric: Metric, labels: tuple[str, ...]) -> _Made[int, Count]:
    """Return what counts under the same labels, by the number of a round, which is the last label."""
    return _Made(lambda number: tally.count_of(metric.name, *labels, str(number)))


class EndCounts(NamedTuple):
    """What counts the calls of a kind that ended in the same way; `flows` counts the last ones, by number of rounds."""

    rounds: Count
    flows: _Made[int, Count]
    took: Record


class CallKinds:
    def __init__(self, offered: Offered, tally: Tally, durations: Histogram) -> None:
        self._offered = offered
        self._tally = tally
        self._durations = durations
        self._kinds: dict[tuple[str, str, str, str], CallKind] = {}

    def of(self, call: Call, outlet: Outlet) -> CallKind:
        scope: Any = getattr(outlet, "scope", None)
        form: Any = getattr(outlet, "dialect", None)
        http = "" if scope is None else scope.get("http_version", "")
        version = "" if form is None else form.spoken
        found = self._kinds.get((call.method, call.target, version, http))
        return self._make(call.method, call.target, version, http) if found is None else found

    def _make(self, method: str, target: str, version: str, http: str) -> CallKind:
        tool = target if method == "tools/call" and target in self._offered.tools else ""
        prompt = target if method == "prompts/get" and target in self._offered.prompts else ""
        key = (method, tool or prompt, version, http)  # not what a client made up, or there would be no end to them
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = CallKind(method, tool, prompt, version, http, self._tally, self._durations)
        return found

"""Each call, and each round of a task, as operators see it: its span, its metrics, and its line in the log."""

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar

from ..crypto.digests import digest
from ..errors import Declined, InternalFault, OverBudget, ProtocolError, RequestError
from ..flow.endings import Asking
from ..methods.middleware import Came, Middleware, watch
from ..protocol.callers import Principal
from ..protocol.messages import (
    ASKING_METHODS,
    JSON,
    Call,
    NeedsInput,
    Outlet,
    Unfinished,
    YieldReason,
    action_of,
    kind_of,
)
from ..protocol.trace import End, Trace
from ..storage.rows import TaskRow
from ..tally import ANSWERS, Count, Tally
from ..tasks.task_run import TaskRun
from .meters import Histogram, Meters, Record
from .names import (
    ASKS,
    CODE,
    DURATION,
    ENDED_ROUNDS,
    ERROR,
    FLOWS,
    METHOD,
    OUTCOME,
    PROMPT,
    RESUMES,
    ROUND,
    SHED,
    STATE_SIZE,
    TASK_TIME,
    TOOL,
    WAITS,
    Metric,
    reason_of,
)

if TYPE_CHECKING:
    from .open_telemetry import Spans, Started


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


logger = logging.getLogger("mrtr_server")

LONGEST_TEXT = 128  # characters of what a client chose, in an attribute of a span

ID_DIGITS = 16  # of the id of a flow, and of a digest: enough to tell any two apart

MOST_ROUNDS = 100  # the highest number of a round that is a label of a metric

KNOWN_CALLERS = 1024  # whose digests are kept

_ABOUT_RESOURCES = frozenset({"resources/read", "resources/subscribe", "resources/unsubscribe"})


def log_call(name: str, fields: JSON, end: Labels, reference: str, seconds: float, trace: tuple[str, str]) -> None:
    """Log how a call ended, with the ids of trace and span. Whether its level is wanted, the caller has found out."""
    took = round(seconds * 1000, 2)
    text = f"{name}: {end.outcome} in {took} ms"
    fields["outcome"] = end.outcome
    if end.error:
        fields["error"] = end.error
    if reference:
        fields["reference"] = reference
        text += f" (reference {reference})"
    fields["ms"] = took
    if trace[0]:
        fields["trace_id"], fields["span_id"] = trace
    # `logger.info` would look through the stack for the line that calls it, which is always the same here.
    record = logging.getLogRecordFactory()(logger.name, logging.INFO, __file__, 0, text, (), None, "log_call")
    record.fields = fields
    logger.handle(record)


class _Begun(NamedTuple):
    span: "Started | None"  # None where nobody takes spans
    kind: CallKind | None  # None of a round of a task
    row: TaskRow | None = None  # as its round began; None of a call


class CallTelemetry:
    """Measures calls and the rounds of tasks, and logs them; `caller_of` returns the keyed digest of who calls."""

    def __init__(
        self,
        tally: Tally,
        offered: Offered,
        caller_of: Callable[[Principal | None], str],
        spans: "Spans | None",
        meters: Sequence[Meters],
        clock: Callable[[], float],
    ) -> None:
        self.in_flight = 0  # calls that are being served
        self._tally = tally
        self._offered = offered
        self._caller_of = lru_cache(KNOWN_CALLERS)(caller_of)
        self._spans = spans
        self._is_measured = bool(meters)
        self._kinds = CallKinds(offered, tally, Histogram(DURATION, meters))
        self._state_sizes = Histogram(STATE_SIZE, meters)
        self._task_times = Histogram(TASK_TIME, meters)
        self._clock = clock

    @property
    def middleware(self) -> Middleware:
        return watch(self._begin, self._end)

    def _begin(self, call: Call, outlet: Outlet) -> _Begun:
        if isinstance(outlet, TaskRun):
            return self._begin_task(outlet)
        kind, span = self._kinds.of(call, outlet), None
        if self._spans is not None:
            span = self._spans.begin_call(kind.name, kind.attributes, call)
            call.trace.trace_parent = partial(self._spans.trace_parent, span)
            call.trace.is_traced = self._spans.is_recorded(span)
        self.in_flight += 1
        return _Begun(span, kind)

    def _end(self, call: Call, outlet: Outlet, begun: _Begun, came: Came) -> None:
        if begun.kind is not None:
            self._end_call(call, outlet, begun.kind, begun.span, came)
        elif begun.row is not None and isinstance(outlet, TaskRun):
            self._end_task(call, outlet, begun.row, begun.span, came)

    # Calls

    def _end_call(self, call: Call, outlet: Outlet, kind: CallKind, span: "Started | None", came: Came) -> None:
        self.in_flight -= 1
        trace, end = call.trace, labels_of_call(call.trace, came, getattr(outlet, "dialect", None))
        if self._is_measured:
            ended = kind.ended[end]
            ended.rounds.add()
            if kind.asks:
                self._count_round(kind, call, came, end, ended)
            ended.took(trace.seconds)
        if span is not None and self._spans is not None:
            if self._spans.is_recorded(span):
                about = self._about(kind, call, came, outlet, end)
                self._spans.describe(span, about, end.error, _why(trace), trace.first)
            self._spans.end(span)
        if logger.isEnabledFor(logging.INFO):
            fields: JSON = kind.fields.copy()
            if kind.asks:
                fields["round"] = trace.rounds + 1
                if trace.flow:
                    fields["flow"] = trace.flow[:ID_DIGITS]
            if trace.task:
                fields["task"] = trace.task
                if trace.tool in self._offered.tools:
                    fields["tool"] = trace.tool
            self._log(kind.name, fields, call, end, span)

    def _about(self, kind: CallKind, call: Call, came: Came, outlet: Outlet, end: Labels) -> dict[str, Any]:
        trace = call.trace
        scope = getattr(outlet, "scope", None)
        client = scope.get("client") if scope is not None else None
        about: JSON = {OUTCOME: end.outcome, "jsonrpc.request.id": str(call.request_id)[:LONGEST_TEXT]}
        if client:
            about |= {"client.address": str(client[0]), "client.port": int(client[1] or 0)}
        if call.session:
            about["mcp.session.id"] = digest(call.session)[:ID_DIGITS]
        about |= _of_flow(trace)
        if kind.asks:
            about[ROUND] = trace.rounds + 1
        if call.method in _ABOUT_RESOURCES and call.target in self._offered.resources:
            about["mcp.resource.uri"] = call.target
        if isinstance(came, Unfinished):
            about["mrtr.state.size"] = len(came.state)
            if isinstance(came, NeedsInput):
                about["mrtr.asks"] = [question.kind for question in came.questions.values()]
        if end.error:
            about |= {ERROR: end.error, CODE: end.code, "mrtr.reference": trace.reference}
            return _filled(about)
        return about

    def _count_round(self, kind: CallKind, call: Call, came: Came, end: Labels, ended: EndCounts) -> None:
        trace = call.trace
        number = trace.rounds + 1 if trace.rounds < MOST_ROUNDS else MOST_ROUNDS
        if trace.rounds:
            kind.resumes[min(trace.rounds, MOST_ROUNDS)].add()
            for key, question in trace.asked.items():
                self._tally.add(ANSWERS, kind_of(question), action_of((call.answers or {}).get(key)))
        if end.ends_flow:
            ended.flows[number].add()
        elif isinstance(came, Unfinished):
            self._state_sizes.of(*kind.labels)(len(came.state))
            kind.waits[number].add()
            if isinstance(came, NeedsInput):
                for asked in came.questions.values():
                    self._tally.add(ASKS.name, asked.kind)
            elif came.why is YieldReason.FULL:
                self._tally.add(SHED.name, end.outcome)
        elif end.had_no_room:
            self._tally.add(SHED.name, "refused")

    # Tasks

    def _begin_task(self, run: TaskRun) -> _Begun:
        row, span = run.row, None
        tool = self._tool_of(row)
        if self._is_measured:
            self._task_times.of(tool, "queued")(max(0.0, self._clock() - row.updated))
        if self._spans is not None:
            named = {TOOL: tool, "gen_ai.operation.name": "execute_tool"} if tool else {}
            about = {**named, "mrtr.task.reference": row.reference, "mrtr.task.attempt": row.attempts}
            span = self._spans.begin_task(f"task {tool}".rstrip(), about, run.journal.origin)
        return _Begun(span, None, row)

    def _tool_of(self, row: TaskRow) -> str:
        return row.name if row.name in self._offered.tools else ""

    def _end_task(self, call: Call, run: TaskRun, row: TaskRow, span: "Started | None", came: Came) -> None:
        trace, tool = call.trace, self._tool_of(row)
        end, flow = labels_of_task(trace, came), run.journal.flow[:ID_DIGITS]
        if self._is_measured:
            self._task_times.of(tool, "working")(trace.seconds)
            if isinstance(came, Asking):
                for key, question in came.questions.items():
                    if trace.asked.get(key) != question.digest:
                        self._tally.add(ASKS.name, question.kind)
        if span is not None and self._spans is not None:
            about = {OUTCOME: end.outcome, "mrtr.flow.id": flow, ERROR: end.error, "mrtr.reference": trace.reference}
            if self._spans.is_recorded(span):
                self._spans.describe(span, _filled(about), end.error, _why(trace))
            self._spans.end(span)
        if logger.isEnabledFor(logging.INFO):
            named = {"tool": tool} if tool else {}
            fields: JSON = {"event": "task_round", "method": call.method, **named, "flow": flow}
            fields |= {"task": row.reference, "attempt": row.attempts}
            self._log(f"{call.method} {tool}".rstrip(), fields, call, end, span)

    # The log

    def _log(self, name: str, fields: JSON, call: Call, end: Labels, span: "Started | None") -> None:
        if call.principal is not None:
            fields["principal"] = self._caller_of(call.principal)[:ID_DIGITS]
        ids = ("", "") if span is None or self._spans is None else self._spans.ids(span)
        log_call(name, fields, end, call.trace.reference, call.trace.seconds, ids)


def _of_flow(trace: Trace) -> dict[str, Any]:
    named = {}
    if flow := trace.flow or trace.task_flow:
        named["mrtr.flow.id"] = flow[:ID_DIGITS]
    if trace.task:
        named["mrtr.task.reference"] = trace.task
    return named


def _filled(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value != ""}


def _why(trace: Trace) -> str:
    return f"reference {trace.reference}" if trace.reference else ""

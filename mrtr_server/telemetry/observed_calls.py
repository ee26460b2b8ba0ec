"""Each call as it is observed: its span, its metrics, and its line in the log."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..crypto.digests import digest
from ..errors import Declined, InternalFault, OverBudget, ProtocolError, RequestError
from ..flow.endings import Asking, YieldReason
from ..flow.journal import Journal
from ..protocol.callers import Principal
from ..protocol.messages import (
    ASKING_METHODS,
    JSON,
    Call,
    CallFacts,
    Complete,
    Listening,
    NeedsInput,
    Outlet,
    TaskCreated,
    action_of,
    kind_of,
)
from ..storage.tasks import TaskRow
from ..tally import ANSWERS, Tally
from . import names
from .meters import Meters
from .names import CODE, ERROR, LOG_FIELDS, METHOD, OUTCOME, PROMPT, ROUND, TOOL, Metric, reason_of

if TYPE_CHECKING:  # so that OpenTelemetry is loaded only where it is used
    from .spans import Spans, Started

logger = logging.getLogger("mrtr_server")

LONGEST_TEXT = 128
"""How much of what a client chose is an attribute of a span, in characters."""

ID_DIGITS = 16
"""How much of the id of a flow, and of a digest, is shown: enough to tell any two apart."""

MOST_ROUNDS = 100
"""The highest number of a round that is a label of a metric."""

_TURNED_AWAY = frozenset({"busy", "overloaded"})
"""The errors of calls for which there is no room, and no other replica that the client could be sent to."""

_ABOUT_RESOURCES = frozenset({"resources/read", "resources/subscribe", "resources/unsubscribe"})

T = TypeVar("T")


class Offered(NamedTuple):
    """What a server offers: only such names are shown, since any other is whatever a client sent.

    Args:
        tools, prompts, resources: their names, and the URIs of resources without templates; more may come.
    """

    tools: Container[str]
    prompts: Container[str]
    resources: Container[str]


class _Labels(NamedTuple):
    """What is the same for all calls of a kind.

    Args:
        span: the name of their spans.
        of_span, of_metrics: their attributes.
        of_tally: method, tool and prompt.
    """

    span: str
    of_span: dict[str, Any]
    of_metrics: dict[str, Any]
    of_tally: tuple[str, str, str]


class _Begun(NamedTuple):
    labels: _Labels
    facts: CallFacts
    at: float
    span: "Started | None"


class _End(NamedTuple):
    """How a call ended.

    Args:
        outcome: in a word.
        error: the class of its error; empty for none.
        code: the code of its JSON-RPC error; empty for none.
        ends_flow: whether no further round of its flow is to come.
    """

    outcome: str
    error: str = ""
    code: str = ""
    ends_flow: bool = False


class ObservedCalls:
    """Observes calls, and the rounds of tasks.

    Args:
        tally: counts them.
        offered: what the server offers.
        caller_of: returns the keyed digest of who calls; empty for nobody in particular.
        spans: begins and ends their spans; None for no spans.
        meters: take the metrics; none where nobody reads them.
        clock: returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        tally: Tally,
        offered: Offered,
        caller_of: Callable[[Principal | None], str],
        spans: "Spans | None",
        meters: Sequence[Meters],
        clock: Callable[[], float],
    ) -> None:
        self.in_flight = 0
        """How many calls are being served."""
        self._tally = tally
        self._offered = offered
        self._caller_of = caller_of
        self._spans = spans
        self._meters = meters
        self.record: Callable[[Metric, float, Mapping[str, Any]], None] = (
            meters[0].record if len(meters) == 1 else self._record_all
        )
        """Takes a measurement of a histogram."""
        self._clock = clock
        self._labels: dict[tuple[str, str, str, str], _Labels] = {}

    def _record_all(self, metric: Metric, value: float, attributes: Mapping[str, Any]) -> None:
        for each in self._meters:
            each.record(metric, value, attributes)

    # Calls

    async def serve(self, method: Callable[[Call, Outlet], Awaitable[T]], call: Call, outlet: Outlet) -> T:
        """Serve a call, and observe it.

        Args:
            method: serves it.
            call: the request.
            outlet: takes its notes.
        """
        begun = self._begin(call, outlet)
        try:
            outcome = await method(call, outlet)
        except BaseException as error:
            self._end_call(begun, call, None, error, outlet)
            raise
        self._end_call(begun, call, outcome, None, outlet)
        return outcome

    def _begin(self, call: Call, outlet: Outlet) -> _Begun:
        labels = self._labels_of(call, outlet)
        facts = call.facts = CallFacts()
        span = None
        if self._spans is not None:
            span = self._spans.begin_call(labels.span, labels.of_span, call)
            facts.origin = self._spans.place(span)
        self.in_flight += 1
        return _Begun(labels, facts, time.perf_counter(), span)

    def _end_call(
        self, begun: _Begun, call: Call, outcome: object, error: BaseException | None, outlet: Outlet
    ) -> None:
        seconds = time.perf_counter() - begun.at
        self.in_flight -= 1
        facts, form = begun.facts, getattr(outlet, "dialect", None)
        end = _end_of(outcome, facts, call) if error is None else _end_of_error(error, facts, form)
        if self._meters:
            self._count(begun.labels, call, facts, outcome, error, end)
            self.record(names.DURATION, seconds, _with_error(begun.labels.of_metrics, end))
        if begun.span is not None and self._spans is not None:
            self._spans.end(
                begun.span, lambda: self._about(call, facts, outcome, outlet, end), end.error, _why(facts), facts.first
            )
        if logger.isEnabledFor(logging.INFO):
            method, tool, prompt = begun.labels.of_tally
            of_task = facts.tool if facts.tool in self._offered.tools else ""
            self._log(
                begun.span,
                event="call",
                method=method,
                tool=tool or of_task,
                prompt=prompt,
                round=facts.rounds + 1 if method in ASKING_METHODS else "",
                flow=facts.flow[:ID_DIGITS],
                task=facts.task,
                principal=self._caller_of(call.principal)[:ID_DIGITS],
                outcome=end.outcome,
                error=end.error,
                reference=facts.reference,
                ms=round(seconds * 1000, 2),
            )

    def _about(self, call: Call, facts: CallFacts, outcome: object, outlet: Outlet, end: _End) -> dict[str, Any]:
        """Return the attributes that a span has at its end, and that are not those of all calls of its kind."""
        scope = getattr(outlet, "scope", None)
        client = scope.get("client") if scope is not None else None
        about: JSON = {OUTCOME: end.outcome, "jsonrpc.request.id": str(call.request_id)[:LONGEST_TEXT]}
        if client:
            about |= {"client.address": str(client[0]), "client.port": int(client[1] or 0)}
        if call.session:
            about["mcp.session.id"] = digest(call.session)[:ID_DIGITS]
        if call.method in ASKING_METHODS:
            about[ROUND] = facts.rounds + 1
            if facts.flow:
                about["mrtr.flow.id"] = facts.flow[:ID_DIGITS]
        if call.method in _ABOUT_RESOURCES and call.target in self._offered.resources:
            about["mcp.resource.uri"] = call.target
        if isinstance(outcome, NeedsInput):
            about["mrtr.state.size"] = len(outcome.state)
            if outcome.questions:
                about["mrtr.asks"] = [question.kind for question in outcome.questions.values()]
        elif isinstance(outcome, TaskCreated):
            about["mrtr.task.reference"] = outcome.task.reference
        if end.error:
            about |= {ERROR: end.error, CODE: end.code, "mrtr.reference": facts.reference}
            return _filled(about)
        return about

    def _labels_of(self, call: Call, outlet: Outlet) -> _Labels:
        method, target, offered = call.method, call.target, self._offered
        tool = target if method == "tools/call" and target in offered.tools else ""
        prompt = target if method == "prompts/get" and target in offered.prompts else ""
        scope, form = getattr(outlet, "scope", None), getattr(outlet, "dialect", None)
        version = "" if form is None else form.spoken
        http = "" if scope is None else scope.get("http_version", "")
        key = (method, tool or prompt, version, http)
        labels = self._labels.get(key)
        if labels is None:
            labels = self._labels[key] = _labels(method, tool, prompt, version, http)
        return labels

    def _count(
        self,
        labels: _Labels,
        call: Call,
        facts: CallFacts,
        outcome: object,
        error: BaseException | None,
        end: _End,
    ) -> None:
        add, tallied = self._tally.add, labels.of_tally
        add(names.CALLS.name, *tallied, end.outcome)
        if call.method not in ASKING_METHODS:
            return
        if facts.rounds:
            add(names.RESUMES.name, *tallied, _number(facts.rounds))
            for key, question in facts.asked.items():
                add(ANSWERS, kind_of(question), action_of((call.answers or {}).get(key)))
        if isinstance(outcome, NeedsInput):
            self.record(names.STATE_SIZE, len(outcome.state), names.attributes_of(names.STATE_SIZE, tallied))
            add(names.WAITS.name, *tallied, _number(facts.rounds + 1))
            for asked in outcome.questions.values():
                add(names.ASKS.name, asked.kind)
            if facts.yielded is YieldReason.FULL:
                add(names.SHED.name, end.outcome)
        elif end.ends_flow:
            add(names.FLOWS.name, *tallied, end.outcome, _number(facts.rounds + 1))
        elif error is not None and reason_of(error) in _TURNED_AWAY:
            add(names.SHED.name, "refused")

    # Tasks

    async def serve_task(self, call: Call, journal: Journal, row: TaskRow, work: Callable[[], Awaitable[T]]) -> T:
        """Run a round of a task, and observe it.

        Args:
            call: the request that it came from.
            journal: what its flow remembers.
            row: the task.
            work: runs the round.
        """
        begun = self._begin_task(call, journal, row)
        try:
            outcome = await work()
        except BaseException as error:
            self._end_task(begun, call, journal, row, _end_of_task_error(error))
            raise
        if isinstance(outcome, Asking) and self._meters:
            for key, question in outcome.questions.items():
                if begun.facts.asked.get(key) != question.digest:
                    self._tally.add(names.ASKS.name, question.kind)
        self._end_task(begun, call, journal, row, _end_of_task(outcome, begun.facts))
        return outcome

    def _begin_task(self, call: Call, journal: Journal, row: TaskRow) -> _Begun:
        tool = row.name if row.name in self._offered.tools else ""
        labels = _labels("task", tool, "", "", "")
        facts = call.facts = CallFacts()
        facts.resume(journal)
        if self._meters:
            queued = max(0.0, self._clock() - row.updated)
            self.record(names.TASK_TIME, queued, names.attributes_of(names.TASK_TIME, (tool, "queued")))
        span = None
        if self._spans is not None:
            about = {"mrtr.task.reference": row.reference, "mrtr.task.attempt": row.attempts}
            named = {TOOL: tool, "gen_ai.operation.name": "execute_tool"} if tool else {}
            span = self._spans.begin_task(labels.span, {**named, **about}, journal.origin)
        return _Begun(labels, facts, time.perf_counter(), span)

    def _end_task(self, begun: _Begun, call: Call, journal: Journal, row: TaskRow, end: _End) -> None:
        seconds = time.perf_counter() - begun.at
        _, tool, _ = begun.labels.of_tally
        flow, reference = journal.flow[:ID_DIGITS], begun.facts.reference
        if self._meters:
            self.record(names.TASK_TIME, seconds, names.attributes_of(names.TASK_TIME, (tool, "working")))
        if begun.span is not None and self._spans is not None:
            about = {OUTCOME: end.outcome, "mrtr.flow.id": flow, ERROR: end.error, "mrtr.reference": reference}
            self._spans.end(begun.span, lambda: _filled(about), end.error, _why(begun.facts), "")
        if logger.isEnabledFor(logging.INFO):
            self._log(
                begun.span,
                event="task_round",
                method=call.method,
                tool=tool,
                flow=flow,
                task=row.reference,
                attempt=row.attempts,
                principal=self._caller_of(call.principal)[:ID_DIGITS],
                outcome=end.outcome,
                error=end.error,
                reference=reference,
                ms=round(seconds * 1000, 2),
            )

    # The log

    def _log(self, span: "Started | None", **given: str | float) -> None:
        if span is not None and self._spans is not None:
            given["trace_id"], given["span_id"] = self._spans.ids(span)
        fields = {name: given[name] for name in LOG_FIELDS if given.get(name, "") != ""}
        what = f"{given['method']} {given.get('tool') or given.get('prompt') or ''}".rstrip()
        reference = f" (reference {given['reference']})" if given["reference"] else ""
        logger.info("%s: %s in %s ms%s", what, given["outcome"], given["ms"], reference, extra={"fields": fields})


def _labels(method: str, tool: str, prompt: str, version: str, http: str) -> _Labels:
    common = {
        METHOD: method,
        TOOL: tool,
        PROMPT: prompt,
        "gen_ai.operation.name": "execute_tool" if method == "tools/call" else "",
        "mcp.protocol.version": version,
        "network.transport": "tcp" if http else "pipe",
        "network.protocol.name": "http" if http else "",
        "network.protocol.version": http,
    }
    given = {name: value for name, value in common.items() if value}
    return _Labels(f"{method} {tool or prompt}".rstrip(), given, given, (method, tool, prompt))


def _with_error(attributes: dict[str, Any], end: _End) -> dict[str, Any]:
    return attributes if not end.error else _filled({**attributes, ERROR: end.error, CODE: end.code})


def _filled(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value != ""}


def _why(facts: CallFacts) -> str:
    return f"reference {facts.reference}" if facts.reference else ""


_ASKED, _HANDED_OVER, _COMPLETED = _End("asked"), _End("handed_over"), _End("completed", ends_flow=True)


def _end_of(outcome: object, facts: CallFacts, call: Call) -> _End:
    if isinstance(outcome, NeedsInput):
        return _ASKED if outcome.questions else _HANDED_OVER
    if isinstance(outcome, Complete):
        if not outcome.body.get("isError"):
            return _COMPLETED
        return _End("declined" if facts.declined else "tool_error", "tool_error", ends_flow=True)
    if isinstance(outcome, TaskCreated):
        return _End("task", ends_flow=True)
    return _End("listening" if isinstance(outcome, Listening) else "completed")


def _end_of_error(error: BaseException, facts: CallFacts, form: Any) -> _End:
    if isinstance(error, asyncio.CancelledError):
        return _End("cancelled", "cancelled")
    known = error if isinstance(error, RequestError) else InternalFault("")
    facts.reference = facts.reference or str((known.data or {}).get("reference") or "")
    code = "" if form is None else str(form.dump_error(known)[1]["code"])
    ends = isinstance(error, Declined | ProtocolError | InternalFault) or (
        isinstance(error, OverBudget) and facts.journal is not None
    )
    return _End("declined" if isinstance(error, Declined) else "error", code or reason_of(known), code, ends)


def _end_of_task(outcome: object, facts: CallFacts) -> _End:
    if isinstance(outcome, Complete):
        if not outcome.body.get("isError"):
            return _End("completed")
        return _End("declined" if facts.declined else "tool_error", "tool_error")
    if isinstance(outcome, RequestError):
        return _End("error", reason_of(outcome))
    return _End("asked" if isinstance(outcome, Asking) else "handed_over")


def _end_of_task_error(error: BaseException) -> _End:
    if isinstance(error, asyncio.CancelledError):
        return _End("cancelled", "cancelled")
    return _End("error", reason_of(error))


def _number(rounds: int) -> str:
    return str(min(rounds, MOST_ROUNDS))

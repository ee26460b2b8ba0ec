"""Each call as it is observed: its span, its metrics, and its line in the log."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from ..crypto.digests import digest
from ..flow.endings import Asking
from ..flow.journal import Journal
from ..protocol.call_facts import CallFacts
from ..protocol.callers import Principal
from ..protocol.messages import (
    JSON,
    Call,
    NeedsInput,
    Outcome,
    Outlet,
    Unfinished,
    YieldReason,
    action_of,
    kind_of,
)
from ..storage.base import TaskRow
from ..tally import ANSWERS, Tally
from ..tasks.round_executor import TaskEnd
from .call_kinds import CallKind, CallKinds, Ended, Offered
from .call_log import log_call
from .ends import End, end_of, end_of_error, end_of_task, end_of_task_error
from .meters import Histogram, Meters
from .names import (
    ASKS,
    CODE,
    DURATION,
    ERROR,
    OUTCOME,
    ROUND,
    SHED,
    STATE_SIZE,
    TASK_TIME,
    TOOL,
)

if TYPE_CHECKING:  # so that OpenTelemetry is loaded only where it is used
    from .spans import Spans, Started

logger = logging.getLogger("mrtr_server")

LONGEST_TEXT = 128
"""How much of what a client chose is an attribute of a span, in characters."""

ID_DIGITS = 16
"""How much of the id of a flow, and of a digest, is shown: enough to tell any two apart."""

MOST_ROUNDS = 100
"""The highest number of a round that is a label of a metric."""

KNOWN_CALLERS = 1024
"""How many callers are kept with their digests."""

_ABOUT_RESOURCES = frozenset({"resources/read", "resources/subscribe", "resources/unsubscribe"})


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
        self._caller_of = lru_cache(KNOWN_CALLERS)(caller_of)
        self._spans = spans
        self._is_measured = bool(meters)
        self._kinds = CallKinds(offered, tally, Histogram(DURATION, meters))
        self._state_sizes = Histogram(STATE_SIZE, meters)
        self._task_times = Histogram(TASK_TIME, meters)
        self._clock = clock

    # Calls

    async def serve(self, method: Callable[[Call, Outlet], Awaitable[Outcome]], call: Call, outlet: Outlet) -> Outcome:
        """Serve a call, and observe it.

        Args:
            method: serves it.
            call: the request.
            outlet: takes its notes.
        """
        kind = self._kinds.of(call, outlet)
        facts = call.facts = CallFacts()
        span = None
        if self._spans is not None:
            span = self._spans.begin_call(kind.name, kind.attributes, call)
            facts.trace_parent = partial(self._spans.trace_parent, span)
            facts.is_traced = self._spans.is_recorded(span)
        self.in_flight += 1
        began = time.perf_counter()
        try:
            outcome = await method(call, outlet)
        except BaseException as error:
            seconds = time.perf_counter() - began
            end = end_of_error(error, facts, getattr(outlet, "dialect", None))
            self._end_call(kind, call, facts, None, end, seconds, span, outlet)
            raise
        seconds = time.perf_counter() - began
        self._end_call(kind, call, facts, outcome, end_of(outcome, facts), seconds, span, outlet)
        return outcome

    def _end_call(
        self,
        kind: CallKind,
        call: Call,
        facts: CallFacts,
        outcome: Outcome | None,
        end: End,
        seconds: float,
        span: "Started | None",
        outlet: Outlet,
    ) -> None:
        self.in_flight -= 1
        if self._is_measured:
            ended = kind.ended[end]
            ended.rounds.add()
            if kind.asks:
                self._count_round(kind, call, facts, outcome, end, ended)
            ended.took(seconds)
        if span is not None and self._spans is not None:
            if self._spans.is_recorded(span):
                self._spans.describe(
                    span, self._about(kind, call, facts, outcome, outlet, end), end.error, _why(facts), facts.first
                )
            self._spans.end(span)
        if logger.isEnabledFor(logging.INFO):
            fields: JSON = kind.fields.copy()
            if kind.asks:
                fields["round"] = facts.rounds + 1
                if facts.flow:
                    fields["flow"] = facts.flow[:ID_DIGITS]
            if facts.task:
                fields["task"] = facts.task
                if facts.tool in self._offered.tools:
                    fields["tool"] = facts.tool
            self._log(kind.name, fields, call, end, facts.reference, seconds, span)

    def _about(
        self, kind: CallKind, call: Call, facts: CallFacts, outcome: Outcome | None, outlet: Outlet, end: End
    ) -> dict[str, Any]:
        """Return the attributes that a span has at its end, and that are not those of all calls of its kind."""
        scope = getattr(outlet, "scope", None)
        client = scope.get("client") if scope is not None else None
        about: JSON = {OUTCOME: end.outcome, "jsonrpc.request.id": str(call.request_id)[:LONGEST_TEXT]}
        if client:
            about |= {"client.address": str(client[0]), "client.port": int(client[1] or 0)}
        if call.session:
            about["mcp.session.id"] = digest(call.session)[:ID_DIGITS]
        about |= _of_flow(facts)
        if kind.asks:
            about[ROUND] = facts.rounds + 1
        if call.method in _ABOUT_RESOURCES and call.target in self._offered.resources:
            about["mcp.resource.uri"] = call.target
        if isinstance(outcome, Unfinished):
            about["mrtr.state.size"] = len(outcome.state)
            if isinstance(outcome, NeedsInput):
                about["mrtr.asks"] = [question.kind for question in outcome.questions.values()]
        if end.error:
            about |= {ERROR: end.error, CODE: end.code, "mrtr.reference": facts.reference}
            return _filled(about)
        return about

    def _count_round(
        self, kind: CallKind, call: Call, facts: CallFacts, outcome: Outcome | None, end: End, ended: Ended
    ) -> None:
        number = facts.rounds + 1 if facts.rounds < MOST_ROUNDS else MOST_ROUNDS
        if facts.rounds:
            kind.resumes[min(facts.rounds, MOST_ROUNDS)].add()
            for key, question in facts.asked.items():
                self._tally.add(ANSWERS, kind_of(question), action_of((call.answers or {}).get(key)))
        if end.ends_flow:
            ended.flows[number].add()
        elif isinstance(outcome, Unfinished):
            self._state_sizes.of(*kind.labels)(len(outcome.state))
            kind.waits[number].add()
            if isinstance(outcome, NeedsInput):
                for asked in outcome.questions.values():
                    self._tally.add(ASKS.name, asked.kind)
            elif outcome.why is YieldReason.FULL:
                self._tally.add(SHED.name, end.outcome)
        elif end.had_no_room:
            self._tally.add(SHED.name, "refused")

    # Tasks

    async def serve_task(
        self, call: Call, journal: Journal, row: TaskRow, work: Callable[[], Awaitable[TaskEnd]]
    ) -> TaskEnd:
        """Run a round of a task, and observe it.

        Args:
            call: the request that it came from.
            journal: what its flow remembers.
            row: the task.
            work: runs the round.
        """
        tool = row.name if row.name in self._offered.tools else ""
        facts = call.facts = CallFacts()
        facts.resume(journal)
        if self._is_measured:
            self._task_times.of(tool, "queued")(max(0.0, self._clock() - row.updated))
        span = None
        if self._spans is not None:
            named = {TOOL: tool, "gen_ai.operation.name": "execute_tool"} if tool else {}
            about = {**named, "mrtr.task.reference": row.reference, "mrtr.task.attempt": row.attempts}
            span = self._spans.begin_task(f"task {tool}".rstrip(), about, journal.origin)
        began = time.perf_counter()
        try:
            outcome = await work()
        except BaseException as error:
            seconds = time.perf_counter() - began
            self._end_task(call, journal, row, tool, end_of_task_error(error), seconds, span, facts)
            raise
        seconds = time.perf_counter() - began
        if isinstance(outcome, Asking) and self._is_measured:
            for key, question in outcome.questions.items():
                if facts.asked.get(key) != question.digest:
                    self._tally.add(ASKS.name, question.kind)
        self._end_task(call, journal, row, tool, end_of_task(outcome, facts), seconds, span, facts)
        return outcome

    def _end_task(
        self,
        call: Call,
        journal: Journal,
        row: TaskRow,
        tool: str,
        end: End,
        seconds: float,
        span: "Started | None",
        facts: CallFacts,
    ) -> None:
        flow = journal.flow[:ID_DIGITS]
        if self._is_measured:
            self._task_times.of(tool, "working")(seconds)
        if span is not None and self._spans is not None:
            about = {OUTCOME: end.outcome, "mrtr.flow.id": flow, ERROR: end.error, "mrtr.reference": facts.reference}
            if self._spans.is_recorded(span):
                self._spans.describe(span, _filled(about), end.error, _why(facts))
            self._spans.end(span)
        if logger.isEnabledFor(logging.INFO):
            named = {"tool": tool} if tool else {}
            fields: JSON = {"event": "task_round", "method": call.method, **named, "flow": flow}
            fields |= {"task": row.reference, "attempt": row.attempts}
            self._log(f"{call.method} {tool}".rstrip(), fields, call, end, facts.reference, seconds, span)

    # The log

    def _log(
        self, name: str, fields: JSON, call: Call, end: End, reference: str, seconds: float, span: "Started | None"
    ) -> None:
        if call.principal is not None:
            fields["principal"] = self._caller_of(call.principal)[:ID_DIGITS]
        ids = ("", "") if span is None or self._spans is None else self._spans.ids(span)
        log_call(name, fields, end, reference, seconds, ids)


def _of_flow(facts: CallFacts) -> dict[str, Any]:
    """Return the attributes that name a flow, and the task that it has become."""
    named = {}
    if flow := facts.flow or facts.task_flow:
        named["mrtr.flow.id"] = flow[:ID_DIGITS]
    if facts.task:
        named["mrtr.task.reference"] = facts.task
    return named


def _filled(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value != ""}


def _why(facts: CallFacts) -> str:
    return f"reference {facts.reference}" if facts.reference else ""

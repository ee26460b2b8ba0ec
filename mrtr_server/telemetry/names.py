"""Every metric, with its labels; docs/telemetry.md has the same tables.

What the semantic conventions of OpenTelemetry for MCP name begins with `mcp.`, and what is ours with `mrtr.`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ..tally import ABANDONED_TASKS, ANSWERS, DELIVERIES, DROPPED, REFUSALS, TAKEOVERS, TASKS

METHOD = "mcp.method.name"
TOOL = "gen_ai.tool.name"
PROMPT = "gen_ai.prompt.name"
ERROR = "error.type"
CODE = "rpc.response.status_code"
OUTCOME = "mrtr.outcome"
ROUND = "mrtr.flow.round"
ROUNDS = "mrtr.flow.rounds"
KIND = "mrtr.ask.kind"
ACTION = "mrtr.answer.action"
WORK = "mrtr.work"
STATUS = "mrtr.task.status"
LIMIT = "mrtr.limit"


class Metric(NamedTuple):
    name: str
    kind: Literal["histogram", "counter", "gauge"]
    unit: str
    about: str
    # The names of its attributes, in the order of the tally; one that does not apply is left out.
    labels: tuple[str, ...] = ()
    # Of a gauge: whether the values of the servers in a process are added; otherwise the largest counts.
    is_sum: bool = True


SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""The buckets that the conventions have for `mcp.server.operation.duration`."""

_metrics: list[Metric] = []


def _metric(*fields: Any, **more: Any) -> Metric:
    """Return a metric, listed in the order in which the page has them."""
    _metrics.append(Metric(*fields, **more))
    return _metrics[-1]


DURATION = _metric(
    "mcp.server.operation.duration",
    "histogram",
    "s",
    "How long requests took on the server",
    (
        METHOD,
        ERROR,
        PROMPT,
        TOOL,
        CODE,
        "gen_ai.operation.name",
        "mcp.protocol.version",
        "network.protocol.name",
        "network.protocol.version",
        "network.transport",
    ),
)
ENDED_ROUNDS = _metric("mrtr.server.rounds", "counter", "{round}", "Rounds that ended", (METHOD, TOOL, PROMPT, OUTCOME))
FLOWS = _metric("mrtr.server.flows", "counter", "{flow}", "Flows that ended", (METHOD, TOOL, PROMPT, OUTCOME, ROUNDS))
WAITS = _metric(
    "mrtr.server.flow.waits",
    "counter",
    "{flow}",
    "Rounds that ended with a state, so that their client is to come again",
    (METHOD, TOOL, PROMPT, ROUND),
)
RESUMES = _metric(
    "mrtr.server.flow.resumes",
    "counter",
    "{flow}",
    "Rounds for which the client came again, by the round that had ended",
    (METHOD, TOOL, PROMPT, ROUND),
)
ASKS = _metric("mrtr.server.asks", "counter", "{ask}", "Questions that were asked", (KIND,))
_metric(ANSWERS, "counter", "{answer}", "What came of questions", (KIND, ACTION))
STATE_SIZE = _metric("mrtr.server.state.size", "histogram", "By", "Size of sealed states", (METHOD, TOOL, PROMPT))
_metric(REFUSALS, "counter", "{request}", "Refused requests", ("mrtr.refusal.reason", LIMIT))
SHED = _metric("mrtr.server.shed", "counter", "{call}", "Calls that were not run here, for lack of room", (OUTCOME,))
QUEUE = _metric("mrtr.server.queue.length", "gauge", "{call}", "Calls that wait for their turn")
IN_FLIGHT = _metric("mrtr.server.requests.in_flight", "gauge", "{request}", "Requests that are being served")
DRAINING = _metric("mrtr.server.draining", "gauge", "1", "1 while the server drains")
USED = _metric("mrtr.server.used", "gauge", "1", "How much of each limit is used", (LIMIT,))
MOST = _metric("mrtr.server.limit", "gauge", "1", "How much of each may be used", (LIMIT,))
WAITING = _metric("mrtr.server.tasks.waiting", "gauge", "{task}", "Tasks that wait for a worker", (TOOL,), is_sum=False)
OLDEST = _metric(
    "mrtr.server.tasks.oldest", "gauge", "s", "How long the oldest of them has waited", (TOOL,), is_sum=False
)
_metric(TASKS, "counter", "{task}", "Tasks that came to a status", (TOOL, STATUS))
TASK_TIME = _metric(
    "mrtr.server.task.status.duration",
    "histogram",
    "s",
    "How long tasks were queued, run by a worker, or waited for input",
    (TOOL, STATUS),
)
_metric(ABANDONED_TASKS, "counter", "{task}", "Tasks whose answers did not come in time", (TOOL,))
_metric(TAKEOVERS, "counter", "{takeover}", "Work that was taken over from another process", (WORK,))
_metric(DROPPED, "counter", "{result}", "Results that were dropped, since others had taken over", (WORK,))
STORE = _metric(
    "mrtr.server.store.operation.duration",
    "histogram",
    "s",
    "How long the shared store took",
    ("mrtr.store.operation", ERROR),
)
STORE_AWAY = _metric("mrtr.server.store.away", "gauge", "1", "1 while the shared store can't be used")
NOTICES_AWAY = _metric(
    "mrtr.server.store.notices.away", "gauge", "1", "1 while notices of other processes do not arrive", is_sum=False
)
CONNECTION_WAIT = _metric(
    "mrtr.server.store.connection.wait", "gauge", "s", "How long something waited for a connection lately", is_sum=False
)
CLOCK = _metric(
    "mrtr.server.store.clock.difference",
    "gauge",
    "s",
    "How far the clock of the store is from the machine's",
    is_sum=False,
)
EVENT_DELAY = _metric(
    "mrtr.server.events.delay",
    "gauge",
    "s",
    "How long the oldest event has been stored that can't be read yet",
    is_sum=False,
)
_metric(DELIVERIES, "counter", "{delivery}", "Attempts to bring events to webhooks", ("mrtr.event.outcome",))
UNRECORDED = _metric("mrtr.server.outcomes.unrecorded", "gauge", "{outcome}", "Outcomes that are not recorded yet")
LOGIN_KEY = _metric(
    "mrtr.server.login.key.used",
    "gauge",
    "s",
    "When something of a login was opened under a key last, since the epoch",
    ("mrtr.key.id",),
    is_sum=False,
)
LAG = _metric("mrtr.server.event_loop.lag", "histogram", "s", "How late the event loop was")
INFO = _metric(
    "mrtr.server.info", "gauge", "1", "1, with what this is", ("mrtr.server.version", "service.version"), is_sum=False
)

METRICS = tuple(_metrics)

BUCKETS: Mapping[str, Sequence[float]] = {
    DURATION.name: SECONDS,
    STATE_SIZE.name: (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144),
    STORE.name: (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
    TASK_TIME.name: (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400),
    LAG.name: (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
}
"""The upper bounds of the buckets of each histogram, in its unit."""

_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def reason_of(error: BaseException) -> str:
    return _CAPITAL.sub("_", type(error).__name__).lower()


def attributes_of(metric: Metric, labels: Sequence[str]) -> dict[str, str]:
    return {name: label for name, label in zip(metric.labels, labels, strict=True) if label}

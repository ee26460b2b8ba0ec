"""Measure what telemetry costs a round, in CPU: with every span recorded, with metrics alone, and with the log line.

    .venv-test/bin/python benchmarks/telemetry.py [SECONDS]

It needs `opentelemetry-sdk` and `prometheus-client`. Requests go to the ASGI application without a socket, so that
nothing but the server is measured. Servers are compared in short runs that follow each other, and the differences
within such a pair count: the median, and the range of the middle half.

- off: as a server is that nobody observes.
- metrics: metrics for Prometheus, and spans of which none is sampled.
- spans: the same metrics, and every span recorded and handed to an exporter that drops it, in the SDK's thread. There
  is one span a round.
- sdk metrics, sdk spans: as these two, with metrics by the SDK of OpenTelemetry, which takes its time for each
  measurement.
- log: the INFO line of each call, written as JSON to nowhere.

Below the table is what the SDK takes of that by itself, where nothing else runs: to begin and end a span, with
attributes as ours have, and to record one measurement. In a server it takes longer, where other code is in the caches.
"""

import asyncio
import gc
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Any

from opentelemetry import context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import set_span_in_context
from pydantic import BaseModel
from scenarios import META, PROTOCOL_VERSION

from mrtr_server import Context, Metrics, MRTRServer, OpenTelemetry
from mrtr_server.logs.formats import JSONFormatter
from mrtr_server.telemetry.names import DURATION, OUTCOME, ROUND

SLICE = 0.1
"""How long each run of a pair takes, in seconds."""

LIMITS = {"spans": 60.0, "metrics": 20.0}
ROUNDS = {"call": 1, "flow": 2}
"""What a round may cost, in microseconds of CPU."""

TRACED = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}


class GitHubLogin(BaseModel):
    name: str


class Dropped(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class ToNowhere(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JSONFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)


def server(telemetry: OpenTelemetry | bool, metrics: str | None = None) -> MRTRServer:
    app = MRTRServer(
        "bench", keys=[bytes(32)], telemetry=telemetry, metrics=None if metrics is None else Metrics(metrics)
    )

    @app.tool
    async def add(a: int, b: int) -> str:
        return str(a + b)

    @app.tool
    async def weather(location: str, ctx: Context) -> str:
        login = await ctx.elicit("Please provide your GitHub username", GitHubLogin)
        return f"{location} for {login.name}"

    return app


def observed(*, sampled: bool) -> OpenTelemetry:
    sampler = ALWAYS_ON if sampled else ParentBased(ALWAYS_OFF, remote_parent_sampled=ALWAYS_OFF)
    tracers = TracerProvider(sampler=sampler)
    tracers.add_span_processor(BatchSpanProcessor(Dropped()))
    return OpenTelemetry(tracers, MeterProvider([InMemoryMetricReader()]))


class Caller:
    """Calls one server without a socket."""

    def __init__(self, app: MRTRServer) -> None:
        self._app = app
        self.headers = {
            tool: [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"accept", b"application/json, text/event-stream"),
                (b"mcp-protocol-version", PROTOCOL_VERSION.encode()),
                (b"mcp-method", b"tools/call"),
                (b"mcp-name", tool.encode()),
            ]
            for tool in ("add", "weather")
        }

    async def request(self, tool: str, arguments: dict[str, Any], **more: Any) -> bytes:
        params = {"name": tool, "arguments": arguments, "_meta": {**META, **TRACED}, **more}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "query_string": b"",
            "root_path": "",
            "headers": self.headers[tool],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        sent: list[bytes] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message.get("body", b""))

        await self._app(scope, receive, send)  # type: ignore[arg-type]
        return b"".join(sent)

    async def call(self) -> int:
        assert b'"3"' in await self.request("add", {"a": 1, "b": 2})
        return 1

    async def flow(self) -> int:
        first = json.loads(await self.request("weather", {"location": "Oslo"}))["result"]
        answers = {"github_login": {"action": "accept", "content": {"name": "octocat"}}}
        done = await self.request(
            "weather", {"location": "Oslo"}, inputResponses=answers, requestState=first["requestState"]
        )
        assert b"Oslo for octocat" in done
        return 2


async def cost(work: Callable[[], Any]) -> float:
    """Return the CPU of a round, in microseconds."""
    rounds, until = 0, time.perf_counter() + SLICE
    began = time.process_time()
    while time.perf_counter() < until:
        for _ in range(20):
            rounds += await work()
    return (time.process_time() - began) / rounds * 1e6


class SDKAlone:
    """What the SDK does of a round, without a server."""

    def __init__(self, telemetry: OpenTelemetry) -> None:
        self._tracer = telemetry.tracer_provider.get_tracer("bench")
        self._record = telemetry.meter_provider.get_meter("bench").create_histogram("bench", "s").record
        names = (*DURATION.labels, OUTCOME, ROUND)
        self._first = dict.fromkeys(names[:7], "value")
        self._last = dict.fromkeys(names[7:], "value")

    async def round(self) -> int:
        span = self._tracer.start_span("bench", attributes=self._first)
        token = context.attach(set_span_in_context(span))
        self._record(0.001, self._first)
        context.detach(token)
        if span.is_recording():
            span.set_attributes(self._last)
            span.end()
        return 1


async def measure(seconds: float) -> bool:
    logger = logging.getLogger("mrtr_server")
    callers = {
        "off": Caller(server(telemetry=False)),
        "metrics": Caller(server(OpenTelemetry(observed(sampled=False).tracer_provider), "/metrics")),
        "spans": Caller(server(OpenTelemetry(observed(sampled=True).tracer_provider), "/metrics")),
        "sdk metrics": Caller(server(observed(sampled=False))),
        "sdk spans": Caller(server(observed(sampled=True))),
    }
    for caller in callers.values():
        await caller.flow()  # its first request chooses what it is observed with
    logger.addHandler(ToNowhere())
    logger.propagate = False
    logger.setLevel(logging.INFO)
    callers["log"] = Caller(server(telemetry=False))
    await callers["log"].flow()
    within = True
    print("| a whole | with | CPU, µs | more than off, µs | middle half |\n|---|---|--:|--:|--:|")
    for name, rounds in ROUNDS.items():
        found: dict[str, list[float]] = {each: [] for each in callers}
        more: dict[str, list[float]] = {each: [] for each in callers}
        until = time.perf_counter() + seconds
        while time.perf_counter() < until or len(more["off"]) < 4:
            for each, caller in callers.items():
                gc.collect()
                logger.setLevel(logging.INFO if each == "log" else logging.WARNING)
                one = await cost(getattr(callers["off"], name))
                other = await cost(getattr(caller, name))
                found[each].append(other)
                more[each].append(other - one)
        for each in callers:
            low, _, high = quantiles(more[each], n=4)
            print(f"| {name} | {each} | {median(found[each]):.1f} | {median(more[each]):.1f} | {low:.1f}–{high:.1f} |")
            within &= median(more[each]) <= rounds * LIMITS.get(each, float("inf"))
    for each, sampled in (("sdk spans", True), ("sdk metrics", False)):
        alone = SDKAlone(observed(sampled=sampled))
        took = [await cost(alone.round) for _ in range(max(4, int(seconds / SLICE / 4)))]
        print(f"\nThe SDK alone takes {median(took):.1f} µs a round of what is above as {each}.")
    print(f"\nAt most {LIMITS['spans']:g} µs with spans, and {LIMITS['metrics']:g} µs with metrics, a round: {within}")
    return within


if __name__ == "__main__":
    sys.exit(not asyncio.run(measure(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)))

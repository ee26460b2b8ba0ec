"""Spans and metrics of OpenTelemetry, as its semantic conventions for MCP have them. Extra: `otel`."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry import context, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation
from opentelemetry.propagators.textmap import Getter, TextMapPropagator

from .._version import __version__
from ..protocol.messages import Call
from .meters import Gauges, Record, values_of
from .names import BUCKETS, METRICS, Metric, attributes_of

LONGEST: Mapping[str, int] = {"traceparent": 256, "tracestate": 512, "baggage": 8192}
"""What is taken of the context that a client sends, and how long each of it may be, in characters."""

_LONGEST_HEADER = 8192
_BAGGAGE = W3CBaggagePropagator()
_PRINTABLE = re.compile(r"[\t\x20-\x7e]*")
_TRACEPARENT = re.compile("([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_FLAGS = {f"{number:02x}": trace.TraceFlags(number) for number in range(256)}
_EMPTY = Context()

Started = tuple[trace.Span, Any]  # and what restores the context that was there before it

SCHEMA = "https://opentelemetry.io/schemas/1.40.0"

SCOPE = "mrtr_server"


class Spans:
    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer(SCOPE, __version__, schema_url=SCHEMA)
        self._propagated = _Propagated()

    def begin_call(self, name: str, attributes: Mapping[str, Any], call: Call) -> Started:
        parent, links = self._parent_of(call)
        span = self._tracer.start_span(name, parent, trace.SpanKind.SERVER, attributes, links)
        return span, context.attach(trace.set_span_in_context(span, parent))

    def _parent_of(self, call: Call) -> tuple[Context | None, list[trace.Link] | None]:
        """Return the context that the span of a call begins in, and what else it is linked to.

        The client's own span, in `_meta`, comes first; then the current one, as of a web framework; then the headers.
        """
        current = context.get_current()
        ambient = trace.get_current_span(current).get_span_context() if current else None
        if ambient is not None and not ambient.is_valid:
            ambient = None
        meta = call.params.get("_meta")
        if type(meta) is dict and "traceparent" in meta:
            found = self._propagated.from_meta(meta)
            if found is not None:
                return found, None if ambient is None else [trace.Link(ambient)]
        if ambient is not None or not call.headers:
            return None, None
        return self._propagated.from_headers(call.headers), None

    def trace_parent(self, started: Started) -> str:
        """Return where a span is, as a W3C `traceparent`; empty for one that is not recorded."""
        span, _ = started
        if not span.is_recording():
            return ""
        at = span.get_span_context()
        return f"00-{_hex(at.trace_id, 16)}-{_hex(at.span_id, 8)}-{_hex(at.trace_flags, 1)}"

    def ids(self, started: Started) -> tuple[str, str]:
        at = started[0].get_span_context()
        return (_hex(at.trace_id, 16), _hex(at.span_id, 8)) if at.is_valid else ("", "")

    def begin_task(self, name: str, attributes: Mapping[str, Any], first: str) -> Started:
        """Begin the span of a round of a task, in a trace of its own, linked to the `first` round of its flow."""
        found = read(first)
        links = None if found is None else [trace.Link(found)]
        span = self._tracer.start_span(name, _EMPTY, trace.SpanKind.INTERNAL, attributes, links)
        return span, context.attach(trace.set_span_in_context(span, _EMPTY))

    def is_recorded(self, started: Started) -> bool:
        """Return whether anybody is to see a span, so that it is worth describing."""
        return started[0].is_recording()

    def describe(self, started: Started, attributes: Mapping[str, Any], error: str, why: str, first: str = "") -> None:
        """Add to a recorded span what is known at its end; `why` says nothing that a client or a handler wrote."""
        span = started[0]
        if first and (found := read(first)) is not None:
            span.add_link(found)
        span.set_attributes(attributes)
        if error:
            span.set_status(trace.Status(trace.StatusCode.ERROR, why or None))

    def end(self, started: Started) -> None:
        span, before = started
        context.detach(before)
        span.end()


def _hex(number: int, length: int) -> str:
    """Return a number as hex digits; this takes half the time of a format string."""
    return number.to_bytes(length, "big").hex()


def read(first: str) -> trace.SpanContext | None:
    """Return the span that `Spans.trace_parent` wrote; None if it is anything else."""
    found = _TRACEPARENT.fullmatch(first)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more):  # later versions may add to it
        return None
    trace_number, span_number = int(trace_id, 16), int(span_id, 16)
    if not trace_number or not span_number:
        return None
    return trace.SpanContext(trace_number, span_number, True, _FLAGS[flags])


class _Propagated:
    """Reads the context that a client sends, as far as `OTEL_PROPAGATORS` or the process lets it."""

    def __init__(self) -> None:
        self._propagator: TextMapPropagator | None = None
        self._fields: Mapping[str, bytes] = {}

    @property
    def fields(self) -> Mapping[str, bytes]:
        propagator = propagate.get_global_textmap()
        if propagator is not self._propagator:
            self._fields = {field: field.lower().encode() for field in propagator.fields}
            self._propagator = propagator
        return self._fields

    def from_meta(self, meta: Mapping[str, Any]) -> Context | None:
        """Return the context in a `_meta` with a `traceparent` (W3C Trace Context, W3C Baggage), if it is fit."""
        given: Any = meta["traceparent"]
        state: Any = meta.get("tracestate")
        baggage: Any = meta.get("baggage")
        at = read(given) if type(given) is str and len(given) <= LONGEST["traceparent"] else None
        if at is None or "traceparent" not in self.fields:
            return None
        if _is_fit("tracestate", state):
            at = trace.SpanContext(at.trace_id, at.span_id, True, at.trace_flags, trace.TraceState.from_header([state]))
        found = trace.set_span_in_context(trace.NonRecordingSpan(at), _EMPTY)
        if _is_fit("baggage", baggage) and "baggage" in self.fields:
            return _BAGGAGE.extract({"baggage": baggage}, found)
        return found

    def from_headers(self, headers: Mapping[bytes, bytes]) -> Context | None:
        for header in self.fields.values():
            if header in headers:
                return propagate.extract(headers, _EMPTY, _HEADERS)
        return None


def _is_fit(name: str, value: Any) -> bool:
    return type(value) is str and len(value) <= LONGEST[name] and _PRINTABLE.fullmatch(value) is not None


class _Headers(Getter[Mapping[bytes, bytes]]):
    """Reads the headers of a request, as far as they are of a size that makes sense."""

    def get(self, carrier: Mapping[bytes, bytes], key: str) -> list[str] | None:
        value = carrier.get(key.lower().encode())
        if value is None or len(value) > LONGEST.get(key.lower(), _LONGEST_HEADER):
            return None
        text = value.decode("latin-1")
        return [text] if _PRINTABLE.fullmatch(text) else None

    def keys(self, carrier: Mapping[bytes, bytes]) -> list[str]:
        return [name.decode("latin-1") for name in carrier]


_HEADERS = _Headers()


class Instruments:
    """The instruments of one provider, which all servers of the process share; see `Meters`."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE, __version__, schema_url=SCHEMA)
        self._servers: WeakSet[Gauges] = WeakSet()
        self._histograms: dict[str, Histogram] = {}
        for metric in METRICS:
            name, unit, about = metric.name, metric.unit, metric.about
            if metric.kind == "histogram":
                self._histograms[name] = meter.create_histogram(
                    name, unit, about, explicit_bucket_boundaries_advisory=BUCKETS[name]
                )
            elif metric.kind == "counter":
                meter.create_observable_counter(name, [self._observing(metric)], unit, about)
            else:
                make = meter.create_observable_up_down_counter if metric.is_sum else meter.create_observable_gauge
                make(name, [self._observing(metric)], unit, about)

    def bind(self, metric: Metric, attributes: Mapping[str, str]) -> Record:
        return partial(self._histograms[metric.name].record, attributes=attributes)

    def add(self, server: Gauges) -> None:
        self._servers.add(server)

    def _observing(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            found = values_of(metric, list(self._servers))
            return [Observation(value, attributes_of(metric, labels)) for labels, value in found.items()]

        return observe


_of_providers: WeakKeyDictionary[Any, Instruments] = WeakKeyDictionary()


def instruments_of(provider: MeterProvider) -> Instruments:
    found = _of_providers.get(provider)
    if found is None:
        found = _of_providers[provider] = Instruments(provider)
    return found

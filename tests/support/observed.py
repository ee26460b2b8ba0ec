"""What a server shows of itself: its spans, its metrics and the lines of its log, by the real SDK of OpenTelemetry."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from mrtr_server import OpenTelemetry

JSON = dict[str, Any]
Labels = dict[str, str]

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the table of the page whose heading begins so, without the heading."""
    (table,) = re.findall(rf"^\| {re.escape(heading)}.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]


def documented(what: str) -> set[str]:
    """Return the names that the page has in a table, such as every `attribute`."""
    return {row[0].strip("`") for row in rows(f"{what} |")}


class Observed:
    """Takes what servers show, each with `telemetry=observed.telemetry`."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider(sampler=sampler)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._metrics = InMemoryMetricReader()
        self.telemetry = OpenTelemetry(self.tracers, MeterProvider([self._metrics]))

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, in that order."""
        return list(self._spans.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans of a name."""
        return [span for span in self.spans if span.name == name]

    def points(self, name: str) -> list[tuple[Labels, Any]]:
        """Return the points of a metric with their labels: the value, or of a histogram how many there are."""
        data: Any = self._metrics.get_metrics_data()
        metrics = [each for of in data.resource_metrics for scope in of.scope_metrics for each in scope.metrics]
        return [
            (dict(point.attributes or {}), point.count if hasattr(point, "count") else point.value)
            for metric in metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def value(self, name: str, /, **labels: str) -> Any:
        """Return the sum of the points that have these labels; of a label's name, one part is enough."""
        return sum(
            value
            for given, value in self.points(name)
            if all((part, label) in _parts(given) for part, label in labels.items())
        )

    @property
    def text(self) -> str:
        """All of it as text, to look for what must not be there."""
        data = self._metrics.get_metrics_data()
        metrics = "" if data is None else data.to_json()
        return json.dumps([json.loads(span.to_json() or "") for span in self.spans]) + metrics


def _parts(given: Labels) -> set[tuple[str, str]]:
    return {(part, label) for name, label in given.items() for part in name.split(".")}


class Lines(logging.Handler):
    """The records of the log that carry facts."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, event: str) -> list[JSON]:
        """Return the facts of an event, as often as it is in the log."""
        found = [getattr(record, "fields", {}) for record in self.records]
        return [fields for fields in found if fields.get("event") == event]


@contextmanager
def logged(level: int = logging.INFO) -> Iterator[Lines]:
    """Take the records of the server's logger, for as long as the block lasts."""
    logger, lines = logging.getLogger("mrtr_server"), Lines()
    before = logger.level
    logger.setLevel(level)
    logger.addHandler(lines)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before)

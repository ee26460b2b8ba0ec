"""The tables of the page about telemetry are what the code shows, name by name."""

import re
from pathlib import Path
from typing import get_args

import mrtr_server
from mrtr_server.protocol.trace import End
from mrtr_server.telemetry.names import METRICS
from mrtr_server.telemetry.prometheus import prometheus_name

from ..support.observed import PAGE, rows

SOURCES = "\n".join(path.read_text() for path in sorted(Path(mrtr_server.__file__).parent.rglob("*.py")))


def test_every_metric_is_there_with_its_labels() -> None:
    assert [row[:5] for row in rows("metric |")] == [
        [
            f"`{metric.name}`",
            metric.kind,
            metric.unit.strip("{}"),
            ", ".join(f"`{label}`" for label in metric.labels) or "–",
            f"`{prometheus_name(metric)}{'_total' * (metric.kind == 'counter')}`",
        ]
        for metric in METRICS
    ]


def test_every_event_of_the_log_is_there() -> None:
    written = set(re.findall(r'"event": "(\w+)"', SOURCES))
    warned = set(re.findall(r'_warn\(\s*delivery,\s*"(\w+)"', SOURCES))
    of_calls = {"call", "task_round"}  # which have a table of their own
    assert of_calls <= written
    assert {row[0] for row in rows("`event` |")} == {f"`{event}`" for event in (written | warned) - of_calls}


def test_every_outcome_is_there() -> None:
    assert {row[0].strip("`") for row in rows("`mrtr.outcome` |")} == set(get_args(End))


def test_every_metric_of_an_alert_is_one() -> None:
    named = {prometheus_name(metric) for metric in METRICS}
    ends = ("_total", "_bucket")
    for name in re.findall(r"\b(?:mrtr|mcp)_server\w+", PAGE):
        stem = next((name.removesuffix(end) for end in ends if name.endswith(end)), name)
        assert stem in named, name

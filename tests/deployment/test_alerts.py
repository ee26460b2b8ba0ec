"""The alerts and the dashboard of the example are what Prometheus and Grafana read, and ask for what servers show."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import REGISTRY

from mrtr_server.documentation import DOCS
from mrtr_server.telemetry.names import METRICS
from mrtr_server.telemetry.prometheus import prometheus_name

from ..docs.test_pages import anchors
from ..support.alerts import RULES, find_promtool
from ..support.observed import rows
from ..support.serving import ROOT, TIMEOUT
from ..support.wire import JSON

(GROUP,) = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: list[JSON] = GROUP["rules"]
DASHBOARD: JSON = json.loads((RULES.parent / "grafana.json").read_text())
QUERIES: list[str] = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
SHOWN = {
    prometheus_name(metric) + suffix: {label.replace(".", "_") for label in metric.labels}
    for metric in METRICS
    for suffix in SUFFIXES[metric.kind]
} | {sample.name: set(sample.labels) for family in REGISTRY.collect() for sample in family.samples}
"""The labels of each series that a server may show, by its name."""


def promtool(*arguments: str | Path) -> None:
    """Run promtool, and check that it finds nothing wrong."""
    done = subprocess.run([find_promtool(), *arguments], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr


class TestAlerts:
    def test_each_fires_where_its_threshold_says(self) -> None:
        promtool("test", "rules", RULES.with_name("rules_test.yaml"))

    def test_each_fires_in_a_real_fault_and_is_on_the_page(self) -> None:
        named = [alert["alert"] for alert in ALERTS]
        faults = (ROOT / "tests" / "system" / "test_faults_named.py").read_text()
        assert sorted(re.findall(r'assert_fires\("(\w+)"', faults)) == sorted(named)
        assert [row[0] for row in rows("alert |")] == [f"`{name}`" for name in named]

    @pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
    def test_each_leads_to_its_page(self, alert: JSON) -> None:
        page, _, anchor = alert["annotations"]["runbook_url"].removeprefix(DOCS).partition("/#")
        assert anchor in anchors(ROOT / "docs" / f"{page}.md")
        assert alert["labels"]["severity"] in ("critical", "warning")


class TestTheDashboard:
    def test_it_has_the_fields_of_grafana_and_no_others(self) -> None:
        """What Grafana's own types do not know is lost when they write it again."""
        register_default_plugins()
        written = json.loads(json.dumps(Dashboard.from_json(DASHBOARD), cls=JSONEncoder))
        assert within(DASHBOARD, written) == DASHBOARD

    def test_prometheus_reads_each_query(self, tmp_path: Path) -> None:
        rules = [
            {"record": f"query_{number}", "expr": query.replace("$__rate_interval", "5m")}
            for number, query in enumerate(QUERIES)
        ]
        (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
        promtool("check", "rules", "--lint=none", tmp_path / "rules.yaml")

    def test_its_panels_do_not_overlap(self) -> None:
        taken = [
            (x, y)
            for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(taken) == len(set(taken))


def test_each_query_asks_for_what_servers_show() -> None:
    for query in (*QUERIES, *(alert["expr"] for alert in ALERTS)):
        labels = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
        labels |= set(re.findall(r'(\w+)(?:=~|!=|=)"', query))
        named = set(re.findall(r"\b(?:mrtr|mcp|process)_\w+", re.sub(r"by \([^)]*\)|\{[^}]*\}", "", query)))
        assert named, query
        assert named <= SHOWN.keys(), query
        assert labels <= {"job", "instance", "le"}.union(*(SHOWN[name] for name in named)), query


def within(given: object, written: object) -> object:
    """Return of what was written again the parts that were given; what is lost is left out."""
    if isinstance(given, dict) and isinstance(written, dict):
        return {name: within(value, written[name]) for name, value in given.items() if name in written}
    if isinstance(given, list) and isinstance(written, list):
        return [within(*each) for each in zip(given, written, strict=True)]
    return written

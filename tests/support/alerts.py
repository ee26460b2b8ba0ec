"""The alerts of `examples/deploy`, evaluated by Prometheus's own `promtool` over what real servers have shown."""

import json
import subprocess
import tempfile
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from .programs import find_program
from .serving import ROOT, TIMEOUT

RULES = ROOT / "examples" / "deploy" / "rules.yaml"

BEFORE, DURING = 15, 10
"""Minutes in which a server shows what it showed before a fault, and during it."""

Series = dict[str, tuple[float, bool]]


def find_promtool() -> str:
    """Return the program; skip the test where there is none, and fail where there must be."""
    return find_program("promtool", "an alert fires", "prometheus")


def assert_fires(alert: str, during: str, before: str = "") -> None:
    """Check that an alert fires in a fault that lasts, and not before it.

    Args:
        alert: its name.
        during: what a server shows in the fault, at its path for Prometheus. What it has counted since it showed
            `before`, it counts again in each minute.
        before: what it showed before; empty for a server that was started in the fault.
    """
    program, earlier, later = find_promtool(), series_of(before), series_of(during)
    firing = f'group by (alertname) (ALERTS{{alertname="{alert}", alertstate="firing"}})'
    fired = [{"labels": f'{{alertname="{alert}"}}', "value": 1}]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values(shown, earlier.get(name))} for name, shown in later.items()],
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{BEFORE - 1}m"},
            {"expr": firing, "eval_time": f"{BEFORE + DURING - 1}m", "exp_samples": fired},
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test.yaml"
        file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
        done = subprocess.run([program, "test", "rules", str(file)], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{during}"


def series_of(shown: str) -> Series:
    """Return the value of each series of the server, and whether it counts."""
    return {
        f"{sample.name}{{{','.join(f'{name}={json.dumps(label)}' for name, label in labels.items())}}}": (
            sample.value,
            family.type in ("counter", "histogram"),
        )
        for family in text_string_to_metric_families(shown)
        for sample in family.samples
        for labels in [{"job": "shop", "instance": "a"} | sample.labels]
        if sample.name.startswith(("mrtr_", "mcp_"))
    }


def values(later: tuple[float, bool], earlier: tuple[float, bool] | None) -> str:
    """Return the values of a series in all minutes, as promtool writes them."""
    value, counts = later
    began = 0.0 if earlier is None else earlier[0]
    first = f"_x{BEFORE}" if earlier is None else f"{began}x{BEFORE - 1}"
    return f"{first} {value}{f'+{value - began}' if counts else ''}x{DURING}"

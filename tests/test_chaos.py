"""A short run of scripts/chaos: servers are stopped and killed while clients are at work."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from .serving import ROOT

SECONDS, CLIENTS = 6, 40


def chaos(*arguments: str) -> dict[str, Any]:
    """Run it; give its report. What it promises has held."""
    command = [sys.executable, "scripts/chaos.py", "--seconds", str(SECONDS), "--clients", str(CLIENTS), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert report["flows_started"] == report["flows_finished"] >= CLIENTS
    assert report["effects"] - report["duplicated_effects"] == 2 * report["flows_finished"]
    return report


def test_sigterm_loses_and_repeats_nothing_without_any_store() -> None:
    report = chaos("--signal", "term")
    assert report["terminated"] > 0
    assert report["duplicated_effects"] == 0


def test_sigkill_loses_no_flow() -> None:
    assert chaos("--signal", "kill")["killed"] > 0


def test_sigkill_repeats_nothing_that_gave_its_key_where_states_are_for_single_use() -> None:
    report = chaos("--signal", "both", "--single-use")
    assert report["killed"] + report["terminated"] > 0
    assert report["keyed_effects"] == report["flows_finished"]
    assert report["duplicated_keyed_effects"] == 0


def test_what_is_repeated_is_counted(tmp_path: Path) -> None:
    """By what the client meant to do: a flow that begins anew, under a key of its own, is a repetition."""
    spec = importlib.util.spec_from_file_location("chaos_ledger", ROOT / "scripts" / "chaos_ledger.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    ledger = module.Ledger(str(tmp_path / "ledger.db"))
    ledger.create()
    for intent, effect, key in [
        ("a", "charge", "key 1"),
        ("a", "charge", "key 1"),  # the same flow, again: refused
        ("a", "charge", "key 2"),  # another flow for the same
        ("a", "reservation", None),
        ("a", "reservation", None),
        ("b", "reservation", None),
    ]:
        ledger.write(intent, effect, key)
    counted = ledger.count()
    assert (counted.effects, counted.duplicated_effects) == (5, 2)
    assert (counted.keyed_effects, counted.duplicated_keyed_effects, counted.refused_repeats) == (2, 1, 1)

"""A short run of scripts/chaos: servers are stopped and killed while clients are at work."""

import asyncio
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ..support.serving import ROOT

SECONDS, CLIENTS, TASKS = 6, 40, 80

BUSY = pytest.mark.alone  # it keeps all CPUs busy


def run(*arguments: str) -> dict[str, Any]:
    """Run it; return its report. What it promises has held."""
    command = [sys.executable, "scripts/chaos.py", "--clients", str(CLIENTS), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def chaos(*arguments: str) -> dict[str, Any]:
    """Run it with flows of rounds."""
    report = run("--seconds", str(SECONDS), *arguments)
    assert report["flows_started"] == report["flows_finished"] >= CLIENTS
    assert report["effects"] - report["duplicated_effects"] == 2 * report["flows_finished"]
    return report


@BUSY
def test_sigterm_loses_and_repeats_nothing_without_any_store() -> None:
    report = chaos("--signal", "term")
    assert report["terminated"] > 0
    assert report["duplicated_effects"] == 0


@BUSY
def test_sigkill_loses_no_flow() -> None:
    assert chaos("--signal", "kill")["killed"] > 0


@BUSY
def test_sigkill_repeats_nothing_that_gave_its_key_where_states_are_for_single_use() -> None:
    report = chaos("--signal", "both", "--single-use")
    assert report["killed"] + report["terminated"] > 0
    assert report["keyed_effects"] == report["flows_finished"]
    assert report["duplicated_keyed_effects"] == 0


@BUSY
@pytest.mark.parametrize(("database", "struck"), [("sqlite", "kill"), ("postgresql", "both")])
def test_no_open_call_is_lost_whose_client_comes_back(database: str, struck: str) -> None:
    """An answer that was lost with its server is counted apart."""
    report = run("--seconds", str(SECONDS), "--era", "2025-11-25", "--database", database, "--signal", struck)
    assert report["killed"] + report["terminated"] > 0
    assert report["flows_lost"] == report["duplicated_keyed_effects"] == 0
    assert report["flows_started"] == report["flows_finished"] + report["flows_whose_answer_was_lost"] >= CLIENTS
    assert report["flows_whose_answer_was_lost"] <= report["answers_not_acknowledged"]
    assert report["keyed_effects"] >= report["flows_finished"] > report["flows_started"] / 2


@BUSY
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_no_task_is_lost_and_no_recorded_step_runs_again(database: str) -> None:
    report = run("--tasks", str(TASKS), "--database", database, "--signal", "both")
    assert report["killed"] + report["terminated"] > 0
    assert report["tasks_started"] == report["tasks_ended"] == TASKS
    assert report["recorded_steps"] == 4 * TASKS
    assert report["tasks_lost"] == report["recorded_steps_run_twice"] == report["changed_keys"] == 0


def test_no_step_runs_again_that_was_finished_while_the_database_was_away() -> None:
    report = run("--tasks", "40", "--database", "postgresql", "--outages")  # two outages, of 24 seconds each
    assert report["outages"] > 0
    assert report["finished_in_outages"] > 0
    assert report["finished_in_outages_run_twice"] == report["tasks_lost"] == 0


@BUSY
def test_each_wait_is_answered_once_while_servers_are_killed_and_the_database_is_away() -> None:
    arguments = ("--waits", "40", "--clients", "20", "--database", "postgresql", "--outages", "--signal", "kill")
    report = run(*arguments)  # two outages, of 24 seconds each
    assert report["killed"] > 0
    assert report["outages"] > 0
    assert report["tasks_started"] == report["waits_answered"] == 40
    assert report["waits_answered_twice"] == report["tasks_lost"] == report["recorded_steps_run_twice"] == 0


@BUSY
def test_each_event_comes_to_a_webhook_and_to_a_client_that_polls() -> None:
    arguments = ("--events", "200", "--clients", "20", "--database", "postgresql", "--outages", "--signal", "both")
    report = run(*arguments)  # two outages, of 24 seconds each
    assert report["killed"] + report["terminated"] > 0
    assert report["outages"] > 0
    assert report["events_emitted"] == 200
    assert report["refused_by_the_webhook"] > 0
    assert report["events_lost"] == report["polled_twice"] == report["cursors_that_pass_events"] == 0


def load(name: str) -> Any:
    """Load a module of the scripts, and what it needs of the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        return importlib.import_module(name)


def test_what_is_repeated_is_counted(tmp_path: Path) -> None:
    """By what the client meant to do: a flow that begins anew, under a key of its own, is a repetition."""
    module = load("chaos_ledger")
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


def test_what_a_task_repeats_is_counted(tmp_path: Path) -> None:
    """A step whose record was not kept may run again, under its key; one whose record was kept may not."""
    ledger = load("chaos_task_ledger").TaskLedger(str(tmp_path / "ledger.db"))
    ledger.create()

    def charge(key: str) -> int:
        return int(asyncio.run(ledger.run("a", "charge", key)))

    charge("key 1")  # its server is killed
    receipt = charge("key 1")
    for _ in range(2):  # the tool is re-run
        ledger.keep("a", "charge", receipt)
    assert ledger.receipts() == {"a": str(receipt)}
    counted = ledger.count()
    assert (counted.recorded_steps, counted.interrupted_steps) == (1, 1)
    assert (counted.recorded_steps_run_twice, counted.changed_keys) == (0, 0)
    charge("key 2")
    counted = ledger.count()
    assert (counted.recorded_steps, counted.interrupted_steps) == (1, 1)
    assert (counted.recorded_steps_run_twice, counted.changed_keys) == (1, 1)


def test_what_is_repeated_after_an_outage_is_counted(tmp_path: Path) -> None:
    """A step counts that was finished meanwhile, by a worker that was neither stopped nor killed until all was well."""
    ledger = load("chaos_task_ledger").TaskLedger(str(tmp_path / "ledger.db"))
    outage = load("chaos_outage").Outage
    ledger.create()
    asyncio.run(ledger.run("a", "charge", "key"))  # before it
    began = time.time()
    for intent in ("a", "b", "c"):
        asyncio.run(ledger.run(intent, "charge", "key"))
    away = outage(began, time.time(), time.time() + 5)
    counted = ledger.count_outages([away], {})
    assert (counted.outages, counted.finished_in_outages, counted.finished_in_outages_run_twice) == (1, 3, 0)
    asyncio.run(ledger.run("b", "charge", "key"))
    counted = ledger.count_outages([away], {})
    assert (counted.finished_in_outages, counted.finished_in_outages_run_twice) == (3, 1)
    killed = ledger.count_outages([away], {os.getpid(): away.ended + 1})
    assert (killed.finished_in_outages, killed.finished_in_outages_run_twice) == (0, 0)

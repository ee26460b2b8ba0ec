"""`mrtr-server check`: what is wrong or risky about a server is said before it is deployed."""

import logging
import re
import resource
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from click.testing import CliRunner, Result
from pydantic import BaseModel, Field, create_model
from starlette.requests import Request

from mrtr_server import (
    BearerTokens,
    Confirm,
    Context,
    Depends,
    Elicit,
    InputRequired,
    Inputs,
    JWTAuth,
    KeyRing,
    Limits,
    Metrics,
    MRTRServer,
    Shutdown,
    SignedCodec,
    SQLStore,
    Task,
)
from mrtr_server.cli import main
from mrtr_server.deployment.review import Finding
from mrtr_server.login import GitHub, Login, Oidc

RING = KeyRing([bytes(32)])
GOOD = """
from mrtr_server import MRTRServer

app = MRTRServer("good", dialects=["2026-07-28"])


@app.tool
def now() -> str:
    "Return the time."
    return "noon"
"""


class SignIn(BaseModel):
    user: str
    password: str


class Key(BaseModel):
    label: str
    apiKey: str
    reset_password: bool = False
    tokens: str = ""


HUB = GitHub(client_id="app", client_secret="secret")

COMPANY = Oidc("https://login.example.com", client_id="app", client_secret="secret")


class Odd(BaseModel):
    """No form, and no schema."""

    later: "NeverDefined"  # type: ignore[name-defined]  # noqa: F821


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

    def test_a_form_that_asks_for_a_secret(self) -> None:
        server = make()
        outer = Key  # as a name of the function around it

        async def signed_in(ctx: Context) -> str:
            return (await ctx.elicit("Who?", SignIn)).user

        @server.tool
        async def inline(ctx: Context) -> str:
            """Ask in the middle."""
            return (await ctx.elicit("Your key?", outer)).label

        @server.tool
        def declared(key: Annotated[Key, Elicit("?")], secret: Annotated[str, Elicit(lambda: "?")]) -> str:
            """Ask by the signature."""
            return key.label + secret

        @server.prompt
        def pure(inputs: Inputs) -> str | InputRequired:
            """Ask by returning."""
            return InputRequired(login=Elicit("Who?", SignIn))

        @server.resource("docs://x")
        def through(user: Annotated[str, Depends(signed_in)]) -> str:
            """Ask in a dependency."""
            return user

        @server.tool
        async def harmless(ctx: Context, city: Annotated[str, Elicit("Where?")]) -> str:
            """Use such a model, and ask for something else."""
            return SignIn(user=city, password="x").user

        @server.tool
        async def within(ctx: Context) -> str:
            """Ask by a model that is made within, beside what is none."""

            class Answer(BaseModel):
                city: str

            return (await ctx.elicit("Where?", Answer)).city + Odd.__name__

        found = [finding for finding in server.check() if "looks like a secret" in finding.message]
        assert sorted(finding.about for finding in found) == [
            "prompt pure",
            "resource docs://x",
            "tool declared",
            "tool inline",
        ]
        assert all(finding.level == "warning" for finding in found)
        named = {finding.about: finding.message.partition("(")[2].partition(")")[0] for finding in found}
        assert named["tool declared"] == "Key.apiKey, secret"
        assert named["prompt pure"] == "SignIn.password"

    @pytest.mark.parametrize(
        ("name", "is_secret"),
        [
            *(
                (each, True)
                for each in ("newPassword", "pwd", "otp", "creditCard", "credit_card", "cvv", "credentials")
            ),
            *((each, False) for each in ("compass", "secretary", "tokens", "passenger", "pin_code", "country_code")),
        ],
    )
    def test_a_secret_is_known_by_its_name(self, name: str, is_secret: bool) -> None:
        server = make()
        form = create_model("Asked", **{name: (str, ...)})  # type: ignore[call-overload]

        def tool(asked: Any) -> None:
            """Ask."""

        tool.__annotations__["asked"] = Annotated[form, Elicit("?")]
        server.tool(tool)
        assert any("looks like a secret" in finding.message for finding in server.check()) == is_secret

    def test_a_scope_that_is_no_right(self) -> None:
        server = make(scopes=["read", "offline_access"])

        @server.tool(visible=["offline_access"])
        def see() -> str:
            """See."""
            return ""

        @server.resource("docs://x", scopes=["offline_access"])
        def read() -> str:
            """Read."""
            return ""

        found = [finding.about for finding in server.check() if finding.message.startswith("offline_access")]
        assert found == ["scopes", "tool see", "resource docs://x"]

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

    def test_logins_of_anybody_are_a_risk_and_those_of_a_whole_company_worth_a_thought(self, tmp_path: Path) -> None:
        rest: dict[str, Any] = {
            "base_url": "https://tools.example.com",
            "store": SQLStore(f"sqlite:///{tmp_path}/store.db"),
        }
        (finding,) = make(auth=Login(HUB), **rest).check()
        assert (finding.level, finding.about) == ("warning", "auth")
        assert (
            finding.message
            == "everybody with an account at https://github.com may log in and use the server: pass allow="
        )
        assert said(make(auth=Login(COMPANY), **rest).check()) == [("advice", "auth")]
        assert make(auth=Login(HUB, allow=["my-org"]), **rest).check() == []

    def test_logins_need_an_address_and_a_database(self) -> None:
        server = make(auth=Login(HUB, allow=["my-org"]))
        assert said(server.check()) == [("warning", "base_url"), ("warning", "database")]
        assert said(server.check(workers=2)) == [("error", "database"), ("warning", "base_url")]

    def test_a_socket_that_closes_before_anybody_knows_is_a_risk(self) -> None:
        server = make(shutdown=Shutdown(lame_duck=0), auth=BearerTokens({"t": "ann"}))
        assert server.check() == []
        assert ("warning", "lame_duck") in said(server.check(host="0.0.0.0"))

    def test_keys_that_a_process_made_itself_are_an_error_where_several_processes_serve(self) -> None:
        server = make(keys=None)
        assert said(server.check()) == [("warning", "keys")]
        assert said(server.check(workers=2)) == [("error", "keys")]

    def test_rows_in_a_database_that_nobody_can_open_after_a_restart_are_an_error(self, tmp_path: Path) -> None:
        server = make(keys=None, store=SQLStore(f"sqlite:///{tmp_path}/store.db"))
        assert said(server.check()) == [("error", "keys")]

    @pytest.mark.parametrize("options", [{"task": "optional"}, {"single_use": True}])
    def test_what_all_processes_must_know_needs_a_shared_store(self, options: dict[str, Any]) -> None:
        server = make()

        @server.tool(**options)
        def pay() -> None:
            """Pay."""

        assert said(server.check()) == [("warning", "database")]
        (finding,) = server.check(workers=2)
        assert finding.level == "error"
        assert "pay" in finding.message

    def test_confirmations_without_a_shared_store_are_named_as_far_as_they_can_be_seen(self) -> None:
        server = make()

        @server.tool(confirm="Sure?")
        def first() -> None:
            """Do it."""

        @server.tool
        def second(sure: Annotated[bool, Confirm("Sure?")]) -> None:
            """Do it."""

        @server.tool
        async def third(ctx: Context) -> None:
            """Do it."""
            await ctx.confirm("Sure?")

        @server.prompt
        async def fourth(ctx: Context) -> str:
            """Do it."""
            await ctx.confirm("Sure?")
            return ""

        @server.tool
        def fifth(inputs: Inputs) -> InputRequired:
            """Do it."""
            return InputRequired(sure=Confirm("Sure?"))

        async def permission(ctx: Context) -> str:
            await ctx.confirm("Sure?")
            return ""

        @server.tool
        def sixth(by: Annotated[str, Depends(permission)]) -> None:
            """Do it."""

        class Seventh:
            """Do it."""

            async def __call__(self, ctx: Context) -> None:
                await ctx.confirm("Sure?")

        server.tool(name="seventh")(Seventh())

        (finding,) = server.check()
        assert finding.level == "warning"
        assert "first, second ask for a confirmation" in finding.message
        (finding,) = server.check(workers=2)
        assert (finding.level, finding.about) == ("warning", "database")
        assert "fifth, first, fourth, second, seventh, sixth, third ask for a confirmation" in finding.message

    @pytest.mark.parametrize(
        ("limits", "about"),
        [
            ({"state_seconds": 1}, "state_seconds=1 is short"),
            ({"task_seconds": 365 * 86400}, "task_seconds=31536000|task_seconds=3.1536e"),
            ({"state_seconds": 2 * 86400}, "is longer than flow_seconds"),
            ({"flow_seconds": 1e9, "state_seconds": 1e9}, "more than 90 days"),
        ],
    )
    def test_absurd_lifetimes_are_named(self, limits: dict[str, Any], about: str) -> None:
        found = make(limits=Limits(**limits)).check()
        assert {each.level for each in found} == {"warning"}
        assert re.search(about, found[0].message), found[0].message

    def test_absurd_lifetimes_of_a_tool_are_named(self, tmp_path: Path) -> None:
        server = make(store=SQLStore(f"sqlite:///{tmp_path}/store.db"))

        @server.tool(answer_within=2, task=Task("optional", ttl=1e9))
        async def ask(ctx: Context) -> None:
            """Ask."""
            await ctx.confirm("Sure?")

        assert said(server.check()) == [("warning", "tool ask")] * 2

    def test_more_streams_than_descriptors_are_a_warning(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if hard == resource.RLIM_INFINITY:
            pytest.skip("this system sets no limit")
        found = make(limits=Limits(held_streams=hard)).check()
        assert said(found) == [("warning", "limits")]
        assert "ulimit -Hn" in found[0].message

    def test_questions_to_clients_with_a_handshake_need_a_shared_store(self, tmp_path: Path) -> None:
        """An answer comes as a request of its own, which may reach another process."""

        def register(server: MRTRServer) -> MRTRServer:
            async def named(ctx: Context) -> str:
                return await ctx.elicit("Who?", str)

            @server.tool
            async def inline(ctx: Context) -> str:
                """Ask inline."""
                return await ctx.elicit("Who?", str)

            @server.tool
            def returned(inputs: Inputs) -> str | InputRequired:
                """Ask as a pure function."""
                return InputRequired(login=Elicit("Who?", str))

            @server.tool
            async def depending(name: Annotated[str, Depends(named)]) -> str:
                """Ask in a dependency."""
                return name

            @server.prompt
            async def review(ctx: Context) -> str:
                """Ask for a prompt."""
                return (await ctx.sample("What?")).text

            @server.tool
            async def silent(ctx: Context) -> str:
                """Ask nothing."""
                await ctx.log("quiet")
                return "done"

            return server

        everywhere = register(make(dialects=["2026-07-28", "2025-11-25"]))
        assert everywhere.check() == []
        (finding,) = everywhere.check(workers=2)
        assert (finding.level, finding.about) == ("error", "questions")
        assert (
            "2025-11-25 and earlier get an error when they are asked by depending, inline, returned, review:"
            in finding.message
        )
        assert register(make()).check(workers=2) == [], "the newest version alone needs no more than the key"
        shared = SQLStore(f"sqlite:///{tmp_path}/store.db")
        found = register(make(dialects=["2026-07-28", "2025-11-25"], store=shared)).check(workers=2)
        assert said(found) == [("advice", "database")], "a SQLite file is for one machine"

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
            ({"origins": ["*"]}, "origins"),
        ],
    )
    def test_settings_that_are_not_for_production_are_warnings(self, settings: dict[str, Any], about: str) -> None:
        assert said(make(**settings).check()) == [("warning", about)]

    def test_the_page_at_a_public_address_is_named(self) -> None:
        server = make(docs=True)
        assert server.check() == []
        assert ("advice", "docs") in said(server.check(host="0.0.0.0"))

    def test_metrics_of_one_of_several_processes_are_a_warning(self) -> None:
        server = make(metrics=Metrics("/metrics"))
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

    def test_the_dialect_of_the_drafts_is_named_where_it_was_chosen(self) -> None:
        assert make(dialects=None).check() == [], "what is so by default needs no advice"
        (finding,) = make(dialects=["2026-07-28", "sep-draft"]).check()
        assert (finding.level, finding.about) == ("advice", "dialects")
        assert "With dialects=['2026-07-28', '2025-11-25'], the ratified versions alone" in finding.message

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
        server = make(keys=None, dialects=["2026-07-28", "sep-draft"], debug=True)
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

    def test_logins_at_an_address_without_tls_are_refused(self, tmp_path: Path) -> None:
        text = (
            "from mrtr_server import MRTRServer\nfrom mrtr_server.login import Login, Oidc\n\n"
            "provider = Oidc('https://login.example.com', client_id='app')\n"
            "app = MRTRServer('notes', auth=Login(provider), base_url='http://tools.example.com')\n"
        )
        result = self.run(tmp_path, "plain_http", text, MRTR_KEYS="ab" * 32)
        assert result.exit_code == 1
        assert "base_url='http://tools.example.com' must be an https address" in result.output

    def test_a_server_that_can_be_served_is_summed_up(self, tmp_path: Path) -> None:
        result = self.run(tmp_path, "summed", GOOD, MRTR_KEYS="ab" * 32)
        assert result.exit_code == 0
        assert result.output.splitlines() == [
            "'good' can be served: 1 tool, 0 prompts, 0 resources",
            "At most 1,000,000 tasks, 1,000,000 states, 4,096 MiB are stored: Limits(stored_...=...)",
        ]

    def test_what_the_ratified_versions_alone_gain_is_printed_where_the_drafts_are_served_by_default(
        self, tmp_path: Path
    ) -> None:
        text = GOOD.replace(', dialects=["2026-07-28"]', "")
        result = self.run(tmp_path, "drafted", text, MRTR_KEYS="ab" * 32)
        first, _, gain = result.output.splitlines()
        assert first == "'good' can be served: 1 tool, 0 prompts, 0 resources"
        assert gain.startswith("sep-draft is served, for clients that name no version.")

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

    def test_names_of_the_release_before_are_listed_all_at_once_with_the_new_ones(self, tmp_path: Path) -> None:
        text = """
from mrtr_server import Client, MRTRServer
app = MRTRServer("old", version="1", lame_duck=3,
    database="sqlite:///nowhere/store.db", allowed_origins=["*"])
@app.tool(task="optional", ttl=60, validate=False)
def work(client: Client) -> str: return ""
@app.resource("a://b", ttl=3, scope="public")
def read() -> str: return ""
lifespan = app.lifespan
"""
        result = self.run(tmp_path, "old_names", text, MRTR_TITLE="t", MRTR_LAME_DUCK="2")
        assert result.exit_code == 1
        first, *others = result.output.splitlines()
        assert first == "Error: names of the release before:"
        found = [line.partition("old_names.py:")[2] for line in others]
        assert found == [
            "2: mrtr_server.Client is ClientInfo now",
            "3: MRTRServer() has no option version=: use info=ServerInfo(version=...), and no lame_duck=: use "
            "shutdown=Shutdown(lame_duck=...), and no database=: use store=, which takes the URL of a database, too, "
            "and no allowed_origins=: use origins=",
            "3: MRTR_LAME_DUCK is MRTR_SHUTDOWN_LAME_DUCK now",
            "3: MRTR_TITLE is MRTR_INFO_TITLE now",
            "5: @app.tool() has no option ttl=: use task=Task(ttl=...), and no validate=: use "
            "input_schema=InputSchema(schema, validate=False)",
            "7: @app.resource() has no option ttl=: use cache_seconds=, and no scope=: use cache=",
            "9: MRTRServer has no 'lifespan': it is running() now",
        ]

    def test_what_else_is_wrong_stands_beside_them(self, tmp_path: Path) -> None:
        text = 'from mrtr_server import Client, MRTRServer\napp = MRTRServer("old", title="t", nosuch=1)\n'
        result = self.run(tmp_path, "old_and_wrong", text)
        assert "1: mrtr_server.Client is ClientInfo now" in result.output
        assert "2: MRTRServer() has no option title=: use info=ServerInfo(title=...)\n" in result.output
        assert "TypeError: MRTRServer() has no option nosuch=" in result.output

    def test_an_option_that_the_function_never_had_is_no_name_of_the_release_before(self, tmp_path: Path) -> None:
        result = self.run(tmp_path, "never", 'from mrtr_server import MRTRServer\napp = MRTRServer("never", ttl=3)\n')
        assert "names of the release before" not in result.output
        assert "TypeError: MRTRServer() has no option ttl=" in result.output

    def test_elsewhere_the_first_of_them_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "old.py").write_text("import mrtr_server\napp = mrtr_server.Client\n")
        result = CliRunner().invoke(main, ["worker", "old:app", "--app-dir", str(tmp_path)])
        assert result.exit_code == 1
        assert "ImportError: mrtr_server.Client is ClientInfo now" in result.output

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

    def test_it_takes_what_dev_takes(self, tmp_path: Path) -> None:
        mounted = """
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount

site = CORSMiddleware(Starlette(routes=[Mount("/tools", app)]), allow_origins=["https://a.example"])
"""
        (tmp_path / "mounted.py").write_text(GOOD + mounted)
        environment = {"MRTR_APP": "mounted:site", "MRTR_KEYS": "ab" * 32, "MRTR_DATABASE_URL": None}
        result = CliRunner().invoke(main, ["check", "--app-dir", str(tmp_path)], env=environment)
        assert result.exit_code == 0, result.output
        assert "'good' can be served: 1 tool" in result.output

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


def test_a_skill_that_names_a_tool_which_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "refunds"
    folder.mkdir(parents=True)
    front = "name: refunds\ndescription: Refund\nallowed-tools: refund find Bash(git:*) Read"
    (folder / "SKILL.md").write_text(f"---\n{front}\n---\n")
    app = make()

    @app.tool
    def find() -> str:
        """Find."""
        return ""

    app.skills(tmp_path / "skills")
    (finding,) = app.check()
    assert finding == Finding(
        "warning",
        "skill skill://refunds/SKILL.md",
        "its allowed-tools: names refund, which this server has not",
    )

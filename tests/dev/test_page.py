"""What the page is made of, where it is, and to whom it shows what is inside the server."""

import json
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from mrtr_server import BearerTokens, Context, KeyRing, Metrics, MRTRServer, SetupError
from mrtr_server.dev.page import token_of

from ..support.direct import Headers, exchange, headers_for
from ..support.serving import KEYS, free_ports, in_process
from ..support.wire import Reply, modern

pytestmark = pytest.mark.anyio

TOKEN = (b"mrtr-page-token", token_of(KeyRing([bytes(32)])).encode())

HERE = [(b"host", b"localhost:8000"), (b"origin", b"http://localhost:8000"), TOKEN]
"""The headers that a browser sends from the page on this machine, with the token of the page."""

LOCAL = HERE[:2]
"""The same without the token, as any program of this machine can send them."""

MOST_BYTES = 170_000


def desk(**settings: Any) -> MRTRServer:
    app = MRTRServer("desk", keys=[bytes(32)], **settings)

    @app.tool
    async def whoami(ctx: Context) -> str:
        return ctx.principal.subject if ctx.principal else "nobody"

    @app.tool
    async def pay(ctx: Context) -> str:
        paid = await ctx.step(str, "secret receipt", key="pay")
        await ctx.confirm("Keep the receipt?")
        return paid

    @app.tool
    async def count(ctx: Context) -> str:
        await ctx.progress(1, 2)
        return await ctx.step(str, "counted", key="count")

    return app


async def get(app: MRTRServer, path: str, headers: Headers = HERE[:1], **scope: Any) -> Reply:
    return await exchange(app, b"", headers, method="GET", path=path, **scope)


async def call(app: MRTRServer, tool: str, headers: Headers, **more: Any) -> Reply:
    message = modern("tools/call", {"name": tool, "arguments": {}, **more.pop("params", {})})
    return await exchange(app, json.dumps(message).encode(), [*headers_for(message), *headers], **more)


async def sandbox(csp: str, headers: Headers = HERE[:1], **scope: Any) -> Reply:
    query = urlencode({"csp": csp}).encode()
    return await get(desk(docs=True), "/docs/sandbox", headers, query_string=query, **scope)


def report_of(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.headers["mrtr-round"])
    return found


class TestItIsOff:
    async def test_unless_it_is_asked_for(self) -> None:
        for path in ("/docs", "/docs/main.js", "/docs/about", "/docs/state"):
            assert (await get(desk(), path)).status == 404

    async def test_and_then_no_round_is_reported(self) -> None:
        assert "mrtr-round" not in (await call(desk(), "whoami", [*HERE, (b"mrtr-page", b"1")])).headers

    def test_and_then_nothing_of_it_is_loaded(self) -> None:
        code = (
            "import sys; from mrtr_server import MRTRServer; MRTRServer('x', keys=[bytes(32)]); "
            "print([name for name in sys.modules if name.startswith('mrtr_server.dev')])"
        )
        found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        assert found.strip() == "[]"

    async def test_a_variable_turns_it_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MRTR_DOCS", "true")
        assert (await get(desk(), "/docs")).status == 200


class TestItsFiles:
    async def test_are_small_and_all_there(self) -> None:
        app = desk(docs=True)
        page = (await get(app, "/docs")).body
        total = 0
        for file in files("mrtr_server.dev").joinpath("page_files").iterdir():
            content = file.read_bytes()
            total += len(content)
            name = "" if file.name == "page.html" else f"/{file.name}"
            found = await (sandbox("{}") if file.name == "sandbox.html" else get(app, f"/docs{name}"))
            assert found.body == content
        assert b'<script type="module" src="docs/main.js">' in page
        assert total < MOST_BYTES

    async def test_run_nothing_else_and_are_shown_in_no_frame(self) -> None:
        reply = await get(desk(docs=True), "/docs")
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"

    async def test_are_not_sent_again_while_they_are_the_same(self) -> None:
        app = desk(docs=True)
        tag = (await get(app, "/docs/main.js")).headers["etag"]
        again = await get(app, "/docs/main.js", [*HERE[:1], (b"if-none-match", tag.encode())])
        assert (again.status, again.body) == (304, b"")

    async def test_are_found_by_their_names_alone(self) -> None:
        app = desk(docs=True)
        for path in ("/docs/page.html", "/docs/sandbox.html", "/docs/../page.py", "/docs/none.js", "/docsx"):
            assert (await get(app, path)).status == 404
        assert (await exchange(app, b"", HERE, path="/docs")).status == 405
        slash = await get(app, "/docs/")
        assert (slash.status, slash.headers["location"]) == (308, "../docs")


class TestTheSandbox:
    """The document at another origin in which pages of apps are drawn."""

    async def test_has_the_policy_of_the_page_within_and_no_origin(self) -> None:
        csp = {"connectDomains": ["wss://api.example.com"], "resourceDomains": ["https://*.example.com"]}
        reply = await sandbox(json.dumps(csp))
        directives = reply.headers["content-security-policy"].split("; ")
        assert {
            "default-src 'none'",
            "connect-src wss://api.example.com",
            "script-src 'unsafe-inline' https://*.example.com",
            "font-src https://*.example.com",
            "frame-src 'none'",
            "frame-ancestors http://127.0.0.1:8000",
            "sandbox allow-scripts",
        } <= set(directives)
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        assert json.loads((await get(desk(docs=True), "/docs/about")).body)["sandbox"] == "http://127.0.0.1:8000"
        page = await get(desk(docs=True), "/docs")
        assert "frame-src http://127.0.0.1:8000" in page.headers["content-security-policy"].split("; ")

    @pytest.mark.parametrize(
        "csp",
        [
            "",
            "[]",
            "{",
            '{"connectDomains": "https://example.com"}',
            '{"connectDomains": ["https://example.com; script-src *"]}',
            '{"connectDomains": ["*"]}',
            '{"frameDomains": ["https://example.com", "\'self\'"]}',
            json.dumps({"connectDomains": ["https://example.com"] * 1000}),
        ],
    )
    async def test_takes_no_other_policy(self, csp: str) -> None:
        assert (await sandbox(csp)).status == 404

    @pytest.mark.parametrize(
        ("headers", "scope"),
        [
            ([(b"host", b"desk.example.com")], {}),
            ([(b"host", b"[::1]:8000")], {}),
            ([*HERE[:1], (b"x-forwarded-for", b"127.0.0.1")], {}),
            (HERE[:1], {"client": ("192.0.2.7", 5)}),
        ],
    )
    async def test_is_on_this_machine_alone(self, headers: Headers, scope: dict[str, Any]) -> None:
        about = json.loads((await get(desk(docs=True), "/docs/about", headers, **scope)).body)
        assert about["sandbox"] == ""
        assert (await sandbox("{}", headers, **scope)).status == 404


class TestItsPlace:
    async def test_is_beside_the_endpoint(self) -> None:
        app = desk(docs=True, path="/tools/mcp")
        assert (await get(app, "/tools/docs")).status == 200
        assert json.loads((await get(app, "/tools/docs/about")).body)["endpoint"] == "mcp"

    async def test_is_below_the_root_that_it_is_mounted_at(self) -> None:
        app = desk(docs=True)
        assert (await get(app, "/desk/docs/main.js", root_path="/desk")).status == 200

    @pytest.mark.parametrize("settings", [{"path": "/docs"}, {"metrics": Metrics("/docs"), "telemetry": True}])
    def test_is_nobody_elses(self, settings: dict[str, Any]) -> None:
        with pytest.raises(SetupError, match="docs=True serves the page at /docs"):
            desk(docs=True, **settings)


REFUSED: dict[str, tuple[Headers, dict[str, Any], int]] = {
    "a program that has no token": ([*LOCAL], {}, 403),
    "a program with another token": ([*LOCAL, (TOKEN[0], b"x" * 32)], {}, 403),
    "a program with a part of the token": ([*LOCAL, (TOKEN[0], TOKEN[1][:-1])], {}, 403),
    "a program with two tokens": ([*LOCAL, (TOKEN[0], b"x" * 32), TOKEN], {}, 403),
    "another machine": ([*HERE], {"client": ("192.0.2.7", 5)}, 403),
    "a socket without an address": ([*HERE], {"client": None}, 403),
    "a name that points here": ([(b"host", b"evil.example"), (b"origin", b"http://evil.example"), TOKEN], {}, 403),
    "a name that begins like ours": (
        [(b"host", b"localhost.evil.example"), (b"origin", b"http://localhost"), TOKEN],
        {},
        403,
    ),
    "another page of this machine": ([HERE[0], (b"origin", b"http://localhost:3000"), TOKEN], {}, 403),
    "a page without an origin": ([HERE[0], (b"origin", b"null"), TOKEN], {}, 403),
    "a program, which sends no origin": ([HERE[0], TOKEN], {}, 403),
    "two hosts": ([*HERE, (b"host", b"evil.example")], {}, 400),
    "two origins": ([*HERE, (b"origin", b"http://localhost:8000")], {}, 403),
    "a proxy": ([*HERE, (b"x-forwarded-for", b"192.0.2.7")], {}, 403),
    "a proxy that adds no header": ([*HERE], {"http_version": "1.0"}, 403),
    "a tunnel": ([*HERE, (b"forwarded", b"for=192.0.2.7")], {}, 403),
}
"""Who is not the page on this machine, and with which status it is refused."""


class TestStates:
    """The page opens states with the server's keys, only in debugging, and only for itself on this machine."""

    async def state(self, app: MRTRServer) -> str:
        return str((await call(app, "pay", [])).raw_result["requestState"])

    async def opened(self, app: MRTRServer, state: str, headers: Headers = HERE, **scope: Any) -> Reply:
        return await exchange(app, json.dumps({"state": state}).encode(), headers, path="/docs/state", **scope)

    @pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "localhost"])
    async def test_are_opened_on_this_machine(self, host: str) -> None:
        app = desk(docs=True, debug=True)
        here = [(b"host", host.encode()), (b"origin", f"http://{host}".encode()), TOKEN]
        held = json.loads((await self.opened(app, await self.state(app), here)).body)["held"]
        assert held["results of steps"] == {"pay": "secret receipt"}
        assert held["asked"] == {"confirm": "confirm"}

    @pytest.mark.parametrize("who", REFUSED)
    async def test_stay_closed_to(self, who: str) -> None:
        app = desk(docs=True, debug=True)
        headers, scope, status = REFUSED[who]
        reply = await self.opened(app, await self.state(app), headers, **scope)
        assert reply.status == status
        assert b"secret receipt" not in reply.body

    async def test_stay_closed_without_debug(self) -> None:
        app = desk(docs=True)
        assert (await self.opened(app, await self.state(app))).status == 404
        assert "debug=True" in json.loads((await get(app, "/docs/about")).body)["inside"]

    async def test_of_callers_with_tokens_are_those_of_the_tokens(self) -> None:
        for auth, users in ((None, ""), (BearerTokens({"t": "ann"}), "A caller is who the token says.")):
            app = desk(docs=True, debug=True, auth=auth)
            about = json.loads((await get(app, "/docs/about", HERE)).body)
            assert (about["inside"], about["users"]) == ("", users)

    async def test_that_do_not_open_say_so(self) -> None:
        app = desk(docs=True, debug=True)
        assert "does not open" in json.loads((await self.opened(app, "forged")).body)["error"]
        for body in (b"", b"[]", b'{"state": 1', b"{}", b"x" * 1_100_000):
            reply = await exchange(app, body, HERE, path="/docs/state")
            assert "error" in json.loads(reply.body)
        assert (await get(app, "/docs/state")).status == 405

    async def test_are_promised_to_who_has_the_token(self) -> None:
        app = desk(docs=True, debug=True)
        without = json.loads((await get(app, "/docs/about", LOCAL)).body)
        assert "lacks the token" in without["inside"]
        assert without["wantsToken"]
        elsewhere = json.loads((await get(app, "/docs/about", HERE, client=("192.0.2.7", 5))).body)
        assert (elsewhere["inside"], elsewhere["wantsToken"]) == ("It came from another machine.", False)
        assert json.loads((await get(app, "/docs/about", HERE)).body)["wantsToken"] is False


class TestItsAddress:
    """Whoever starts the server reads it, with the token; and nobody else."""

    async def test_is_logged_where_the_server_debugs(self, caplog: pytest.LogCaptureFixture) -> None:
        async with desk(docs=True, debug=True).running():
            pass
        shown = f"/docs#token={TOKEN[1].decode()}"
        assert [shown in record.getMessage() for record in caplog.records] == [True]

    @pytest.mark.parametrize("settings", [{"docs": True}, {"debug": True}, {}])
    async def test_is_in_no_log_elsewhere(self, settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
        app = desk(**settings)
        async with app.running():
            await call(app, "whoami", [*HERE, (b"mrtr-page", b"1")])
            await get(app, "/docs/about", HERE)
        assert "token" not in caplog.text

    @pytest.mark.processes
    def test_is_one_to_open_under_uvicorn(self, tmp_path: Path) -> None:
        (port,) = free_ports(1)
        environment = {"MRTR_KEYS": KEYS, "MRTR_DEBUG": "true"}
        app, log = "tests.support.page_app:app", tmp_path / "log"
        with in_process(app, "--port", str(port), log=log, environment=environment) as server:
            assert f" http://127.0.0.1:{port}/docs#token=" in server.text

    async def test_has_a_token_of_these_keys_alone(self) -> None:
        assert token_of(KeyRing([bytes(32)])) == TOKEN[1].decode()
        assert token_of(KeyRing([b"1" * 32])) != TOKEN[1].decode()
        assert len(TOKEN[1]) == 32

    async def test_s_token_goes_no_further_than_the_page(self) -> None:
        app = desk(docs=True, debug=True)

        @app.tool
        async def headers(ctx: Context) -> list[str]:
            assert ctx.request is not None
            return list(ctx.request.headers)

        seen = await call(app, "headers", [*HERE, (b"mrtr-page", b"1")])
        assert "mrtr-page-token" not in str(seen.raw_result)
        assert "mrtr-page" in str(seen.raw_result)


class TestTasks:
    """The page is told what the tasks of this process did, under the same conditions."""

    async def asked(self, app: MRTRServer, headers: Headers = HERE, **scope: Any) -> Reply:
        return await exchange(app, b'{"task": "none"}', headers, path="/docs/task", **scope)

    async def test_that_did_not_run_here_are_unknown(self) -> None:
        reply = await self.asked(desk(docs=True, debug=True))
        assert json.loads(reply.body) == {"error": "No round of it has run in this process."}

    @pytest.mark.parametrize("who", REFUSED)
    async def test_are_not_shown_to(self, who: str) -> None:
        headers, scope, status = REFUSED[who]
        assert (await self.asked(desk(docs=True, debug=True), headers, **scope)).status == status
        assert (await self.asked(desk(docs=True), headers, **scope)).status == (404 if status == 403 else status)


class TestRounds:
    """The page is told who ran a round and which steps ran, and may send another user along."""

    async def test_are_reported_in_a_header(self) -> None:
        app = desk(docs=True, debug=True)
        page = [*HERE, (b"mrtr-page", b"1")]
        first = await call(app, "pay", page)
        assert report_of(first)["process"].startswith("process ")
        assert (report_of(first)["ran"], report_of(first)["replayed"]) == (["pay"], [])
        params = {
            "requestState": first.raw_result["requestState"],
            "inputResponses": {"confirm": {"action": "accept", "content": {"confirm": True}}},
        }
        assert report_of(await call(app, "pay", page, params=params))["replayed"] == ["pay"]

    async def test_say_without_debug_only_which_replica_answered(self) -> None:
        app = desk(docs=True)
        anywhere = [(b"host", b"tools.example"), (b"mrtr-page", b"who")]
        reply = await call(app, "pay", anywhere, client=("192.0.2.7", 5))
        (name,) = report_of(reply).values()
        assert re.fullmatch("replica [0-9a-f]{6}", name)
        assert report_of(await call(desk(docs=True), "pay", anywhere))["process"] != name
        assert "mrtr-round" not in (await call(app, "pay", [*HERE, (b"mrtr-page", b"inside")])).headers

    async def test_of_a_stream_are_reported_in_a_comment_at_its_end(self) -> None:
        app = desk(docs=True, debug=True)
        meta = modern("x")["params"]["_meta"] | {"progressToken": 1}
        reply = await call(app, "count", [*HERE, (b"mrtr-page", b"1")], params={"_meta": meta})
        assert reply.is_stream
        assert reply.raw_result["content"][0]["text"] == "counted"
        comment = reply.body.rpartition(b": mrtr-round ")[2]
        assert json.loads(comment)["ran"] == ["count"]

    async def test_are_the_users_that_the_page_names(self) -> None:
        app = desk(docs=True, debug=True)
        reply = await call(app, "whoami", [*HERE, (b"mrtr-page-user", b"alice")])
        assert reply.text == "alice"
        assert (await call(app, "whoami", HERE)).text == "nobody"

    @pytest.mark.parametrize("header", [(b"mrtr-page", b"1"), (b"mrtr-page-user", b"alice")])
    @pytest.mark.parametrize("who", REFUSED)
    async def test_tell_nothing_to(self, who: str, header: tuple[bytes, bytes]) -> None:
        headers, scope, status = REFUSED[who]
        reply = await call(desk(docs=True, debug=True), "whoami", [*headers, header], **scope)
        assert reply.status == status
        assert "mrtr-round" not in reply.headers

    async def test_have_no_other_user_without_debug(self) -> None:
        reply = await call(desk(docs=True), "whoami", [*HERE, (b"mrtr-page-user", b"alice")])
        assert reply.text == "nobody"

    @pytest.mark.parametrize("name", [b"", b"x" * 65, b"al\tice"])
    async def test_need_a_name_for_another_user(self, name: bytes) -> None:
        reply = await call(desk(docs=True, debug=True), "whoami", [*HERE, (b"mrtr-page-user", name)])
        assert reply.status == 403

    async def test_have_no_other_user_where_callers_are_authenticated(self) -> None:
        app = desk(docs=True, debug=True, auth=BearerTokens({"token-of-alice": "alice"}))
        named = [*HERE, (b"mrtr-page-user", b"bob")]
        assert (await call(app, "whoami", named)).status == 401
        token = (b"authorization", b"Bearer token-of-alice")
        assert (await call(app, "whoami", [*named, token])).status == 403
        assert (await call(app, "whoami", [*HERE, (b"mrtr-page", b"1"), token])).text == "alice"

    async def test_that_nobody_asked_about_are_as_they_were(self) -> None:
        reply = await call(desk(docs=True, debug=True), "pay", [])
        assert "mrtr-round" not in reply.headers

    async def test_with_many_steps_are_counted(self) -> None:
        app = desk(docs=True, debug=True)

        @app.tool
        async def many(ctx: Context) -> str:
            for number in range(400):
                await ctx.step(str, "x", key=f"a step with a long name, {number}")
            return "done"

        reply = await call(app, "many", [*HERE, (b"mrtr-page", b"1")])
        assert report_of(reply)["counts"] == {"ran": 400, "replayed": 0}

"""Who may: `authorize=` is asked wherever a name is used, and what it refuses is not there."""

import asyncio
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import pytest

from mrtr_server import (
    BearerTokens,
    Caller,
    Context,
    Elicit,
    Header,
    Inputs,
    InsufficientScope,
    KeyRing,
    Lists,
    MRTRServer,
    Principal,
    SetupError,
    StoreUnavailable,
)
from mrtr_server.concurrency.threads import Threads
from mrtr_server.flow.authorization import Authorizer, compile_hook, hook_within
from mrtr_server.testing import Client

from ..conftest import Serve
from ..support.direct import Exchange, headers_for, scope_of
from ..support.models import Login
from ..support.serving import TIMEOUT
from ..support.wire import JSON, TASKS, Listener, Reply, Wire, accept, modern, request

GONE = "Unknown tool: ask; what has begun can't continue, since this tool is not offered any more"
ALICE, BOB = {"Authorization": "Bearer alice-token"}, {"Authorization": "Bearer bob-token"}
TOKENS = BearerTokens({"alice-token": "alice", "bob-token": "bob"})
ABLE: JSON = {"elicitation": {}, **TASKS}

Hook = Callable[[Caller, str], bool | Awaitable[bool]]


async def only_alice(caller: Caller, name: str) -> bool:
    return caller.principal == Principal("alice")


def plain_only_alice(caller: Caller, name: str) -> bool:
    return caller.principal == Principal("alice")


async def owner(caller: Caller, uri: str) -> bool:
    return caller.principal is not None and uri.startswith(f"private://{caller.principal.subject}/")


def make(hook: Hook | None = None, *, of_server: Hook | None = None, hidden: bool = True, **options: Any) -> MRTRServer:
    """Make a server with something of every kind that has a hook, unless it is not there at all."""
    app = MRTRServer("guarded", keys=[bytes(32)], auth=TOKENS, authorize=of_server, **options)

    @app.tool
    def open_to_all() -> str:
        return "open"

    @app.completion("to", prompt="greet")
    def names(value: str) -> list[str]:
        return ["ann"]

    @app.completion("name", resource="private://{owner}/{name}")
    def secrets(value: str) -> list[str]:
        return ["secret"]

    if not hidden:
        return app

    @app.tool(authorize=hook)
    def secret(region: Annotated[str, Header("Region")] = "eu") -> str:
        return "the secret"

    @app.tool(authorize=hook, task="optional")
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Login)).name

    @app.prompt(authorize=hook)
    def greet(to: str) -> str:
        return f"Greet {to}"

    @app.resource("fixed://secret", authorize=hook)
    def fixed() -> str:
        return "fixed"

    @app.resource("private://{owner}/{name}", authorize=hook)
    def private(owner: str, name: str) -> str:
        return f"{name} of {owner}"

    return app


@pytest.fixture(params=["async", "plain"])
def hook(request: pytest.FixtureRequest) -> Hook:
    return only_alice if request.param == "async" else plain_only_alice


Send = Callable[[Wire], Reply]


def post(method: str, params: JSON, headers: Mapping[str, str | None] = BOB, **more: Any) -> Send:
    return lambda wire: wire.post(modern(method, params, **more), headers)


def draft(method: str, params: JSON) -> Send:
    body = json.dumps(request(method, params)).encode()
    return lambda wire: wire.send(body, {"Content-Type": "application/json", **BOB})


def completion(kind: str, **named: str) -> JSON:
    return {
        "ref": {"type": f"ref/{kind}", **named},
        "argument": {"name": "to" if kind == "prompt" else "name", "value": ""},
    }


USES: dict[str, Send] = {
    "call": post("tools/call", {"name": "secret"}),
    "call with arguments that do not fit": post("tools/call", {"name": "secret", "arguments": {"region": 1, "x": 2}}),
    "call without the header of an argument": post("tools/call", {"name": "secret", "arguments": {"region": "us"}}),
    "call with another value in the header": post(
        "tools/call", {"name": "secret", "arguments": {"region": "us"}}, {**BOB, "Mcp-Param-Region": "eu"}
    ),
    "call with a state": post("tools/call", {"name": "ask", "requestState": "x", "inputResponses": {}}),
    "call as a task": post("tools/call", {"name": "ask"}, capabilities=ABLE),
    "call of the drafts": draft("tools/call", {"name": "secret"}),
    "call of the drafts as a task": draft("tools/call", {"name": "ask", "task": {}}),
    "prompt": post("prompts/get", {"name": "greet", "arguments": {"to": "ann"}}),
    "prompt without its argument": post("prompts/get", {"name": "greet"}),
    "read": post("resources/read", {"uri": "fixed://secret"}),
    "read by a template": post("resources/read", {"uri": "private://alice/secret"}),
    "completion of a prompt": post("completion/complete", completion("prompt", name="greet")),
    "completion of a fixed resource": post("completion/complete", completion("resource", uri="fixed://secret")),
    "completion of a template": post("completion/complete", completion("resource", uri="private://{owner}/{name}")),
    "list of tools": post("tools/list", {}),
    "list of tools of the drafts": draft("tools/list", {}),
    "list of prompts": post("prompts/list", {}),
    "list of resources": post("resources/list", {}),
    "list of templates": post("resources/templates/list", {}),
}


class TestARefusal:
    @pytest.mark.parametrize("use", USES)
    @pytest.mark.parametrize("where", ["of its own", "of the server"])
    def test_looks_like_a_name_that_is_not_there(self, serve: Serve, hook: Hook, use: str, where: str) -> None:
        """The same status, headers and bytes as from a server that has none of it."""

        async def open_for_bob(caller: Caller, name: str) -> bool:
            return name == "open_to_all" or await only_alice(caller, name)

        given: Any = {"hook": hook} if where == "of its own" else {"of_server": open_for_bob}
        refused = USES[use](serve(make(**given)))
        absent = USES[use](serve(make(hidden=False)))
        assert (refused.status, refused.body) == (absent.status, absent.body)
        assert {**refused.headers, "date": ""} == {**absent.headers, "date": ""}

    def test_is_none_for_whom_both_hooks_let(self, serve: Serve, hook: Hook) -> None:
        wire = serve(make(hook, of_server=only_alice))
        assert wire.post(modern("tools/call", {"name": "secret"}), ALICE).text == "the secret"
        assert wire.post(modern("prompts/get", {"name": "greet", "arguments": {"to": "x"}}), ALICE).status == 200
        read = wire.post(modern("resources/read", {"uri": "private://alice/x"}), ALICE).result
        assert read["contents"][0]["text"] == "x of alice"
        completed = wire.post(modern("completion/complete", completion("prompt", name="greet")), ALICE).result
        assert completed["completion"]["values"] == ["ann"]

    @pytest.mark.parametrize(("server", "own"), [(True, False), (False, True)])
    def test_takes_one_of_the_two_hooks(self, serve: Serve, server: bool, own: bool) -> None:
        async def of_server(caller: Caller, name: str) -> bool:
            return server

        wire = serve(make(lambda caller, name: own, of_server=of_server))
        assert wire.post(modern("tools/call", {"name": "secret"}), ALICE).code == -32602

    def test_of_the_server_is_not_followed_by_another_question(self, serve: Serve) -> None:
        asked: list[str] = []

        async def of_server(caller: Caller, name: str) -> bool:
            return False

        async def own(caller: Caller, name: str) -> bool:
            asked.append(name)
            return True

        wire = serve(make(own, of_server=of_server))
        assert wire.post(modern("tools/call", {"name": "secret"}), ALICE).code == -32602
        assert asked == []

    def test_is_in_the_log_without_the_caller(self, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
        post("tools/call", {"name": "secret"})(serve(make(only_alice)))
        assert "tools/call 'secret': refused by authorize=" in caplog.text
        assert "bob" not in caplog.text

    def test_is_told_from_that_of_visible_in_the_log(self) -> None:
        app = MRTRServer("hidden", keys=KeyRing.generate())

        @app.tool(visible=["staff", "admin"], authorize=lambda caller, name: False)
        def hidden() -> str:
            return ""

        by_scopes = "refused by visible=, which needs admin"
        assert by_scopes in Client(app, user="ann", scopes=["staff"]).call("hidden").log
        assert "refused by authorize=" in Client(app, user="ann", scopes=["staff", "admin"]).call("hidden").log

    def test_keeps_a_header_mismatch_for_those_who_may(self, serve: Serve) -> None:
        wire = serve(make(only_alice))
        reply = wire.post(modern("tools/call", {"name": "secret", "arguments": {"region": "us"}}), ALICE)
        assert (reply.status, reply.code) == (400, -32020)


class TestEachRound:
    def test_is_asked_about(self, serve: Serve) -> None:
        """A state is no licence: who may no longer call the tool may not go on with it."""
        allowed = {"alice"}

        async def hook(caller: Caller, name: str) -> bool:
            return caller.principal is not None and caller.principal.subject in allowed

        wire = serve(make(hook))
        state = wire.post(modern("tools/call", {"name": "ask"}), ALICE).state
        retry = {"name": "ask", "requestState": state, "inputResponses": {"login": accept(name="octocat")}}
        allowed.clear()
        assert wire.post(modern("tools/call", retry), ALICE).error.message == GONE
        allowed.add("alice")
        assert wire.post(modern("tools/call", retry), ALICE).text == "octocat"


def names_of(reply: Reply, listing: str) -> list[str]:
    return [each["name"] for each in reply.result[listing]]


class TestLists:
    def many(self, size: int, **options: Any) -> MRTRServer:
        """Make a server with 30 tools, of which bob may see every fourth."""

        async def hook(caller: Caller, name: str) -> bool:
            return caller.principal == Principal("alice") or int(name.removeprefix("tool")) % 4 == 3

        app = MRTRServer("many", keys=[bytes(32)], auth=TOKENS, authorize=hook, lists=Lists(page_size=size), **options)
        for number in range(30):
            app.tool(name=f"tool{number}")(lambda: "")
        return app

    def pages(self, wire: Wire, headers: Mapping[str, str]) -> list[list[str]]:
        pages, cursor = [], None
        while True:
            page = wire.post(modern("tools/list", {"cursor": cursor} if cursor else {}), headers)
            pages.append(names_of(page, "tools"))
            cursor = page.result.get("nextCursor")
            if cursor is None:
                return pages

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 250])
    def test_are_full_pages_of_what_the_caller_may_see(self, serve: Serve, size: int) -> None:
        wire = serve(self.many(size))
        for headers, seen in ((ALICE, range(30)), (BOB, range(3, 30, 4))):
            names = [f"tool{number}" for number in seen]
            assert self.pages(wire, headers) == [names[start : start + size] for start in range(0, len(names), size)]

    def test_end_where_the_caller_sees_the_last_entry(self, serve: Serve) -> None:
        """No empty page at the end says that there is more."""

        async def hook(caller: Caller, name: str) -> bool:
            return name in ("tool0", "tool1")

        app = MRTRServer("few", keys=[bytes(32)], auth=TOKENS, authorize=hook, lists=Lists(page_size=2))
        for number in range(9):
            app.tool(name=f"tool{number}")(lambda: "")
        assert self.pages(serve(app), BOB) == [["tool0", "tool1"]]

    def test_have_cursors_that_open_no_others_entries(self, serve: Serve) -> None:
        wire = serve(self.many(2))
        cursor = wire.post(modern("tools/list"), ALICE).result["nextCursor"]
        page = wire.post(modern("tools/list", {"cursor": cursor}), BOB)
        assert names_of(page, "tools") == ["tool3", "tool7"]

    @pytest.mark.parametrize("method", ["tools/list", "prompts/list", "resources/list", "resources/templates/list"])
    @pytest.mark.parametrize("where", ["of its own", "of the server"])
    def test_are_never_shared_over_callers(self, serve: Serve, method: str, where: str) -> None:
        given: Any = {"hook": only_alice} if where == "of its own" else {"of_server": only_alice}
        wire = serve(make(**given, lists=Lists(cache="public", cache_seconds=60)))
        assert wire.post(modern(method), ALICE).result["cacheScope"] == "private"

    def test_may_be_shared_where_nothing_in_them_is_guarded(self, serve: Serve) -> None:
        app = MRTRServer("half", keys=[bytes(32)], lists=Lists(cache_seconds=60))
        app.tool(name="open")(lambda: "")
        app.prompt(name="closed", authorize=only_alice)(lambda: "")
        wire = serve(app)
        assert wire.modern("tools/list").result["cacheScope"] == "public"
        assert wire.modern("prompts/list").result["cacheScope"] == "private"

    def test_ask_all_plain_hooks_in_one_thread_at_once(self, serve: Serve) -> None:
        threads: list[int] = []

        def hook(caller: Caller, name: str) -> bool:
            threads.append(threading.get_ident())
            return True

        app = MRTRServer("threads", keys=[bytes(32)], authorize=hook)
        for number in range(50):
            app.tool(name=f"tool{number}")(lambda: "")
        assert len(names_of(serve(app).modern("tools/list"), "tools")) == 50
        assert len(threads) == 50
        assert len(set(threads)) == 1
        assert threads[0] != threading.main_thread().ident


class TestWhatIsRead:
    def test_is_never_shared_over_callers_if_it_is_guarded(self, serve: Serve) -> None:
        app = MRTRServer("public", keys=[bytes(32)], auth=TOKENS)
        public: Any = {"cache_seconds": 60, "cache": "public"}
        app.resource("open://x", name="open", **public)(lambda: "open")
        app.resource("closed://x", name="closed", authorize=only_alice, **public)(lambda: "closed")
        wire = serve(app)
        for uri, scope in (("open://x", "public"), ("closed://x", "private")):
            read = wire.post(modern("resources/read", {"uri": uri}), ALICE).result
            assert (read["cacheScope"], read["ttlMs"]) == (scope, 60_000)


@contextmanager
def listening(wire: Wire, headers: Mapping[str, str], uris: list[str], **more: Any) -> Iterator[Listener]:
    message = modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris, **more}})
    sent = [*headers_for(message), *((name.encode(), value.encode()) for name, value in headers.items())]
    with wire.client.stream("POST", wire.url, content=json.dumps(message), headers=sent) as response:
        yield Listener(response.iter_lines())


class TestListening:
    def test_to_what_is_anothers_is_not_agreed_to(self, serve: Serve) -> None:
        app = make(owner)
        uris = ["private://alice/secret", "private://bob/mine", "unknown://x"]
        with listening(serve(app), BOB, uris, toolsListChanged=True) as listener:
            agreed = listener.next()["params"]["notifications"]
            assert agreed == {"toolsListChanged": True, "resourceSubscriptions": ["private://bob/mine"]}
            for uri in uris:
                app.notify_resource_updated(uri)
            assert listener.next()["params"]["uri"] == "private://bob/mine"
            app.notify_tools_changed()
            assert listener.next()["method"] == "notifications/tools/list_changed"

    def test_to_nothing_that_one_may_read_stays_silent(self, serve: Serve) -> None:
        app = make(of_server=owner)
        with listening(serve(app), BOB, ["private://alice/secret"], promptsListChanged=True) as listener:
            assert listener.next()["params"]["notifications"] == {"promptsListChanged": True}
            app.notify_resource_updated("private://alice/secret")
            app.notify_prompts_changed()
            assert listener.next()["method"] == "notifications/prompts/list_changed"

    def test_ends_for_what_one_may_not_read_any_more(self, serve: Serve) -> None:
        members = {"alice", "bob"}

        async def hook(caller: Caller, uri: str) -> bool:
            return caller.principal is not None and caller.principal.subject in members

        app = make(hook)
        uri = "private://alice/secret"
        wire = serve(app)
        with listening(wire, BOB, [uri], toolsListChanged=True) as bob, listening(wire, ALICE, [uri]) as alice:
            assert bob.next()["params"]["notifications"]["resourceSubscriptions"] == [uri]
            alice.next()
            app.notify_resource_updated(uri)
            assert bob.next()["params"]["uri"] == alice.next()["params"]["uri"] == uri
            members.discard("bob")
            app.notify_resource_updated(uri)
            assert alice.next()["params"]["uri"] == uri
            app.notify_tools_changed()
            assert bob.next()["method"] == "notifications/tools/list_changed"

    def test_asks_a_slow_hook_once_while_the_stream_is_kept_alive(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A comment cancels whoever waits for a change, also in the middle of the question."""
        monkeypatch.setattr("mrtr_server.transport.connection.KEEP_ALIVE", 0.02)
        asked = 0
        begun, released = asyncio.Event(), asyncio.Event()

        async def hook(caller: Caller, uri: str) -> bool:
            nonlocal asked
            asked += 1
            if asked > 1:  # the first is for the listen itself
                begun.set()
                await released.wait()
            return True

        app = MRTRServer("slow", keys=[bytes(32)], authorize=hook)
        app.resource("doc://x", name="x")(lambda: "")

        async def scene() -> None:
            message = modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["doc://x"]}})
            under_way = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
            await under_way.until(b"acknowledged")
            app.notify_resource_updated("doc://x")
            async with asyncio.timeout(TIMEOUT):
                await begun.wait()
            comments = under_way.reply.body.count(b":\n\n") + 2
            await under_way.until(b":\n\n" * comments)
            released.set()
            await under_way.until(b"resources/updated")
            assert asked == 2
            under_way.disconnect()
            await under_way.end()

        asyncio.run(scene())

    @pytest.mark.parametrize("ends", ["client", "server"])
    def test_ends_while_a_hook_hangs(self, ends: str) -> None:
        agreed, hanging, cancelled = False, asyncio.Event(), asyncio.Event()

        async def hook(caller: Caller, uri: str) -> bool:
            if agreed:
                hanging.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()
            return True

        app = MRTRServer("hangs", keys=[bytes(32)], authorize=hook)
        app.resource("doc://x", name="x")(lambda: "")

        async def scene() -> None:
            nonlocal agreed
            message = modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["doc://x"]}})
            under_way = Exchange(app, scope_of(headers_for(message))).body(json.dumps(message).encode()).start()
            await under_way.until(b"acknowledged")
            agreed = True
            app.notify_resource_updated("doc://x")
            async with asyncio.timeout(TIMEOUT):
                await hanging.wait()
            under_way.disconnect() if ends == "client" else app.drain()
            reply = await under_way.end()
            assert (b'"resultType":"complete"' in reply.body) is (ends == "server")
            assert b"resources/updated" not in reply.body
            async with asyncio.timeout(TIMEOUT):
                await cancelled.wait()

        asyncio.run(scene())


class TestAHook:
    @pytest.mark.parametrize("given", ["raises", "none", "coroutine", "exits", "cancelled", "truthy"])
    @pytest.mark.parametrize("kind", ["async", "plain"])
    def test_that_fails_refuses_and_is_in_the_log(
        self, serve: Serve, caplog: pytest.LogCaptureFixture, given: str, kind: str
    ) -> None:
        def answer() -> Any:
            if given == "raises":
                raise ConnectionError("the directory is away")
            if given == "exits":
                raise SystemExit(3)
            if given == "cancelled":
                raise asyncio.CancelledError
            return {"none": None, "coroutine": only_alice, "truthy": {"admin"}}[given]

        async def hook(caller: Caller, name: str) -> Any:
            return answer()

        def plain(caller: Caller, name: str) -> Any:
            return answer()

        wire = serve(make(hook if kind == "async" else plain))
        absent = USES["call"](serve(make(hidden=False)))
        refused = USES["call"](wire)
        assert (refused.status, refused.body) == (absent.status, absent.body)
        assert "authorize= failed for 'secret', which counts as a no (reference " in caplog.text
        why = {"raises": "the directory is away", "none": "returned a NoneType", "truthy": "returned a set"}
        assert why.get(given, "") in caplog.text, "its author learns what went wrong"
        caplog.clear()
        assert names_of(wire.post(modern("tools/list"), ALICE), "tools") == ["open_to_all"]
        assert caplog.text.count("which counts as a no") == 1, "one line for a list"
        assert "and for 1 more" in caplog.text

    def test_that_forgets_to_await_another_refuses(self, serve: Serve) -> None:
        async def hook(caller: Caller, name: str) -> Any:
            return only_bool

        only_bool = ["a list is true, too"]
        assert serve(make(hook)).post(modern("tools/call", {"name": "secret"}), ALICE).code == -32602

    def test_may_be_a_plain_function_that_gives_a_coroutine(self, serve: Serve) -> None:
        wire = serve(make(lambda caller, name: only_alice(caller, name)))
        assert wire.post(modern("tools/call", {"name": "secret"}), ALICE).text == "the secret"
        assert wire.post(modern("tools/call", {"name": "secret"}), BOB).code == -32602

    def test_is_taken_as_it_is_where_its_parameters_can_not_be_known(self) -> None:
        written_in_c: Any = max
        with pytest.raises(ValueError, match="no signature"):
            inspect.signature(written_in_c)
        hook = compile_hook("secret", written_in_c)
        assert hook is not None
        assert hook.function is written_in_c

    def test_may_be_an_object_or_a_method_or_partial(self, serve: Serve) -> None:
        class Staff:
            def __init__(self, member: str) -> None:
                self.member = member

            async def __call__(self, caller: Caller, name: str) -> bool:
                return caller.principal == Principal(self.member)

            def check(self, caller: Caller, name: str) -> bool:
                return caller.principal == Principal(self.member)

        async def of(member: str, caller: Caller, name: str) -> bool:
            return caller.principal == Principal(member)

        staff = Staff("alice")
        hooks: list[Hook] = [staff, staff.check, partial(of, "alice")]
        for hook in hooks:
            wire = serve(make(hook))
            assert wire.post(modern("tools/call", {"name": "secret"}), ALICE).text == "the secret"
            assert wire.post(modern("tools/call", {"name": "secret"}), BOB).code == -32602

    @pytest.mark.parametrize(
        ("wrong", "why"),
        [
            (True, "takes a function"),
            ("admin", "takes a function"),
            (Caller, "takes a function"),
            (lambda caller: True, "is called with two values"),
            (lambda caller, name, method: True, "is called with two values"),
        ],
    )
    def test_that_is_none_is_refused_when_it_is_given(self, wrong: Any, why: str) -> None:
        with pytest.raises(SetupError, match=f"MRTRServer: authorize= {why}"):
            MRTRServer("wrong", keys=[bytes(32)], authorize=wrong)
        app = MRTRServer("wrong", keys=[bytes(32)])
        register: list[Any] = [
            app.tool(name="x", authorize=wrong),
            app.prompt(name="x", authorize=wrong),
            app.resource("x://x", name="x", authorize=wrong),
        ]
        for decorator in register:
            with pytest.raises(SetupError, match=f"x: authorize= {why}"):
                decorator(lambda: "")

    def test_that_is_a_generator_is_refused(self) -> None:
        def generator(caller: Caller, name: str) -> Iterator[bool]:
            yield True

        with pytest.raises(SetupError, match="is a generator"):
            MRTRServer("wrong", keys=[bytes(32)], authorize=generator)  # type: ignore[arg-type]

    def test_that_is_a_generator_is_refused_in_any_form(self) -> None:
        async def later(caller: Caller, name: str) -> Any:
            yield True

        def at_once(caller: Caller, name: str) -> Any:
            yield True

        for wrong in (later, partial(later), partial(at_once)):
            with pytest.raises(SetupError, match="is a generator"):
                compile_hook("a tool", wrong)

    def test_is_there_for_scopes_alone(self) -> None:
        assert compile_hook("a tool", None) is None
        for given, needed, shown in [
            ({"scopes": ["work"]}, ("work",), frozenset[str]()),
            ({"visible": ["work"]}, (), frozenset({"work"})),
            ({"scopes": ["a"], "visible": ["b"]}, ("a",), frozenset({"b"})),
        ]:
            hook = compile_hook("a tool", None, **given)
            assert hook is not None
            assert (hook.function, hook.scopes, hook.visible) == (None, needed, shown)

    def test_of_an_included_server_is_there_where_anything_is_to_be_asked(self) -> None:
        of_server = compile_hook("a server", only_alice)
        assert of_server is not None
        assert hook_within(None, "a tool", None, (), str.upper) is None
        by_scopes = hook_within(None, "a tool", None, ("work",), str.upper)
        assert by_scopes is not None
        assert (by_scopes.scopes, by_scopes.outer) == (("work",), ())
        by_server = hook_within(None, "a tool", of_server, (), str.upper)
        assert by_server is not None
        assert [each.function for each in by_server.outer] == [only_alice]
        assert by_server.outer[0].local is not None
        assert by_server.outer[0].local("a") == "A"

    @pytest.mark.anyio
    async def test_of_included_servers_are_asked_however_deep_each_is(self, caplog: pytest.LogCaptureFixture) -> None:
        asked: list[tuple[str, str]] = []

        def hook(of: str) -> Any:
            async def allow(caller: Caller, name: str) -> bool:
                asked.append((of, name))
                return True

            compiled = compile_hook(of, allow)
            assert compiled is not None
            return compiled

        shallow = hook_within(hook("tool"), "tool", hook("server"), (), lambda name: f"server/{name}")
        deep = hook_within(shallow, "tool", hook("outer"), (), lambda name: f"outer/{name}")
        authorizer = Authorizer(None, Threads(1))
        things = [(None, "free"), (deep, "deep"), (shallow, "shallow"), (hook("own"), "own")]
        assert await authorizer.allowed(Caller(), "tools/list", things) == [True] * 4
        assert asked == [
            ("outer", "outer/deep"),
            ("server", "server/shallow"),
            ("server", "server/outer/deep"),
            ("tool", "server/outer/deep"),
            ("tool", "server/shallow"),
            ("own", "own"),
        ]
        assert not caplog.messages

    @pytest.mark.anyio
    async def test_that_lacks_scopes_has_not_failed(self, caplog: pytest.LogCaptureFixture) -> None:
        needs = compile_hook("a tool", None, scopes=["work"])
        authorizer = Authorizer(None, Threads(1))
        assert await authorizer.allowed(Caller(), "tools/list", [(needs, "a")]) == [False]
        assert await authorizer.shown(Caller(), "tools/list", [(needs, "a")]) == [True]
        with pytest.raises(InsufficientScope):
            await authorizer.allowed(Caller(), "tools/list", [(needs, "a")], challenges=True)
        assert await authorizer.allowed(Caller(), "tools/list", [(None, "a")], challenges=True) == [True]
        assert not caplog.messages

    @pytest.mark.anyio
    async def test_that_fails_in_the_background_is_no_refusal(self) -> None:
        async def fail(caller: Caller, name: str) -> bool:
            raise OSError

        authorizer = Authorizer(None, Threads(1))
        with pytest.raises(StoreUnavailable):
            await authorizer.still_allowed(Caller(), (compile_hook("a tool", fail), "a"))
        needs = compile_hook("a tool", None, scopes=["work"])
        assert await authorizer.still_allowed(Caller(), (needs, "a")) is False
        assert await authorizer.still_allowed(Caller(scopes=frozenset({"work"})), (needs, "a")) is True

    def test_is_not_asked_where_there_is_none(self) -> None:
        authorizer = Authorizer(None, Threads(1))
        assert not authorizer.guards(None)
        assert authorizer.guards(compile_hook("x", only_alice))

    def test_is_told_who_calls(self, serve: Serve) -> None:
        told: list[Caller] = []

        async def hook(caller: Caller, name: str) -> bool:
            told.append(caller)
            return True

        scoped = BearerTokens({"alice-token": "alice"}, scopes=["read", "write"])
        app = MRTRServer("told", keys=[bytes(32)], auth=scoped, authorize=hook)
        app.tool(name="x")(lambda: "")
        serve(app).post(modern("tools/call", {"name": "x"}), ALICE)
        (caller,) = told
        assert caller.principal == Principal("alice")
        assert caller.user.identity == "alice"
        assert sorted(caller.scopes) == ["read", "write"]

    def test_is_told_of_nobody_where_nobody_authenticates(self, serve: Serve) -> None:
        told: list[Caller] = []

        async def hook(caller: Caller, name: str) -> bool:
            told.append(caller)
            return "admin" in caller.scopes

        app = MRTRServer("open", keys=[bytes(32)], authorize=hook)
        app.tool(name="x")(lambda: "")
        assert serve(app).call("x").code == -32602
        assert told == [Caller()] == [Caller(None, None, frozenset())]


class TestScopes:
    def test_reach_the_handler(self, serve: Serve) -> None:
        scoped = BearerTokens({"alice-token": "alice"}, scopes=["read", "write"])
        app = MRTRServer("scopes", keys=[bytes(32)], auth=scoped)
        app.tool(name="mine")(sorted_scopes)
        assert serve(app).post(modern("tools/call", {"name": "mine"}), ALICE).result["structuredContent"] == [
            "read",
            "write",
        ]

    def test_are_none_where_nobody_authenticates(self, serve: Serve) -> None:
        app = MRTRServer("scopes", keys=[bytes(32)])
        app.tool(name="mine")(sorted_scopes)
        assert serve(app).call("mine").result["structuredContent"] == []


def sorted_scopes(ctx: Context, inputs: Inputs) -> list[str]:
    assert isinstance(ctx.scopes, frozenset)
    return sorted(ctx.scopes)


def test_an_ask_of_a_refused_call_is_never_sent(serve: Serve) -> None:
    app = MRTRServer("asks", keys=[bytes(32)], auth=TOKENS)
    ran: list[str] = []

    @app.tool(authorize=only_alice)
    def declared(login: Annotated[Login, Elicit("Who?")]) -> str:
        ran.append(login.name)
        return login.name

    wire = serve(app)
    assert wire.post(modern("tools/call", {"name": "declared"}), BOB).code == -32602
    state = wire.post(modern("tools/call", {"name": "declared"}), ALICE).state
    retry = {"name": "declared", "requestState": state, "inputResponses": {"login": accept(name="x")}}
    assert wire.post(modern("tools/call", retry), BOB).error.message == GONE.replace("ask;", "declared;")
    assert ran == []

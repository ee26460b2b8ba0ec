"""Servers include others, and what they offer changes while they run: names, rights, hooks and lists stay right."""

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest

from mrtr_server import (
    BearerTokens,
    Caller,
    CallInfo,
    CallNext,
    Confirm,
    Context,
    Depends,
    EmbeddedResource,
    Failure,
    Header,
    KeyRing,
    Message,
    MRTRServer,
    RateLimits,
    ResourceContents,
    ResourceLink,
    SetupError,
    ToolError,
    ToolResult,
    prompt,
    resource,
    tool,
)
from mrtr_server.testing import AsyncClient, Client, SharedStore, replica, yes

from ..conftest import Serve
from ..transport.test_subscriptions import listening

pytestmark = pytest.mark.anyio

KEYS = KeyRing.generate()
GONE = "; what has begun can't continue, since this tool is not offered any more"
ERAS = pytest.mark.parametrize("era", ["2026-07-28", "2025-11-25", "2025-03-26"])


def server(name: str, **settings: Any) -> MRTRServer:
    return MRTRServer(name, keys=KEYS, **settings)


def billing(**settings: Any) -> MRTRServer:
    """An application with a little of everything."""
    app = server("billing", **settings)

    @app.tool(tags=["money"])
    async def pay(amount: int, ctx: Context) -> str:
        await ctx.confirm(f"Pay {amount}?")
        return f"{amount} paid"

    @app.tool
    def balance(account: Annotated[str, Header("Account")] = "main") -> str:
        return f"{account} has 3"

    @app.prompt(tags=["money"])
    def remind(who: str) -> str:
        return f"Remind {who}"

    @app.completion("who", prompt="remind")
    def people(value: str) -> list[str]:
        return ["Ann"]

    @app.resource("invoices://{id}")
    def invoice(id: str) -> str:
        return f"invoice {id}"

    @app.resource("rates://today", tags=["money"])
    def rates() -> str:
        return "1.08"

    return app


async def names(app: MRTRServer, listing: str = "tools", **client: Any) -> list[str]:
    method = {"resourceTemplates": "resources/templates/list"}.get(listing, f"{listing}/list")
    found = (await AsyncClient(app, **client).request(method)).result[listing]
    key = {"resources": "uri", "resourceTemplates": "uriTemplate"}.get(listing, "name")
    return [entry[key] for entry in found]


async def call(app: MRTRServer, name: str, arguments: dict[str, Any] | None = None, **client: Any) -> str:
    reply = await AsyncClient(app, **client).flow(name, arguments or {}).start()
    message: str = reply.message["error"]["message"] if "error" in reply.message else reply.text
    return message


class TestInclude:
    async def test_names_and_uris_have_the_prefix(self) -> None:
        app = server("site")
        app.include(billing(), prefix="billing")
        client = AsyncClient(app)
        assert await names(app) == ["billing_pay", "billing_balance"]
        assert await names(app, "prompts") == ["billing_remind"]
        assert await names(app, "resources") == ["rates://billing/today"]
        assert await names(app, "resourceTemplates") == ["invoices://billing/{id}"]
        assert (await client.call("billing_pay", amount=3, answers={"confirm": yes})).text == "3 paid"
        assert (await client.call("billing_balance", account="x")).text == "x has 3"
        assert "Remind Ann" in str((await client.get_prompt("billing_remind", who="Ann")).result)
        assert "invoice 7" in str((await client.read("invoices://billing/7")).result)
        assert "1.08" in str((await client.read("rates://billing/today")).result)
        completed = await client.request(
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "billing_remind"}, "argument": {"name": "who", "value": ""}},
        )
        assert completed.result["completion"]["values"] == ["Ann"]

    @ERAS
    async def test_in_every_era(self, era: str) -> None:
        app = server("site")
        app.include(billing(), prefix="billing")
        client = AsyncClient(app, era=era)
        assert (await client.call("billing_balance", account="x")).text == "x has 3"
        if era != "2025-03-26":
            assert (await client.call("billing_pay", amount=3, answers={"confirm": yes})).text == "3 paid"

    async def test_without_a_prefix_they_stay_as_they_are(self) -> None:
        app = server("site")
        app.include(billing())
        assert await names(app) == ["pay", "balance"]
        assert "invoice 7" in str((await AsyncClient(app).read("invoices://7")).result)

    async def test_the_included_server_serves_by_itself_too(self) -> None:
        other = billing()
        server("site").include(other, prefix="billing")
        assert await names(other) == ["pay", "balance"]

    async def test_through_several_levels(self) -> None:
        inner, middle, app = billing(), server("middle"), server("site")
        middle.include(inner, prefix="b")
        app.include(middle, prefix="m")
        assert await names(app) == ["m_b_pay", "m_b_balance"]
        assert "invoice 7" in str((await AsyncClient(app).read("invoices://m/b/7")).result)

        @inner.tool
        def later() -> str:
            return "later"

        assert await call(app, "m_b_later") == "later"

    async def test_what_is_registered_later_is_included_too(self) -> None:
        app, other = server("site"), server("other")
        app.include(other, prefix="o")

        @other.tool
        def later() -> str:
            return "later"

        @other.completion("who", prompt="nobody")
        def people(value: str) -> list[str]:
            return []

        assert await names(app) == ["o_later"]
        assert app.registry.find_completer("prompt", "o_nobody", "who") is not None

    async def test_tasks_keep_working(self) -> None:
        other, app = server("other"), server("site")

        @other.tool(task="required")
        async def work(ctx: Context) -> str:
            return f"worked in {ctx.round}"

        app.include(other, prefix="o")
        async with AsyncClient(app, tasks=True) as client:
            assert (await client.call("o_work")).text == "worked in 1"

    async def test_a_state_of_another_name_is_refused(self) -> None:
        other, app = billing(audience="one"), server("site", audience="one")
        flow = AsyncClient(other).flow("pay", amount=3)
        await flow.start()
        app.include(other, prefix="billing")
        state = flow.state
        flow.move_to(app)
        reply = await flow.answer({"confirm": yes})
        assert reply.error.message == f"Unknown tool: pay{GONE}"
        assert "this server does not have" in reply.log
        moved = AsyncClient(app).flow("billing_pay", amount=3)
        await moved.start()
        moved.state = state
        assert "requestState is not valid" in (await moved.answer({"confirm": yes})).error.message

    async def test_dependencies_hooks_and_lifespan_are_those_of_the_included(self) -> None:
        happened: list[str] = []

        @asynccontextmanager
        async def life(app: MRTRServer) -> AsyncIterator[str]:
            happened.append(f"open {app.name}")
            yield f"resources of {app.name}"
            happened.append(f"close {app.name}")

        @asynccontextmanager
        async def its_life(app: MRTRServer) -> AsyncIterator[str]:
            happened.append(f"open {app.name}")
            yield f"resources of {app.name}"
            happened.append(f"close {app.name}")

        other, app = server("other", lifespan=its_life), server("site", lifespan=life)

        @other.tool
        async def use(opened: Annotated[str, Depends(its_life)], ctx: Context) -> str:
            assert ctx.opened == opened
            return opened

        @other.tool
        def fail() -> str:
            raise ValueError

        @app.tool
        async def own(ctx: Context) -> str:
            return str(ctx.opened)

        def hook(name: str) -> Any:
            async def around(call: CallInfo, call_next: CallNext) -> None:
                happened.append(f"{name}: {call.name}")
                await call_next(call)

            return around

        failures: list[Failure] = []
        other.around(hook("inner"))
        other.on_error(failures.append)
        app.include(other, prefix="o")
        app.around(hook("outer"))
        async with AsyncClient(app) as client:
            assert (await client.call("o_use")).text == "resources of other"
            assert (await client.call("own")).text == "resources of site"
            await client.flow("o_fail").start()
        assert happened == [
            *("open site", "open other"),
            *("outer: o_use", "inner: o_use", "outer: own", "outer: o_fail", "inner: o_fail"),
            *("close other", "close site"),
        ]
        assert [failure.call.name for failure in failures] == ["o_fail"]
        with other.override(its_life, life):
            assert await call(app, "o_use") == "resources of other"

    @pytest.mark.parametrize("kind", ["around", "on_error"])
    async def test_hooks_of_one_kind_alone_come_with_the_included(self, kind: str) -> None:
        other, app = server("other"), server("site")
        names: list[str] = []

        async def around(call: CallInfo, call_next: CallNext) -> None:
            names.append(call.name)
            await call_next(call)

        def on_error(failure: Failure) -> None:
            names.append(failure.call.name)

        @other.tool
        def fail() -> str:
            raise ValueError

        if kind == "around":
            other.around(around)
        else:
            other.on_error(on_error)
        app.include(other, prefix="o")
        await AsyncClient(app).flow("o_fail").start()
        assert names == ["o_fail"]

    async def test_either_may_override_the_lifespan_of_the_included(self) -> None:
        @asynccontextmanager
        async def real(app: MRTRServer) -> AsyncIterator[str]:
            yield "real"

        @asynccontextmanager
        async def fake(app: MRTRServer) -> AsyncIterator[str]:
            yield f"fake of {app.name}"

        other, app = server("other", lifespan=real), server("site")

        @other.tool
        async def use(opened: Annotated[str, Depends(real)]) -> str:
            return opened

        app.include(other, prefix="o")
        for each in (app, other):
            with each.override(real, fake):
                assert await call(app, "o_use") == "fake of other"
            assert await call(app, "o_use") == "real"

    async def test_an_override_of_either_counts_and_the_outer_one_more(self) -> None:
        def real() -> str:
            return "real"

        other, app = server("other"), server("site")

        @other.tool
        def use(it: Annotated[str, Depends(real)]) -> str:
            return it

        app.include(other, prefix="o")
        with other.override(real, lambda: "inner"):
            assert await call(app, "o_use") == "inner"
            with app.override(real, lambda: "outer"):
                assert (await call(app, "o_use"), await call(other, "use")) == ("outer", "inner")
        assert await call(app, "o_use") == "real"

    async def test_rights_keep_working_and_hooks_get_their_own_names(self) -> None:
        seen: list[str] = []

        def allows(caller: Caller, name: str) -> bool:
            seen.append(name)
            return name != "hidden"

        other = server("other", authorize=allows, scopes=["billing"])
        tokens = BearerTokens({"t": "ann"})
        app = server("site", auth=tokens)

        @other.tool
        def shown() -> str:
            return "shown"

        @other.tool
        def hidden() -> str:
            return ""

        @other.tool(visible=["admin"])
        def for_admins() -> str:
            return ""

        @other.resource("books://{isbn}")
        def book(isbn: str) -> str:
            return isbn

        app.include(other, prefix="o")
        assert await names(app, token="t") == ["o_shown"]
        client = AsyncClient(app, token="t")
        assert "insufficient_scope" in str((await client.flow("o_shown").start()).headers)
        await client.resource_flow("books://o/7").start()
        assert seen == ["shown", "hidden", "shown", "books://7"]

    async def test_what_has_a_hook_alone_keeps_it(self) -> None:
        other, app = server("other"), server("site")
        seen: list[str] = []

        def refuses(caller: Caller, name: str) -> bool:
            seen.append(name)
            return False

        @other.tool(authorize=refuses)
        def closed() -> str:
            return "reached"

        @other.tool(visible=["admin"])
        def for_admins() -> str:
            return "reached"

        @other.tool
        def open_to_all() -> str:
            return "reached"

        @other.prompt(authorize=refuses)
        def letter() -> str:
            return "reached"

        @other.resource("books://{isbn}", authorize=refuses)
        def book(isbn: str) -> str:
            return "reached"

        app.include(other, prefix="o")
        client = AsyncClient(app)
        assert await names(app) == ["o_open_to_all"]
        replies = [
            await client.flow("o_closed").start(),
            await client.flow("o_for_admins").start(),
            await client.prompt_flow("o_letter").start(),
            await client.resource_flow("books://o/7").start(),
        ]
        assert not any("reached" in str(reply.message) for reply in replies)
        assert (await client.flow("o_open_to_all").start()).text == "reached"
        assert seen == ["closed", "closed", "letter", "books://7"]

    async def test_rates_of_tools_keep_working(self) -> None:
        other = server("other", rate_limits=RateLimits(per_tool={"one": "1/hour"}))
        app = server("site")

        @other.tool
        def one() -> str:
            return "one"

        @other.tool(rate_limit="2/hour")
        def two() -> str:
            return "two"

        app.include(other, prefix="o")
        client = AsyncClient(app)
        assert [(await client.flow("o_one").start()).status for _ in range(2)] == [200, 429]
        assert [(await client.flow("o_two").start()).status for _ in range(3)] == [200, 200, 429]

    async def test_replicas_of_the_outer_server_have_all_of_it(self) -> None:
        app = server("site")
        app.include(billing(), prefix="billing")
        flow = AsyncClient(app, replica(app)).flow("billing_pay", amount=3)
        await flow.start()
        assert (await flow.answer({"confirm": yes})).text == "3 paid"


class TestConflicts:
    def test_a_name_that_is_taken_is_an_error_that_names_both_places_and_changes_nothing(self) -> None:
        app, other = server("site"), server("other")

        @app.tool(name="o_pay")
        def own() -> str:
            return ""

        @other.tool
        def first() -> str:
            return ""

        @other.tool(name="pay")
        def theirs() -> str:
            return ""

        here = own.__module__ + "." + own.__qualname__.removesuffix(".own")
        message = (
            "There is a tool 'o_pay' already; include it with another prefix=: "
            f"{here}.own of 'site' and {here}.theirs of 'other'"
        )
        with pytest.raises(SetupError, match=re.escape(message)):
            app.include(other, prefix="o")
        assert list(app.registry.tools) == ["o_pay"]
        app.include(other, prefix="x")

    @pytest.mark.parametrize("kind", ["prompt", "resource", "template", "completion", "callback"])
    def test_of_every_kind(self, kind: str) -> None:
        def register(app: MRTRServer) -> None:
            match kind:
                case "prompt":
                    app.prompt(name="it")(lambda: "")
                case "resource":
                    app.resource("it://it", name="it")(lambda: "")
                case "template":
                    app.resource("it://{x}", name="it")(lambda x: "")
                case "completion":
                    app.completion("x", prompt="it")(lambda value: [])
                case _:
                    app.callback("it")(lambda request: "")

        app, other = server("site"), server("other")
        register(app)
        register(other)
        with pytest.raises(SetupError, match=r"There is a .* already; include it with another prefix="):
            app.include(other)

    def test_a_later_registration_that_conflicts_is_refused_everywhere(self) -> None:
        app, other = server("site"), server("other")
        app.tool(name="o_pay")(lambda: "")
        app.include(other, prefix="o")
        with pytest.raises(SetupError, match="There is a tool 'o_pay' already"):
            other.tool(name="pay")(lambda: "")
        assert list(other.registry.tools) == []

    def test_a_server_includes_neither_itself_nor_one_that_includes_it(self) -> None:
        app, other = server("site"), server("other")
        app.include(other, prefix="o")
        for outer, included in ((app, app), (other, app)):
            with pytest.raises(SetupError, match="which includes it"):
                outer.include(included, prefix="x")

    def test_what_would_be_lost_is_refused(self) -> None:
        with pytest.raises(SetupError, match=re.escape("other needs credentials (auth=), and site has none")):
            server("site").include(server("other", auth=BearerTokens({"t": "ann"})))
        limited = server("other", rate_limits=RateLimits(per_principal="1/hour"))
        with pytest.raises(SetupError, match=r"per_principal=.* is for all calls of a server; give it to site"):
            server("site").include(limited)

    def test_rates_that_all_replicas_share_are_not_counted_in_each_process(self) -> None:
        shared = RateLimits(per_tool={"one": "1/hour"}, storage="redis://127.0.0.1:1/0")
        for rate_limits in (None, RateLimits()):
            with pytest.raises(SetupError, match=r"other: RateLimits\(storage=.* give the storage to that one, too"):
                server("site", rate_limits=rate_limits).include(server("other", rate_limits=shared))
        server("site", rate_limits=RateLimits(storage="redis://127.0.0.1:1/0")).include(
            server("other", rate_limits=shared)
        )

    @pytest.mark.parametrize("prefix", ["a b", "a/b", "é"])
    def test_a_prefix_that_names_can_not_have_is_refused(self, prefix: str) -> None:
        with pytest.raises(SetupError, match="can't be part of a name"):
            server("site").include(server("other"), prefix=prefix)

    def test_a_name_that_becomes_too_long_is_refused(self) -> None:
        other = server("other")
        other.tool(name="x" * 128)(lambda: "")
        with pytest.raises(SetupError, match="is longer than the 128 characters"):
            server("site").include(other, prefix="o")


class TestChanges:
    async def test_what_is_removed_is_gone(self) -> None:
        app = billing()
        app.remove_tool("balance")
        app.remove_prompt("remind")
        app.remove_resource("rates://today")
        app.remove_resource("invoices://{id}")
        assert await names(app) == ["pay"]
        assert [await names(app, each) for each in ("prompts", "resources", "resourceTemplates")] == [[], [], []]
        assert "Unknown tool: balance" in await call(app, "balance")
        app.tool(name="balance")(lambda: "another")
        assert await call(app, "balance") == "another"

    async def test_what_is_disabled_is_as_if_it_were_not_there_and_comes_back_in_its_place(self) -> None:
        app = billing()
        app.disable(tools=["pay"], resources=["invoices://{id}", "rates://today"], prompts=["remind"])
        assert await names(app) == ["balance"]
        assert [await names(app, each) for each in ("prompts", "resources", "resourceTemplates")] == [[], [], []]
        assert "Unknown tool: pay" in await call(app, "pay", {"amount": 3})
        assert "tools" in (await AsyncClient(app).request("server/discover")).result["capabilities"]
        app.enable(tools=["pay"], resources=["invoices://{id}", "rates://today"], prompts=["remind"])
        assert await names(app) == ["pay", "balance"]
        assert await names(app, "resourceTemplates") == ["invoices://{id}"]

    async def test_by_tags(self) -> None:
        app = billing()
        app.disable(tags=["money"])
        assert (await names(app), await names(app, "prompts"), await names(app, "resources")) == (["balance"], [], [])
        app.enable(tags=["money"])
        assert await names(app) == ["pay", "balance"]

    async def test_tags_are_listed(self) -> None:
        app = server("tagged")
        app.tool(name="it", tags=["b", "a", "b"], meta={"more": 1})(lambda: "")
        (entry,) = (await AsyncClient(app).request("tools/list")).result["tools"]
        assert entry["_meta"] == {"more": 1, "tags": ["a", "b"]}

    def test_what_is_not_there_is_named(self) -> None:
        app = billing()
        with pytest.raises(SetupError, match="billing has no tool 'pai'; did you mean 'pay'\\?"):
            app.disable(tools=["pai"])
        with pytest.raises(SetupError, match="billing: nothing has the tag 'cash'"):
            app.enable(tags=["cash"])
        with pytest.raises(SetupError, match="billing has no prompt 'pay'"):
            app.remove_prompt("pay")
        with pytest.raises(SetupError, match=re.escape("tags='money' is one string; give a list: tags=['money']")):
            app.disable(tags="money")
        with pytest.raises(SetupError, match="tags= takes a list of texts"):
            app.tool(name="x", tags="money")(lambda: "")
        with pytest.raises(SetupError, match="`tags` of `_meta`, which meta= has, too"):
            app.tool(name="x", tags=["a"], meta={"tags": []})(lambda: "")

    async def test_a_flow_of_what_is_gone_ends_with_a_clear_error(self) -> None:
        app = billing()
        changes: list[Callable[[], None]] = [lambda: app.disable(tools=["pay"]), lambda: app.remove_tool("pay")]
        for change in changes:
            flow = AsyncClient(app).flow("pay", amount=3)
            await flow.start()
            change()
            reply = await flow.answer({"confirm": yes})
            assert reply.error.message == f"Unknown tool: pay{GONE}"
            if "pay" in app.registry.keys("tools"):
                app.enable(tools=["pay"])

    async def test_a_flow_goes_on_when_its_tool_is_enabled_again(self) -> None:
        app = billing()
        flow = AsyncClient(app).flow("pay", amount=3)
        await flow.start()
        app.disable(tools=["pay"])
        app.enable(tools=["pay"])
        assert (await flow.answer({"confirm": yes})).text == "3 paid"

    async def test_of_an_included_server_it_shows_outside_and_not_the_other_way(self) -> None:
        other, app = billing(), server("site")
        app.include(other, prefix="b")
        app.disable(tools=["b_pay"])
        assert (await names(app), await names(other)) == (["b_balance"], ["pay", "balance"])
        other.disable(tools=["balance"])
        assert (await names(app), await names(other)) == ([], ["pay"])
        other.remove_tool("balance")
        app.enable(tags=["money"])
        assert await names(app) == ["b_pay"]

    async def test_what_is_disabled_when_it_is_included_stays_so(self) -> None:
        other, app = billing(), server("site")
        other.disable(tools=["pay"])
        app.include(other, prefix="b")
        assert await names(app) == ["b_balance"]

    async def test_of_what_is_done_inside_and_outside_the_last_counts(self) -> None:
        inner, other, app = billing(), server("other"), server("site")
        app.include(other, prefix="o")
        other.include(inner, prefix="b")
        inner.disable(tools=["pay"])
        app.enable(tools=["o_b_pay"])
        assert (await names(other), await names(app)) == (["b_balance"], ["o_b_pay", "o_b_balance"])
        app.disable(tools=["o_b_balance"])
        other.disable(tools=["b_balance"])
        inner.enable(tools=["pay", "balance"])
        assert (await names(other), await names(app)) == (["b_pay", "b_balance"], ["o_b_pay", "o_b_balance"])

    async def test_what_is_removed_outside_is_free_there_and_stays_inside(self) -> None:
        other, app = billing(), server("site")
        app.include(other, prefix="b")
        app.remove_tool("b_pay")
        assert (await names(app), await names(other)) == (["b_balance"], ["pay", "balance"])
        app.tool(name="b_pay")(lambda: "ours")
        assert await call(app, "b_pay") == "ours"
        app.remove_tool("b_pay")
        other.remove_tool("pay")
        other.tool(name="pay")(lambda: "again")
        assert await call(app, "b_pay") == "again"

    def test_listeners_of_the_newest_version_hear_of_each_change(self, serve: Serve) -> None:
        other, app = billing(), server("site")
        app.include(other, prefix="b")
        wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourceSubscriptions": ["rates://b/today"]}
        with listening(serve(app), wanted) as listener:
            listener.next()
            for change in (
                lambda: app.tool(name="new")(lambda: ""),
                lambda: app.disable(tools=["new"]),
                lambda: other.remove_tool("pay"),
                lambda: other.notify_tools_changed(),
            ):
                change()
                assert listener.next()["method"] == "notifications/tools/list_changed"
            other.disable(prompts=["remind"])
            assert listener.next()["method"] == "notifications/prompts/list_changed"
            other.notify_resource_updated("rates://today")
            assert listener.next()["params"]["uri"] == "rates://b/today"

    async def test_sessions_of_the_handshake_era_hear_of_each_change(self) -> None:
        app = billing()
        async with AsyncClient(app, era="2025-11-25") as client:
            await client.begin()
            stream = client.listen()
            await stream.open()
            for change in (
                lambda: app.tool(name="new")(lambda: ""),
                lambda: app.disable(tags=["money"]),
                lambda: app.remove_tool("new"),
            ):
                change()
                assert "notifications/" in str((await stream.next()).received)
            await stream.close()

    async def test_a_change_before_the_server_runs_is_told_to_nobody(self) -> None:
        store = SharedStore()
        heard: list[object] = []
        store._fanout.publish = heard.append  # type: ignore[method-assign, assignment]
        app = billing(store=store)
        app.disable(tools=["pay"])
        assert heard == []


class TestHidden:
    """What `authorize=` or `visible=` hides is in no list, and no request finds it, in every era."""

    @ERAS
    @pytest.mark.parametrize("how", ["authorize", "visible"])
    async def test_it_is_nowhere(self, era: str, how: str) -> None:
        def for_nobody(caller: Caller, name: str) -> bool:
            return False

        app = server("hiding")
        hidden: dict[str, Any] = {"authorize": for_nobody} if how == "authorize" else {"visible": ["admin"]}
        app.tool(name="it", **hidden)(lambda: "secret")
        app.prompt(name="it", **hidden)(lambda: "secret")
        app.resource("it://it", name="it", **hidden)(lambda: "secret")
        app.resource("it://of/{x}", name="it", **hidden)(lambda x: "secret")
        for listing in ("tools", "prompts", "resources", "resourceTemplates"):
            assert await names(app, listing, era=era) == []
        client = AsyncClient(app, era=era)
        replies = [
            await client.flow("it").start(),
            await client.prompt_flow("it").start(),
            await client.resource_flow("it://it").start(),
            await client.resource_flow("it://of/x").start(),
        ]
        unknown = [
            await client.flow("no").start(),
            await client.prompt_flow("no").start(),
            await client.resource_flow("no://no").start(),
            await client.resource_flow("no://of/x").start(),
        ]
        for reply, other in zip(replies, unknown, strict=True):
            assert "secret" not in json.dumps(reply.message)
            assert re.sub(r"\bit\b", "no", reply.error.message) == other.error.message
            assert reply.error.code == other.error.code

    def test_a_function_for_visible_is_told_where_it_belongs(self) -> None:
        with pytest.raises(SetupError, match="a function that decides who sees it is authorize="):
            server("hiding").tool(name="it", visible=lambda caller: True)(lambda: "")  # type: ignore[call-overload]


class Shelf:
    """A class whose methods are offered."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.books: list[str] = []

    @tool
    def put(self, title: str) -> int:
        """Put a book on the shelf."""
        self.books.append(title)
        return len(self.books)

    @tool(name="ask", tags=["asking"])
    async def take(self, ctx: Context) -> str:
        await ctx.confirm(f"Take from {self.name}?")
        return self.books.pop()

    @prompt
    def praise(self) -> str:
        return f"Praise {self.name}"

    @resource("books://{number}")
    def book(self, number: int) -> str:
        return self.books[number]

    @staticmethod
    @tool
    def size() -> int:
        return 3

    def not_offered(self) -> None:
        """Not decorated."""


class Locked(Shelf):
    """A class that takes one back."""

    def put(self, title: str) -> int:
        raise ToolError("Locked.")


class TestObjects:
    async def test_decorated_methods_are_registered_with_their_object(self) -> None:
        app, shelf = server("shelves"), Shelf("A")
        app.add(shelf)
        client = AsyncClient(app)
        assert await names(app) == ["put", "ask", "size"]
        assert [(await client.call("put", title="Emma")).text for _ in range(2)] == ["1", "2"]
        assert shelf.books == ["Emma", "Emma"]
        assert (await client.call("ask", answers={"confirm": yes})).text == "Emma"
        assert "Praise A" in str((await client.get_prompt("praise")).result)
        assert "Emma" in str((await client.read("books://0")).result)
        (put, *_) = (await client.request("tools/list")).result["tools"]
        assert put["description"] == "Put a book on the shelf."
        assert list(put["inputSchema"]["properties"]) == ["title"]

    async def test_several_objects_of_a_class_have_prefixes(self) -> None:
        app = server("shelves")
        for name in ("a", "b"):
            app.add(Shelf(name), prefix=name)
        assert await names(app) == ["a_put", "a_ask", "a_size", "b_put", "b_ask", "b_size"]
        assert await names(app, "resourceTemplates") == ["books://a/{number}", "books://b/{number}"]

    async def test_a_class_that_overrides_a_method_decides(self) -> None:
        app = server("shelves")
        app.add(Locked("C"))
        assert await names(app) == ["ask", "size"]

    def test_the_methods_stay_as_they_are(self) -> None:
        assert Shelf("A").put("Emma") == 1
        assert Shelf.size() == 3

    def test_what_can_not_be_added_is_refused(self) -> None:
        app = server("shelves")
        with pytest.raises(SetupError, match=re.escape("app.add takes an object, and Shelf is a class")):
            app.add(Shelf)
        with pytest.raises(SetupError, match=re.escape("app.add(object(...)): no method is decorated")):
            app.add(object())
        with pytest.raises(TypeError, match="has no option nam=; did you mean name="):
            tool(nam="x")  # type: ignore[call-overload]


def test_a_kit_client_without_a_loop_sees_it_too() -> None:
    app = server("site")
    app.include(billing(), prefix="billing")
    assert Client(app).call("billing_balance").text == "main has 3"


def test_a_declared_confirmation_of_an_included_tool_asks() -> None:
    other, app = server("other"), server("site")

    @other.tool
    def delete(path: str, sure: Annotated[bool, Confirm("Sure?")]) -> str:
        return path

    app.include(other, prefix="o")
    assert Client(app).call("o_delete", path="x", answers={"sure": yes}).text == "x"


class TestLinks:
    """What a part says of its own resources leads to them, wherever it is included."""

    def part(self) -> MRTRServer:
        app = server("reports")

        @app.tool
        def links(ctx: Context) -> list[ResourceLink | EmbeddedResource]:
            return [
                ResourceLink(uri="sales://2026", name="ours"),
                ResourceLink(uri="https://example.com/2026", name="elsewhere"),
                ResourceLink(uri=ctx.uri_for("sales://{year}", year=2026), name="made"),
                EmbeddedResource(resource=ResourceContents(uri="sales://2026", text="1")),
            ]

        @app.tool
        async def pieces() -> AsyncIterator[ResourceLink]:
            yield ResourceLink(uri="sales://2026", name="ours")

        @app.tool(meta={"ui": {"resourceUri": "ui://sales/table"}})
        def shown() -> ToolResult:
            return ToolResult(content=["ok"], meta={"ui": {"resourceUri": "ui://sales/table"}})

        @app.tool
        def address(path: str, ctx: Context) -> str:
            return ctx.uri_for("files:///{+path}", path=path)

        @app.prompt
        def ask() -> Message:
            return Message(ResourceLink(uri="sales://2026", name="ours"))

        @app.resource("sales://{year}", name="sales")
        def sales(year: str) -> ResourceContents:
            return ResourceContents(uri=f"sales://{year}", text="1,2")

        @app.resource("ui://sales/table")  # after the tool that names it
        def table() -> str:
            return "<table>"

        return app

    @pytest.fixture(params=["once", "twice"])
    def client(self, request: pytest.FixtureRequest) -> Client:
        outer, part = server("outer"), self.part()
        if request.param == "twice":
            middle = server("middle")
            middle.include(part, prefix="b")
            part = middle
        outer.include(part, prefix="a")
        return Client(outer)

    def test_links_of_results_are_readable(self, client: Client) -> None:
        way = client.request("tools/list").result["tools"][0]["name"].removesuffix("links")  # a_ or a_b_
        at = f"sales://{way.replace('_', '/')}2026"
        content = client.call(f"{way}links").content
        uris = [each["uri"] if "uri" in each else each["resource"]["uri"] for each in content]
        assert uris == [at, "https://example.com/2026", at, at]
        assert client.call(f"{way}pieces").content[0]["uri"] == at
        assert client.get_prompt(f"{way}ask").result["messages"][0]["content"]["uri"] == at
        assert client.read(at).result["contents"] == [{"uri": at, "text": "1,2"}]

    def test_pages_of_tools_are_readable(self, client: Client) -> None:
        listed = {tool["name"]: tool for tool in client.request("tools/list").result["tools"]}
        (name,) = (name for name in listed if name.endswith("shown"))
        page = listed[name]["_meta"]["ui"]["resourceUri"]
        assert client.read(page).result["contents"][0]["text"] == "<table>"
        assert client.call(name).result["_meta"]["ui"]["resourceUri"] == page

    def test_names_of_resources_have_the_prefix(self, client: Client) -> None:
        templates = client.request("resources/templates/list").result["resourceTemplates"]
        assert templates[0]["name"] in ("a_sales", "a_b_sales")

    def test_addresses_are_encoded_as_their_template_needs_it(self) -> None:
        app = server("app")
        app.include(self.part(), prefix="a")
        assert Client(app).call("a_address", path="x y/z?").text == "files://a//x%20y/z?"
        assert Client(self.part()).call("address", path="x").text == "files:///x"

    def test_links_of_an_object_lead_to_its_own_resources(self) -> None:
        class Stock:
            @resource("stock://{item}")
            def of(self, item: str) -> str:
                return f"{item} of {self.name}"

            @tool
            def link(self, ctx: Context) -> list[ResourceLink | EmbeddedResource]:
                return [
                    ResourceLink(uri="stock://pen", name="x"),
                    ResourceLink(uri=ctx.uri_for("stock://{item}", item="ink"), name="y"),
                ]

            def __init__(self, name: str) -> None:
                self.name = name

        app = server("app")
        app.add(Stock("north"), prefix="n")
        app.add(Stock("south"), prefix="s")
        content = Client(app).call("s_link").content
        assert [each["uri"] for each in content] == ["stock://s/pen", "stock://s/ink"]
        assert Client(app).read(content[0]["uri"]).result["contents"][0]["text"] == "pen of south"
        names = {each["name"] for each in Client(app).request("resources/templates/list").result["resourceTemplates"]}
        assert names == {"n_of", "s_of"}

"""Rate limits: what counts, for whom, and what a caller gets that has used one up."""

import json
from typing import Any

import pytest

from mrtr_server import Caller, Context, MRTRServer, RateLimits, SetupError
from mrtr_server.flow import rate_counters
from mrtr_server.testing import AsyncClient, Clock, replica, yes

from ..support.direct import send
from ..support.effects import EFFECTS, effect
from ..support.handshake import Handshake, handshakes
from ..support.models import Login
from ..support.serving import in_thread
from ..support.stdio import over_pipes
from ..support.users import Bearer
from ..support.wire import modern

pytestmark = pytest.mark.anyio

ADA = {"name": "ada"}
HANDSHAKES = ("2025-11-25", "2025-06-18", "2025-03-26")


class RatedSite:
    """A server with rate limits, at a time that the test sets."""

    def __init__(self, *, auth: bool = True, **limits: Any) -> None:
        self.clock = Clock(1_200_000.0)  # the beginning of a minute, and of an hour
        rates = RateLimits(**limits) if limits else None
        backend = Bearer() if auth else None
        self.app = app = replica(
            MRTRServer("site", keys=[bytes(32)], auth=backend, rate_limits=rates), clock=self.clock
        )

        @app.tool
        async def add(a: int, b: int) -> int:
            return a + b

        @app.tool(rate_limit="2/minute")
        async def search(text: str) -> str:
            return effect(text)

        @app.tool
        async def greet(ctx: Context) -> str:
            EFFECTS.append("asked")
            login = await ctx.elicit("Who?", Login)
            await ctx.elicit("And who?", Login, key="other")
            return f"Hello {login.name}"

        @app.tool(single_use=True)
        async def pay(ctx: Context) -> str:
            await ctx.elicit("Who pays?", Login)
            await ctx.confirm("Pay?")
            return await ctx.step(effect, "paid")

        @app.tool(task="required")
        async def work() -> str:
            return "worked"

        @app.prompt
        def greeting() -> str:
            return "Hello"

        @app.resource("notes://{topic}")
        def note(topic: str) -> str:
            return topic

    def as_(self, user: str | None, era: str = "2026-07-28") -> AsyncClient:
        return AsyncClient(self.app, token=user, tasks=era == "2026-07-28", log_level=None, era=era)

    async def add(self, user: str | None, times: int = 1) -> list[int]:
        """Return the statuses of calls of a user."""
        return [(await self.as_(user).flow("add", a=1, b=2).start()).status for _ in range(times)]

    async def from_(self, address: str | None) -> Any:
        """Return the reply to a call from an address."""
        message = modern("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
        return await send(self.app, message, client=address and (address, 1))


class TestCallers:
    async def test_each_has_a_budget_of_its_own(self) -> None:
        site = RatedSite(per_principal="3/minute")
        assert await site.add("ann", 5) == [200, 200, 200, 429, 429]
        assert await site.add("bob", 3) == [200, 200, 200]

    async def test_who_has_used_it_up_is_told_what_and_when(self, caplog: pytest.LogCaptureFixture) -> None:
        site = RatedSite(per_principal="1/minute")
        await site.add("ann")
        refused = await site.as_("ann").flow("add", a=1, b=2).start()
        assert (refused.status, refused.error.code) == (429, -31002)
        assert refused.error.data == {"limit": "per_principal", "value": "1/minute", "retryAfter": 60}
        assert refused.headers["retry-after"] == "60"
        assert refused.error.message == (
            "The rate limit for calls of one caller is used up (1/minute). Nothing was done; send the request again "
            "after 60 s"
        )
        assert "tools/call 'add' was refused: its rate limit is used up: per_principal, 1/minute" in caplog.text

    @pytest.mark.parametrize("used", [1, 3, 10])
    async def test_who_waits_as_long_as_told_is_served(self, used: int) -> None:
        site = RatedSite(per_principal=f"{used}/minute")
        site.clock.advance(20)
        assert await site.add("ann", used) == [200] * used
        refused = await site.as_("ann").flow("add", a=1, b=2).start()
        wait = int(refused.headers["retry-after"])
        site.clock.advance(wait - 2)
        assert await site.add("ann") == [429]
        site.clock.advance(2)
        assert await site.add("ann") == [200]

    async def test_what_was_sent_before_counts_less_and_less(self) -> None:
        site = RatedSite(per_principal="10/minute")
        assert await site.add("ann", 11) == [200] * 10 + [429]
        site.clock.advance(60 + 30)
        assert await site.add("ann", 6) == [200] * 5 + [429]
        for _ in range(3):
            wait = int((await site.as_("ann").flow("add", a=1, b=2).start()).headers["retry-after"])
            site.clock.advance(wait)
            assert wait <= 7, "one in six seconds"
            assert await site.add("ann", 2) == [200, 429]

    async def test_who_is_refused_uses_up_nothing_of_its_address(self) -> None:
        site = RatedSite(per_principal="2/minute", per_address="4/minute")
        assert await site.add("ann", 9) == [200] * 2 + [429] * 7
        assert await site.add("bob", 2) == [200, 200]

    async def test_without_authentication_the_address_is_the_caller(self) -> None:
        site = RatedSite(auth=False, per_principal="1/minute")
        for address in ("192.0.2.1", "192.0.2.2"):
            assert [(await site.from_(address)).status for _ in range(2)] == [200, 429]

    async def test_tools_prompts_and_resources_count_together(self) -> None:
        site = RatedSite(per_principal="3/minute")
        ann = site.as_("ann")
        assert (await ann.call("add", a=1, b=2)).status == 200
        assert (await ann.get_prompt("greeting")).status == 200
        assert (await ann.read("notes://a")).status == 200
        assert (await ann.prompt_flow("greeting").start()).status == 429
        assert (await ann.resource_flow("notes://a").start()).status == 429

    async def test_a_call_that_fails_counts_too(self) -> None:
        site = RatedSite(per_principal="2/minute")
        ann = site.as_("ann")
        assert (await ann.flow("nothing").start()).error.code == -32602
        assert (await ann.flow("add", a="x").start()).failed
        assert await site.add("ann") == [429]


class TestAddresses:
    async def test_each_has_a_budget_of_its_own(self) -> None:
        site = RatedSite(auth=False, per_address="2/minute")
        for address in ("192.0.2.1", "192.0.2.2", "not an address"):
            assert [(await site.from_(address)).status for _ in range(3)] == [200, 200, 429]

    async def test_a_network_of_ipv6_is_one_address(self) -> None:
        site = RatedSite(auth=False, per_address="2/minute")
        addresses = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8::3%eth0", "2001:db8:0:1::1"]
        assert [(await site.from_(each)).status for each in addresses] == [200, 200, 429, 200]

    async def test_an_ipv4_address_is_the_same_in_both_forms(self) -> None:
        site = RatedSite(auth=False, per_address="1/minute")
        assert [(await site.from_(each)).status for each in ("192.0.2.1", "::ffff:192.0.2.1")] == [200, 429]

    async def test_what_a_client_says_of_its_address_does_not_count(self) -> None:
        site = RatedSite(auth=False, per_address="1/minute")
        found = []
        for number in range(3):
            headers = {"X-Forwarded-For": f"192.0.2.{number}", "Forwarded": f"for=192.0.2.{number}"}
            found.append((await AsyncClient(site.app, headers=headers).flow("add", a=1, b=2).start()).status)
        assert found == [200, 429, 429]

    async def test_a_request_without_one_is_served(self) -> None:
        site = RatedSite(auth=False, per_address="1/minute")
        assert [(await site.from_(None)).status for _ in range(3)] == [200, 200, 200]


class TestTools:
    async def test_each_caller_has_a_budget_for_each_tool(self) -> None:
        site = RatedSite()
        for user in ("ann", "bob"):
            statuses = [(await site.as_(user).flow("search", text="x").start()).status for _ in range(4)]
            assert statuses == [200, 200, 429, 429]
            assert await site.add(user, 5) == [200] * 5
        assert len(EFFECTS) == 4

    async def test_the_operator_overrides_the_author(self) -> None:
        site = RatedSite(per_tool={"search": "3/hour", "add": "1/minute"})
        statuses = [(await site.as_("ann").flow("search", text="x").start()).status for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        assert await site.add("ann", 2) == [200, 429]

    async def test_a_budget_does_not_show_a_tool_that_is_hidden(self) -> None:
        app = MRTRServer("site", keys=[bytes(32)], auth=Bearer())

        async def root(caller: Caller, name: str) -> bool:
            return caller.principal is not None and caller.principal.subject == "root"

        @app.tool(authorize=root, rate_limit="1/minute")
        def hidden() -> str:
            return ""

        ann = AsyncClient(app, token="ann")
        for tool in ("hidden", "there_is_none"):
            replies = [await ann.flow(tool).start() for _ in range(3)]
            assert {(each.status, each.error.code) for each in replies} == {(400, -32602)}

    async def test_a_task_counts_when_it_is_created(self) -> None:
        site = RatedSite(per_tool={"work": "1/minute"})
        ann = site.as_("ann")
        assert (await ann.call("work")).text == "worked"
        refused = await ann.flow("work").start()
        assert (refused.status, refused.error.code) == (429, -31002)
        await site.app._parts.worker.close()

    async def test_a_copy_of_the_server_counts_for_itself(self) -> None:
        site = RatedSite()
        copied = site.app.__replace__(name="copy")
        ann = AsyncClient(copied, token="ann")
        assert [(await ann.flow("search", text="x").start()).status for _ in range(3)] == [200, 200, 429]


class TestFlows:
    async def test_a_call_of_many_rounds_counts_once(self) -> None:
        site = RatedSite(per_principal="2/minute", per_address="2/minute", per_tool={"greet": "2/minute"})
        for _ in range(2):
            done = await site.as_("ann").call("greet", answers={"login": ADA, "other": ADA})
            assert done.text == "Hello ada"
        assert (await site.as_("ann").flow("greet").start()).status == 429

    async def test_one_state_sent_again_and_again_has_a_budget(self) -> None:
        site = RatedSite(per_flow="5/minute")
        flow = site.as_("ann").flow("greet")
        await flow.start()
        EFFECTS.clear()
        answered = await flow.answer(login=ADA)
        replies = [await flow.replay(answered) for _ in range(29)]
        assert [reply.status for reply in (answered, *replies)] == [200] * 5 + [429] * 25
        assert replies[-1].error.data == {"limit": "per_flow", "value": "5/minute", "retryAfter": 60}
        assert len(EFFECTS) == 5, "what is refused has not run"
        another = site.as_("ann").flow("greet")
        await another.start()
        assert (await another.answer(login=ADA)).questions

    async def test_all_states_of_a_call_share_it(self) -> None:
        site = RatedSite(per_flow="4/minute")
        flow = site.as_("ann").flow("greet")
        await flow.start()
        second = await flow.answer(login=ADA)
        await flow.replay(second)
        done = await flow.answer(other=ADA)
        statuses = [(await flow.replay(done)).status for _ in range(3)]
        assert statuses == [200, 429, 429]

    async def test_a_result_can_not_be_had_again_and_again_for_one_call(self) -> None:
        site = RatedSite(per_principal="1/minute", per_flow="3/minute")
        flow = site.as_("ann").flow("greet")
        await flow.start()
        await flow.answer(login=ADA)
        done = await flow.answer(other=ADA)
        assert [(await flow.replay(done)).status for _ in range(3)] == [200, 429, 429]

    async def test_the_same_request_without_a_state_is_answered_so_often(self) -> None:
        site = RatedSite(per_flow="5/minute")
        replies = [await site.as_("ann").flow("greet").start() for _ in range(30)]
        assert [reply.status for reply in replies] == [200] * 5 + [429] * 25
        assert all(reply.questions for reply in replies[:5])
        assert replies[-1].error.data["limit"] == "per_flow"
        assert len(EFFECTS) == 5, "what is refused has not run"
        assert (await site.as_("bob").flow("greet").start()).questions
        site.clock.advance(120)
        assert (await site.as_("ann").flow("greet").start()).questions

    async def test_with_answers_that_do_not_fit_as_well(self) -> None:
        site = RatedSite(per_flow="3/minute")
        statuses = []
        for number in range(5):
            flow = site.as_("ann").flow("greet")
            statuses.append((await flow.start(login={"wrong": number})).status)
        assert statuses == [200] * 3 + [429] * 2

    async def test_a_call_that_asks_nothing_is_no_repetition(self) -> None:
        site = RatedSite(per_flow="1/minute")
        assert await site.add("ann", 5) == [200] * 5

    async def test_a_call_that_is_handed_back_without_a_question_is_no_repetition(self) -> None:
        site = RatedSite(per_flow="1/minute")

        @site.app.tool(single_use=True)
        async def charge(ctx: Context) -> str:
            return await ctx.step(effect, "charged")

        replies = [await site.as_("ann").flow("charge").start() for _ in range(3)]
        assert [reply.status for reply in replies] == [200] * 3
        assert all(reply.needs_input and not reply.asks for reply in replies)
        assert EFFECTS == []

    async def test_without_authentication_repetitions_count_by_address(self) -> None:
        site = RatedSite(auth=False, per_flow="1/minute")
        message = modern("tools/call", {"name": "greet", "arguments": {}})
        for address in ("192.0.2.1", "192.0.2.2"):
            found = [(await send(site.app, message, client=(address, 1))).status for _ in range(2)]
            assert found == [200, 429]


class TestOtherRequests:
    async def test_they_have_a_budget_of_their_own(self) -> None:
        site = RatedSite(other_requests="3/minute", per_principal="1/minute")
        ann = site.as_("ann")
        assert [(await ann.request("tools/list")).status for _ in range(4)] == [200] * 3 + [429]
        assert await site.add("ann", 2) == [200, 429]
        assert (await site.as_("bob").request("tools/list")).status == 200

    async def test_later_rounds_are_among_them(self) -> None:
        site = RatedSite(other_requests="1/minute")
        flow = site.as_("ann").flow("greet")
        assert (await flow.start()).status == 200
        assert (await flow.answer(login=ADA)).status == 200
        assert (await flow.answer(other=ADA)).status == 429

    async def test_cancellations_are_not(self) -> None:
        site = RatedSite(other_requests="1/minute")
        statuses = [(await site.as_("ann").request("tasks/cancel", {"taskId": "x"})).status for _ in range(3)]
        assert 429 not in statuses


class TestEveryEra:
    @pytest.mark.parametrize("era", ["2026-07-28", "sep-draft", *HANDSHAKES])
    async def test_it_is_an_error_of_json_rpc_and_a_429_where_clients_live_on_after_that(self, era: str) -> None:
        site = RatedSite(per_principal="1/minute")
        client = site.as_("ann", era)
        assert (await client.flow("add", a=1, b=2).start()).status == 200
        refused = await client.flow("add", a=1, b=2).start()
        status = 200 if era in HANDSHAKES else 429
        assert (refused.status, refused.error.code, refused.headers["retry-after"]) == (status, -31002, "60")
        assert refused.error.data == {"limit": "per_principal", "value": "1/minute", "retryAfter": 60}

    async def test_an_open_call_counts_once_and_its_rounds_for_the_flow(self) -> None:
        site = RatedSite(per_principal="1/minute")
        client = site.as_("ann", "2025-11-25")
        assert (await client.call("greet", answers={"login": ADA, "other": ADA})).text == "Hello ada"
        site = RatedSite(per_flow="1/minute")
        refused = await site.as_("ann", "2025-11-25").flow("greet").finish({"login": ADA, "other": ADA})
        assert refused.error.data["limit"] == "per_flow"

    async def test_parts_of_a_batch_count_each(self) -> None:
        site = RatedSite(auth=False, per_principal="1/minute")
        with (
            in_thread(site.app) as port,
            handshakes(client := Handshake([f"http://127.0.0.1:{port}/mcp"], version="2025-03-26")),
        ):
            client.begin()
            call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1, "b": 2}}}
            replies = client.post([{**call, "id": 1}, {**call, "id": 2}])
            parts = json.loads(replies.body)
            assert "result" in parts[0]
            assert parts[1]["error"]["data"]["limit"] == "per_principal"

    async def test_over_stdio_it_is_an_error_of_json_rpc(self) -> None:
        site = RatedSite(auth=False, per_principal="2/minute", per_address="1/minute")
        with over_pipes(site.app) as client:
            for is_modern in (True, False):
                if not is_modern:
                    client.initialize()
                assert "result" in client.call("add", {"a": 1, "b": 2}, modern=is_modern)
            for is_modern in (True, False):
                refused = client.call("add", {"a": 1, "b": 2}, modern=is_modern)["error"]
                assert refused["code"] == -31002
                assert refused["data"] == {"limit": "per_principal", "value": "2/minute", "retryAfter": 60}


class TestSingleUse:
    async def test_a_refusal_is_no_outcome(self) -> None:
        site = RatedSite(per_flow="1/minute")
        flow = site.as_("ann").flow("pay")
        await flow.start()
        await flow.answer(login=ADA)
        refused = await flow.answer(confirm=yes)
        assert (refused.status, EFFECTS) == (429, [])
        site.clock.advance(120)
        assert (await flow.replay(refused)).text == "paid"
        assert EFFECTS == ["paid"]


class TestSettings:
    @pytest.mark.parametrize(
        "text", ["", "5", "five/minute", "0/minute", "-1/minute", "5/fortnight", "5/minute;1/hour", 5]
    )
    def test_what_is_no_rate_is_refused_at_once(self, text: Any) -> None:
        for option in ("per_principal", "per_address", "per_flow", "other_requests"):
            with pytest.raises(
                SetupError, match=rf'RateLimits\({option}=...\): .* is no rate; write one such as "5/minute"'
            ):
                RateLimits(**{option: text})
        with pytest.raises(SetupError, match="is no rate"):
            RateLimits(per_tool={"search": text})
        app = MRTRServer("site", keys=[bytes(32)])
        with pytest.raises(SetupError, match=r"is no rate|takes a rate"):
            app.tool(name="search", rate_limit=text)(lambda: "")

    @pytest.mark.parametrize("text", ["5/minute", "100 per hour", "10 per 30 seconds", "1/day"])
    def test_what_is_one_is_taken(self, text: str) -> None:
        assert RateLimits(per_principal=text).per_principal == text

    def test_other_mistakes_are_refused_too(self) -> None:
        wrong: Any = "5/minute"
        with pytest.raises(SetupError, match="by the name of a tool"):
            RateLimits(per_tool=wrong)
        with pytest.raises(SetupError, match='choose from "count_here", "refuse"'):
            RateLimits(while_away=wrong)
        with pytest.raises(SetupError, match=r"rate_limits= takes RateLimits\(...\)"):
            MRTRServer("site", keys=[bytes(32)], rate_limits=wrong)

    @pytest.mark.parametrize(
        "url", ["localhost", "http://localhost", "redis://", "redis://localhost:port", "memory://"]
    )
    def test_a_url_that_can_not_be_is_refused_without_showing_it(self, url: str) -> None:
        with pytest.raises(SetupError, match=r"RateLimits\(storage=...\)"):
            RateLimits(storage=url)

    def test_a_password_is_not_shown(self) -> None:
        assert "secret" not in repr(RateLimits(storage="redis://user:secret@localhost:6379"))

    def test_the_check_says_what_counts_by_itself_and_what_names_nothing(self) -> None:
        app = MRTRServer("site", keys=[bytes(32)], rate_limits=RateLimits(per_tool={"serch": "5/minute"}))
        found = [str(finding) for finding in app.check(workers=3) if finding.about == "rate_limits"]
        assert "callers may call up to 3 times as often" in found[0]
        assert found[1] == "warning: rate_limits: per_tool names no tool of this server: serch"
        assert not [each for each in app.check() if "times as often" in each.message]


class TestMemory:
    async def test_counters_that_count_nothing_are_dropped(self) -> None:
        clock = Clock(1_200_000.0)
        counting = rate_counters.Counters(clock)
        rate = rate_counters.read_rate("test", "5/minute")
        for number in range(20_000):
            if number % 1000 == 0:
                clock.advance(60)
            await counting.take(rate, str(number))
        assert len(counting._windows) < 5000

    async def test_there_are_never_more_than_so_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rate_counters, "MOST_COUNTERS", 2000)
        counting = rate_counters.Counters(Clock(1_200_000.0))
        rate = rate_counters.read_rate("test", "1/minute")
        for number in range(5000):
            assert await counting.take(rate, str(number)) == 0
        assert len(counting._windows) <= 2000
        assert await counting.take(rate, "4999") > 0, "the newest count"

    async def test_one_that_is_used_up_outlasts_many_that_are_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rate_counters, "MOST_COUNTERS", 2000)
        counting = rate_counters.Counters(Clock(1_200_000.0))
        once, often = rate_counters.read_rate("test", "1/minute"), rate_counters.read_rate("test", "10/minute")
        assert await counting.take(once, "used up") == 0
        for number in range(5000):
            assert await counting.take(often, str(number)) == 0
        assert await counting.take(once, "used up") > 0

    async def test_where_there_are_too_many_they_are_looked_through_now_and_then_only(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rate_counters, "MOST_COUNTERS", 2000)
        counting = rate_counters.Counters(Clock(1_200_000.0))
        sweep, sweeps = counting._sweep, list[float]()

        def counted(now: float) -> None:
            sweeps.append(now)
            sweep(now)

        monkeypatch.setattr(counting, "_sweep", counted)
        rate = rate_counters.read_rate("test", "10/minute")
        for number in range(5000):
            await counting.take(rate, str(number))
        assert 1 < len(sweeps) < 20

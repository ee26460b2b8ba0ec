"""A tool's question, asked in a page of ours, is a question: sealed, bound, answered once, and a no is a no."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from mrtr_server import Apps, Confirm, Context, MRTRServer, RateLimits, SetupError, Ui
from mrtr_server.testing import Client, Clock, Reply, SharedStore, replica, replicas, yes

from ..support.stdio import over_pipes

UI = "io.modelcontextprotocol/ui"
ASK = "mrtr-server/ask"
PAGE = "ui://mrtr/question.html"
DRAWS = {"extensions": {UI: {"mimeTypes": ["text/html;profile=mcp-app"]}}}
ERAS = ["2026-07-28", "2025-11-25", "2025-06-18"]
YES = {"confirm": {"action": "accept", "content": {"confirm": True}}}
NO = {"confirm": {"action": "decline"}}


class Amount(BaseModel):
    copies: int = Field(ge=1, le=9)


class Receipt(BaseModel):
    copies: int


class Shop:
    """A shop whose tools ask, and what they have done."""

    def __init__(self, **options: Any) -> None:
        self.effects: list[str] = []
        self.app = app = MRTRServer("shop", **{"apps": Apps(question=True), **options})

        def effect(line: str) -> str:
            self.effects.append(line)
            return line

        @app.tool
        async def deploy(hosts: int, ctx: Context) -> str:
            """Deploy to hosts."""
            await ctx.confirm(f"Deploy to {hosts} hosts?")
            return await ctx.step(effect, f"deploy {hosts}")

        @app.tool(single_use=True)
        async def order(title: str, ctx: Context) -> Receipt:
            """Order a book."""
            await ctx.step(effect, f"reserve {title}")
            amount = await ctx.elicit("How many?", Amount)
            await ctx.confirm(f"Order {amount.copies}?")
            await ctx.step(effect, f"order {amount.copies}")
            return Receipt(copies=amount.copies)

        @app.tool
        async def survey(ctx: Context) -> str:
            """Ask a form alone."""
            amount = await ctx.elicit("How many?", Amount)
            return await ctx.step(effect, f"survey {amount.copies}")

        @app.tool(answer_within=60)
        def declared(sure: Annotated[bool, Confirm("Sure?")]) -> str:
            """Ask by a parameter."""
            return effect("declared")

        @app.tool
        def plain() -> dict[str, int]:
            """Never ask."""
            return {"a": 1}


class Host:
    """A host that draws apps and does not elicit, with the page of a question."""

    def __init__(self, *apps: MRTRServer, user: str | None = "ann", era: str = ERAS[0], **options: Any) -> None:
        self.client = Client(*apps, user=user, era=era, **{"capabilities": DRAWS, **options})

    def call(self, tool: str, **arguments: Any) -> Reply:
        """Call a tool as the model does."""
        return self.client.call(tool, arguments)

    def asked(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool that asks; return what its page gets."""
        ask: dict[str, Any] = self.call(tool, **arguments).result["_meta"][ASK]
        return ask

    @property
    def key(self) -> str:
        """What the page shows with each answer."""
        (content,) = self.client.read(PAGE).result["contents"]
        found = re.search(r'"([0-9a-f]{32})"', content["text"])
        assert found
        return found[1]

    def answer(self, ask: Mapping[str, Any], answers: Any = None, **changed: Any) -> dict[str, Any]:
        """Answer as the page does; without answers, ask where the call is."""
        sent = {"ask": ask["id"], "token": ask.get("token"), "page": self.key, "answers": answers, **changed}
        result = self.client.call("mrtr_answer", {name: value for name, value in sent.items() if value is not None})
        found: dict[str, Any] = result.result.get("structuredContent", {"refused": result.result["content"]})
        return found

    def told(self, ask: Mapping[str, Any]) -> str:
        """Return what the model is told of a call."""
        content = self.call("mrtr_result", ask=ask["id"]).result["content"]
        return str(content[0]["text"])


def amount(copies: Any) -> dict[str, Any]:
    return {"amount": {"action": "accept", "content": {"copies": copies}}}


@pytest.mark.parametrize("era", ERAS)
class TestAQuestion:
    def test_is_told_to_the_model_in_words_and_to_the_page_in_meta(self, era: str) -> None:
        reply = Host(Shop().app, era=era).call("deploy", hosts=3)
        first, second, *_ = reply.text.splitlines()
        ask = reply.result["_meta"][ASK]
        assert first == f"mrtr-ask: {ask['id']}"
        assert second == "The person is being asked, in the app below this call: Deploy to 3 hosts?"
        assert not reply.failed
        assert [(each["key"], each["kind"], each["message"]) for each in ask["questions"]] == [
            ("confirm", "confirm", "Deploy to 3 hosts?")
        ]

    def test_that_is_answered_yes_lets_the_call_go_on_once(self, era: str) -> None:
        shop = Shop()
        host = Host(shop.app, era=era)
        ask = host.asked("deploy", hosts=3)
        for _ in range(2):  # a double click, and a page that is loaded again
            assert host.answer(ask, YES)["outcome"]["content"] == [{"type": "text", "text": "deploy 3"}]
        assert host.answer(ask)["outcome"]["content"] == [{"type": "text", "text": "deploy 3"}]
        assert "answered already" in host.answer(ask, NO)["said"]
        assert host.told(ask) == "deploy 3"
        assert shop.effects == ["deploy 3"]

    def test_that_is_answered_no_is_a_no_for_all(self, era: str) -> None:
        shop = Shop()
        host = Host(shop.app, era=era)
        ask = host.asked("deploy", hosts=3)
        assert host.answer(ask, NO)["outcome"]["isError"] is True
        assert "answered already" in host.answer(ask, YES)["said"]
        assert "declined" in host.told(ask)
        assert shop.effects == []

    @pytest.mark.parametrize("content", [{"confirm": False}, {}, {"confirm": "yes"}])
    def test_is_no_yes_if_its_box_is_not_ticked(self, era: str, content: Any) -> None:
        shop = Shop()
        host = Host(shop.app, era=era)
        host.answer(host.asked("deploy", hosts=3), {"confirm": {"action": "accept", "content": content}})
        assert shop.effects == []

    def test_is_followed_by_more_in_the_same_page(self, era: str) -> None:
        shop = Shop()
        host = Host(shop.app, era=era)
        ask = host.asked("order", title="Emma")
        assert shop.effects == ["reserve Emma"], "a state without a question never reaches the page"
        again = host.answer(ask, amount(99))["ask"]
        assert "less than or equal to 9" in again["questions"][0]["message"]
        sure = host.answer(again, amount(3))["ask"]
        assert [each["message"] for each in sure["questions"]] == ["Order 3?"]
        assert host.answer(ask)["ask"]["questions"] == sure["questions"], "where the call is, for a page of before"
        assert host.answer(sure, YES)["outcome"]["structuredContent"] == {"copies": 3}
        assert host.answer(again, amount(3))["outcome"], "an answer of before is repeated, and the call has ended since"
        assert host.told(ask) == '{"copies":3}'
        assert shop.effects == ["reserve Emma", "order 3"]

    def test_is_single_use_even_as_a_plain_form(self, era: str) -> None:
        shop = Shop()
        host = Host(shop.app, era=era)
        ask = host.asked("survey")
        assert host.answer(ask, amount(3)) == host.answer(ask, amount(3))
        assert "answered already" in host.answer(ask, amount(4))["said"]
        assert shop.effects == ["survey 3"]

    def test_is_the_same_for_a_call_that_the_model_repeats(self, era: str) -> None:
        shop = Shop()
        host = Host(shop.app, era=era)
        ask = host.asked("deploy", hosts=3)
        assert host.asked("deploy", hosts=3)["id"] == ask["id"]
        assert host.asked("deploy", hosts=4)["id"] != ask["id"]
        host.answer(ask, YES)
        assert host.asked("deploy", hosts=3)["id"] != ask["id"]
        assert shop.effects == ["deploy 3"]

    def test_is_found_by_its_id_where_a_host_drops_meta(self, era: str) -> None:
        host = Host(Shop().app, era=era)
        ask = {"id": host.call("deploy", hosts=3).text.split()[1]}
        assert host.answer(ask)["ask"]["questions"][0]["message"] == "Deploy to 3 hosts?"
        assert host.answer(ask, YES)["outcome"]["content"][0]["text"] == "deploy 3"

    def test_expires(self, era: str) -> None:
        clock, shop = Clock(), Shop()
        host = Host(replica(shop.app, clock=clock), era=era)
        ask = host.asked("declared")
        assert "not answered yet" in host.told(ask)
        clock.advance(61)
        assert host.answer(ask) == {"said": host.told(ask)}
        assert "not answered in time" in host.told(ask)
        assert "can't be answered any more" in host.answer(ask, {"sure": YES["confirm"]})["said"]
        assert host.asked("declared")["id"] != ask["id"]
        assert shop.effects == []


class TestWhoAnswers:
    def test_must_be_who_was_asked(self) -> None:
        shop = Shop()
        ann, bob = Host(shop.app), Host(shop.app, user="bob")
        ask = ann.asked("deploy", hosts=3)
        assert bob.answer(ask, YES) == {"said": "There is no such question of yours."}
        assert bob.answer({"id": ask["id"]}, YES) == {"said": "There is no such question of yours."}
        assert bob.told(ask) == "There is no such question of yours."
        assert bob.asked("deploy", hosts=3)["id"] != ask["id"]
        assert shop.effects == []

    @pytest.mark.parametrize("page", [None, "", "0" * 32, "\ud800", 5, True, ["x"]])
    def test_must_be_the_page(self, page: Any) -> None:
        shop = Shop()
        host = Host(shop.app)
        ask = host.asked("deploy", hosts=3)
        sent = {"ask": ask["id"], "token": ask["token"], "answers": YES, "page": page}
        reply = host.client.call("mrtr_answer", {name: value for name, value in sent.items() if value is not None})
        assert reply.failure == "This tool is for the page of the question alone. The person has to answer there."
        assert shop.effects == []

    @pytest.mark.parametrize("token", ["forged", "", 5, None, "x" * 100_000])
    def test_needs_a_token_or_an_id(self, token: Any) -> None:
        shop = Shop()
        host = Host(shop.app)
        host.asked("deploy", hosts=3)
        assert host.answer({"id": "nothing", "token": token}, YES) == {"said": "There is no such question of yours."}
        assert host.answer({"id": 5, "token": token}, YES) == {"said": "There is no such question of yours."}
        assert shop.effects == []

    @pytest.mark.parametrize("era", ERAS)
    def test_must_have_the_token_of_this_question_if_any(self, era: str) -> None:
        shop = Shop()
        host = Host(shop.app, era=era)
        ask, other = host.asked("deploy", hosts=3), host.asked("deploy", hosts=4)
        for token in ("forged", "", 5, other["token"], ask["token"][:-1]):
            assert host.answer({**ask, "token": token}, YES) == {"said": "There is no such question of yours."}, token
        assert shop.effects == []
        assert host.answer(ask, YES)["outcome"]["isError"] is False

    def test_needs_no_store_that_replicas_share(self) -> None:
        shop = Shop()
        one, other = replicas(shop.app, 2)
        ask = Host(one).asked("order", title="Emma")
        sure = Host(other).answer(ask, amount(2))["ask"]
        assert Host(one).answer(sure, YES)["outcome"]["structuredContent"] == {"copies": 2}

    def test_may_be_at_another_replica_of_another_era(self) -> None:
        shop = Shop()
        one, other = replicas(shop.app, 2, store=SharedStore())
        ask = Host(one, era=ERAS[1]).asked("order", title="Emma")
        sure = Host(other, era=ERAS[0]).answer(ask, amount(2))["ask"]
        assert Host(one, era=ERAS[2]).answer(sure, YES)["outcome"]["structuredContent"] == {"copies": 2}
        assert Host(other).told(ask) == '{"copies":2}'
        assert shop.effects == ["reserve Emma", "order 2"]


class TestTheLists:
    def test_name_the_page_at_tools_that_may_ask_and_have_our_tools(self) -> None:
        host = Host(Shop().app)
        tools = {each["name"]: each for each in host.client.request("tools/list").result["tools"]}
        assert list(tools) == ["deploy", "order", "survey", "declared", "plain", "mrtr_answer", "mrtr_result"]
        for name in ("deploy", "order", "survey", "declared"):
            assert tools[name]["_meta"]["ui"] == {"resourceUri": PAGE, "visibility": ["model"]}
            assert tools[name]["_meta"]["ui/resourceUri"] == tools[name]["_meta"]["openai/outputTemplate"] == PAGE
            assert "outputSchema" not in tools[name], "a question would not fit it"
        assert "_meta" not in tools["plain"]
        assert "outputSchema" in tools["plain"]
        assert tools["mrtr_answer"]["_meta"]["ui"]["visibility"] == ["app"]
        assert [each["uri"] for each in host.client.request("resources/list").result["resources"]] == [PAGE]
        assert host.client.request("tools/list").result["cacheScope"] == "private"

    @pytest.mark.parametrize(
        "capabilities",
        [{}, {"elicitation": {}}, {**DRAWS, "elicitation": {}}, {"extensions": {UI: {"mimeTypes": ["text/plain"]}}}],
    )
    def test_are_as_they_were_for_all_others(self, capabilities: Any) -> None:
        client = Client(Shop().app, capabilities=capabilities)
        tools = {each["name"]: each for each in client.request("tools/list").result["tools"]}
        assert list(tools) == ["deploy", "order", "survey", "declared", "plain"]
        assert "_meta" not in tools["deploy"]
        assert "outputSchema" in tools["order"]
        if "elicitation" in capabilities:
            assert client.call("deploy", hosts=3, answers={"confirm": yes}).text == "deploy 3"
        else:
            assert client.flow("deploy", hosts=3).start().error.code == -32021

    def test_follow_what_an_author_says_of_one_tool(self) -> None:
        app = MRTRServer("shop", apps=Apps(question=True))

        async def ask(ctx: Context) -> str:
            await ctx.confirm("Sure?")
            return "done"

        @app.tool(ui=Ui(question=True))
        async def hidden(ctx: Context) -> str:
            """Ask where nobody sees it."""
            return await ask(ctx)

        @app.tool(ui=Ui(question=False))
        async def never(ctx: Context) -> str:
            """Ask hosts that elicit alone."""
            await ctx.confirm("Sure?")
            return "done"

        host = Host(app)
        assert host.answer(host.asked("hidden"), YES)["outcome"]["content"][0]["text"] == "done"
        assert host.client.flow("never").start().error.code == -32021

    def test_are_as_they_were_where_that_is_off(self, tmp_path: Path) -> None:
        for options in ({"apps": Apps(question=False), "store": f"sqlite:///{tmp_path}/a.db"}, {"apps": Apps()}):
            client = Client(Shop(**options).app, capabilities=DRAWS)
            assert len(client.request("tools/list").result["tools"]) == 5
            assert client.request("server/discover").result["capabilities"].get("extensions") is None
        shared = Client(Shop(apps=Apps(), store=f"sqlite:///{tmp_path}/b.db").app, capabilities=DRAWS)
        assert len(shared.request("tools/list").result["tools"]) == 7


class TestAClientOfWhichNothingIsKnown:
    def test_is_asked_in_the_page_only_where_that_is_wanted(self) -> None:
        def first(app: MRTRServer) -> Reply:
            client = Client(app, era=ERAS[1], capabilities=DRAWS)
            client.begin()
            client.headers["Mcp-Session-Id"] = ""
            return client.flow("deploy", hosts=3).start()

        always = first(Shop(apps=Apps(question="always")).app)
        assert always.result["_meta"][ASK]["questions"][0]["message"] == "Deploy to 3 hosts?"
        assert "error" in first(Shop().app).message

    def test_is_asked_in_the_page_if_its_user_has_begun_with_a_client_that_draws(self) -> None:
        clock, shop = Clock(), Shop()
        one, other = replicas(shop.app, 2, store=SharedStore(), clock=clock)
        Host(one, era=ERAS[1]).client.begin()  # as claude.ai, which sends back no session id

        def stranger(user: str) -> Host:
            host = Host(other, era=ERAS[1], user=user, capabilities={})
            host.client.begin()
            host.client.headers["Mcp-Session-Id"] = ""
            return host

        assert len(stranger("ann").client.request("tools/list").result["tools"]) == 7
        assert len(stranger("bob").client.request("tools/list").result["tools"]) == 5
        ask = stranger("ann").asked("deploy", hosts=3)
        assert Host(one, era=ERAS[1]).answer(ask, YES)["outcome"]["content"][0]["text"] == "deploy 3"
        assert "error" in stranger("bob").client.flow("deploy", hosts=3).start().message
        clock.advance(3601)
        assert len(stranger("ann").client.request("tools/list").result["tools"]) == 5


class TestThroughAModel:
    @staticmethod
    def shop() -> MRTRServer:
        app = MRTRServer("shop")

        @app.tool
        async def order(ctx: Context, sure: bool = False) -> Receipt:
            """Order."""
            amount = await ctx.elicit("How many?", Amount, through_model=True)
            if sure:
                await ctx.confirm("Sure?")
            return Receipt(copies=amount.copies)

        return app

    @pytest.mark.parametrize("era", ERAS)
    def test_a_form_may_be_asked_where_nobody_else_can(self, era: str) -> None:
        client = Client(self.shop(), capabilities={"sampling": {}}, era=era, user="ann")
        tools = {each["name"]: each for each in client.request("tools/list").result["tools"]}
        assert list(tools) == ["order", "mrtr_answer", "mrtr_result"]
        text = client.call("order").text
        id = text.split()[1]
        assert "This needs an answer of the person: How many?" in text
        assert json.loads(text.partition("The forms are: ")[2])["amount"]["required"] == ["copies"]
        assert (
            "less than or equal to 9"
            in client.call("mrtr_answer", {"ask": id, "answers": {"amount": {"copies": 99}}}).text
        )
        for _ in range(2):
            assert client.call("mrtr_answer", {"ask": id, "answers": {"amount": {"copies": 2}}}).text == '{"copies":2}'
        assert client.call("mrtr_result", ask=id).text == '{"copies":2}'

    def test_a_permission_may_not(self) -> None:
        client = Client(self.shop(), capabilities={}, user="ann")
        id = client.call("order", sure=True).text.split()[1]
        reply = client.flow("mrtr_answer", {"ask": id, "answers": {"amount": {"copies": 2}}}).start()
        assert reply.error.code == -32021

    def test_a_no_is_a_no(self) -> None:
        client = Client(self.shop(), capabilities={}, user="ann")
        id = client.call("order").text.split()[1]
        assert "declined" in client.call("mrtr_answer", {"ask": id, "answers": {"amount": "decline"}}).failure

    def test_answers_nothing_that_a_page_asks(self) -> None:
        shop = Shop()
        ask = Host(shop.app).asked("survey")
        model = Client(shop.app, capabilities={}, user="ann")
        assert (
            "for the page"
            in model.call("mrtr_answer", {"ask": ask["id"], "answers": {"amount": {"copies": 2}}}).failure
        )
        assert shop.effects == []

    @pytest.mark.parametrize("era", ERAS)
    def test_is_for_hosts_too_whose_page_nobody_sees(self, era: str) -> None:
        """As in a terminal that declares apps. Whoever answers first has answered."""
        app, answers = self.shop(), {"amount": {"copies": 2}}
        host = Host(replica(app, apps=Apps(question=True)), era=era)
        tools = {each["name"]: each for each in host.client.request("tools/list").result["tools"]}
        assert tools["mrtr_answer"]["_meta"]["ui"]["visibility"] == ["model", "app"]
        ask = host.asked("order")
        text = host.call("order").text
        assert "If they say that they see no such app, or that it can't send their answer: Ask the person" in text
        assert host.client.call("mrtr_answer", {"ask": ask["id"], "answers": answers}).text == '{"copies":2}'
        assert host.answer(ask)["outcome"]["structuredContent"] == {"copies": 2}
        assert host.answer(ask, amount(3)) == {
            "said": "This question was answered already, or can't be answered any more."
        }
        sure = host.asked("order", sure=True)
        text = host.client.call("mrtr_answer", {"ask": sure["id"], "answers": answers}).text
        assert "The person is being asked, in the app below this call: Sure?" in text
        assert text.endswith("Tell them that nothing was done, and that this needs another client.")
        yes_ = {"ask": sure["id"], "answers": {"confirm": {"confirm": True}}}
        assert "for the page" in host.client.call("mrtr_answer", yes_).failure

    def test_is_not_for_a_tool_that_counts_once(self) -> None:
        app = MRTRServer("shop", apps=Apps(question=True))

        @app.tool(single_use=True)
        async def order(ctx: Context) -> int:
            """Order."""
            return (await ctx.elicit("How many?", Amount, through_model=True)).copies

        host = Host(app)
        ask = host.asked("order")
        sent = {"ask": ask["id"], "answers": {"amount": {"copies": 2}}}
        assert "for the page" in host.client.call("mrtr_answer", sent).failure

    def test_is_off_unless_an_ask_says_so(self) -> None:
        client = Client(Shop().app, capabilities={}, user="ann")
        assert client.flow("survey").start().error.code == -32021


class TestOurTools:
    @pytest.mark.parametrize("name", ["mrtr_answer", "mrtr_result", "mrtr_once"])
    def test_have_their_names_for_themselves(self, name: str) -> None:
        with pytest.raises(SetupError, match=f"'{name}' is the name of a tool of this package"):
            MRTRServer("shop").tool(name=name)(lambda: None)

    def test_count_as_requests(self) -> None:
        shop = Shop(rate_limits=RateLimits(other_requests="3/minute"))
        host = Host(shop.app)
        ask = host.asked("deploy", hosts=3)
        replies = [host.client.flow("mrtr_result", ask=ask["id"]).start() for _ in range(4)]
        assert ["error" in each.message for each in replies] == [False, False, False, True]


class TestOnce:
    @staticmethod
    def shop() -> tuple[MRTRServer, list[int]]:
        app, done = MRTRServer("shop"), list[int]()

        @app.tool(ui=app.ui(lambda: "<p>", name="board"), used_by="app")
        async def cancel(number: int, ctx: Context, ask: bool = False) -> str:
            """Cancel."""
            if ask:
                await ctx.elicit("How many?", Amount)
            done.append(number)
            return f"{number} is cancelled"

        @app.tool(ui="ui://board", used_by="model")
        def secret() -> str:
            """Do what pages may not do."""
            done.append(0)
            return "done"

        return app, done

    @pytest.mark.parametrize("era", ERAS)
    def test_a_page_gets_the_recorded_outcome_of_what_it_repeats(self, era: str) -> None:
        app, done = self.shop()
        client = Client(app, era=era, ui=True, user="ann")
        call = {"tool": "cancel", "once": "a", "arguments": {"number": 3}}
        assert [client.call("mrtr_once", call).text for _ in range(2)] == ["3 is cancelled"] * 2
        assert client.call("mrtr_once", {**call, "once": "b"}).text == "3 is cancelled"
        assert Client(app, era=era, ui=True, user="bob").call("mrtr_once", call).text == "3 is cancelled"
        assert done == [3, 3, 3]
        again = client.flow("mrtr_once", {**call, "arguments": {"number": 4}}).start()
        assert "error" in again.message, "one id is one call"

    def test_may_ask_and_what_was_asked_counts_once(self) -> None:
        app, done = self.shop()
        client = Client(app, ui=True, user="ann")
        call = {"tool": "cancel", "once": "a", "arguments": {"number": 3, "ask": True}}
        for _ in range(2):
            assert client.call("mrtr_once", call, answers={"amount": {"copies": 1}}).text == "3 is cancelled"
        assert done == [3]

    @pytest.mark.parametrize(
        "call",
        [
            {"tool": "secret", "once": "a"},
            {"tool": "nothing", "once": "a"},
            {"tool": "cancel", "once": ""},
            {"tool": "cancel", "once": "x" * 200},
            {"tool": 5, "once": "a"},
            {"tool": "cancel"},
            {"tool": "cancel", "once": "a", "arguments": [1]},
            {"tool": "mrtr_once", "once": "a"},
        ],
    )
    def test_is_for_tools_of_pages(self, call: Any) -> None:
        app, done = self.shop()
        assert Client(app, ui=True).call("mrtr_once", call).failure
        assert done == []


class TestOverStandardInput:
    """Desktop hosts start a server of their own, and say once what they draw, or with each call."""

    @pytest.mark.parametrize("modern", [True, False])
    def test_a_question_is_asked_in_the_page_and_answered_once(self, modern: bool) -> None:
        shop = Shop()
        meta = {"io.modelcontextprotocol/clientCapabilities": DRAWS}
        with over_pipes(shop.app) as host:
            if not modern:
                host.initialize(capabilities=DRAWS)

            def send(method: str, **params: Any) -> Any:
                id = host.begin(method, params, modern=modern, meta=meta if modern else None)
                reply = host.next()
                assert reply["id"] == id
                return reply["result"]

            names = {tool["name"]: tool for tool in send("tools/list")["tools"]}
            assert names["deploy"]["_meta"]["ui"]["resourceUri"] == PAGE
            ask = send("tools/call", name="deploy", arguments={"hosts": 3})["_meta"][ASK]
            (page,) = send("resources/read", uri=PAGE)["contents"]
            (key,) = set(re.findall(r'"([0-9a-f]{32})"', page["text"]))
            sent = {"ask": ask["id"], "token": ask["token"], "page": key, "answers": YES}
            for _ in range(2):
                done = send("tools/call", name="mrtr_answer", arguments=sent)["structuredContent"]
                assert done["outcome"]["content"][0]["text"] == "deploy 3"
            assert send("tools/call", name="mrtr_result", arguments={"ask": ask["id"]})["isError"] is False
        assert shop.effects == ["deploy 3"]

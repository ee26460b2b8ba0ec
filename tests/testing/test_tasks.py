"""The test kit, where a flow is a task, or comes to several servers at once."""

import asyncio
from typing import Any

import pytest

from mrtr_server import (
    Context,
    ImageContent,
    InProcessStore,
    Message,
    MRTRServer,
    ProtocolError,
    ResourceContents,
    Task,
    ToolError,
)
from mrtr_server.testing import Answer, AsyncClient, Client, Flow, Unexpected, accept, replicas, yes

from ..support.models import Login
from ..support.serving import TIMEOUT


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("kit", keys=[bytes(32)], store=InProcessStore())


@pytest.fixture
def deploys(app: MRTRServer) -> MRTRServer:
    """A tool that asks in rounds, and again as a task."""

    @app.tool(task=Task(rounds_first=True))
    async def deploy(ctx: Context) -> dict[str, str]:
        await ctx.confirm("Deploy?")
        await ctx.background()
        login = await ctx.elicit("Who are you?", Login)
        return {"by": login.name}

    return app


class TestARaceAnswersWhatIsOpen:
    def test_a_key_that_is_not_asked_fails_the_test(self, deploys: MRTRServer) -> None:
        flow = Client(deploys).flow("deploy")
        flow.start()
        with pytest.raises(Unexpected, match=r"'sure' was not asked; the server asks 'confirm' \(form\): 'Deploy\?'"):
            flow.race(sure=yes)
        with pytest.raises(Unexpected, match="'sure' was not asked"):
            flow.race({"sure": yes, "confirm": yes})
        assert len(flow.replies) == 1

    def test_an_answer_before_anything_is_asked_or_after_the_end_fails_the_test(self, app: MRTRServer) -> None:
        @app.tool
        async def greet(ctx: Context) -> str:
            return (await ctx.elicit("Who?", Login)).name

        flow = Client(app).flow("greet")
        with pytest.raises(Unexpected, match="'login' was not asked; the server asks nothing"):
            flow.race(login=accept(name="ann"))
        flow.start()
        assert [reply.text for reply in flow.race(login=accept(name="ann"))] == ["ann", "ann"]
        with pytest.raises(Unexpected, match="'login' was not asked; the server asks nothing"):
            flow.race(login=accept(name="ann"))

    def test_the_first_round_can_be_raced_without_an_answer(self, deploys: MRTRServer) -> None:
        one, other = Client(deploys).flow("deploy").race()
        assert one.questions == other.questions == {"confirm": "Deploy?"}

    def test_in_a_task_the_answers_race_to_it(self, deploys: MRTRServer) -> None:
        store = InProcessStore()
        flow = Client(*replicas(deploys, 2, store=store), tasks=True).flow("deploy")
        flow.start()
        flow.answer(confirm=yes)
        assert flow.wait().questions == {"login": "Who are you?"}
        acknowledged = flow.race(login=accept(name="ann"))
        assert len(acknowledged) == 2
        assert [reply.complete for reply in acknowledged] == [True, True]
        assert acknowledged[0].request is acknowledged[1].request
        assert flow.wait().structured == {"by": "ann"}


class TestAReplyAboutATask:
    def test_has_the_result_of_the_call_once_it_is_there(self, deploys: MRTRServer) -> None:
        flow = Client(deploys, tasks=True).flow("deploy")
        flow.start()
        begun = flow.answer(confirm=yes)
        assert begun.result["taskId"] == begun.task.id
        flow.wait()
        done = flow.answer(login=accept(name="ann"))
        assert done.result["structuredContent"] == {"by": "ann"}
        assert done.content == done.result["content"]
        assert "taskId" not in done.result
        assert done.message["result"]["taskId"] == done.task.id
        foreground = Client(deploys).call("deploy", answers={"confirm": yes, "login": {"name": "ann"}})
        assert done.result == {name: value for name, value in foreground.result.items() if name in done.result}

    def test_has_its_error_and_no_result_of_it_where_it_failed(self, app: MRTRServer) -> None:
        @app.tool(task="required")
        async def work(ctx: Context) -> str:
            raise ToolError("it is closed")

        done = Client(app, tasks=True).call("work")
        assert done.failure == "it is closed"
        assert done.content == [{"type": "text", "text": "it is closed"}]
        assert done.result["isError"] is True


class TestASendThatDoesNotWait:
    def test_leaves_the_task_at_work_to_be_cancelled(self, app: MRTRServer) -> None:
        begun, cancelled = asyncio.Event(), asyncio.Event()

        @app.tool(task=Task("optional", rounds_first=False))
        async def work(ctx: Context) -> str:
            await ctx.confirm("Work?")
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return "done"

        async def story() -> str:
            flow = AsyncClient(app, tasks=True).flow("work")
            await flow.start()
            assert (await flow.wait()).asks.keys() == {"confirm"}
            acknowledged = await flow.send({"confirm": yes}, wait=False)
            assert not acknowledged.is_task
            assert flow.last is acknowledged
            async with asyncio.timeout(TIMEOUT):
                await begun.wait()
            assert (await flow.look()).task.status == "working"
            await flow.cancel()
            ended = (await flow.wait()).task.status
            async with asyncio.timeout(TIMEOUT):
                await cancelled.wait()
            return ended

        assert asyncio.run(story()) == "cancelled"

    def test_leaves_nothing_open_until_the_test_looks(self, deploys: MRTRServer) -> None:
        flow = Client(deploys, tasks=True).flow("deploy")
        flow.start()
        flow.answer(confirm=yes)
        flow.wait()
        flow.send({"login": accept(name="ann")}, wait=False)
        with pytest.raises(Unexpected, match="'login' was not asked"):
            flow.answer(login=accept(name="ann"))
        assert flow.wait().structured == {"by": "ann"}

    def test_gives_the_error_of_answers_that_are_refused(self, deploys: MRTRServer) -> None:
        flow = Client(deploys, tasks=True).flow("deploy")
        flow.start()
        flow.answer(confirm=yes)
        flow.wait()
        assert flow.send({"login": Answer("no object")}, wait=False).error.code == -32602
        assert flow.answer(login=accept(name="ann")).structured == {"by": "ann"}

    def test_is_in_rounds_as_any_other(self, deploys: MRTRServer) -> None:
        flow = Client(deploys).flow("deploy")
        assert flow.send(wait=False).questions == {"confirm": "Deploy?"}


class TestTheBlocksOfAReply:
    def test_are_those_of_a_tool_a_prompt_and_a_resource(self, app: MRTRServer) -> None:
        @app.tool
        def draw() -> list[ImageContent | str]:
            return ["here", ImageContent(data=b"x", mime_type="image/png")]

        @app.prompt
        def ask() -> list[Message]:
            return [Message(content="One?"), Message(role="assistant", content="Two.")]

        @app.resource("a://b")
        def read() -> ResourceContents:
            return ResourceContents(text="it", mime_type="text/plain")

        client = Client(app)
        text, image = client.call("draw").content
        assert (text, image["mimeType"]) == ({"type": "text", "text": "here"}, "image/png")
        assert [block["text"] for block in client.get_prompt("ask").content] == ["One?", "Two."]
        (contents,) = client.read("a://b").content
        assert (contents["uri"], contents["text"]) == ("a://b", "it")

    def test_what_has_none_fails_the_test_with_what_came(self, deploys: MRTRServer) -> None:
        client = Client(deploys)
        replies: list[Any] = [
            client.flow("deploy").start(),
            client.request("tools/list"),
            client.request("tools/call", {"name": "unknown", "arguments": {}}),
        ]
        for reply in replies:
            with pytest.raises(Unexpected, match=r"There is no content\. .+"):
                _ = reply.content


class Forgetful(InProcessStore):
    """A store that keeps tasks, and no outcome of a round: each delivery of the round that starts a task runs."""

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        await self.release(state, token)
        return True


class TestAReplyThatOnlyNamesATask:
    """As the reply to a start that is repeated: the task may have ended, or ask, and the reply does not say what."""

    @pytest.fixture
    def paying(self) -> MRTRServer:
        app = MRTRServer("kit", keys=[bytes(32)], store=Forgetful())

        @app.tool(task=Task(rounds_first=True))
        async def pay(ctx: Context, then: str) -> str:
            await ctx.confirm("Pay?")
            await ctx.background()
            if then == "asks":
                await ctx.confirm("Really?", key="really")
            if then == "breaks":
                raise ProtocolError("over quota")
            return "paid"

        return app

    def started(self, app: MRTRServer, then: str) -> Flow:
        """Start a task, let another client see what comes of it, and lose the reply to the start."""
        flow = Client(app, tasks=True).flow("pay", then=then)
        flow.start()
        flow.answer(confirm=yes)
        other = Client(app, tasks=True).flow("pay", then=then)
        other.task = flow.task
        other.wait()
        return flow

    def test_is_no_result(self, paying: MRTRServer) -> None:
        repeated = self.started(paying, "ends").drop()
        assert repeated.task.status == "completed"
        assert not repeated.complete
        with pytest.raises(Unexpected, match=r"There is no text. The task is completed; wait\(\) for its outcome"):
            _ = repeated.text
        assert repeated.result["resultType"] == "task"

    def test_is_followed_to_the_result(self, paying: MRTRServer) -> None:
        flow = self.started(paying, "ends")
        flow.drop()
        assert flow.wait().text == "paid"
        flow = self.started(paying, "ends")
        flow.drop()
        assert flow.finish().text == "paid"

    def test_is_followed_to_the_question(self, paying: MRTRServer) -> None:
        flow = self.started(paying, "asks")
        assert flow.drop().task.status == "input_required"
        with pytest.raises(Unexpected, match=r"'really' was not asked.*wait\(\) for what it asks"):
            flow.answer(really=yes)
        assert flow.finish(really=yes).text == "paid"

    def test_is_followed_to_the_error(self, paying: MRTRServer) -> None:
        flow = self.started(paying, "breaks")
        assert flow.drop().task.status == "failed"
        assert flow.finish().error.message == "over quota"

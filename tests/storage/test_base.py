"""A store of a user's own: what it has to implement, and that nobody asks it what else it can do."""

import inspect
import json
import time
from typing import Any

import pytest
from pydantic import BaseModel

from mrtr_server import (
    Elicit,
    Fanout,
    InProcessStore,
    InputRequired,
    Inputs,
    MRTRServer,
    Redemption,
    SetupError,
    SQLStore,
    Store,
    StoreUnavailable,
    TaskStore,
)
from mrtr_server.errors import WrongVersion
from mrtr_server.storage.pubsub import InProcessFanout
from mrtr_server.storage.watched import WatchedStore
from mrtr_server.testing import Client, replicas

from ..conftest import Serve
from ..support.databases import task_row

pytestmark = pytest.mark.anyio


class SmallestStore(Store):
    """A store with what is required, and nothing else."""

    def __init__(self) -> None:
        self.records: dict[str, tuple[str, bytes | None]] = {}
        self.values: dict[str, bytes] = {}

    async def redeem(self, state: str, answers: str, *, lease: float, keep: float, **more: Any) -> Redemption:
        if state not in self.records:
            self.records[state] = (answers, None)
            return Redemption("granted", state)
        given, outcome = self.records[state]
        if given != answers:
            return Redemption("spent")
        return Redemption("running") if outcome is None else Redemption("recorded", outcome=outcome)

    async def renew(self, state: str, token: str, *, lease: float) -> bool:
        return state in self.records

    async def record(self, state: str, token: str, outcome: bytes) -> bool:
        self.records[state] = (self.records[state][0], outcome)
        return True

    async def release(self, state: str, token: str) -> None:
        del self.records[state]

    async def put(self, key: str, value: bytes, *, keep: float, **more: Any) -> bool:
        return self.values.setdefault(key, value) is value

    async def get(self, key: str) -> bytes | None:
        return self.values.get(key)


class Shared(SmallestStore):
    """The same, for replicas."""

    shared = True


class Name(BaseModel):
    name: str


def server(store: Store) -> tuple[MRTRServer, list[str]]:
    """Make a server, and a list of what its tool did."""
    app, done = MRTRServer("own", keys=[bytes(32)], store=store), list[str]()

    @app.tool(single_use=True)
    async def book(inputs: Inputs) -> str | InputRequired:
        login = inputs.get("name", Name)
        if login is None:
            return InputRequired(name=Elicit("Name?", Name))
        done.append(login.name)
        return f"{login.name}, number {len(done)}"

    return app, done


class TestWithWhatIsRequired:
    def test_is_all_that_is_abstract(self) -> None:
        assert Store.__abstractmethods__ == {"redeem", "renew", "record", "release", "put", "get"}

    def test_a_single_use_flow_runs_once_on_all_replicas(self) -> None:
        store = Shared()
        app, done = server(store)
        flow = Client(*replicas(app, 2)).flow("book")
        flow.start()
        replies = flow.race(name={"name": "Ada"})
        assert {reply.text for reply in replies} == {"Ada, number 1"}
        assert flow.replay().text == "Ada, number 1"
        assert done == ["Ada"]
        assert store.records

    def test_it_is_this_process_s_alone_unless_it_says_otherwise(self, caplog: pytest.LogCaptureFixture) -> None:
        Client(server(SmallestStore())[0]).request("tools/list")
        assert "there is no shared store" in caplog.text
        caplog.clear()
        Client(server(Shared())[0]).request("tools/list")
        assert caplog.messages == []

    def test_a_server_starts_with_it_and_is_ready(self, serve: Serve) -> None:
        app, _ = server(Shared())
        assert json.loads(serve(app).send(b"", method="GET", path="/ready").body) == {"status": "ok"}

    def test_changes_reach_the_listeners_of_this_process(self) -> None:
        app, _ = server(Shared())
        assert type(app._parts.fanout) is InProcessFanout

    async def test_it_finds_no_tasks_and_has_none_to_work_on(self) -> None:
        store, row = SmallestStore(), task_row()
        assert store.keeps_tasks is False
        assert await store.find_task(row.id) is None
        assert await store.change_task(row, status="completed") is None
        assert await store.claim_tasks("lease", seconds=5, most=5, tools=["tool"]) == []
        assert await store.renew_tasks("lease", [row.id], seconds=5) == set()
        assert await store.overdue_tasks(most=5) == []
        await store.wait_for_tasks(0.0, tools=["tool"])
        with pytest.raises(NotImplementedError, match="SmallestStore keeps no tasks"):
            await store.add_task(row)

    async def test_who_waits_for_its_tasks_waits_for_the_whole_time(self) -> None:
        began = time.monotonic()
        await SmallestStore().wait_for_tasks(0.05, tools=["tool"])
        assert time.monotonic() >= began + 0.05

    async def test_it_replaces_no_value_and_says_what_to_implement(self) -> None:
        with pytest.raises(StoreUnavailable, match="SmallestStore can't replace values; implement its method replace"):
            await SmallestStore().replace("key", b"value", keep=5)

    def test_a_tool_with_tasks_is_refused_with_the_way_out(self) -> None:
        app = MRTRServer("own", keys=[bytes(32)], store=SmallestStore())
        with pytest.raises(SetupError, match=r"'work' has tasks, and the store= can't keep any; .* TaskStore"):

            @app.tool(task="required")
            async def work() -> str:
                return "done"


class TestWithMore:
    def test_one_that_keeps_tasks_implements_all_that_concerns_them(self) -> None:
        own = {name for name, value in vars(Store).items() if "task" in name and callable(value)}
        # What can be told from the others has a default.
        assert own - {"find_tasks", "holds_task"} == TaskStore.__abstractmethods__ - Store.__abstractmethods__
        assert len(own) == 10
        assert TaskStore.keeps_tasks is True

    async def test_one_that_finds_tasks_one_by_one_leaves_out_none_before_the_last_that_it_returns(self) -> None:
        """Who asks again asks for those after the last one."""
        store = InProcessStore()
        sizes = [10, 10, 100, 10]
        rows = [task_row(id=f"of {number}", outcome=bytes(size)) for number, size in enumerate(sizes)]
        for row in rows:
            await store.add_task(row)
        ids = ["missing", *(row.id for row in rows)]
        for most_bytes, expected in ((1, 1), (19, 1), (20, 2), (40, 2), (119, 2), (120, 3), (130, 4)):
            assert await store.find_tasks(ids, most_bytes=most_bytes) == rows[:expected]

    async def test_one_that_does_not_say_what_it_holds_looks_the_task_up(self) -> None:
        class Plain(InProcessStore):
            holds_task = Store.holds_task

        store = Plain()
        row = task_row(lease="mine")
        await store.add_task(row, seconds=30)
        assert await store.holds_task("mine", row.id)
        assert not await store.holds_task("other", row.id)
        assert not await store.holds_task("mine", "missing")
        await store.change_task(row, status="cancelled")
        assert not await store.holds_task("mine", row.id)

    @pytest.mark.parametrize("kind", [InProcessStore, SQLStore])
    def test_ours_do(self, kind: type[Store]) -> None:
        assert issubclass(kind, TaskStore)
        assert kind.shared is (kind is SQLStore)

    @pytest.mark.parametrize("kind", [TaskStore, InProcessStore, SQLStore, WatchedStore])
    def test_what_a_method_takes_and_its_defaults_are_the_same_in_every_store(self, kind: type[Store]) -> None:
        methods = [name for name, value in vars(Store).items() if name[0] != "_" and callable(value)]
        assert len(methods) == 35
        for name in methods:
            ours, promised = (inspect.signature(getattr(each, name)).parameters for each in (kind, Store))
            assert ours == promised, name

    @pytest.mark.parametrize("kind", [Store, InProcessStore])
    def test_a_new_task_has_a_lease_of_no_time_unless_it_is_given_one(self, kind: type[Store]) -> None:
        assert inspect.signature(kind.add_task).parameters["seconds"].default == 0.0

    def test_one_that_carries_changes_is_asked_for_what_does(self) -> None:
        carrier = InProcessFanout()

        class Carrying(Shared):
            def fanout(self) -> Fanout:
                return carrier

        assert server(Carrying())[0]._parts.fanout is carrier

    async def test_one_that_another_release_made_keeps_the_server_from_starting(self) -> None:
        class Old(Shared):
            async def check(self) -> None:
                raise WrongVersion("the tables are old")

        app, _ = server(Old())
        assert await app._parts.shared.check() == "own: the tables are old"

    @pytest.mark.parametrize("given", [object(), SQLStore, InProcessFanout()])
    def test_what_is_no_store_is_refused_with_the_way_out(self, given: Any) -> None:
        with pytest.raises(SetupError, match=r"store= takes the URL of a database, .* derived from Store; it got"):
            MRTRServer("own", keys=[bytes(32)], store=given)

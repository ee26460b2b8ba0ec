"""What each change of a task's life writes into its row, and what its client may read of it, without a worker."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic_core import from_json

from mrtr_server import InProcessStore, KeyRing, Limits, Principal, ProtocolError, StoreUnavailable, TaskRow
from mrtr_server.errors import Full, InternalFault, InvalidRequestState, OverBudget, OverShare, UnknownTarget
from mrtr_server.flow.admission import Admission
from mrtr_server.flow.handler import TaskTerms
from mrtr_server.flow.journal import Journal
from mrtr_server.protocol.messages import Call, Change, Complete, Question, Task, TaskOffer
from mrtr_server.protocol.sessions import owner_of_call
from mrtr_server.storage.pubsub import InProcessFanout
from mrtr_server.tally import ABANDONED_TASKS
from mrtr_server.tasks import task_service
from mrtr_server.tasks.notifications import Looked
from mrtr_server.tasks.records import TaskRecords
from mrtr_server.tasks.sealing import Questions, SealedTasks
from mrtr_server.tasks.task_service import Tasks

pytestmark = pytest.mark.anyio

NOW = 1_700_000_000.0
ANN, BOB = Principal("ann", "", ""), Principal("bob", "", "")
WHO = Question("form", "elicitation/create", {"message": "Who?"}, ("elicitation.form",))
PAGE = Question("callback", "elicitation/create", {"message": "Log in"}, ("elicitation.url",), "shape", "the page")
YES = {"action": "accept", "content": {}}


class Office:
    """Tasks at a time that the test sets; nobody works on them."""

    def __init__(self, **limits: Any) -> None:
        self.now = NOW
        self.store = InProcessStore(clock=lambda: self.now)
        self.fanout = InProcessFanout()
        self.limits = Limits(**limits)
        self.ring = KeyRing([bytes(32)])
        self.records = TaskRecords(self.store, self.ring, self.fanout, self.limits, clock=lambda: self.now)
        self.tasks = Tasks(self.records, self.fanout, Admission(self.limits))

    @property
    def abandoned(self) -> float:
        return self.records.tally.count_of(ABANDONED_TASKS, "act").value

    async def start(self, call: Call | None = None, *, once: bool = False, **terms: Any) -> Task:
        return await self.tasks.start(TaskTerms(True, False, **terms), call or call_of(), None, once=once)

    async def row(self, task: Task) -> TaskRow:
        found = await self.store.find_task(task.id)
        assert found is not None
        return found

    async def ask(self, task: Task, questions: Questions, status: str = "input_required") -> TaskRow:
        """Let a task ask."""
        row = await self.row(task)
        changed = await self.records.change(
            row, **self.records.asked(row, Journal(NOW), questions), status=status, lease="", leased_until=0.0
        )
        assert changed is not None
        return changed

    async def told(self, change: Change, act: Callable[[], Awaitable[object]]) -> bool:
        """Return whether who listens to a change is told of what is done."""
        listening = self.fanout.subscribe(frozenset({change}))
        try:
            await act()
            async with asyncio.timeout(0.01):
                return bool(await listening.next())
        except TimeoutError:
            return False
        finally:
            listening.close()


def call_of(principal: Principal | None = ANN, target: str = "act", **more: Any) -> Call:
    return Call("tools/call", {}, target, principal=principal, **more)


def about(task: Task, principal: Principal | None = ANN, **more: Any) -> Call:
    return call_of(principal, task.id, **more)


def asking(until: float = NOW + 50, *, together: bool = False, **questions: Question) -> Questions:
    made = Questions(together=together)
    made.ask(questions, until)
    return made


@pytest.fixture
def office() -> Office:
    return Office()


class TestANewTask:
    async def test_has_the_terms_of_its_tool_or_those_of_the_server(self) -> None:
        office = Office(task_seconds=100, poll_seconds=7)
        cases: list[tuple[dict[str, Any], TaskOffer | None, int, int]] = [
            ({}, None, 100, 7),
            ({"ttl": 40.0, "poll": 2.0}, None, 40, 2),
            ({"ttl": 40.0}, TaskOffer(ttl=30), 30, 7),
            ({"ttl": 40.0}, TaskOffer(ttl=50), 40, 7),
            ({}, TaskOffer(ttl=101), 100, 7),
        ]
        for terms, offer, ttl, poll in cases:
            task = await office.start(call_of(task=offer), **terms)
            assert (task.ttl, task.poll, task.created, task.updated) == (ttl, poll, NOW, NOW)
            row = await office.row(task)
            assert (row.deadline, row.expires) == (NOW + ttl, NOW + ttl + 300)
            assert (row.version, row.attempts, row.lease) == (0, 0, "")

    async def test_is_of_its_tool_and_its_caller(self, office: Office) -> None:
        task = await office.start()
        assert (task.tool, task.status, task.message, task.first_ask) == ("act", "working", "", False)
        assert task.id.startswith(task.reference)
        row = await office.row(task)
        assert row.owner == owner_of_call(call_of())
        assert row.caller == office.records.quotas.of(ANN).caller != office.records.quotas.of(BOB).caller

    async def test_has_an_id_of_its_own_unless_it_is_to_be_one_of_its_flow_alone(self, office: Office) -> None:
        journal = Journal(NOW, flow_id="flow")
        starts = [
            await office.tasks.start(TaskTerms(True, False), call_of(), journal, once=once)
            for once in (False, False, True, True)
        ]
        assert len({task.id for task in starts}) == 3
        assert starts[2] == starts[3]

    async def test_is_shown_as_it_was_made_where_the_store_has_lost_it_since(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        office = Office(first_ask_seconds=0.01)

        async def there_already(row: TaskRow, **more: Any) -> bool:
            return False

        monkeypatch.setattr(office.store, "add_task", there_already)
        task = await office.start(call_of(task=TaskOffer(first_ask=True)))
        assert (task.status, task.created) == ("working", NOW)

    async def test_is_shown_as_it_was_made_where_the_store_goes_away_before_its_first_ask(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        office = Office(first_ask_seconds=0.01)

        async def away(id: str) -> None:
            raise StoreUnavailable("it is away")

        monkeypatch.setattr(office.store, "find_task", away)
        task = await office.start(call_of(task=TaskOffer(first_ask=True)))
        assert (task.status, task.created) == ("working", NOW)

    async def test_is_told_apart_where_its_client_waits_for_the_first_ask(self) -> None:
        office = Office(first_ask_seconds=0.01)
        task = await office.start(call_of(task=TaskOffer(first_ask=True)))
        assert task.first_ask
        assert task.id.startswith("task-")

    async def test_is_cancelled_where_its_client_leaves_before_it_knows_the_id(self, office: Office) -> None:
        starting = asyncio.create_task(office.start(call_of(task=TaskOffer(first_ask=True))))
        await asyncio.sleep(0.01)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert [row.status for row in office.store._tasks.values()] == ["cancelled"]

    async def test_warns_once_where_nothing_but_its_id_protects_it(
        self, office: Office, caplog: pytest.LogCaptureFixture
    ) -> None:
        await office.start()
        await office.start(call_of(None, session="one"))
        assert caplog.records == []
        await office.start(call_of(None))
        await office.start(call_of(None))
        [record] = caplog.records
        assert (record.levelno, "set auth=" in record.getMessage()) == (logging.WARNING, True)

    @pytest.mark.parametrize(
        ("at_once", "session", "told"), [(True, "s", True), (True, "", False), (False, "s", False)]
    )
    async def test_is_announced_in_the_session_of_a_client_that_takes_nothing_else(
        self, office: Office, at_once: bool, session: str, told: bool
    ) -> None:
        call = call_of(session=session, task=TaskOffer(at_once=at_once))
        assert await office.told(Change("session", session), lambda: office.start(call)) is told

    async def test_counts_among_what_is_stored(self) -> None:
        office = Office(stored_tasks=2, caller_share=0.5)
        await office.start()
        with pytest.raises(OverShare):
            await office.start()
        await office.start(call_of(BOB))
        with pytest.raises(Full):
            await office.start(call_of(None))

    async def test_has_sent_no_pieces_whatever_its_rounds_have(self, office: Office) -> None:
        task = await office.tasks.start(TaskTerms(True, False), call_of(), Journal(NOW, pieces=5))
        assert office.records.sealed.unseal_journal(await office.row(task), NOW).pieces == 0


class TestWhatItAsks:
    async def test_is_written_with_the_time_for_its_answer_and_forgives_earlier_attempts(self, office: Office) -> None:
        row = await office.row(await office.start())
        changes = office.records.asked(row, Journal(NOW), asking(NOW + 50, who=WHO))
        assert set(changes) == {"journal", "questions", "deadline", "attempts"}
        assert (changes["deadline"], changes["attempts"]) == (NOW + 50, 0)
        later = office.records.asked(row, Journal(NOW), asking(NOW + 1e9, who=WHO))
        assert later["deadline"] == row.created + row.ttl

    async def test_is_what_the_client_sees_whatever_runs_beside(self, office: Office) -> None:
        for status in ("input_required", "working"):
            task = await office.start()
            assert office.records.status(await office.row(task)) == "working"
            row = await office.ask(task, asking(who=WHO), status)
            assert office.records.status(row) == "input_required"
            seen = await office.tasks.see(about(task))
            assert (seen.status, seen.questions, seen.names) == ("input_required", {"who": WHO}, {"who": "who"})

    async def test_is_not_looked_into_where_there_is_nothing(
        self, office: Office, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fresh = await office.row(await office.start())

        def never(*_: object) -> Questions:
            pytest.fail("it need not be unsealed")

        monkeypatch.setattr(SealedTasks, "unseal_questions", never)
        assert office.records.status(fresh) == "working"

    async def test_is_read_by_the_first_version_as_well(self) -> None:
        asked, names, answers, used = from_json(asking(who=WHO, page=PAGE).dump())
        assert {key: len(parts) for key, parts in asked.items()} == {"who": 5, "page": 5}
        assert (names, answers) == ({"who": "who", "page": "page"}, {})
        assert {key: used[key] for key in ("who", "page")} == {"who": 1, "page": 1}
        again = Questions.load(asking(who=WHO, page=PAGE).dump())
        assert {key: question.page for key, question in again.open.items()} == {"who": "", "page": "the page"}


class TestAnAnswer:
    async def test_to_the_last_question_lets_the_task_work(self, office: Office) -> None:
        task = await office.start()
        await office.ask(task, asking(who=WHO, page=PAGE))
        await office.tasks.answer(about(task), {"who": YES})
        row = await office.row(task)
        assert row.status == "working"
        assert row.deadline == NOW + 50  # for the other answer
        assert (await office.tasks.see(about(task))).status == "input_required"
        await office.tasks.answer(about(task), {"page": YES})
        row = await office.row(task)
        assert (row.status, row.deadline) == ("working", row.created + row.ttl)
        assert set(office.records.sealed.unseal_questions(row).answers) == {"who", "page"}

    async def test_of_several_that_belong_together_waits_for_the_others(self, office: Office) -> None:
        task = await office.start()
        await office.ask(task, asking(together=True, who=WHO, page=PAGE))
        await office.tasks.answer(about(task), {"who": YES})
        assert (await office.row(task)).status == "input_required"
        await office.tasks.answer(about(task), {"page": YES})
        assert (await office.row(task)).status == "working"

    async def test_to_what_is_not_open_changes_nothing(self, office: Office) -> None:
        task = await office.start()
        row = await office.ask(task, asking(who=WHO))
        await office.tasks.answer(about(task), {"else": YES})
        await office.tasks.answer(about(task), {})
        assert await office.row(task) == row

    async def test_of_a_row_of_the_first_version_keeps_the_deadline_it_had(self, office: Office) -> None:
        task = await office.start()
        questions = asking(who=WHO, page=PAGE)
        questions.until.clear()
        row = await office.ask(task, questions)
        changed = await office.records.change(row, deadline=NOW + 30)
        assert changed is not None
        questions.take({"who": YES})
        assert office.records.answered(changed, questions)["deadline"] == NOW + 30
        questions.take({"page": YES})
        assert office.records.answered(changed, questions)["deadline"] == row.created + row.ttl

    async def test_counts_against_the_limits(self) -> None:
        office = Office(answers=2, state_bytes=5000)
        task = await office.start()
        await office.ask(task, asking(who=WHO))
        with pytest.raises(OverBudget, match="more than 2 inputResponses"):
            await office.tasks.answer(about(task), {"a": YES, "b": YES, "c": YES})
        with pytest.raises(OverBudget, match="The answers are over 5000 bytes") as over:
            await office.tasks.answer(about(task), {"who": {"text": "x" * 5000}})
        assert over.value.data == {"limit": "state_bytes", "value": 5000}
        await office.tasks.answer(about(task), {"a": YES, "who": YES})
        assert (await office.row(task)).status == "working"

    async def test_may_be_as_large_as_the_limit(self, office: Office) -> None:
        row = await office.ask(await office.start(), asking(who=WHO))
        questions = office.records.sealed.unseal_questions(row)
        questions.take({"who": YES})
        size = len(questions.dump())
        office.records.limits = replace(office.limits, state_bytes=size)
        office.records.answered(row, questions)
        office.records.limits = replace(office.limits, state_bytes=size - 1)
        with pytest.raises(OverBudget):
            office.records.answered(row, questions)

    async def test_is_told_to_its_worker_only_while_it_has_one(self, office: Office) -> None:
        for lease, told in [("", False), ("worker", True)]:
            task = await office.start()
            row = await office.ask(task, asking(who=WHO), "working")
            await office.records.change(row, lease=lease, leased_until=NOW + 9)
            answer = office.tasks.answer
            assert await office.told(Change("run", task.id), lambda: answer(about(task), {"who": YES})) is told  # noqa: B023

    async def test_is_told_to_who_listens_to_the_task(self, office: Office) -> None:
        task = await office.start()
        await office.ask(task, asking(who=WHO))
        assert await office.told(Change("task", task.id), lambda: office.tasks.answer(about(task), {"who": YES}))


class TestAnEnd:
    async def test_with_a_result_leaves_nothing_of_the_flow(self, office: Office) -> None:
        task = await office.start()
        row = await office.ask(task, asking(who=WHO))
        ended = await office.records.change(row, **office.records.completed(row, Complete({"content": []})))
        assert ended is not None
        assert (ended.status, ended.message, ended.call, ended.journal, ended.questions) == (
            "completed",
            "",
            b"",
            b"",
            b"",
        )
        assert (await office.tasks.see(about(task))).outcome == Complete({"content": []})

    async def test_with_an_error_keeps_the_request_for_who_tries_it_again(self, office: Office) -> None:
        task = await office.start()
        row = await office.ask(task, asking(who=WHO))
        ended = await office.records.change(row, **office.records.failed(row, ProtocolError("No paper")))
        assert ended is not None
        assert (ended.status, ended.message, ended.questions) == ("failed", "No paper", b"")
        assert (ended.call, ended.journal) == (row.call, row.journal)
        outcome = (await office.tasks.see(about(task))).outcome
        assert isinstance(outcome, ProtocolError)
        assert outcome.message == "No paper"

    @pytest.mark.parametrize("how", ["completed", "failed"])
    async def test_that_is_no_json_is_a_failure_with_a_reference(
        self, office: Office, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        task = await office.start()
        row = await office.row(task)
        bad = {"content": object()}
        changes = (
            office.records.completed(row, Complete(bad))
            if how == "completed"
            else office.records.failed(row, ProtocolError("Bad", data=bad))
        )
        assert changes["status"] == "failed"
        [record] = caplog.records
        assert "A task of 'act' returned a result that is not JSON" in record.getMessage()
        assert record.exc_info is not None, "the log says what is no JSON"
        assert isinstance(record.exc_info[1], ValueError)
        ended = await office.records.change(row, **changes)
        assert ended is not None
        outcome = (await office.tasks.see(about(task))).outcome
        assert isinstance(outcome, InternalFault)
        assert outcome.message == ended.message

    async def test_by_its_client_is_told_once_and_stands(self, office: Office) -> None:
        task = await office.start()
        office.now += 5
        ended, had_ended = await office.tasks.cancel(about(task))
        assert (ended.status, ended.updated, had_ended) == ("cancelled", NOW + 5, False)
        again, had_ended = await office.tasks.cancel(about(task))
        assert (again, had_ended) == (ended, True)
        await office.tasks.fail(about(task), ProtocolError("too late"))
        await office.tasks.answer(about(task), {"who": YES})
        assert await office.tasks.see(about(task)) == ended

    async def test_of_a_step_that_still_runs_is_said(self, office: Office) -> None:
        task = await office.start()
        await office.records.change(await office.row(task), lease="worker", leased_until=NOW + 9)
        ended, _ = await office.tasks.cancel(about(task))
        assert "step" in ended.message
        office.now += 9
        assert (await office.tasks.see(about(task))).message == ""

    async def test_is_all_that_takes_the_place_of_the_message_of_a_task_that_runs(self, office: Office) -> None:
        task = await office.start()
        await office.records.change(await office.row(task), lease="worker", leased_until=NOW + 9, message="half done")
        assert (await office.tasks.see(about(task))).message == "half done"

    async def test_in_failure_says_why(self, office: Office) -> None:
        task = await office.start()
        await office.tasks.fail(about(task), ProtocolError("Can't be asked"))
        seen = await office.tasks.see(about(task))
        assert (seen.status, seen.message) == ("failed", "Can't be asked")


class TestItsTime:
    async def test_is_over_when_no_worker_began_it(self, office: Office, caplog: pytest.LogCaptureFixture) -> None:
        task = await office.start(ttl=10.0)
        office.now += 9.99
        assert (await office.tasks.see(about(task))).status == "working"
        office.now = NOW + 10
        seen = await office.tasks.see(about(task))
        assert (seen.status, seen.message) == ("failed", "The task did not end in time")
        [record] = caplog.records
        assert "No worker began a task of 'act'" in record.getMessage()
        assert office.abandoned == 0

    @pytest.mark.parametrize("status", ["input_required", "working"])
    async def test_is_over_when_no_answer_came(
        self, office: Office, status: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        task = await office.start()
        await office.ask(task, asking(NOW + 50, who=WHO), status)
        office.now += 50
        seen = await office.tasks.see(about(task))
        assert seen.message == "The input that the task was waiting for did not come in time"
        row = await office.row(task)
        assert (row.status, row.lease, row.leased_until) == ("failed", "", 0.0)
        assert office.abandoned == 1
        assert caplog.records == []

    async def test_is_over_when_no_answer_came_to_what_had_all_its_time(self, office: Office) -> None:
        task = await office.start(ttl=10.0)
        await office.ask(task, asking(NOW + 50, who=WHO))
        office.now += 10
        seen = await office.tasks.see(about(task))
        assert seen.message == "The input that the task was waiting for did not come in time"
        assert office.abandoned == 1

    async def test_is_counted_as_over_once_whoever_notices(self, office: Office) -> None:
        row = await office.ask(await office.start(), asking(NOW + 50, who=WHO))
        office.now += 50
        assert [(await office.records.expire(row)).status for _ in range(2)] == ["failed"] * 2
        assert office.abandoned == 1

    async def test_is_over_for_what_began_too(self, office: Office, caplog: pytest.LogCaptureFixture) -> None:
        task = await office.start(ttl=10.0)
        await office.records.change(await office.row(task), attempts=1, lease="worker", leased_until=NOW + 5)
        office.now += 10
        assert (await office.tasks.see(about(task))).message == "The task did not end in time"
        row = await office.row(task)
        assert (row.lease, row.leased_until) == ("", 0.0)
        assert caplog.records == [], "a worker had begun"


class TestAnotherCaller:
    @pytest.mark.parametrize("other", [BOB, None])
    async def test_finds_nothing(self, office: Office, other: Principal | None) -> None:
        task = await office.start()
        await office.ask(task, asking(who=WHO))
        call = about(task, other)
        acts: list[Callable[[], Awaitable[object]]] = [
            lambda: office.tasks.see(call),
            lambda: office.tasks.cancel(call),
            lambda: office.tasks.answer(call, {"who": YES}),
            lambda: office.tasks.fail(call, ProtocolError("no")),
        ]
        for act in acts:
            with pytest.raises(UnknownTarget):
                await act()
        assert await office.tasks.peek([task.id], owner_of_call(call)) == Looked({}, [])
        assert (await office.tasks.see(about(task))).status == "input_required"

    async def test_is_who_has_another_session_where_nobody_is_authenticated(self, office: Office) -> None:
        task = await office.start(call_of(None, session="one"))
        await office.tasks.see(about(task, None, session="one"))
        with pytest.raises(UnknownTarget):
            await office.tasks.see(about(task, None, session="two"))

    async def test_can_not_ask_for_an_id_that_is_too_long_to_be_one(self, office: Office) -> None:
        with pytest.raises(UnknownTarget):
            await office.tasks.see(call_of(ANN, "x" * 129))
        assert await office.tasks.peek(["x" * 129], owner_of_call(call_of())) == Looked({}, [])


class TestAPage:
    async def made(self, office: Office, count: int) -> list[str]:
        """Start tasks, one a second; return their ids, the newest first."""
        ids: list[str] = []
        for _ in range(count):
            office.now += 1
            ids.insert(0, (await office.start()).id)
        return ids

    async def test_has_so_many_and_says_where_the_next_one_begins(self, office: Office) -> None:
        ids, owner = await self.made(office, 5), owner_of_call(call_of())
        seen: list[list[str]] = []
        before = None
        for _ in range(3):
            page, before = await office.tasks.page(owner, before, 2)
            seen.append([task.id for task in page])
        assert seen == [ids[:2], ids[2:4], ids[4:]]
        assert before is None

    async def test_that_is_just_full_is_the_last(self, office: Office) -> None:
        ids, owner = await self.made(office, 2), owner_of_call(call_of())
        page, before = await office.tasks.page(owner, None, 2)
        assert ([task.id for task in page], before) == (ids, None)

    async def test_has_only_what_belongs_to_its_owner_and_nothing_of_nobody(self, office: Office) -> None:
        mine = await office.start()
        await office.start(call_of(BOB))
        await office.start(call_of(None))
        page, _ = await office.tasks.page(owner_of_call(call_of()), None, 9)
        assert [task.id for task in page] == [mine.id]
        assert await office.tasks.page(owner_of_call(call_of(None)), None, 9) == ([], None)

    async def test_ends_where_its_tasks_are_large_and_the_next_one_begins_there(
        self, office: Office, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(task_service, "_MOST_LOOKED_UP", 3)
        for id in (ids := await self.made(office, 2)):
            found = await office.store.find_task(id)
            assert found is not None
            assert await office.records.change(found, message="abc")
        owner = owner_of_call(call_of())
        page, before = await office.tasks.page(owner, None, 9)
        assert ([task.id for task in page], before) == (ids[:1], (NOW + 2, ids[0]))
        page, _ = await office.tasks.page(owner, before, 9)
        assert [task.id for task in page] == ids[1:]

    async def test_has_those_that_ended_in_time_as_they_ended(self, office: Office) -> None:
        task = await office.start(ttl=10.0)
        await office.tasks.cancel(about(task))
        office.now += 10
        [seen], _ = await office.tasks.page(owner_of_call(call_of()), None, 9)
        assert seen.status == "cancelled"
        assert (await office.row(task)).status == "cancelled"

    async def test_has_those_whose_time_is_over_as_failed(self, office: Office) -> None:
        await office.start(ttl=10.0)
        office.now += 10
        [task], _ = await office.tasks.page(owner_of_call(call_of()), None, 9)
        assert task.status == "failed"
        looked = await office.tasks.peek([task.id], owner_of_call(call_of()))
        assert looked.tasks[task.id].status == "failed"

    async def test_leaves_out_what_does_not_open_and_logs_it(
        self, office: Office, caplog: pytest.LogCaptureFixture
    ) -> None:
        kept = await office.start()
        office.now += 1
        broken = await office.start()
        await office.records.change(await office.row(broken), questions=b"v1.nothing")
        page, _ = await office.tasks.page(owner_of_call(call_of()), None, 9)
        assert [task.id for task in page] == [kept.id]
        [record] = caplog.records
        assert record.getMessage().startswith("A client is not told of a task: it can't be unsealed: ")
        with pytest.raises(InvalidRequestState):
            await office.tasks.see(about(broken))


class TestTheLog:
    async def test_knows_which_task_a_call_is_about(self, office: Office) -> None:
        started = call_of()
        task = await office.start(started)
        seen, cancelled = about(task), about(task)
        await office.tasks.see(seen)
        await office.tasks.cancel(cancelled)
        for call in (started, seen, cancelled):
            assert (call.trace.task, call.trace.tool) == (task.reference, "act")

"""A task while a worker runs it: what it keeps, and that it never writes over what another worker has recorded."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mrtr_server import InProcessStore, KeyRing, Limits, ProtocolError, SQLStore, StoreUnavailable, TaskRow
from mrtr_server.flow.admission import Admission
from mrtr_server.flow.handler import TaskTerms
from mrtr_server.flow.journal import Step
from mrtr_server.protocol.messages import Call, Piece, Progress, Question
from mrtr_server.storage.pubsub import InProcessFanout
from mrtr_server.storage.rows import Lease
from mrtr_server.tasks.records import TaskRecords
from mrtr_server.tasks.task_run import AGAIN_AFTER, REPORT_INTERVAL, TaskRun
from mrtr_server.tasks.task_service import Tasks

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(simulated: Any) -> Any:
    """Time passes when nothing else happens: no busy machine ends a lease."""
    return simulated


LEASE = 0.05
"""In seconds."""


class Unsteady(SQLStore):
    """A store whose reply is lost now and then, after the change."""

    losing = 0

    async def change_task(self, row: TaskRow, **changes: Any) -> TaskRow | None:
        changed = await super().change_task(row, **changes)
        if self.losing:
            self.losing -= 1
            raise StoreUnavailable("no answer in time")
        return changed


class TaskRunBench:
    """A task, and workers that take it one after the other.

    Args:
        store: where it is.
    """

    def __init__(self, store: Unsteady | InProcessStore) -> None:
        self.store = store
        limits, fanout = Limits(), InProcessFanout()
        self.records = TaskRecords(store, KeyRing([bytes(32)]), fanout, limits)
        self.tasks = Tasks(self.records, fanout, Admission(limits))

    async def start(self) -> None:
        await self.tasks.start(TaskTerms(required=True, rounds_first=False), Call("tools/call", {}, "act"), None)

    async def claim(self, worker: str) -> TaskRow:
        """Take the task, once the lease of whoever had it has ended."""
        await asyncio.sleep(1.5 * LEASE)
        (row,) = await self.store.claim_tasks(worker, seconds=LEASE, most=1, tools=["act"])
        return row

    async def run(self, worker: str, *, begins: bool = True) -> TaskRun:
        """Take the task, and begin to run it, unless it has no turn yet."""
        row = await self.claim(worker)
        run = TaskRun(self.records, row, Lease(LEASE, 0.0))
        if begins:
            run.begin(self.records.sealed.unseal_journal(row, self.records.now()), 3600.0, None)
        return run

    async def recorded(self, run: TaskRun) -> set[str]:
        """Return the steps that are recorded by now."""
        row = await self.store.find_task(run.row.id)
        assert row is not None
        return set(self.records.sealed.unseal_journal(row, self.records.now()).steps)


async def do(run: TaskRun, step: str) -> None:
    """Have a step run, and keep its record."""
    run.journal.steps[step] = Step(step, {}, step, [])
    await run.keep()


@pytest.fixture(params=["in process", "sqlite"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TaskRunBench]:
    in_process = request.param == "in process"
    bench = TaskRunBench(InProcessStore() if in_process else Unsteady(f"sqlite:///{tmp_path}/tasks.db"))
    await bench.start()
    yield bench
    await bench.store.close()


class TestWhatAnotherWorkerHasRecorded:
    """It had the task for a while, and was killed; then the task comes back to a worker that has yet to notice."""

    async def test_is_not_written_over_by_who_finds_the_task_again(self, bench: TaskRunBench) -> None:
        slow = await bench.run("slow")
        await do(await bench.run("other"), "theirs")
        assert not slow.found(await bench.claim("slow"), 0.0)
        assert slow.lost
        await do(slow, "ours")
        await slow.end(lambda row: {"status": "completed"})
        assert await bench.recorded(slow) == {"theirs"}

    async def test_is_not_written_over_by_who_has_yet_to_hear_of_that(self, bench: TaskRunBench) -> None:
        slow = await bench.run("slow")
        await do(await bench.run("other"), "theirs")
        fresh = await bench.run("slow")  # under the same name
        await do(slow, "ours")
        assert slow.lost
        await do(fresh, "anew")
        assert await bench.recorded(fresh) == {"theirs", "anew"}

    async def test_is_not_undone_by_a_message(self, bench: TaskRunBench) -> None:
        slow = await bench.run("slow")
        await do(await bench.run("other"), "theirs")
        fresh = await bench.run("slow")
        slow.say("still at it")
        await asyncio.sleep(0.1)
        assert slow.lost
        await do(fresh, "anew")
        assert not fresh.lost


class TestWhatARunRecords:
    async def test_says_when(self, bench: TaskRunBench, monkeypatch: pytest.MonkeyPatch) -> None:
        run = await bench.run("worker")
        monkeypatch.setattr(bench.records, "now", lambda: run.row.created + 60)
        await do(run, "one")
        assert (await stored(bench, run)).updated == run.row.created + 60

    async def test_is_held_by_the_store_alone_once_it_has_it(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        await do(run, "one")
        assert run._tried == {}

    async def test_takes_back_no_question_that_an_earlier_worker_asked(self, bench: TaskRunBench) -> None:
        login = question("Who?")
        await (await bench.run("dead")).publish({"login": login})
        run = await bench.run("worker", begins=False)
        assert not run.has_asked, "its handler has yet to begin"
        run.begin(bench.records.sealed.unseal_journal(run.row, bench.records.now()), 3600.0, None)
        await do(run, "one")
        assert run.has_asked
        await answered(bench, run, "login", TestWhatIsAskedBesideWork.ANSWER)
        await do(run, "two")
        assert run.journal.answer("login", login.digest) == TestWhatIsAskedBesideWork.ANSWER

    async def test_is_no_question_where_it_has_asked_none(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        await do(run, "one")
        assert not run.has_asked

    async def test_may_be_its_failure_before_its_handler_begins(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker", begins=False)
        await run.end(lambda row: bench.records.failed(row, ProtocolError("It never began")))
        row = await stored(bench, run)
        assert (row.status, row.message, row.lease) == ("failed", "It never began", "")


class TestATaskThatNobodyElseHasWorkedOn:
    async def test_is_gone_on_with_when_it_is_found_again(self, bench: TaskRunBench) -> None:
        slow = await bench.run("slow")
        await do(slow, "one")
        await bench.run("other")  # which was killed at once
        assert slow.found(await bench.claim("slow"), 0.0)
        await do(slow, "two")
        assert await bench.recorded(slow) == {"one", "two"}

    async def test_is_gone_on_with_before_that_is_heard(self, bench: TaskRunBench) -> None:
        slow = await bench.run("slow")
        again = await bench.claim("slow")
        await do(slow, "one")
        assert slow.found(again, 0.0)
        await do(slow, "two")
        assert await bench.recorded(slow) == {"one", "two"}

    @pytest.mark.parametrize("bench", ["sqlite"], indirect=True)
    @pytest.mark.parametrize("replies", [1, 3])
    async def test_is_gone_on_with_when_replies_of_the_store_were_lost(self, bench: TaskRunBench, replies: int) -> None:
        run = await bench.run("worker")
        assert isinstance(bench.store, Unsteady)
        bench.store.losing = replies
        await do(run, "one")
        await do(run, "two")
        assert not run.lost
        assert await bench.recorded(run) == {"one", "two"}


def question(message: str) -> Question:
    return Question("form", "elicitation/create", {"message": message, "requestedSchema": {}}, ("elicitation.form",))


async def answered(bench: TaskRunBench, run: TaskRun, key: str, answer: dict[str, Any]) -> None:
    """Answer what the task asks, as another replica does."""
    row = await bench.store.find_task(run.row.id)
    assert row is not None
    questions = bench.records.sealed.unseal_questions(row)
    assert questions.take({key: answer})
    assert await bench.store.change_task(row, **bench.records.answered(row, questions))


async def asked(bench: TaskRunBench, run: TaskRun) -> dict[str, str]:
    """Return what the task asks by now: the name of each question that is open, by its key."""
    row = await bench.store.find_task(run.row.id)
    assert row is not None
    return bench.records.sealed.unseal_questions(row).names


class TestWhatIsAskedBesideWork:
    ANSWER: ClassVar = {"action": "accept", "content": {}}

    @pytest.mark.parametrize("bench", ["sqlite"], indirect=True)
    @pytest.mark.parametrize("replies", [1, 3])
    async def test_keeps_its_key_when_replies_of_the_store_were_lost(self, bench: TaskRunBench, replies: int) -> None:
        run = await bench.run("worker")
        assert isinstance(bench.store, Unsteady)
        bench.store.losing = replies
        await run.publish({"login": question("Who?")})
        assert await asked(bench, run) == {"login": "login"}
        assert not run.lost
        await answered(bench, run, "login", self.ANSWER)
        await do(run, "one")
        assert run.journal.answer("login", question("Who?").digest) == self.ANSWER

    async def test_keeps_its_key_beside_what_is_asked_later(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        await run.publish({"login": question("Who?")})
        await run.publish({"login": question("Who?"), "size": question("How tall?")})
        assert await asked(bench, run) == {"login": "login", "size": "size"}

    async def test_is_not_stored_again_when_it_is_open(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        await run.publish({"login": question("Who?")})
        version = run.row.version
        await run.publish({"login": question("Who?")})
        again = await bench.run("worker")  # as after the death of the first
        await again.publish({"login": question("Who?")})
        assert again.row.version == version + 1  # the claim alone

    async def test_has_no_answer_that_was_one_to_another_question(self, bench: TaskRunBench) -> None:
        """It comes as the question changes: it counts for what was read."""
        run = await bench.run("worker")
        await run.publish({"login": question("Who?")})
        await answered(bench, run, "login", self.ANSWER)
        await run.publish({"login": question("Really?")})
        assert run.journal.answer("login", question("Really?").digest) is None
        assert run.journal.answer("login", question("Who?").digest) == self.ANSWER
        assert await asked(bench, run) == {"login_2": "login"}

    async def test_is_told_once(self, bench: TaskRunBench, monkeypatch: pytest.MonkeyPatch) -> None:
        run, told = await bench.run("worker"), list[str]()
        monkeypatch.setattr(bench.records, "notify", told.append)
        for _ in range(2):
            await run.publish({"login": question("Who?")})
        assert told == [run.row.id]

    @pytest.mark.parametrize(("together", "status"), [(True, "input_required"), (False, "working")])
    async def test_waits_for_what_is_left_of_it_only_where_its_answers_belong_together(
        self, bench: TaskRunBench, together: bool, status: str
    ) -> None:
        run = await bench.run("worker")
        both = {"login": question("Who?"), "size": question("How tall?")}
        await run.publish(both)
        await answered(bench, run, "login", self.ANSWER)
        await run.end(lambda row: run.parked(row, both, together=together))
        assert ((await stored(bench, run)).status, await asked(bench, run)) == (status, {"size": "size"})

    async def test_is_asked_under_a_new_key_when_it_has_changed(self, bench: TaskRunBench) -> None:
        """Else an answer to the first would be taken as one to the second."""
        run = await bench.run("worker")
        await run.publish({"login": question("Who?")})
        await run.publish({"login": question("Really?")})
        assert await asked(bench, run) == {"login_2": "login"}

    async def test_is_asked_anew_where_the_row_asks_it_no_more(self, bench: TaskRunBench) -> None:
        """As in a task that has failed, and is retried: its journal knows the question, and its client does not."""
        run = await bench.run("worker")
        await run.publish({"login": question("Who?")})
        await changed(bench, run, questions=b"")
        again = await bench.run("worker")
        await again.publish({"login": question("Who?")})
        assert await asked(bench, again) == {"login": "login"}

    async def test_is_stored_without_the_answers_that_the_journal_has(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        await run.publish({"login": question("Who?")})
        await answered(bench, run, "login", self.ANSWER)
        await run.publish({"size": question("How tall?")})
        questions = bench.records.sealed.unseal_questions(await stored(bench, run))
        assert (questions.names, questions.answers) == ({"size": "size"}, {})

    @pytest.mark.parametrize("together", [True, False])
    async def test_says_whether_its_answers_are_waited_for_together(self, bench: TaskRunBench, together: bool) -> None:
        run = await bench.run("worker")
        await run.end(lambda row: run.parked(row, {"login": question("Who?")}, together=together))
        assert bench.records.sealed.unseal_questions(await stored(bench, run)).together is together

    async def test_is_withdrawn_when_the_round_ends_without_it(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        await run.publish({"login": question("Who?")})
        size = {"size": question("How tall?")}
        await run.end(lambda row: run.parked(row, size, together=False))
        assert await asked(bench, run) == {"size": "size"}
        row = await bench.store.find_task(run.row.id)
        assert row is not None
        assert bench.records.sealed.unseal_journal(row, bench.records.now()).asked == {"size": size["size"].digest}


class TestPiecesOfTheResult:
    @staticmethod
    async def send(run: TaskRun, index: int) -> None:
        await run.send(Piece(0, index, 0, {"type": "text", "text": str(index)}))

    @staticmethod
    async def kept(bench: TaskRunBench, run: TaskRun, first: int) -> list[str]:
        found = await bench.records.pieces.find(run.row.id, run.row.owner, first)
        return [content["text"] for _, content in found]

    async def test_are_kept_before_what_is_asked_after_them(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        await self.send(run, 0)
        await asyncio.sleep(0.1)  # the next is kept with what is asked, or half a second after the first
        await self.send(run, 1)
        await run.publish({"login": question("Who?")})
        assert await self.kept(bench, run, 1) == ["1"]
        await run.leave()

    @pytest.mark.parametrize("how", ["left", "lost"])
    async def test_are_not_kept_when_they_come_after_the_end_of_the_run(self, bench: TaskRunBench, how: str) -> None:
        run = await bench.run("worker")
        await self.send(run, 0)
        await asyncio.sleep(1)
        await finished(run, how)
        await self.send(run, 1)
        await asyncio.sleep(1)
        assert [await self.kept(bench, run, first) for first in (0, 1)] == [["0"], []]


async def finished(run: TaskRun, how: str) -> None:
    """Let a run be over: it has left its task, or its task is not this worker's any more."""
    if how == "left":
        await run.leave()
    else:
        run.stop()
    assert (run.over, run.lost) == (how == "left", how == "lost")


class TestARunThatIsOver:
    async def test_is_cancelled_once_so_that_its_running_step_ends(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        running = run.start(asyncio.sleep(60))
        for _ in range(2):
            run.stop()
        assert running.cancelling() == 1
        with pytest.raises(asyncio.CancelledError):
            await running

    async def test_is_not_begun_anew_where_its_task_is_found_again(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        run.stop()
        assert not run.found(await bench.claim("worker"), 0.0)
        assert run.lost

    @pytest.mark.parametrize("how", ["left", "lost"])
    async def test_takes_no_answer_which_is_for_who_has_the_task_next(self, bench: TaskRunBench, how: str) -> None:
        run = await bench.run("worker")
        await run.publish({"login": question("Who?")})
        await finished(run, how)
        before = run.row
        await answered(bench, run, "login", TestWhatIsAskedBesideWork.ANSWER)
        run.on_change(await stored(bench, run))
        assert (run.row, run._looking) == (before, None)
        run.look_soon()
        assert run._looking is not None
        await run._looking
        assert run.row == before
        assert run.journal.answer("login", question("Who?").digest) is None

    async def test_is_not_lost_by_a_look_at_how_it_ended(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        await run.end(lambda row: {"status": "completed"})
        run.look_soon()
        assert run._looking is not None
        await run._looking
        assert not run.lost

    async def test_asks_nothing(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        await run.leave()
        await run.publish({"login": question("Who?")})
        assert await asked(bench, run) == {}

    @pytest.mark.parametrize("how", ["left", "lost"])
    async def test_sends_no_progress(self, bench: TaskRunBench, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        sent: list[Progress] = []
        monkeypatch.setattr(bench.records, "notify_progress", lambda _row, progress: sent.append(progress))
        run = await bench.run("worker")
        await run.send(Progress(1, 2))
        await asyncio.sleep(2 * REPORT_INTERVAL)
        await finished(run, how)
        await run.send(Progress(2, 2))
        await asyncio.sleep(2 * REPORT_INTERVAL)
        assert sent == [Progress(1, 2)]

    async def test_names_its_task_to_programs_where_a_result_is_dropped(
        self, bench: TaskRunBench, caplog: pytest.LogCaptureFixture
    ) -> None:
        run = await bench.run("worker")
        await run.leave()
        await do(run, "late")
        [record] = caplog.records
        named = {"event": "result_dropped", "work": "task", "tool": "act", "task": run.row.reference}
        assert vars(record)["fields"] == named


class TestStepsThatBegin:
    @pytest.mark.parametrize("held", [True, False])
    async def test_at_the_same_time_share_a_look_at_the_task_and_later_ones_take_another(
        self, bench: TaskRunBench, monkeypatch: pytest.MonkeyPatch, held: bool
    ) -> None:
        looks: list[tuple[str, str]] = []

        async def holds(lease: str, id: str) -> bool:
            looks.append((lease, id))
            await asyncio.sleep(0.1)
            return held

        monkeypatch.setattr(bench.store, "holds_task", holds)
        run = await bench.run("worker")
        assert [*await asyncio.gather(run.may_begin(), run.may_begin())] == [held, held]
        assert looks == [("worker", run.row.id)]
        assert await run.may_begin() is held
        assert len(looks) == (2 if held else 1), "a task that is lost need not be looked at"

    async def test_wait_for_a_store_that_is_away(self, bench: TaskRunBench, monkeypatch: pytest.MonkeyPatch) -> None:
        looks: list[float] = []

        async def holds(lease: str, id: str) -> bool:
            looks.append(time.monotonic())
            if len(looks) < 3:
                raise StoreUnavailable("it is away")
            return True

        monkeypatch.setattr(bench.store, "holds_task", holds)
        run = await bench.run("worker")
        assert await run.may_begin()
        assert [later - earlier for earlier, later in pairwise(looks)] == pytest.approx([AGAIN_AFTER] * 2)


class TestARunThatIsLeft:
    """It goes back as it was kept. What counts against it are the workers that it may have crashed."""

    @pytest.mark.parametrize(
        ("begun", "attempts", "left"), [(True, 3, 0), (False, 3, 2), (False, 1, 0), (False, 0, 0)], ids=str
    )
    async def test_counts_no_attempt_and_none_before_it_if_its_handler_has_begun(
        self, bench: TaskRunBench, begun: bool, attempts: int, left: int
    ) -> None:
        run = await bench.run("worker", begins=begun)
        run.row = await changed(bench, run, attempts=attempts)
        await run.leave()
        assert run.over
        row = await stored(bench, run)
        assert (row.lease, row.leased_until, row.attempts, row.status) == ("", 0.0, left, "working")

    async def test_has_ended_when_its_round_has(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        run.row = await changed(bench, run, attempts=2)
        await run.end(lambda row: {"status": "completed"})
        row = await stored(bench, run)
        assert (row.lease, row.leased_until, row.attempts, row.status) == ("", 0.0, 0, "completed")
        assert run.over

    @pytest.mark.parametrize(
        ("changes", "free"),
        [
            ({"status": "cancelled"}, True),
            ({"status": "cancelled", "lease": "other"}, False),
            ({"status": "failed"}, False),
            ({}, False),
        ],
        ids=str,
    )
    async def test_lets_go_of_a_task_that_was_cancelled_while_it_ran_here(
        self, bench: TaskRunBench, changes: dict[str, Any], free: bool
    ) -> None:
        run = await bench.run("worker")
        before = await changed(bench, run, **changes)
        await run.let_go()
        row = await stored(bench, run)
        as_before = (before.lease, before.leased_until, before.version)
        assert (row.lease, row.leased_until, row.version) == (("", 0.0, before.version + 1) if free else as_before)


async def stored(bench: TaskRunBench, run: TaskRun) -> TaskRow:
    row = await bench.store.find_task(run.row.id)
    assert row is not None
    return row


async def changed(bench: TaskRunBench, run: TaskRun, **changes: Any) -> TaskRow:
    """Change the task, as somebody else does."""
    row = await bench.store.change_task(await stored(bench, run), **changes)
    assert row is not None
    return row


class TestAMessage:
    async def test_is_stored_as_every_database_and_client_can_read_it(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        run.say("a\0b\ud800c" + 3000 * "x")
        await do(run, "one")
        assert (await stored(bench, run)).message == "a\ufffdb\ufffdc" + 1995 * "x"

    async def test_is_not_stored_again_when_a_step_has_stored_it(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        before = (await stored(bench, run)).version
        run.say("working")
        await do(run, "one")
        await asyncio.sleep(2 * REPORT_INTERVAL)
        row = await stored(bench, run)
        assert (row.message, row.version) == ("working", before + 1)

    async def test_is_stored_at_most_once_in_a_while_and_then_the_newest(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        before = run.row.version
        for number in range(3):
            run.say(f"part {number}")
            await asyncio.sleep(0.1)
        row = await stored(bench, run)
        assert (row.message, row.version) == ("part 0", before + 1)
        await asyncio.sleep(REPORT_INTERVAL)
        row = await stored(bench, run)
        assert (row.message, row.version) == ("part 2", before + 2)

    @pytest.mark.parametrize("lost", [False, True])
    async def test_leaves_nothing_to_do_when_it_is_stored_or_can_not_be(self, bench: TaskRunBench, lost: bool) -> None:
        run = await bench.run("worker")
        run.say("working")
        run.lease.lost = lost
        await asyncio.sleep(2 * REPORT_INTERVAL)
        assert (await stored(bench, run)).message == ("" if lost else "working")
        assert run._saying is not None
        assert run._saying.done()

    async def test_is_stored_also_when_nothing_was_said_for_a_while(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        for message in ("one", "two"):
            run.say(message)
            await asyncio.sleep(3 * REPORT_INTERVAL)
            assert (await stored(bench, run)).message == message

    async def test_is_not_stored_later_by_a_run_that_could_not_store_it_as_it_left(
        self, bench: TaskRunBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away(row: TaskRow, **changes: Any) -> None:
            raise StoreUnavailable("it is away")

        run = await bench.run("worker")
        run.say("one")
        await asyncio.sleep(REPORT_INTERVAL / 2)
        run.say("two")
        with monkeypatch.context() as patch:
            patch.setattr(bench.store, "change_task", away)
            patch.setattr(bench.records, "notify", lambda id: pytest.fail("nothing has changed"))
            await run.leave()
        await asyncio.sleep(2 * REPORT_INTERVAL)
        assert (await stored(bench, run)).message == "one"

    async def test_that_its_round_ends_with_stands_above_what_was_said(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        run.say("working")
        await run.end(lambda row: {"status": "failed", "message": "broken"})
        assert (await stored(bench, run)).message == "broken"


class TestProgress:
    async def test_is_sent_at_once_and_then_the_newest_now_and_then(
        self, bench: TaskRunBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, sent = await bench.run("worker"), list[float]()
        monkeypatch.setattr(run._records, "notify_progress", lambda row, progress: sent.append(progress.progress))
        for number in (1.0, 2.0, 3.0):
            await run.send(Progress("token", number))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert sent == [1.0]
        assert run._sending is not None
        run._sending.cancel()
        run._send_later()
        assert sent == [1.0, 3.0]
        assert run._sending is not None
        run._sending.cancel()
        run._send_later()
        assert sent == [1.0, 3.0], "there is nothing new"
        await run.send(Progress("token", 4.0))
        await run.end(lambda row: {"status": "completed"})
        assert sent == [1.0, 3.0, 4.0], "the last comes before the end"
        await run.send(Progress("token", 5.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sent == [1.0, 3.0, 4.0], "and nothing after it"
        if run._sending is not None:
            run._sending.cancel()


class TestWhatItsClientDoes:
    async def test_to_end_the_task_ends_the_run(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        running = run.start(asyncio.sleep(60))
        run.on_change(await changed(bench, run, status="cancelled"))
        assert run.lost
        with pytest.raises(asyncio.CancelledError):
            await running

    async def test_is_heard_at_once_where_nothing_came_between(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        await run.publish({"login": question("Who?")})
        heard: list[str] = []
        run.on_answers(lambda: heard.append("answer"))
        await answered(bench, run, "login", TestWhatIsAskedBesideWork.ANSWER)
        row = await stored(bench, run)
        run.on_change(row)
        assert (run.row, heard, run._looking) == (row, ["answer"], None)

    async def test_is_looked_up_where_something_came_between(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        await run.publish({"login": question("Who?")})
        await answered(bench, run, "login", TestWhatIsAskedBesideWork.ANSWER)
        row = await changed(bench, run, message="hello")
        run.on_change(row)
        assert run._looking is not None
        await run._looking
        assert run.row == row
        assert run.journal.answer("login", question("Who?").digest) == TestWhatIsAskedBesideWork.ANSWER
        assert not run.lost

    async def test_is_looked_up_where_the_run_is_storing_something(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        await run.publish({"login": question("Who?")})
        await answered(bench, run, "login", TestWhatIsAskedBesideWork.ANSWER)
        before, row = run.row, await stored(bench, run)
        async with run._writing:
            run.on_change(row)
            assert run.row == before
        assert run._looking is not None
        await run._looking
        assert run.row == row

    async def test_is_looked_up_each_time(self, bench: TaskRunBench) -> None:
        run = await bench.run("worker")
        asked = {"login": question("Who?"), "size": question("How tall?")}
        await run.publish(asked)
        for name in asked:
            await answered(bench, run, name, TestWhatIsAskedBesideWork.ANSWER)
            run.look_soon()
            await asyncio.sleep(0.01)
            assert run.journal.answer(name, asked[name].digest) == TestWhatIsAskedBesideWork.ANSWER

"""Any replica takes an answer, and any replica continues a call: with a store that they share."""

import threading
import time
from typing import Any

import pytest

from mrtr_server import SQLStore
from mrtr_server.transport import connection

from ..storage.test_calls import Counted
from ..support.effects import EFFECTS
from ..support.handshake import Handshake
from ..support.wire import text_of
from .conftest import Connect

WATCHED = 0.5
"""Seconds after which a call is looked for that may have been cancelled at another replica."""


class TestElsewhere:
    def test_every_request_may_go_to_another_replica(self, connect: Connect, database: str) -> None:
        client = connect(servers=3, store=database)
        with client.calling("order", title="Emma") as stream:
            client.accept(stream.ask(), name="Jane")
            client.accept(stream.ask(), confirm=True)
            for name in ("x", "x"):
                client.accept(stream.ask(), name=name)
            assert text_of(stream.end()) == "Emma of Jane, from x, for x"
        assert EFFECTS == ["ordered Emma"]

    @pytest.mark.alone
    def test_an_answer_at_another_replica_takes_less_than_50_ms(self, connect: Connect, database: str) -> None:
        client = connect(servers=2, store=database)
        taken = []
        for _ in range(9):
            with client.calling("greet") as stream:
                asked = stream.ask()
                began = time.perf_counter()
                client.accept(asked, name="octocat")
                stream.end()
                taken.append(time.perf_counter() - began)
        assert sorted(taken)[4] < 0.05, taken

    def test_what_a_session_sets_holds_at_every_replica(self, connect: Connect, database: str) -> None:
        client = connect(servers=2, store=database)
        assert client.send("logging/setLevel", {"level": "error"}).result == {}
        for _ in range(2):
            with client.calling("notes") as stream:
                client.accept(stream.ask(), name="x")
                assert text_of(stream.end()) == "noted"


class TestResuming:
    def test_a_stream_that_broke_continues_at_any_replica(self, connect: Connect, database: str) -> None:
        client = connect(servers=2, store=database)
        with client.calling("greet") as stream:
            asked = stream.ask()
        with client.resume(stream.last_id) as again:
            client.accept(asked, name="octocat")
            response = again.end()
        assert response["id"] == 2
        assert text_of(response) == "Hello, octocat!"

    def test_it_may_be_answered_before_its_client_is_back(self, connect: Connect, database: str) -> None:
        client = connect(servers=2, store=database)
        with client.calling("greet") as stream:
            asked = stream.ask()
        client.accept(asked, name="octocat")
        for _ in range(3):
            with client.resume(stream.last_id) as again:
                assert text_of(again.end()) == "Hello, octocat!"
        assert EFFECTS == ["greeted octocat"], "three came back, and one ran it"

    def test_questions_that_did_not_arrive_are_sent_again_and_no_others(self, connect: Connect) -> None:
        client = connect()
        with client.calling("everything") as stream:
            first = stream.ask()
            after_the_first = stream.last_id
        with client.resume(after_the_first) as again:
            others = [again.ask(), again.ask()]
            assert first["method"] not in [each["method"] for each in others]
            answers: dict[str, Any] = {
                "elicitation/create": {"action": "accept", "content": {"name": "octocat"}},
                "sampling/createMessage": {
                    "role": "assistant",
                    "content": {"type": "text", "text": "hi"},
                    "model": "m",
                },
                "roots/list": {"roots": []},
            }
            for asked in (first, *others):
                client.answer(asked, answers[asked["method"]])
            assert text_of(again.end()) == "hi, octocat in 0 places"

    def test_three_holders_of_one_answer_run_the_handler_once(self, connect: Connect, database: str) -> None:
        client = connect(servers=3, store=database)
        with client.calling("greet") as stream:
            asked = stream.ask()
            results: list[Any] = []

            def hold() -> None:
                other = Handshake(client.urls, session=client.session)
                with other.resume(stream.last_id) as again:
                    opened.release()
                    results.append(text_of(again.end()))
                other.close()

            opened = threading.Semaphore(0)
            holders = [threading.Thread(target=hold) for _ in range(2)]
            for holder in holders:
                holder.start()
            for _ in holders:
                opened.acquire()
            client.accept(asked, name="octocat")
            results.append(text_of(stream.end()))
            for holder in holders:
                holder.join()
        assert results == ["Hello, octocat!"] * 3
        assert EFFECTS == ["greeted octocat"]

    def test_a_single_use_effect_happens_once_for_all_who_come_back(self, connect: Connect, database: str) -> None:
        client = connect(servers=2, store=database)
        with client.calling("pay", amount=5) as stream:
            asked = stream.ask()
        client.accept(asked, confirm=True)
        for _ in range(3):
            with client.resume(stream.last_id) as again:
                assert text_of(again.end()) == "paid 5"
        assert EFFECTS == ["paid 5"]

    def test_large_arguments_wait_in_the_store(self, connect: Connect, database: str) -> None:
        client = connect(servers=2, store=database)
        with client.calling("greet", greeting="Hello" * 2_000) as stream:
            asked = stream.ask()
        assert len(stream.last_id) < 1_000
        client.accept(asked, name="octocat")
        with client.resume(stream.last_id) as again:
            assert text_of(again.end()) == f"{'Hello' * 2_000}, octocat!"

    def test_a_stream_that_has_ended_is_not_resumed(self, connect: Connect) -> None:
        client = connect()
        with client.calling("greet") as stream:
            client.accept(stream.ask(), name="octocat")
            stream.end()
        reply = client.http.get(client.urls[0], headers=client.given(Last_Event_ID=stream.last_id))
        assert reply.status_code == 405

    def test_after_the_deadline_the_question_counts_as_dismissed(self, connect: Connect) -> None:
        client = connect()
        with client.calling("hurry") as stream:
            stream.ask()
        time.sleep(2.1)
        with client.resume(stream.last_id) as again:
            assert again.end()["result"]["isError"]


class TestRoundTrips:
    def test_a_question_takes_three_at_most(
        self, connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """To keep the answer, to take the round, to record what came of it."""
        counted: list[Counted] = []
        original = SQLStore.__init__

        def counting(self: SQLStore, *args: Any, **options: Any) -> None:
            original(self, *args, **options)
            counted.append(Counted(self.database, monkeypatch))

        monkeypatch.setattr(SQLStore, "__init__", counting)
        monkeypatch.setattr(connection, "WATCH_AFTER", WATCHED)  # a call that takes longer is looked for once more
        client = connect(servers=2, store=database)
        with client.calling("greet") as stream:  # which also makes the tables
            client.accept(stream.ask(), name="x")
            stream.end()
        for each in counted:
            each.take()
        with client.calling("order", title="Emma") as stream:
            question = stream.ask()
            time.sleep(2.2 * WATCHED)  # the person takes longer, but not the rounds
            client.accept(question, name="Jane")
            stream.ask()
            asked = ["put_value", "grant", "record_outcome"]
            seen = [
                name for each in counted for name in each.take() if name in {*asked, "get_value", "find_redemption"}
            ]
        assert sorted(seen) == sorted(asked)

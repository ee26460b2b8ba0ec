"""A flow begins, leaves in a state, and comes back in it: what counts, what is refused, and what is noted of it."""

import logging
from typing import Any, cast

import pytest
from pydantic_core import from_json

from mrtr_server import Confirm, Elicit, InProcessStore, KeyRing, Limits, MRTRServer, SealedCodec
from mrtr_server.errors import InvalidRequestState, OverBudget, RateLimited
from mrtr_server.flow.endings import YieldReason
from mrtr_server.flow.handler import Handler
from mrtr_server.flow.rate_limiter import RateLimiter
from mrtr_server.flow.states import Forgotten, RoundContext, States, UnansweredAsks
from mrtr_server.protocol.messages import Call, Question

from ..support.methods import Notes
from ..support.models import Login

RING = KeyRing.generate()
NOW = 1_700_000_000.0


class WatchedCodec(SealedCodec):
    """Notes how long what it unseals is."""

    def __init__(self) -> None:
        super().__init__(RING)
        self.lengths: list[int] = []

    def unseal(self, token: str) -> bytes:
        self.lengths.append(len(token))
        return super().unseal(token)


class NoRates:
    is_on = False


class Desk:
    """The states alone, with what they need."""

    def __init__(self, *, keeps_plain: bool = False, **limits: Any) -> None:
        self.now = NOW
        self.warned: list[str] = []
        self.codec = WatchedCodec()
        rates = cast(RateLimiter, NoRates())
        self.limits = Limits(**limits)
        self.states = States(
            self.codec,
            self.limits,
            audience="desk",
            require_shared_store=self.warned.append,
            unanswered=UnansweredAsks(self.limits, rates, lambda: self.now),
            forgotten=Forgotten(InProcessStore(), KeyRing.generate()),
            clock=lambda: self.now,
            keeps_plain=keeps_plain,
        )

    def leave(
        self,
        call: Call,
        questions: dict[str, Question] | None = None,
        why: YieldReason = YieldReason.STATE_FIRST,
        **tool: Any,
    ) -> str:
        """Begin a flow, and let it leave; return the state."""
        round_ = self.begin(call, **tool)
        return self.states.seal(round_, questions).state if questions else self.states.hand_over(round_, why).state

    def begin(self, call: Call, **tool: Any) -> RoundContext:
        """Open a round that begins a flow."""
        round_ = RoundContext(handler(**tool), call, Notes(), {})
        self.states.begin(round_)
        return round_

    def unseal(self, call: Call, **tool: Any) -> RoundContext:
        """Open a round by its state."""
        round_ = RoundContext(handler(**tool), call, Notes(), {})
        self.states.unseal(round_)
        return round_


def handler(**options: Any) -> Handler:
    app = MRTRServer("desk", keys=RING)

    @app.tool(**options)
    async def book(town: str = "Oslo") -> str:
        return town

    return app.registry.tools["book"].handler


def call_of(**more: Any) -> Call:
    return Call("tools/call", {}, "book", **more)


WHO = Elicit("Who?", Login, key="who").question()
SURE = Confirm("Sure?").question()


class TestOpening:
    def test_a_state_brings_back_what_the_flow_remembers_and_takes_the_answers(self) -> None:
        desk = Desk()
        state = desk.leave(call_of(), {"who": WHO})
        round_ = desk.unseal(call_of(state=state, answers={"who": {"name": "ada"}}))
        assert round_.journal.answer("who", WHO.digest) == {"name": "ada"}
        assert round_.journal.rounds == 1
        assert (round_.binding or [""])[0] == "desk"

    def test_a_state_may_come_without_answers(self) -> None:
        desk = Desk()
        journal = desk.unseal(call_of(state=desk.leave(call_of(), {"who": WHO}))).journal
        assert (journal.answers, journal.rounds) == ({}, 1)

    @pytest.mark.parametrize("state", [7, b"state", ["state"], {"state": 1}, False])
    def test_what_is_no_string_is_no_state(self, state: Any, caplog: pytest.LogCaptureFixture) -> None:
        desk = Desk()
        with pytest.raises(InvalidRequestState) as refused:
            desk.unseal(call_of(state=state))
        assert refused.value.reason == "not a string"
        assert [record.getMessage() for record in caplog.records] == [
            "tools/call 'book': refused a requestState: not a string"
        ]
        assert desk.codec.lengths == []

    def test_a_state_that_is_longer_than_any_can_be_is_refused_before_it_is_read(self) -> None:
        desk = Desk(state_bytes=3000)
        longest = 3000 * 4 // 3 + 2048
        for length, reason in [(longest, "malformed"), (longest + 1, "too large")]:
            with pytest.raises(InvalidRequestState) as refused:
                desk.unseal(call_of(state="A" * length))
            assert (refused.value.reason == "too large") is (reason == "too large")
        assert desk.codec.lengths == [longest]

    def test_a_state_of_the_greatest_size_comes_back(self) -> None:
        desk = Desk(state_bytes=3000)
        round_ = desk.begin(call_of())
        journal = round_.journal
        room = 3000 - len(journal.dump(round_.binding or [], NOW, 60.0, Limits()))
        journal.state = "x" * (room - 100)
        sealed = desk.states.hand_over(round_, YieldReason.OWN_STATE).state
        assert desk.unseal(call_of(state=sealed)).journal.state == journal.state

    def test_one_answer_more_than_the_limit_is_refused_with_or_without_a_state(self) -> None:
        desk = Desk(answers=2)
        state = desk.leave(call_of())
        two: dict[str, Any] = {"a": {}, "b": {}}
        three: dict[str, Any] = {**two, "c": {}}
        desk.begin(call_of(answers=two))
        desk.unseal(call_of(answers=two, state=state))
        with pytest.raises(OverBudget, match="more than 2 inputResponses") as first:
            desk.begin(call_of(answers=three))
        with pytest.raises(OverBudget, match="more than 2 inputResponses") as second:
            desk.unseal(call_of(answers=three, state=state))
        for refused in (first, second):
            assert refused.value.data == {"limit": "answers", "value": 2}

    def test_an_answer_that_comes_late_counts_by_its_grace(self) -> None:
        desk = Desk(state_seconds=100)
        state = desk.leave(call_of(), {"who": WHO})
        desk.now += 100 + 61
        with pytest.raises(InvalidRequestState):
            desk.unseal(call_of(state=state))
        desk.unseal(call_of(state=state, grace=100.0))

    def test_a_state_that_is_redeemed_once_may_come_a_minute_late_since_it_may_have_come_before(self) -> None:
        desk = Desk(state_seconds=100)
        state = desk.leave(call_of(), {"who": WHO}, single_use=True)
        desk.now += 100 + 59
        with pytest.raises(InvalidRequestState):
            desk.unseal(call_of(state=state))
        desk.unseal(call_of(state=state), single_use=True)

    def test_what_asked_too_often_in_vain_waits_with_and_without_a_state(self) -> None:
        desk = Desk(unanswered_asks=1)
        state = desk.leave(call_of(session="one"), {"who": WHO})
        with pytest.raises(RateLimited):
            desk.begin(call_of(session="one"))
        again = call_of(session="one", state=state)
        desk.states.seal(desk.unseal(again), {"who": WHO})
        with pytest.raises(RateLimited):
            desk.unseal(again)

    def test_an_answer_begins_the_count_anew(self) -> None:
        desk = Desk(unanswered_asks=1)
        state = desk.leave(call_of(session="one"), {"who": WHO})
        desk.unseal(call_of(session="one", state=state, answers={"who": {"name": "ada"}}))
        desk.begin(call_of(session="one"))

    def test_a_flow_that_has_ended_has_not_asked_in_vain(self) -> None:
        desk = Desk(unanswered_asks=1)
        call = call_of(session="one", answers={"who": {}})
        round_ = desk.begin(call)
        desk.states.seal(round_, {"who": WHO})
        desk.states.end(round_)
        desk.begin(call_of(session="one"))

    def test_the_trace_of_a_call_has_its_flow(self) -> None:
        desk, first = Desk(), call_of()
        journal = desk.begin(first).journal
        assert (first.trace.journal, first.trace.rounds) == (journal, 0)
        second = call_of(state=desk.leave(call_of()))
        opened = desk.unseal(second).journal
        assert (second.trace.journal, second.trace.rounds) == (opened, 1)

    def test_a_flow_begins_now(self) -> None:
        desk = Desk()
        assert desk.begin(call_of()).journal.started == NOW


class TestBinding:
    def test_is_that_of_the_arguments_as_they_were_sent(self) -> None:
        desk = Desk()
        round_ = desk.begin(call_of(arguments={"town": "Oslo"}))
        first = desk.states.bind(round_)
        round_.call.arguments["town"] = "Rome"  # by the handler
        assert desk.states.bind(round_) is first
        assert desk.begin(call_of(arguments={"town": "Rome"})).binding != first


class TestSealing:
    def test_says_what_to_answer_and_until_when(self) -> None:
        desk = Desk(state_seconds=100)
        for within, seconds in [(None, 100), (7.0, 7)]:
            round_ = desk.begin(call_of(), answer_within=within)
            needs = desk.states.seal(round_, {"who": WHO})
            assert needs.questions == {"who": WHO}
            assert needs.expires == round_.journal.expires == NOW + seconds

    def test_of_a_flow_over_budget_is_refused_and_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        desk = Desk(rounds=1)
        state = desk.leave(call_of(), {"who": WHO})
        call = call_of(state=state, answers={"who": {}})
        with pytest.raises(OverBudget, match="more than 1 rounds"):
            desk.states.seal(desk.unseal(call), {"who": WHO})
        assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
            (logging.WARNING, "tools/call 'book': The flow needs more than 1 rounds")
        ]

    def test_needs_a_shared_store_from_a_confirmation_on(self) -> None:
        desk = Desk()
        desk.leave(call_of(), {"who": WHO})
        assert desk.warned == []
        state = desk.leave(call_of(), {"sure": SURE})
        assert desk.warned == ["book"]
        call = call_of(state=state)
        desk.states.seal(desk.unseal(call), {"who": WHO})
        assert desk.warned == ["book", "book"]

    @pytest.mark.parametrize("why", YieldReason)
    def test_notes_that_a_replica_had_too_much_to_do(self, why: YieldReason) -> None:
        desk = Desk()
        journal = desk.unseal(call_of(state=desk.leave(call_of(), why=why))).journal
        assert journal.shed is (why is YieldReason.FULL)

    def test_a_handler_may_go_on_by_its_own_state_as_long_as_that_changes(self) -> None:
        desk = Desk(state_only_rounds=1)
        round_ = desk.begin(call_of())
        journal = round_.journal
        for number in range(5):
            journal.state = number
            desk.states.hand_over(round_, YieldReason.OWN_STATE)
        assert journal.state_only == 0
        journal.state = "handed over"
        desk.states.hand_over(round_, YieldReason.STATE_FIRST)
        journal.state = "and again"
        with pytest.raises(OverBudget, match="handed over more than 1 times"):
            desk.states.hand_over(round_, YieldReason.STATE_FIRST)

    def test_what_was_handed_over_has_not_asked_in_vain(self) -> None:
        desk = Desk(unanswered_asks=1)
        for _ in range(3):
            desk.leave(call_of(session="one"))

    @pytest.mark.parametrize(
        ("keeps_plain", "stays_open", "is_plain"),
        [(False, False, False), (False, True, False), (True, False, False), (True, True, True)],
    )
    def test_only_of_a_call_that_stays_open_may_be_the_journal_as_it_is(
        self, keeps_plain: bool, stays_open: bool, is_plain: bool
    ) -> None:
        desk = Desk(keeps_plain=keeps_plain)
        state = desk.leave(call_of(stays_open=stays_open), {"who": WHO})
        assert state.startswith("{") is is_plain
        if is_plain:
            assert from_json(state)
        assert desk.unseal(call_of(stays_open=stays_open, state=state)).journal.rounds == 1
        assert (desk.codec.lengths == []) is is_plain

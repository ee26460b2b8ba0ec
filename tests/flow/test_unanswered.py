"""What is asked again and again, and never answered, has a budget by default; who calls often is not limited by it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrtr_server import Context, Elicit, InputRequired, Inputs, Limits, MRTRServer, Principal, RateLimits
from mrtr_server.errors import RateLimited
from mrtr_server.flow import states
from mrtr_server.flow.journal import Journal
from mrtr_server.flow.rate_limiter import RateLimiter
from mrtr_server.protocol.messages import Call
from mrtr_server.testing import AsyncClient, Clock, decline, replica

from ..support.effects import EFFECTS
from ..support.models import Login
from ..support.users import Bearer

pytestmark = pytest.mark.anyio

ADA = {"name": "ada"}
ERAS = ["2026-07-28", "sep-draft", "2025-11-25"]


class AskingSite:
    """A server without rate limits, at a time that the test sets."""

    def __init__(self, *, auth: bool = True, most: int | None = 5, **settings: Any) -> None:
        self.clock = Clock(1_200_000.0)
        limits = Limits(unanswered_asks=most)
        backend = Bearer() if auth else None
        self.app = app = replica(
            MRTRServer("site", keys=[bytes(32)], auth=backend, limits=limits, **settings), clock=self.clock
        )

        @app.tool
        async def greet(ctx: Context, greeting: str = "Hello") -> str:
            EFFECTS.append("asked")
            login = await ctx.elicit("Who?", Login)
            other = await ctx.elicit("And who?", Login, key="other")
            return f"{greeting} {login.name} {other.name}"

        @app.tool
        def greet_purely(inputs: Inputs) -> str | InputRequired:
            EFFECTS.append("asked")
            login = inputs.get("login", Login)
            return InputRequired(login=Elicit("Who?", Login)) if login is None else login.name

        @app.tool
        async def poll(ctx: Context) -> str:
            return "nothing new"

    def as_(self, user: str | None, era: str = "2026-07-28") -> AsyncClient:
        return AsyncClient(self.app, token=user, log_level=None, era=era)


@pytest.mark.parametrize("tool", ["greet", "greet_purely"])
@pytest.mark.parametrize("era", ERAS)
async def test_the_same_request_is_asked_so_often_and_then_put_off_in_the_terms_of_its_era(era: str, tool: str) -> None:
    site = AskingSite()
    ann = site.as_("ann", era)
    replies = [await ann.flow(tool).start() for _ in range(30)]
    assert [bool(reply.questions) for reply in replies] == [True] * 5 + [False] * 25
    refused = replies[-1]
    assert (refused.status, refused.error.code) == (200 if era == "2025-11-25" else 429, -31002)
    assert refused.error.data == {"limit": "unanswered_asks", "value": "5/minute", "retryAfter": 60}
    assert refused.headers["retry-after"] == "60"
    assert len(EFFECTS) == 5, "what is refused has not run"
    assert (await ann.flow("greet", greeting="Hi").start()).questions, "it is another request"
    assert (await site.as_("bob", era).flow(tool).start()).questions, "it is another caller"
    site.clock.advance(60)
    assert (await ann.flow(tool).start()).questions


async def test_one_state_is_asked_about_so_often_too() -> None:
    site = AskingSite()
    flow = site.as_("ann").flow("greet")
    await flow.start()
    answered = await flow.answer(login=ADA)
    replies = [await flow.replay(answered) for _ in range(29)]
    assert [reply.status for reply in (answered, *replies)] == [200] * 5 + [429] * 25
    assert (await flow.answer(other=ADA)).text == "Hello ada ada", "the flow itself goes on"


@pytest.mark.parametrize("era", ERAS)
async def test_who_answers_may_ask_for_the_same_as_often_as_it_wants(era: str) -> None:
    site = AskingSite()
    for _ in range(30):
        flow = site.as_("ann", era).flow("greet")
        await flow.start()
        await flow.answer(login=ADA)
        assert (await flow.answer(other=ADA)).text == "Hello ada ada"


async def test_a_no_is_an_answer() -> None:
    site = AskingSite()
    for _ in range(30):
        flow = site.as_("ann").flow("greet")
        await flow.start()
        assert (await flow.answer(login=decline)).failed


async def test_an_answer_without_a_state_is_one_if_it_answers_everything() -> None:
    site = AskingSite()
    for _ in range(30):
        flow = site.as_("ann").flow("greet")
        assert (await flow.start(login=ADA, other=ADA)).text == "Hello ada ada"
    statuses = [(await site.as_("ann").flow("greet").start(login=ADA)).status for _ in range(10)]
    assert statuses == [200] * 5 + [429] * 5


async def test_answers_to_everything_at_once_begin_the_count_anew() -> None:
    ann = AskingSite().as_("ann")
    for _ in range(4):
        statuses = [(await ann.flow("greet").start()).status for _ in range(4)]
        assert statuses == [200] * 4
        assert (await ann.flow("greet").start(login=ADA, other=ADA)).text == "Hello ada ada"


async def test_a_state_that_was_used_before_answers_nothing() -> None:
    site = AskingSite()
    flow = site.as_("ann").flow("greet")
    await flow.start()
    answered = await flow.answer(login=ADA)
    statuses = []
    for _ in range(4):
        statuses += [(await site.as_("ann").flow("greet").start()).status for _ in range(2)]
        await flow.replay(answered)
    assert statuses == [200] * 5 + [429] * 3


async def test_a_poll_that_never_asks_is_never_limited() -> None:
    site = AskingSite(most=1)
    await site.as_("ann").flow("greet").start()
    assert {(await site.as_("ann").flow("poll").start()).text for _ in range(100)} == {"nothing new"}


async def test_many_people_behind_one_address_have_room_for_ten_times_as_many() -> None:
    site = AskingSite(auth=False)
    statuses = [(await site.as_(None).flow("greet").start()).status for _ in range(60)]
    assert statuses == [200] * 50 + [429] * 10


async def test_sessions_are_told_apart_where_nobody_is_authenticated() -> None:
    site = AskingSite(auth=False)
    one, other = site.as_(None, "2025-11-25"), site.as_(None, "2025-11-25")
    replies = [await one.flow("greet").start() for _ in range(6)]
    assert [bool(reply.questions) for reply in replies] == [True] * 5 + [False]
    assert (await other.flow("greet").start()).questions


async def test_it_can_be_switched_off() -> None:
    site = AskingSite(most=None)
    assert {(await site.as_("ann").flow("greet").start()).status for _ in range(30)} == {200}


async def test_where_anything_has_a_rate_the_budget_of_flows_counts_in_its_place() -> None:
    site = AskingSite(most=1, rate_limits=RateLimits(per_flow="3/minute"))
    replies = [await site.as_("ann").flow("greet").start() for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 200, 200, 429]
    assert replies[-1].error.data["limit"] == "per_flow"


async def test_what_is_counted_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MOST_COUNTED", 10)
    site = AskingSite(most=1)
    ann = site.as_("ann")
    first = [(await ann.flow("greet", greeting=str(number)).start()).status for number in range(10)]
    again = [(await ann.flow("greet", greeting=str(number)).start()).status for number in range(10)]
    assert (first, again) == ([200] * 10, [429] * 10)
    assert (await ann.flow("greet", greeting="one too many").start()).questions
    assert (await ann.flow("greet", greeting="0").start()).questions, "what it remembers is what it would limit"


async def test_other_questions_hardly_reset_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MOST_COUNTED", 10)
    site = AskingSite(most=5)
    ann = site.as_("ann")
    for _ in range(5):
        assert (await ann.flow("greet").start()).questions
    assert (await ann.flow("greet").start()).status == 429
    for number in range(20):  # twice as many as are counted
        assert (await ann.flow("greet", greeting=str(number)).start()).questions
    statuses = [(await ann.flow("greet").start()).status for _ in range(4)]
    assert statuses == [200, 200, 429, 429], "each of them for as many others as are counted"


@pytest.mark.parametrize(
    ("most", "has_rates", "counts"), [(5, False, 1), (5, True, 0), (None, False, 0), (None, True, 0)]
)
def test_nothing_is_remembered_where_it_does_not_count(most: int | None, has_rates: bool, counts: int) -> None:
    rates = cast(RateLimiter, SimpleNamespace(is_on=has_rates))
    asks = states.UnansweredAsks(Limits(unanswered_asks=most), rates, lambda: 0.0)
    asks.asked(Call("tools/call", {}), ["bound"], Journal(0.0), 0.0)
    assert len(asks._counts) == counts


class Counter:
    """The counts alone, for requests that the test makes."""

    def __init__(self, most: int | None = 2) -> None:
        self.now = 0.0
        self.rates = SimpleNamespace(is_on=False)
        limits = Limits(unanswered_asks=most)
        self.asks = states.UnansweredAsks(limits, cast(RateLimiter, self.rates), lambda: self.now)

    def ask(self, call: Call, bound_to: str = "it") -> Journal:
        """End a round of a request with a question; return its journal."""
        journal = Journal(self.now)
        journal.count_round({"who": "form.a.b"}, Limits())
        self.asks.asked(call, [bound_to], journal, self.now)
        return journal

    def admits(self, call: Call, journal: Journal | None = None, bound_to: str = "it") -> bool:
        try:
            self.asks.admit(call, [bound_to], journal)
        except RateLimited:
            return False
        return True


def call_of(peer: str = "", **more: Any) -> Call:
    return Call("tools/call", {}, peer=(peer, 1234) if peer else None, **more)


def test_strangers_are_told_apart_by_their_addresses_and_not_by_their_ports() -> None:
    counter = Counter(most=1)
    for _ in range(10):
        assert counter.admits(call_of("10.0.0.1"))
        counter.ask(call_of("10.0.0.1"))
    assert not counter.admits(call_of("10.0.0.1"))
    assert not counter.admits(Call("tools/call", {}, peer=("10.0.0.1", 4321)))
    assert counter.admits(call_of("10.0.0.2"))
    assert counter.admits(call_of())


def test_who_is_known_has_a_tenth_of_that_wherever_the_request_comes_from() -> None:
    counter, ann = Counter(most=1), Principal("ann", "", "")
    counter.ask(call_of("10.0.0.1", principal=ann))
    assert not counter.admits(call_of("10.0.0.2", principal=ann))
    counter.ask(call_of("10.0.0.1", session="one"))
    assert not counter.admits(call_of("10.0.0.2", session="one"))
    assert counter.admits(call_of("10.0.0.2", session="two"))


def test_an_answer_to_what_was_asked_begins_the_count_anew_and_nothing_else_does() -> None:
    cases: list[tuple[dict[str, Any] | None, bool]] = [
        ({"who": {}}, True),
        ({"else": {}}, False),
        ({}, False),
        (None, False),
    ]
    for answers, begins_anew in cases:
        counter, call = Counter(), call_of(session="one")
        counter.ask(call)
        journal = counter.ask(call)
        assert not counter.admits(call)
        assert counter.admits(call_of(session="one", state="sealed", answers=answers), journal)
        assert counter.admits(call) == begins_anew


def test_only_what_came_without_a_state_has_answered_all_when_it_ends() -> None:
    cases: list[tuple[str | None, dict[str, Any] | None, bool]] = [
        (None, {"who": {}}, True),
        (None, None, False),
        ("sealed", {"who": {}}, False),
    ]
    for state, answers, begins_anew in cases:
        counter, call = Counter(most=1), call_of(session="one")
        counter.ask(call)
        nothing: Any = None
        kept = states.States(
            nothing,
            Limits(),
            audience="it",
            require_shared_store=nothing,
            unanswered=counter.asks,
            forgotten=nothing,
            clock=nothing,
        )
        ended = call_of(session="one", state=state, answers=answers)
        kept.end(states.RoundContext(nothing, ended, nothing, {}, binding=["it"]))
        assert counter.admits(call) == begins_anew


def test_the_counts_of_a_minute_end_with_it() -> None:
    counter, call = Counter(most=1), call_of(session="one")
    counter.ask(call)
    counter.now = 59.5
    assert not counter.admits(call)
    counter.now = 60.0
    assert counter.admits(call)
    counter.ask(call_of(session="two"))
    assert len(counter.asks._counts) == 1


def test_rates_that_are_turned_on_later_count_in_its_place() -> None:
    counter, call = Counter(most=1), call_of(session="one")
    counter.ask(call)
    assert not counter.admits(call)
    counter.rates.is_on = True
    assert counter.admits(call)


def test_what_is_new_where_all_are_counted_takes_one_from_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MOST_COUNTED", 3)
    counter = Counter(most=9)
    for times, name in ((1, "a"), (2, "b"), (3, "c")):
        for _ in range(times):
            counter.ask(call_of(session=name))
    counter.ask(call_of(session="b"))  # which is counted already
    assert sorted(counter.asks._counts.values()) == [1, 3, 3]
    counter.ask(call_of(session="new"))
    assert sorted(counter.asks._counts.values()) == [2, 2]
    counter.ask(call_of(session="one more"))  # for which there is room
    counter.ask(call_of(session="the next"))
    assert sorted(counter.asks._counts.values()) == [1, 1]

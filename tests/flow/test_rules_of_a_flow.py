"""The rules of a flow, for any handler and order of events: a state machine over versions, replicas and lost replies.

A tool interprets a program, so that each run has another handler: s is a step, q a question, b two questions side by
side, c a confirmation.
"""

import asyncio
from collections import Counter

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pydantic import BaseModel

from mrtr_server import Context, Limits, MRTRServer
from mrtr_server.testing import Answer, Client, Reply, SharedStore, accept, decline, no, replicas, yes

RETRYING = ("2026-07-28", "sep-draft")
LIVE = ("2025-11-25", "2025-06-18")

app = MRTRServer("rules", keys=[bytes(32)], store=SharedStore(), limits=Limits(rounds=99))
FLEET = replicas(app, 2)
DONE: Counter[str] = Counter()
"""How often each step has had its effect."""


class Number(BaseModel):
    value: int


def effect(name: str) -> str:
    DONE[name] += 1
    return name


async def interpret(ctx: Context, flow: int, program: str) -> str:
    async def number(key: str) -> str:
        return f"{key}={(await ctx.elicit('A number?', Number, key=key)).value}"

    seen: list[str] = []
    for place, order in enumerate(program):
        if order == "s":
            seen.append(await ctx.step(effect, f"{flow}:{place}", key=f"s{place}"))
        elif order == "q":
            seen.append(await number(f"q{place}"))
        elif order == "b":
            seen += await asyncio.gather(number(f"q{place}"), number(f"r{place}"))
        else:
            await ctx.confirm("Go on?", key=f"c{place}")
    return " ".join(seen)


@app.tool
async def plain(ctx: Context, flow: int, program: str) -> str:
    return await interpret(ctx, flow, program)


@app.tool(single_use=True)
async def once(ctx: Context, flow: int, program: str) -> str:
    return await interpret(ctx, flow, program)


def keys_of(program: str, place: int) -> list[str]:
    """Return what is asked at a place of a program."""
    return [f"{letter}{place}" for letter in {"q": "q", "b": "qr", "c": "c"}.get(program[place], "")]


class Rules(RuleBasedStateMachine):
    """One flow, what its client does and what goes wrong, and what is true whatever does."""

    flows = 0

    @initialize(
        era=strategies.sampled_from(RETRYING + LIVE),
        tool=strategies.sampled_from(["plain", "once"]),
        program=strategies.text("sqbc", min_size=1, max_size=6),
    )
    def call(self, era: str, tool: str, program: str) -> None:
        Rules.flows += 1
        self.number, self.program, self.retries = Rules.flows, program, era in RETRYING
        self.answers: dict[str, int] = {}
        self.declined = False
        self.misfits = 0
        self.repeats = 0
        """How many deliveries may have repeated the steps of a round."""
        # A state of a single-use tool is redeemed once. A call that came without one is another flow each time.
        self.counts_repeats = not (self.retries and tool == "once")
        self.flow = Client(*FLEET, era=era).flow(tool, flow=self.number, program=program)
        self.went_on(self.flow.start())

    @property
    def place(self) -> int:
        """Where the handler is: the first place that asks something without an answer, or the end."""
        places = range(len(self.program))
        return next(
            (p for p in places if any(key not in self.answers for key in keys_of(self.program, p))), len(places)
        )

    @property
    def open(self) -> list[str]:
        if self.declined or self.place == len(self.program):
            return []
        return [key for key in keys_of(self.program, self.place) if key not in self.answers]

    def went_on(self, reply: Reply) -> None:
        """Hold that a reply is what the answers so far lead to."""
        while reply.needs_input and not reply.asks:  # a state alone
            reply = self.flow.answer()
        self.is_where_it_was(reply)

    def is_where_it_was(self, reply: Reply) -> None:
        if self.declined:
            assert reply.failed
        elif self.open:
            assert sorted(reply.asks) == self.open
        else:
            seen: list[str] = []
            for place, order in enumerate(self.program):
                seen += [f"{self.number}:{place}"] if order == "s" else []
                seen += [f"{key}={self.answers[key]}" for key in keys_of(self.program, place) if order != "c"]
            assert reply.text == " ".join(seen)

    def is_open(self) -> bool:
        return bool(self.open)

    # What the client does

    @precondition(is_open)
    @rule(number=strategies.integers(-9, 9), both=strategies.booleans())
    def answer(self, number: int, both: bool) -> None:
        keys = self.open if both or not self.retries else self.open[:1]
        self.answers |= dict.fromkeys(keys, number)
        self.went_on(self.flow.answer({key: self.written(key, number) for key in keys}))

    @precondition(is_open)
    @rule()
    def answer_with_what_does_not_fit(self) -> None:
        self.misfits += 1  # the same one again would say that the client can't show the form
        misfit = accept(value=f"{self.misfits} or so")
        if "c" not in self.program[self.place]:
            self.went_on(self.flow.answer(dict.fromkeys(self.open, misfit)))

    @precondition(is_open)
    @rule(by=strategies.sampled_from([no, decline]))
    def decline(self, by: Answer) -> None:
        key, *others = self.open
        answers = {each: self.written(each, 0) for each in others} | {key: by if key[0] == "c" else decline}
        self.declined = True
        self.went_on(self.flow.answer(answers))

    def written(self, key: str, number: int) -> Answer:
        return yes if key[0] == "c" else accept(value=number)

    # What goes wrong

    @rule()
    def lose_the_reply(self) -> None:
        self.repeats += 1
        self.went_on(self.flow.drop())

    @precondition(lambda self: self.retries)
    @rule()
    def deliver_twice(self) -> None:
        self.repeats += 1
        self.is_where_it_was(self.flow.replay())

    @rule(number=strategies.sampled_from([0, 1]))
    def go_to_another_replica(self, number: int) -> None:
        self.flow.move_to(FLEET[number])

    @precondition(lambda self: self.retries and self.open)
    @rule(number=strategies.integers(-9, 9))
    def be_refused_with_another_state_and_go_on(self, number: int) -> None:
        self.flow.tamper()
        answers = {key: self.written(key, 99) for key in self.open}
        assert self.flow.answer(answers).error.code == -32602
        self.answer(number, both=True)

    # What holds

    @invariant()
    def steps_are_done_in_their_places(self) -> None:
        for place, order in enumerate(self.program):
            if order == "s":
                most = 1 + self.repeats * self.counts_repeats if place < self.place else 0
                assert min(most, 1) <= DONE[f"{self.number}:{place}"] <= most


TestRules = Rules.TestCase
TestRules.settings = settings(max_examples=80, stateful_step_count=12, deadline=None)

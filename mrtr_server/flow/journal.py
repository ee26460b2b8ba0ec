"""What a flow remembers between its rounds."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any

from pydantic_core import from_json, to_json

from ..crypto.digests import canonical, digest, digest_bytes
from ..errors import InvalidRequestState, OverBudget, StateFault
from ..limits import Limits
from ..protocol.ask_kinds import CONFIRM
from ..protocol.messages import JSON, Call

UNSET: Any = object()
"""The handler has no state: None is one."""


_FORMAT = 1
CLOCK_SKEW_SECONDS = 60.0
"""How far the replicas' clocks may be apart."""
REDEEMED_FOR = CLOCK_SKEW_SECONDS
"""How long a state that was redeemed in time is remembered after it has expired, in seconds.

If its replica has died, its round may have to run again. And later deliveries may ask for the outcome.
"""
_FRAME_BYTES = 1024
"""Bytes reserved for the fields of a payload besides answers, steps and state; enough where nothing is asked."""

ANSWERS_OF_A_KEY = 4
"""How many questions of one key have their answer kept; enough for the versions that serve a fleet at one time."""

CONFIRMATION = CONFIRM.name
"""The kind of a question after which every state of the flow is redeemed once."""


BINDINGS = ("audience", "principal", "method", "target", "arguments")
"""What a sealed state belongs to, in the order in which it is sealed."""


_NOTHING: JSON = {}

_ALWAYS = 10
"""The fields of each payload; see `Journal.dump`."""

_NO_ARGUMENTS = digest_bytes(canonical({}))


def binding(audience: str, call: Call) -> list[str]:
    """Return what a call's state is bound to: a string for each of the `BINDINGS`.

    All arguments count, as they were sent. If only those counted that the handler takes, a flow would break when a
    version adds or drops one. Arguments that no handler takes are refused before this, or cost no more than their size.
    """
    who = call.principal
    return [
        audience,
        "" if who is None else digest([who.issuer, who.subject, who.client_id]),
        call.method,
        call.target,
        digest_bytes(canonical(call.arguments)) if call.arguments else _NO_ARGUMENTS,
    ]


def _joined(bound_to: list[str]) -> bytes:
    # Two bindings can't look the same: only a target may hold a NUL, and all the others are found from the ends.
    return "\0".join(bound_to).encode("utf-8", "surrogatepass")


def _check_binding(sealed: list[str], expected: list[str]) -> None:
    """Compare in constant time; only a binding that differs is worth the time to find out where."""
    if not compare_digest(_joined(sealed), _joined(expected)):
        parts = zip(BINDINGS, sealed, expected, strict=True)
        differing = [name for name, one, other in parts if not compare_digest(one.encode(), other.encode())]
        other = "other" if differing[0] == "arguments" else "another"
        raise InvalidRequestState(f"belongs to {other} {differing[0]}", StateFault.OF_ANOTHER)


Answers = dict[str, JSON]
"""What the client sent under one key, by the digest of the question that it answers; the newest is the last.

Where a pure function read an answer to a question that it had not asked yet, the digest lacks the message.
"""


@dataclass(slots=True)
class Step:
    function: str
    arguments: dict[str, str]
    result: Any
    failed: list[dict[str, str]] = field(default_factory=list)
    exact: Any = None
    """What JSON does not hold of the result; see `Written` in `schema/stored.py`. None for nothing."""


@dataclass(slots=True)
class Journal:
    """The record of one flow. It travels sealed with the client, or lies in the row of a task."""

    started: float
    """In seconds since the epoch."""
    flow_id: str = ""
    """Random; empty until `flow` is first read."""
    rounds: int = 0
    state_only: int = 0
    """In how many of them the server itself handed the flow over, without a question."""
    asked: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Answers] = field(default_factory=dict)
    """By key and question: two versions of a handler may ask under one key in turns, and each finds its own answer."""
    steps: dict[str, Step] = field(default_factory=dict)
    state: Any = UNSET
    handed_over: str = ""
    """Whether the last round was state-only, and what the journal held then."""
    single_use: bool = False
    """Whether each of its states is redeemed once, since one of them has asked for a confirmation."""
    shed: bool = False
    """Whether the last round was handed over by a replica that had too much to do."""
    expires: float = field(default=math.inf, compare=False)
    """When the state that it came in expires, in seconds since the epoch; once it is dumped, when that state does."""
    origin: str = ""
    pieces: int = 0
    """How many pieces of the result its client has been sent."""
    exact_state: Any = None
    epoch: str = ""
    """The epoch of the store in which its states are redeemed once; empty where they are not, or the store has none."""
    task_ends: float = field(default=0.0, compare=False)
    """When the time of the task ends that the flow is, in seconds since the epoch; 0 in rounds. Kept in its row."""
    misfits: dict[str, str] = field(default_factory=dict)
    """A digest of the last answer that did not fit, with its question, by key."""

    @property
    def flow(self) -> str:
        """The flow's id, made when it is first needed: most calls end in one round and never need one."""
        if not self.flow_id:
            self.flow_id = os.urandom(16).hex()
        return self.flow_id

    # Answers

    def deliver(self, answers: Mapping[str, JSON]) -> None:
        """Keep the answers to what was asked. A key that was not asked is ignored; unanswered questions are closed."""
        self.take(answers)
        self.asked.clear()

    def take(self, answers: Mapping[str, JSON]) -> None:
        """Keep the answers to what was asked, as they come one after another. Unanswered questions stay open."""
        for key, raw in answers.items():
            if key in self.asked:
                self.keep(key, self.asked.pop(key), raw)

    def keep(self, key: str, question: str, raw: JSON) -> None:
        answers = self.answers.get(key)
        if answers is None:
            self.answers[key] = {question: raw}
            return
        answers.pop(question, None)
        answers[question] = raw
        if len(answers) > ANSWERS_OF_A_KEY:
            del answers[next(iter(answers))]

    def answer(self, key: str, question: str) -> JSON | None:
        return self.answers.get(key, {}).get(question)

    def newest_answer(self, key: str, kind: str, shape: str | None) -> tuple[str, JSON] | None:
        """Return the newest answer to a question of that kind and shape (None: any), behind its question's digest."""
        answers = self.answers.get(key)
        if answers is None:
            return None
        for question in reversed(answers):
            its_kind, _, its_shape = question.split(".")
            if its_kind == kind and (shape is None or its_shape == shape):
                return question, answers[question]
        return None

    def forget(self, key: str, question: str) -> None:
        """Drop the answer to a question, which is to be asked again. Answers to other questions of its key stay."""
        answers = self.answers.get(key)
        if answers is not None and answers.pop(question, None) is not None and not answers:
            del self.answers[key]

    def drop_misfit(self, key: str, question: str, raw: JSON) -> bool:
        """Drop an answer that does not fit; return whether the one before, to the same question, was the same."""
        self.forget(key, question)
        misfit = digest([question, {name: value for name, value in raw.items() if name != "_meta"}])
        is_same = self.misfits.get(key) == misfit
        self.misfits[key] = misfit
        return is_same

    # Budgets

    def count_round(self, asked: dict[str, str], limits: Limits, *, keeps_state: bool = False) -> None:
        """Note that a round ends. Raises `OverBudget` if the flow has used up its rounds, or makes no progress.

        `asked`: the digests of its questions, by key; if there are none, the state is only handed over.
        `keeps_state`: whether the handler itself wants to be run again, with another state of its own. As long as that
            changes, it may continue up to the limit of rounds.
        """
        self.rounds += 1
        self.asked = asked
        self.single_use = self.single_use or _confirms(asked.values())
        if self.rounds > limits.rounds:
            raise OverBudget(f"The flow needs more than {limits.rounds} rounds", "rounds", limits.rounds)
        if asked:
            self.handed_over = ""
            return
        if not keeps_state:
            self.state_only += 1
            if self.state_only > limits.state_only_rounds:
                message = f"The flow was handed over more than {limits.state_only_rounds} times without a question"
                raise OverBudget(message, "state_only_rounds", limits.state_only_rounds)
        self.hand_over(limits)

    def hand_over(self, limits: Limits) -> None:
        """Note the end of a round without a question. Raises `OverBudget` if nothing was done since another one."""
        held = digest_bytes(self._held())
        if held == self.handed_over:
            message = "The flow was handed over twice without progress in between"
            raise OverBudget(message, "state_only_rounds", limits.state_only_rounds)
        self.handed_over = held

    def may_hand_over(self, limits: Limits) -> bool:
        """Check whether a round may end here without a question, by the budgets that `count_round` enforces."""
        if self.rounds >= limits.rounds or self.state_only >= limits.state_only_rounds:
            return False
        held = self._held()
        return len(held) + _FRAME_BYTES <= limits.state_bytes and digest_bytes(held) != self.handed_over

    @property
    def is_as_handed_over(self) -> bool:
        """Whether nothing has come to it since the round before, which handed it over."""
        return digest_bytes(self._held()) == self.handed_over

    def _held(self) -> bytes:
        held = [self._answers(), self._steps(), None if self.state is UNSET else [self.state]]
        return to_json([*held, exact] if (exact := self._exact()) else held)

    # To and from a payload

    def dump(self, bound_to: list[str], now: float, seconds: float, limits: Limits) -> bytes:
        """Write the payload of a state, good for so many seconds or the rest of the flow. Raises `OverBudget`."""
        # Single letters, since the client carries them back and forth: version, binding, expires ("x"), flow id,
        # time of the start, rounds, state-only rounds ("o"), questions asked ("q"), answers, steps, the handler's own
        # state ("h"), digest of what was last handed over ("d"), a confirmation was asked ("c"), earlier answers,
        # handed over for too much load ("l"), where the first round was traced ("w"), pieces of the result that were
        # sent ("p"), the epoch of the store ("y"), answers that did not fit ("m"), what JSON does not hold of results
        # ("j") and of the handler's own state ("z"). A release ignores what it does not know of these.
        self.expires = min(now + seconds, self.started + limits.flow_seconds)
        fields: JSON = {
            "v": _FORMAT,
            "b": bound_to,
            "x": self.expires,
            "f": self.flow,
            "t": self.started,
            "r": self.rounds,
            "o": self.state_only,
            "q": self.asked,
            "a": self._answers() if self.answers else _NOTHING,
            "s": self._steps() if self.steps else _NOTHING,
        }
        if self.state is not UNSET:
            fields["h"] = self.state
        more = (("d", self.handed_over), ("c", self.single_use), ("l", self.shed), ("w", self.origin))
        for name, value in (*more, ("p", self.pieces), ("y", self.epoch), ("m", self.misfits)):
            if value:
                fields[name] = value
        fields.update(self._exact())
        earlier = self._earlier() if self.answers else _NOTHING
        if earlier:
            fields["e"] = earlier
        payload = to_json(fields)
        if len(payload) > limits.state_bytes and earlier:  # to ask again is better than to end the flow
            del fields["e"]
            payload = to_json(fields)
        if len(payload) > limits.state_bytes:
            message = f"The flow's state is {len(payload)} bytes, and at most {limits.state_bytes} are allowed"
            raise OverBudget(f"{message}; its largest entry is {self._largest()}", "state_bytes", limits.state_bytes)
        return payload

    @classmethod
    def load(
        cls, payload: bytes, bound_to: list[str], now: float, grace: float = 0.0, *, single_use: bool = False
    ) -> "Journal":
        """Read a payload back, for a call that it belongs to. What a codec opened, some version of this package sealed.

        Raises `InvalidRequestState` if it is of another format, has expired, or belongs to another call.

        `grace`: by how many seconds its expiry is put off.
        `single_use`: whether its handler's states are redeemed once. Such a state has `REDEEMED_FOR` besides, in which
            `Redeemer` begins nothing new.
        """
        try:
            fields = from_json(payload)
            if fields["v"] != _FORMAT:
                raise InvalidRequestState("sealed by another version of the format")
            _check_binding(fields["b"], bound_to)
            newest, steps = fields["a"], fields["s"]
            # Passed by position, since names would take as long again.
            journal = cls(
                fields["t"],
                fields["f"],
                fields["r"],
                fields["o"],
                fields["q"],
                _restored(newest, fields.get("e", _NOTHING)) if newest else {},
                {key: Step(*parts) for key, parts in steps.items()} if steps else {},
            )
            journal.expires = expires = fields["x"] + grace
            if len(fields) > _ALWAYS:
                journal.state = fields.get("h", UNSET)
                journal.handed_over = fields.get("d", "")
                journal.shed = "l" in fields
                journal.origin = fields.get("w", "")
                journal.pieces = fields.get("p", 0)
                journal.epoch = fields.get("y", "")
                journal.misfits = fields.get("m") or {}
                journal.single_use = "c" in fields
                journal.exact_state = fields.get("z")
                for key, exact in fields.get("j", _NOTHING).items():
                    journal.steps[key].exact = exact
            if _CONFIRMS in payload and journal._has_confirmation():
                journal.single_use = True  # what an earlier release sealed does not say so
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidRequestState("not a journal") from None
        until = expires + REDEEMED_FOR if single_use or journal.single_use else expires
        if until <= now:
            raise InvalidRequestState("expired", StateFault.EXPIRED)
        if journal.started > now + CLOCK_SKEW_SECONDS:
            raise InvalidRequestState("from the future; the replicas' clocks differ", StateFault.FROM_THE_FUTURE)
        return journal

    def _has_confirmation(self) -> bool:
        return _confirms(self.asked.values()) or any(_confirms(kept) for kept in self.answers.values())

    def _answers(self) -> dict[str, tuple[str, JSON]]:
        """Return the newest answer of each key, with its question: all that the first releases of the format know."""
        return {key: next(reversed(kept.items())) for key, kept in self.answers.items()}

    def _earlier(self) -> JSON:
        return {key: list(kept.items())[:-1] for key, kept in self.answers.items() if len(kept) > 1}

    def _steps(self) -> dict[str, tuple[str, dict[str, str], Any, list[dict[str, str]]]]:
        return {key: (step.function, step.arguments, step.result, step.failed) for key, step in self.steps.items()}

    def _exact(self) -> JSON:
        results = {key: step.exact for key, step in self.steps.items() if step.exact is not None}
        found = {"j": results or None, "z": self.exact_state}
        return {name: exact for name, exact in found.items() if exact is not None}

    def _largest(self) -> str:
        sizes = {f"the answer {key!r}": len(to_json(raw)) for key, (_, raw) in self._answers().items()}
        sizes |= {f"the step {key!r}": len(to_json([step.result, step.exact])) for key, step in self.steps.items()}
        if self.state is not UNSET:
            sizes["the handler's own state"] = len(to_json([self.state, self.exact_state]))
        return max(sizes, key=lambda name: sizes[name], default="the questions")


_CONFIRMATION = f"{CONFIRMATION}."

_CONFIRMS = f'"{_CONFIRMATION}'.encode()


def _restored(newest: JSON, earlier: JSON) -> dict[str, Answers]:
    """Return the answers of each key, the newest last."""
    return {key: dict([*earlier.get(key, ()), pair]) for key, pair in newest.items()}


def _confirms(questions: Iterable[str]) -> bool:
    for question in questions:  # noqa: SIM110  a generator takes five times as long
        if question.startswith(_CONFIRMATION):
            return True
    return False

"""What a flow remembers between its rounds."""

import itertools
import math
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any

from pydantic_core import from_json, to_json

from .digests import canonical, digest, digest_bytes
from .errors import OverBudget, StateRefused
from .limits import Limits
from .messages import JSON, Call

UNSET: Any = object()
"""No handler state; None is one."""


class _Process:
    """What no other process has. A flow id is no secret, only unique, so it need not cost a call to the kernel."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.secret = secrets.token_bytes(16)
        self.flows = itertools.count()


_process = _Process()


def _new_flow_id() -> str:
    # The time tells copies of a whole machine apart, which share all the rest.
    return digest_bytes(b"%b%d %d" % (_process.secret, time.time_ns(), next(_process.flows)))


_FORMAT = 1
LEEWAY = 60.0
"""How far the replicas' clocks may be apart, in seconds."""
_FRAME_BYTES = 1024
"""What a payload has besides answers, steps and the handler's state, in bytes: enough where nothing is asked."""


BINDINGS = ("audience", "principal", "method", "target", "arguments")
"""What a sealed state belongs to, in the order in which it is sealed."""


def binding(audience: str, call: Call) -> list[str]:
    """Give what a call's state is bound to: a string for each of the `BINDINGS`.

    All arguments count, as they were sent: were it only those that the handler takes, a flow would end where another
    version takes one more or one fewer. What no handler takes is refused before it comes here, or costs its length.
    """
    who = call.principal
    return [
        audience,
        "" if who is None else digest([who.issuer, who.subject, who.client_id]),
        call.method,
        call.target,
        digest_bytes(canonical(call.arguments)),
    ]


def _check_binding(sealed: list[str], expected: list[str]) -> None:
    """Compare in constant time; only a binding that differs is worth the time to find out where."""
    if not compare_digest(to_json(sealed), to_json(expected)):
        parts = zip(BINDINGS, sealed, expected, strict=True)
        differing = [name for name, one, other in parts if not compare_digest(one.encode(), other.encode())]
        other = "other" if differing[0] == "arguments" else "another"
        raise StateRefused(f"belongs to {other} {differing[0]}")


@dataclass(slots=True)
class Answer:
    """An answer that was kept.

    Parameters:
        digest: of the question that it answers. Without its first half (the message) where a pure function read an
            answer to a question that it had not asked yet.
        raw: what the client sent.
    """

    digest: str
    raw: JSON


@dataclass(slots=True)
class Step:
    """A step that has run.

    Parameters:
        function: the full name of the function.
        arguments: a digest for each of its arguments, by name.
        result: what it returned, as JSON.
        failed: the arguments of the attempts that had failed before, in the same place.
    """

    function: str
    arguments: dict[str, str]
    result: Any
    failed: list[dict[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class Journal:
    """The record of one flow. It travels sealed with the client, or lies in the row of a task.

    Parameters:
        started: when the flow began, in seconds since the epoch.
        flow_id: the flow's id, random; empty until `flow` is first read.
        rounds: how many rounds ended with a need for input.
        state_only: how many of them asked nothing.
        asked: the digest of each question that the client has yet to answer, by key.
        answers: the answers kept, by key.
        steps: the steps that have run, by key.
        state: the handler's own state as JSON; `UNSET` if there is none.
        handed_over: whether the last round was state-only, and what the journal held then.
        expires: when the state that it came in can be redeemed no longer, in seconds since the epoch.
    """

    started: float
    flow_id: str = ""
    rounds: int = 0
    state_only: int = 0
    asked: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    state: Any = UNSET
    handed_over: str = ""
    expires: float = field(default=math.inf, compare=False)

    @property
    def flow(self) -> str:
        """The flow's id. Made when it is first needed, since most calls are over in one round and never need one."""
        if not self.flow_id:
            self.flow_id = _new_flow_id()
        return self.flow_id

    # Answers

    def deliver(self, answers: Mapping[str, JSON]) -> None:
        """Keep the answers to what was asked. A key that was not asked is ignored."""
        for key, raw in answers.items():
            if key in self.asked:
                self.answers[key] = Answer(self.asked.pop(key), raw)
        self.asked.clear()

    def keep(self, key: str, question: str, raw: JSON) -> None:
        """Keep an answer that came before its question was asked."""
        self.answers[key] = Answer(question, raw)

    def answer(self, key: str, question: str) -> JSON | None:
        """Give the answer kept for a key, if it answers the question of that digest."""
        kept = self.answers.get(key)
        return kept.raw if kept is not None and kept.digest == question else None

    def answer_of_kind(self, key: str, kind: str, shape: str | None) -> JSON | None:
        """Give the answer kept for a key, if it answers a question of that kind (and of that shape, unless None)."""
        kept = self.answers.get(key)
        if kept is None:
            return None
        kept_kind, _, kept_shape = kept.digest.split(".")
        return kept.raw if kept_kind == kind and shape in (None, kept_shape) else None

    def forget(self, key: str) -> None:
        """Drop the answer kept for a key: its question is to be asked again."""
        self.answers.pop(key, None)

    # Budgets

    def count_round(self, asked: dict[str, str], limits: Limits) -> None:
        """Note that a round ends with these questions; none means that the state is only handed over.

        Raises:
            OverBudget: the flow has used up its rounds.
        """
        self.rounds += 1
        self.asked = asked
        if self.rounds > limits.rounds:
            raise OverBudget(f"The flow needs more than {limits.rounds} rounds", "rounds", limits.rounds)
        if asked:
            self.handed_over = ""
            return
        self.state_only += 1
        if self.state_only > limits.state_only_rounds:
            message = f"The flow was handed over more than {limits.state_only_rounds} times without a question"
            raise OverBudget(message, "state_only_rounds", limits.state_only_rounds)
        self.hand_over(limits)

    def hand_over(self, limits: Limits) -> None:
        """Note that a round ends without a question.

        Raises:
            OverBudget: so did the last one, and nothing has been done in between.
        """
        held = digest_bytes(self._held())
        if held == self.handed_over:
            message = "The flow was handed over twice with nothing done in between"
            raise OverBudget(message, "state_only_rounds", limits.state_only_rounds)
        self.handed_over = held

    def park(self, asked: dict[str, str]) -> None:
        """Note that a task waits for these questions; its rounds are not the client's, so no budget counts them."""
        self.rounds += 1
        self.asked = asked

    def may_hand_over(self, limits: Limits) -> bool:
        """Say whether a round may end here without a question, by the budgets that `count_round` holds."""
        if self.rounds >= limits.rounds or self.state_only >= limits.state_only_rounds:
            return False
        held = self._held()
        return len(held) + _FRAME_BYTES <= limits.state_bytes and digest_bytes(held) != self.handed_over

    @property
    def is_as_handed_over(self) -> bool:
        """Whether nothing has come to it since the round before, which handed it over."""
        return digest_bytes(self._held()) == self.handed_over

    def _held(self) -> bytes:
        return to_json([self._answers(), self._steps(), None if self.state is UNSET else [self.state]])

    # To and from a payload

    def dump(self, bound_to: list[str], now: float, seconds: float, limits: Limits) -> bytes:
        """Write the journal as the payload of a sealed state.

        Parameters:
            bound_to: what the state belongs to; see `binding`.
            now: seconds since the epoch.
            seconds: how long the state can be redeemed; the life of the whole flow may end it sooner.
            limits: the size that is allowed.

        Raises:
            OverBudget: the journal is too large; the error names the largest entry.
        """
        # Single letters, since the client carries them back and forth.
        fields: JSON = {
            "v": _FORMAT,
            "b": bound_to,
            "x": min(now + seconds, self.started + limits.flow_seconds),
            "f": self.flow,
            "t": self.started,
            "r": self.rounds,
            "o": self.state_only,
            "q": self.asked,
            "a": self._answers(),
            "s": self._steps(),
        }
        if self.state is not UNSET:
            fields["h"] = self.state
        if self.handed_over:
            fields["d"] = self.handed_over
        payload = to_json(fields)
        if len(payload) > limits.state_bytes:
            message = f"The flow's state is {len(payload)} bytes, over {limits.state_bytes}"
            raise OverBudget(f"{message}; its largest entry is {self._largest()}", "state_bytes", limits.state_bytes)
        return payload

    @classmethod
    def load(cls, payload: bytes, bound_to: list[str], now: float) -> "Journal":
        """Read a payload back, for a call that it belongs to.

        Only what a codec opened comes here, so it is what some version of this package sealed.

        Raises:
            StateRefused: it is of another version, has expired, or belongs to another call.
        """
        try:
            fields = from_json(payload)
            if fields["v"] != _FORMAT:
                raise StateRefused("sealed by another version of the format")
            _check_binding(fields["b"], bound_to)
            expires, started = fields["x"], fields["t"]
            journal = cls(
                started=started,
                flow_id=fields["f"],
                rounds=fields["r"],
                state_only=fields["o"],
                asked=fields["q"],
                answers={key: Answer(*parts) for key, parts in fields["a"].items()},
                steps={key: Step(*parts) for key, parts in fields["s"].items()},
                state=fields.get("h", UNSET),
                handed_over=fields.get("d", ""),
                expires=expires,
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StateRefused("not a journal") from None
        if expires <= now:
            raise StateRefused("expired")
        if started > now + LEEWAY:
            raise StateRefused("from the future; the replicas' clocks disagree")
        return journal

    def _answers(self) -> dict[str, tuple[str, JSON]]:
        return {key: (kept.digest, kept.raw) for key, kept in self.answers.items()}

    def _steps(self) -> dict[str, tuple[str, dict[str, str], Any, list[dict[str, str]]]]:
        return {key: (step.function, step.arguments, step.result, step.failed) for key, step in self.steps.items()}

    def _largest(self) -> str:
        sizes = {f"the answer {key!r}": len(to_json(kept.raw)) for key, kept in self.answers.items()}
        sizes |= {f"the step {key!r}": len(to_json(step.result)) for key, step in self.steps.items()}
        if self.state is not UNSET:
            sizes["the handler's own state"] = len(to_json(self.state))
        return max(sizes, key=lambda name: sizes[name], default="the questions")

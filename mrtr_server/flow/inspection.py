"""What a sealed state holds, for an operator who has the keys."""

from datetime import UTC, datetime

from pydantic_core import from_json

from ..crypto.codec import SealedCodec
from ..crypto.keys import KeyRing
from ..errors import InvalidRequestState
from ..protocol.messages import JSON, kind_of
from .journal import BINDINGS, UNSET, Journal


def inspect_state(token: str, ring: KeyRing, *, values: bool = False) -> JSON:
    """Describe a `requestState`, whoever it belongs to and whether or not it has expired.

    `values`: whether to include what people answered, what steps returned, and the handler's own state. Return what it
    belongs to (`principal` and `arguments` as digests), its times in UTC, its rounds, the keys that were asked and
    answered, and its steps. Raises `InvalidRequestState` if it does not open under this ring, or is no state; `reason`
    says why.
    """
    payload = SealedCodec(ring).unseal(token)
    try:
        fields = from_json(payload)
        journal = Journal.load(payload, fields["b"], fields["t"])
    except (ValueError, KeyError, TypeError):
        raise InvalidRequestState("not a journal") from None
    return {**dict(zip(BINDINGS, fields["b"], strict=True)), **describe_journal(journal, values=values)}


def describe_journal(journal: Journal, *, values: bool = False) -> JSON:
    """Describe what a flow remembers.

    `values`: as for `inspect_state`. Return its times in UTC, its rounds, the keys that were asked and answered, and
    its steps.
    """
    described: JSON = {
        "flow": journal.flow,
        "started": utc_time(journal.started),
        "expires": utc_time(journal.expires),
        "rounds": journal.rounds,
        "handed over without a question": journal.state_only,
        "redeemed once": journal.single_use,
        "asked": {key: kind_of(question) for key, question in journal.asked.items()},
        "answered": {key: [kind_of(question) for question in answers] for key, answers in journal.answers.items()},
        "steps": {key: step.function for key, step in journal.steps.items()},
        "has state of the handler": journal.state is not UNSET,
    }
    if journal.epoch:
        described["epoch of the store"] = journal.epoch
    if values:
        described["answers"] = {key: list(answers.values()) for key, answers in journal.answers.items()}
        described["results of steps"] = {key: step.result for key, step in journal.steps.items()}
        described["state of the handler"] = None if journal.state is UNSET else journal.state
    return described


def utc_time(seconds: float) -> str:
    """Return a moment as an operator reads it: in UTC, by ISO 8601, to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

"""What a task holds, sealed: its request, its flow, its questions and its outcome."""

from dataclasses import replace
from hmac import compare_digest, digest
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from ..crypto.keys import TASK, KeyRing
from ..crypto.place_codec import PlaceCodec
from ..errors import InvalidRequestState, OverBudget, ProtocolError, RequestError
from ..flow.journal import Journal
from ..flow.outcome_codec import dump_outcome, load_outcome
from ..limits import LARGEST_META, Limits
from ..protocol.callers import ClientInfo, Principal
from ..protocol.messages import JSON, Call, Complete, Progress
from ..protocol.users import dump_user, load_user
from ..storage.base import TaskRow, in_epoch
from ..well_formed import write_json
from .questions import Questions

ID_BYTES = 24
"""Random bytes in the id of a task: the id may be all that protects it."""

_LONGEST_WAIT = 2048
"""Longest state that says which task a client waits for, in characters."""

_BOUND_TO = ["task"]
_NO_END = 1e10
"""Seconds: so far ahead that a task's journal never expires by itself. It ends with its task."""


class RowBinding(NamedTuple):
    """Where something sealed belongs, so that a writer to the database can't put one task's into another's."""

    id: str
    owner: str


class SealedTasks:
    """Seals what tasks hold, each bound to its task, column and principal, and opens it.

    Raises `InvalidRequestState` for what does not open.

    Args:
        ring: the key ring.
        limits: what a flow may use.
        audience: the server whose tasks they are; empty for an operator's, of whichever server.
    """

    def __init__(self, ring: KeyRing, limits: Limits, audience: str = "") -> None:
        self._audience = audience
        self._codec = PlaceCodec(ring, TASK)
        self._id_keys = [key for _, key in ring.derive("task id")]
        self._limits = replace(limits, flow_seconds=_NO_END)

    def ids_of(self, flow: str, epoch: str) -> list[str]:
        """Return the ids of the one task that a flow may become, by each key; the first is for a new one.

        Without a key, nobody can guess it.

        Args:
            flow: the flow's id.
            epoch: that of the store; empty if it has none. Earlier releases name none.
        """
        digits = [digest(key, flow.encode(), "sha256")[:ID_BYTES].hex() for key in self._id_keys]
        return [*(in_epoch(epoch, each) for each in digits), *(digits if epoch else ())]

    def seal_call(self, binding: RowBinding, call: Call) -> bytes:
        """Seal the request that a task comes from: what its handler may need of it. Raises `OverBudget`."""
        return self._seal(binding, "call", _dump_call(call, self._audience))

    def unseal_call(self, row: TaskRow) -> Call:
        """Return the request that a task came from, unless it came to another server that has the same keys."""
        fields = from_json(self._unseal(row, "call", row.call))
        server = fields.get("audience", self._audience)  # earlier releases did not keep it
        if self._audience and not compare_digest(server.encode(), self._audience.encode()):
            raise InvalidRequestState(f"it is of the server {server!r}. Give each server a database of its own")
        return _load_call(fields)

    def copy_call(self, row: TaskRow, binding: RowBinding) -> bytes:
        """Return the request that a task came from, sealed for another one."""
        return self._seal(binding, "call", self._unseal(row, "call", row.call))

    def seal_journal(self, binding: RowBinding, journal: Journal, now: float) -> bytes:
        """Seal what a flow remembers. Raises `OverBudget` if that is too much."""
        return self._seal(binding, "journal", journal.dump(_BOUND_TO, now, _NO_END, self._limits))

    def unseal_journal(self, row: TaskRow, now: float) -> Journal:
        """Return what a task's flow remembers."""
        return Journal.load(self._unseal(row, "journal", row.journal), _BOUND_TO, now)

    def is_same_journal(self, row: TaskRow, journal: bytes, other: bytes) -> bool:
        """Return whether two sealed journals of a task hold the same: each may be sealed under a key of its own."""
        if journal == other:
            return True
        try:
            return self._unseal(row, "journal", journal) == self._unseal(row, "journal", other)
        except InvalidRequestState:
            return False

    def seal_questions(self, binding: RowBinding, written: bytes) -> bytes:
        """Seal what a task has asked, as `Questions.dump` returns it."""
        return self._seal(binding, "questions", written)

    def unseal_questions(self, row: TaskRow) -> Questions:
        """Return what a task has asked."""
        return Questions.load(self._unseal(row, "questions", row.questions)) if row.questions else Questions()

    def seal_outcome(self, binding: RowBinding, outcome: Complete | RequestError) -> bytes:
        """Seal the outcome of a task. Raises `ValueError` if there is something in it that is not JSON."""
        return self._seal(binding, "outcome", dump_outcome(outcome))

    def unseal_outcome(self, row: TaskRow) -> Complete | RequestError | None:
        """Return the outcome of a task; None if it has none yet."""
        if row.status not in ("completed", "failed"):
            return None
        if row.status == "failed" and not row.outcome:
            return ProtocolError(row.message)  # it was failed without the keys, as another epoch of the store began
        found = load_outcome(self._unseal(row, "outcome", row.outcome))
        return found if isinstance(found, Complete | RequestError) else None

    def seal_progress(self, binding: RowBinding, progress: Progress) -> str:
        """Seal how far a task has come."""
        # Any float may be in it: it is compared with others.
        fields = write_json([progress.token, progress.progress, progress.total, progress.message])
        return self._codec.seal(_bound(binding, "progress"), fields)

    def unseal_progress(self, binding: RowBinding, sealed: str) -> Progress:
        """Return how far a task has come, as `seal_progress` sealed it."""
        moved = "the progress belongs to another task or principal"
        token, progress, total, message = from_json(self._codec.unseal(_bound(binding, "progress"), sealed, moved))
        return Progress(token, progress, total, message, binding.id)

    def seal_wait(self, binding: RowBinding, pieces: int = 0) -> str:
        """Seal a state for a client that is to come again for a result. It grants nothing.

        Args:
            binding: of the task.
            pieces: how many pieces of the result it has been sent.
        """
        return self._codec.seal(_bound(binding, "wait"), b"%d" % pieces if pieces else b"")

    def check_wait(self, binding: RowBinding, state: Any) -> int:
        """Check that a state is one that `seal_wait` gave for this task and principal.

        Returns:
            How many pieces of the result its client has been sent.

        Raises:
            InvalidRequestState: it is not.
        """
        if not isinstance(state, str):
            raise InvalidRequestState("not a string")
        if len(state) > _LONGEST_WAIT:
            raise InvalidRequestState("too large")
        return int(self._codec.unseal(_bound(binding, "wait"), state, "it belongs to another task or principal") or 0)

    def _seal(self, binding: RowBinding, column: str, payload: bytes) -> bytes:
        return self._codec.seal(_bound(binding, column), payload).encode()

    def _unseal(self, row: TaskRow, column: str, sealed: bytes) -> bytes:
        moved = f"the {column} belongs to another task, column or principal"
        return self._codec.unseal(_bound(RowBinding(row.id, row.owner), column), sealed, moved)


def _bound(binding: RowBinding, column: str) -> bytes:
    return to_json([binding.id, binding.owner, column]) + b"\n"


def _dump_call(call: Call, audience: str) -> bytes:
    who = call.principal
    about: JSON = {
        "method": call.method,
        "target": call.target,
        "meta": call.params.get("_meta"),
        "client": [call.client.info, call.client.capabilities],
        "principal": None if who is None else [who.subject, who.issuer, who.client_id],
        "user": dump_user(call.user),
        "scopes": sorted(call.scopes),
        "host": call.headers.get(b"host", b"").decode("latin-1"),
        "root": call.root,
        "audience": audience,
    }
    if call.task is not None and call.task.at_once and call.progress_token is not None:
        about["progress"] = call.progress_token  # it stays valid (Tasks, Task Progress Notifications)
    if len(write_json(about)) > LARGEST_META:
        message = f"Besides the arguments, a task keeps at most {LARGEST_META} bytes of its request"
        raise OverBudget(message, "_meta", LARGEST_META)
    return write_json({**about, "arguments": call.arguments})


def _named_by(who: list[str] | None) -> list[Any] | None:
    """Return the user in a request of an older release, which kept the principal alone."""
    return None if who is None else [who[0], "", who[1], who[2], True]


def _load_call(fields: JSON) -> Call:
    who = fields["principal"]
    return Call(
        method=fields["method"],
        params={} if fields["meta"] is None else {"_meta": fields["meta"]},
        target=fields["target"],
        arguments=fields["arguments"],
        client=ClientInfo(*fields["client"]),
        principal=None if who is None else Principal(*who),
        user=load_user(fields["user"] if "user" in fields else _named_by(who)),
        scopes=frozenset(fields.get("scopes", ())),
        headers={b"host": fields["host"].encode("latin-1")},
        root=fields["root"],
        progress_token=fields.get("progress"),
    )

"""The ids of the requests by which tasks ask: any replica knows by one which question of which task it answers."""

from dataclasses import dataclass

from pydantic_core import from_json, to_json

from ..crypto.keys import KeyRing
from ..crypto.place_codec import PlaceCodec
from ..errors import InvalidRequestState
from ..protocol.callers import Principal
from ..protocol.sessions import OwnerPlaces

_LONGEST_ID = 2_048
"""Characters of the id of a question."""


@dataclass(frozen=True, slots=True)
class AskedByTask:
    """A question of a task that went out.

    Args:
        task: its id.
        key: of the question within it.
        session: the session that the task belongs to, where there is no principal.
    """

    task: str
    key: str
    session: str


class TaskAsks:
    """Seals the ids of the requests that ask for tasks.

    Args:
        ring: the first key seals, every key opens.
        audience: the server that they belong to.
    """

    def __init__(self, ring: KeyRing, audience: str) -> None:
        self._codec = PlaceCodec(ring, "live ask of a task")
        self._places = OwnerPlaces(audience)

    def seal(self, asked: AskedByTask, principal: Principal | None) -> str:
        """Return the id of the request that asks."""
        sealed = self._codec.seal(self._places.of(principal), to_json([asked.task, asked.key, asked.session]))
        return f"{asked.key}.{sealed}"

    def unseal(self, id: str, principal: Principal | None) -> AskedByTask | None:
        """Return what was asked; None if the id, which may be anything, does not open for this principal."""
        if len(id) > _LONGEST_ID:
            return None
        key, _, sealed = id.rpartition(".")
        try:
            payload = self._codec.unseal(self._places.of(principal), sealed, "belongs to another principal")
        except InvalidRequestState:
            return None
        asked = AskedByTask(*from_json(payload))
        return asked if asked.key == key else None

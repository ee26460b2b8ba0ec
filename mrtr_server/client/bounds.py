"""How much a client takes from a server."""

from dataclasses import dataclass, fields

from ..errors import BadReply, SetupError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much a client takes from a server, and for how long it waits.

    Args:
        request_seconds: how long one request may take, from its first byte to the last of its reply, in seconds. The
            time of a question that comes while the request is open does not count.
        silent_seconds: how long nothing may come of a stream of events before it is opened again, in seconds: twice the
            time between two heartbeats of a server.
        task_seconds: how long a task is followed, in seconds. It is not cancelled then.
        waiting_seconds: how long one request waits in all, in seconds, for servers that ask to be called later.
        resends: how often one request is sent again after a lost reply.
        response_bytes: how large a reply may be, and a list with all its pages, in bytes; of a stream of events, each
            of its messages, and what has come of it and is not taken yet.
        rounds: how many rounds one call may have.
        questions: how many questions one round may have.
        pages: how many pages one list may have.

    Raises:
        SetupError: one is negative, or zero where there would be no reply at all.
    """

    request_seconds: float = 120.0
    silent_seconds: float = 60.0
    task_seconds: float = 3600.0
    waiting_seconds: float = 60.0
    resends: int = 3
    response_bytes: int = 16 * 1024 * 1024
    rounds: int = 50
    questions: int = 50
    pages: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value, may_be_none = getattr(self, field.name), field.name in ("waiting_seconds", "resends")
            if not (value > 0 or (may_be_none and value == 0)):
                raise SetupError(f"Bounds({field.name}={value}): it must be {'at least' if may_be_none else 'over'} 0")


DEFAULT = Bounds()


class Allowance:
    def __init__(self, size: int) -> None:
        self._size = size
        self.left = size

    @property
    def size(self) -> int:
        return self._size

    def give_back(self, size: int | None) -> None:
        """Note that so much is taken, and not kept any more; None is all."""
        self.left = self._size if size is None else self.left + size

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise BadReply(f"The reply has more than {self._size} bytes")

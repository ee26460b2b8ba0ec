"""The dialects that a server speaks, and which of them a message is of."""

from collections.abc import Callable, Sequence

from ..errors import SetupError
from .all_dialects import (
    DIALECTS,
    ENCODINGS,
    UNVERSIONED,
    Dialect,
    Dispatch,
    Envelope,
    HandshakeDialect,
    Surface,
    load_encodings,
    unclaimed,
)
from .headers import Mirrored
from .messages import JSON, TaskSupport
from .sessions import Sessions


def check_dialects(names: Sequence[str] | None) -> None:
    """Check that dialects of these names can be served together; None stands for the usual ones.

    Raises:
        SetupError: there is no dialect of a name, or two are for clients that name no version.
    """
    if names is None:
        return
    if not names or set(names) - DIALECTS.keys() - set(ENCODINGS):
        raise SetupError(f"dialects={list(names)!r}: choose from {', '.join((*DIALECTS, *ENCODINGS))}")
    if len(unversioned := UNVERSIONED.intersection(names)) > 1:
        raise SetupError(
            f"dialects={list(names)!r}: clients that name no version can be served in one form only; choose one "
            f"of {', '.join(sorted(unversioned))}"
        )


class ServedDialects:
    """The dialects that a server speaks.

    Args:
        names: their names; None for all but those that have to be named.
        info: the server's name, version and so on, in the shape of `Implementation`.
        mirrored: returns the parameters of a tool that headers mirror.
        task_support: returns whether a tool's calls become tasks.
        takes_tasks: returns whether the server has tasks, or may have them later.
        output_schema: returns the schema of a tool's results.
        sessions: makes and opens session ids.
        single_use: returns whether each state of a tool is redeemed once.

    Raises:
        SetupError: there is no dialect of a name, or two are for clients that name no version.
    """

    def __init__(
        self,
        names: Sequence[str] | None,
        info: JSON,
        mirrored: Mirrored,
        task_support: Callable[[str], TaskSupport],
        takes_tasks: Callable[[], bool],
        output_schema: Callable[[str], JSON | None],
        sessions: Sessions,
        single_use: Callable[[str], bool],
    ) -> None:
        check_dialects(names)
        if names is None:
            names = [*DIALECTS]
        known, self._follow = DIALECTS, None
        if not UNVERSIONED.intersection(names).isdisjoint(ENCODINGS):
            encodings, self._follow = load_encodings()
            known = {**DIALECTS, **encodings}
        chosen = [dialect for name, dialect in known.items() if name in names]
        self.experiments = [dialect.name for dialect in chosen if dialect.name in UNVERSIONED]
        """The names of those that no ratified version of the protocol has."""
        self.ratified = [name for name in DIALECTS if name not in UNVERSIONED]
        """The names of those that there are of ratified versions, served or not."""
        advertised = [dialect.version for dialect in chosen if dialect.version]
        surface = Surface(info, advertised, mirrored, task_support, output_schema, sessions, takes_tasks, single_use)
        self._versions = [each for dialect in chosen for each in dialect.versions]
        self._dialects: list[Dialect] = [dialect(surface) for dialect in chosen]
        self.first = self._dialects[0]
        """Writes the errors of messages that can't be read."""
        handshake = [each for each in self._dialects if isinstance(each, HandshakeDialect)]
        self.handshake: HandshakeDialect | None = handshake[0] if handshake else None

    def dispatching(self, dispatch: Dispatch) -> Dispatch:
        """Return what answers calls of these dialects, by what answers any one of them.

        Args:
            dispatch: answers a call.
        """
        return dispatch if self._follow is None else self._follow(dispatch)

    def choose(self, envelope: Envelope) -> Dialect:
        """Return the dialect of a message. Raises `RequestError` if there is none."""
        for dialect in self._dialects:
            if dialect.claims(envelope):
                return dialect
        raise unclaimed(envelope, self._versions)

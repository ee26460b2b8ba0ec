"""The dialects by name, those that a server speaks, and which of them a message is of."""

from collections.abc import Callable, Mapping, Sequence

from ..errors import SetupError
from .dialect import Dialect, Surface, unclaimed
from .drafts import SepDraftDialect
from .envelope import Envelope
from .handshake import HandshakeDialect
from .messages import JSON, Dispatch, TaskSupport
from .sessions import Sessions
from .v2026_07_28 import ModernDialect

DIALECTS: dict[str, type[Dialect]] = {
    dialect.name: dialect for dialect in (ModernDialect, HandshakeDialect, SepDraftDialect)
}
"""Served unless others are named. The first that claims a request, in this order, loads it."""

ENCODINGS = ("draft-bare-requests", "draft-additional-info", "draft-content", "draft-revision-1")
"""Other encodings of the drafts. Few want them, so they are loaded where one is served."""

UNVERSIONED = frozenset({SepDraftDialect.name, *ENCODINGS})
"""Dialects for clients that name no version. Only one can be served, and no ratified version of the protocol has
them."""


def load_encodings() -> "tuple[dict[str, type[Dialect]], Callable[[Dispatch], Dispatch]]":
    """Return the other encodings of the drafts by name, and the wrapper that their calls need around dispatch."""
    from .draft_answers import following
    from .draft_encodings import ENCODINGS as LOADED

    return {**LOADED}, following


def check_dialects(names: Sequence[str] | None) -> None:
    """Check that dialects of these names can be served together; None: the usual ones. Raises `SetupError`."""
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
    """The dialects that a server speaks: without names, `DIALECTS`. Raises `SetupError` as `check_dialects` does."""

    def __init__(
        self,
        names: Sequence[str] | None,
        info: JSON,
        task_support: Callable[[str], TaskSupport],
        takes_tasks: Callable[[], bool],
        output_schema: Callable[[str], JSON | None],
        sessions: Sessions,
        single_use: Callable[[str], bool],
        extensions: Mapping[str, JSON],
    ) -> None:
        check_dialects(names)
        if names is None:
            names = [*DIALECTS]
        known = DIALECTS
        self.around: list[Callable[[Dispatch], Dispatch]] = []
        """Middleware for calls that a dialect serves in a way of its own."""
        if not UNVERSIONED.intersection(names).isdisjoint(ENCODINGS):
            encodings, follow = load_encodings()
            known = {**DIALECTS, **encodings}
            self.around.append(follow)
        chosen = [dialect for name, dialect in known.items() if name in names]
        self.experiments = [dialect.name for dialect in chosen if dialect.name in UNVERSIONED]
        """The served dialects of no ratified version of the protocol."""
        self.ratified = [name for name in DIALECTS if name not in UNVERSIONED]  # of ratified versions, served or not
        advertised = [dialect.version for dialect in chosen if dialect.version]
        surface = Surface(info, advertised, task_support, output_schema, sessions, takes_tasks, single_use, extensions)
        self.versions = [each for dialect in chosen for each in dialect.versions]
        self._dialects: list[Dialect] = [dialect(surface) for dialect in chosen]
        self.first = self._dialects[0]  # writes the errors of messages that can't be read
        self.by_header = {each.header: each for each in self._dialects if each.header}
        """Those that a header is enough for; see `Dialect.header`."""
        handshake = [each for each in self._dialects if isinstance(each, HandshakeDialect)]
        self.handshake: HandshakeDialect | None = handshake[0] if handshake else None

    def choose(self, envelope: Envelope) -> Dialect:
        """Return the dialect of a message. Raises `RequestError` if there is none."""
        for dialect in self._dialects:
            if dialect.claims(envelope):
                return dialect
        raise unclaimed(envelope, self.versions)

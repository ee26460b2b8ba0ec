"""The dialects by name: one module for each, and version strings in those modules only."""

from collections.abc import Callable

from .dialect import Dialect as Dialect
from .dialect import ListenWriter as ListenWriter
from .dialect import Reply as Reply
from .dialect import Surface as Surface
from .dialect import unclaimed as unclaimed
from .drafts import SepDraftDialect as SepDraftDialect
from .handshake import CANCELLED as CANCELLED
from .handshake import HandshakeDialect as HandshakeDialect
from .jsonrpc import ENDS as ENDS
from .jsonrpc import Envelope as Envelope
from .jsonrpc import find_request_id as find_request_id
from .jsonrpc import read_envelope as read_envelope
from .jsonrpc import read_message as read_message
from .messages import Dispatch as Dispatch
from .v2026_07_28 import ModernDialect as ModernDialect

DIALECTS: dict[str, type[Dialect]] = {
    dialect.name: dialect for dialect in (ModernDialect, HandshakeDialect, SepDraftDialect)
}
"""Every dialect that is served unless others are named, by its name. The first that claims a request, in this order,
loads it."""

ENCODINGS = ("draft-bare-requests", "draft-additional-info", "draft-content", "draft-revision-1")
"""The names of the other encodings of the drafts. Few want them, so they are loaded where one is served."""

UNVERSIONED = frozenset({SepDraftDialect.name, *ENCODINGS})
"""The names of those for clients that name no version, of which only one can be served. No ratified version of the
protocol has them."""


def load_encodings() -> "tuple[dict[str, type[Dialect]], Callable[[Dispatch], Dispatch]]":
    """Return the other encodings of the drafts by name, and the wrapper that their calls need around dispatch."""
    from .draft_answers import following
    from .draft_encodings import ENCODINGS as LOADED

    return {**LOADED}, following

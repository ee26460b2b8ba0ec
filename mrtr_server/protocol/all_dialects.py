"""The dialects by name: one module for each, and version strings in those modules only."""

from .dialect import Dialect as Dialect
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
from .v2026_07_28 import ModernDialect as ModernDialect

DIALECTS: dict[str, type[Dialect]] = {
    dialect.name: dialect for dialect in (ModernDialect, HandshakeDialect, SepDraftDialect)
}
"""Every dialect by its name. The first that claims a request, in this order, loads it."""

EXPERIMENTS = frozenset({SepDraftDialect.name})
"""The names of those that no ratified version of the protocol has."""

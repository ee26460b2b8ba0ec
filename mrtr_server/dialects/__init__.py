"""Dialects: one module for each wire form of the protocol. Version strings live here and nowhere else."""

from .base import Dialect as Dialect
from .base import Envelope as Envelope
from .base import Reply as Reply
from .base import Surface as Surface
from .base import read_envelope as read_envelope
from .base import unclaimed as unclaimed
from .modern import ModernDialect as ModernDialect
from .sep_draft import SepDraftDialect as SepDraftDialect

DIALECTS: dict[str, type[Dialect]] = {dialect.name: dialect for dialect in (ModernDialect, SepDraftDialect)}
"""Every dialect by its name, in the order in which they are asked whether a request is theirs."""

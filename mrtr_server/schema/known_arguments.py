"""Arguments that a tool or prompt does not have, and the error that names them."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from ..errors import ArgumentsMisfit
from ..limits import Limits
from .arguments import Arguments, SignatureArguments
from .lenient import DEFAULTS
from .problems import problem, shortened

MOST_NAMED = 10
"""How many unknown arguments an error names."""

LONGEST_COMPARED = 64
"""How long a name may be, in characters, to be compared with the known names: longer names are no typing errors."""


class ArgumentNames:
    """The names that the arguments of a call may have.

    Args:
        arguments: validates them.
        own: the parameters that the server fills.
    """

    def __init__(self, arguments: SignatureArguments, own: Collection[str]) -> None:
        self.known = arguments.names
        """Those that there always may be."""
        self._listed = sorted(arguments.names)
        self._reserved = arguments.reserved
        self._own = frozenset(own)
        self._is_open = arguments.is_open

    def unknown(self, raw: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return a problem for each argument that does not exist, as (where, what). No value is repeated."""
        if self._is_open:
            unknown = sorted(name for name in self._reserved if name in raw)
            count = len(unknown)
        else:
            count = len(raw) - sum(name in raw for name in self.known)
            unknown = list(islice((name for name in raw if name not in self.known), MOST_NAMED))
        named = [problem((_readable(name),), self._what(name)) for name in unknown[:MOST_NAMED]]
        return shortened(named, f"{count - len(named)} more" if count > len(named) else "")

    def _what(self, name: str) -> str:
        if name in self._own:
            return "the server fills this in; leave it out"
        near = get_close_matches(name, self._listed, n=1) if len(name) <= LONGEST_COMPARED else []
        if near:
            return f"unknown argument; did you mean {near[0]!r}?"
        return f"unknown argument; known arguments: {', '.join(self._listed) or 'none'}"


def validate_arguments(
    arguments: Arguments, names: ArgumentNames | None, raw: Mapping[str, Any], limits: Limits = DEFAULTS
) -> dict[str, Any]:
    """Validate raw arguments, and check that there are no unknown ones.

    Args:
        arguments: validates them.
        names: the names that arguments may have; None to drop unknown ones.
        raw: as sent.
        limits: of the request.

    Raises:
        ArgumentsMisfit: some do not fit, or are unknown; it has the problems of both kinds.
    """
    if names is None or names.known.issuperset(raw) or not (unknown := names.unknown(raw)):
        return arguments.validate(raw, limits)
    try:
        arguments.validate(raw, limits)
    except ArgumentsMisfit as misfit:
        unknown += misfit.problems
    raise ArgumentsMisfit(unknown)


def _readable(name: str) -> str:
    """Return a name on one line, whatever it is made of."""
    return name if name.isprintable() else repr(name)

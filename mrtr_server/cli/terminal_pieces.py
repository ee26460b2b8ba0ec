"""Pieces of a result at the terminal, printed as they come."""

from collections.abc import Callable
from typing import Any

from ..client import Piece
from ..logs.formats import plain_lines
from ..protocol.messages import JSON


class TerminalPieces:
    """Prints the texts of a result as they come, and tells what of the result was not printed.

    Other content is left to the result.

    Args:
        write: prints a text as it is, without a line break.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._printed: dict[int, str] = {}
        """The texts that were printed, by their block of the result."""
        self._line_is_open = False

    def show(self, piece: Piece) -> None:
        """Print a piece: beside what its block has already, else on a line of its own.

        Args:
            piece: it.
        """
        if not piece.text:
            return
        if piece.block not in self._printed:
            self.end_line()
        self._printed[piece.block] = self._printed.get(piece.block, "") + piece.text
        self._write(plain_lines(piece.text))
        self._line_is_open = not piece.text.endswith("\n")

    def end_line(self) -> None:
        """Break the line, so that something else may be printed."""
        if self._line_is_open:
            self._write("\n")
            self._line_is_open = False

    def unprinted(self, content: list[JSON]) -> list[JSON]:
        """Return the blocks of a result that still have to be printed: all, if a text is not what came in pieces.

        Args:
            content: of the result.
        """
        if any(self._text(content, block) != text for block, text in self._printed.items()):
            return content
        return [block for at, block in enumerate(content) if at not in self._printed]

    def _text(self, content: list[JSON], block: int) -> Any:
        return content[block].get("text") if 0 <= block < len(content) else None

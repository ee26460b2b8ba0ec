"""A client that asks the person at the terminal, or takes answers that were given. Extra: `cli`."""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Literal, NamedTuple, TypeVar

from ..client import Bounds, Client, Form, Link, Piece, Progress, Sampling, TaskState
from ..errors import NotAnswered, SetupError
from ..extras import lacking
from ..logs.formats import plain, plain_lines
from ..protocol.ask_kinds import Choice, Filled
from ..protocol.messages import JSON
from .call_arguments import read_field
from .terminal_form import Asker

try:
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.output import create_output
    from rich import progress
    from rich.console import Console
    from rich.text import Text
except ImportError as error:
    raise lacking("This command", "cli", error) from error

T = TypeVar("T")

_CHOICES: Mapping[str, Choice] = {"accept": "accept", "decline": "decline", "cancel": "cancel"}
"""What may be given for a form or a link in place of its fields."""

_SAID = {"true": "accept", "false": "decline"}
"""What else may be given for a link, and for a form without fields."""

_LONGEST_NOTE = 80
"""How much of a note on progress is shown, in characters."""

_SHOWN = 24
"""How many characters of a state the trace shows."""


class TerminalPieces:
    """Prints the texts of a result as they come, and tells what of the result was not printed.

    Other content is left to the result.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._printed: dict[int, str] = {}
        """The texts that were printed, by their block of the result."""
        self._line_is_open = False

    def show(self, piece: Piece) -> None:
        """Print a piece: beside what its block has already, else on a line of its own."""
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
        """Return the blocks of a result that still have to be printed: all, if a text is not what came in pieces."""
        if any(self._text(content, block) != text for block, text in self._printed.items()):
            return content
        return [block for at, block in enumerate(content) if at not in self._printed]

    def _text(self, content: list[JSON], block: int) -> Any:
        return content[block].get("text") if 0 <= block < len(content) else None


class Calls(NamedTuple):
    """What a command calls with."""

    client: Client
    as_json: bool
    pieces: TerminalPieces


class _Terminal:
    """Answers with what was given, else by the person at the terminal; and shows how far a call has come."""

    def __init__(self, answers: Mapping[str, str | JSON], asker: Asker | None, console: Console) -> None:
        self.pieces = TerminalPieces(_write)
        self._answers = dict(answers)
        self._given = frozenset(answers)
        self._asker = asker
        self._console = console
        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=asker is None,
        )
        self._row: progress.TaskID | None = None
        self.task = ""
        """The task of the call, once it is one."""

    async def on_elicit(self, form: Form) -> Filled:
        if form.key not in self._answers:
            return await self._ask(form.key, lambda asker: asker.fill(form))
        answer = self._answers.pop(form.key)
        if isinstance(answer, dict):
            return answer
        if choice := _CHOICES.get(answer if form.fields else _SAID.get(answer, answer)):
            return choice
        if len(form.fields) == 1:
            name = next(iter(form.fields))
            return {name: read_field(name, answer, form.schema)}
        raise SetupError(f"--answer {plain(form.key)}: it takes fields as JSON, or accept, decline or cancel")

    async def on_link(self, link: Link) -> Choice:
        if link.key not in self._answers:
            return await self._ask(link.key, lambda asker: asker.agree(link))
        answer = self._answers.pop(link.key)
        if isinstance(answer, str) and (choice := _CHOICES.get(_SAID.get(answer, answer))):
            return choice
        raise SetupError(f"--answer {plain(link.key)}: it takes true, false, accept, decline or cancel")

    async def on_sample(self, sampling: Sampling) -> str | Mapping[str, Any]:
        if sampling.key not in self._answers:
            return await self._ask(sampling.key, lambda asker: asker.write(sampling))
        return self._answers.pop(sampling.key)

    def on_progress(self, note: Progress) -> None:
        self._show(note.message or "working", note.progress, note.total)

    def on_piece(self, piece: Piece) -> None:
        self._bar.stop()
        self.pieces.show(piece)

    def on_task(self, task: TaskState) -> None:
        self.task = task.task_id
        self._show(f"task {task.status}: {task.status_message}" if task.status_message else f"task {task.status}")

    def stop(self) -> None:
        """Leave the terminal to something else."""
        self._bar.stop()
        self.pieces.end_line()

    async def _ask(self, key: str, ask: Callable[[Asker], Awaitable[T]]) -> T:
        self.stop()
        if key in self._given:
            words = f"The server asks {plain(key)!r} again: the answer that was given did not fit"
            self._console.print(Text(words), soft_wrap=True)
        if self._asker is None:
            raise NotAnswered
        return await ask(self._asker)

    def _show(self, text: str, done: float | None = None, total: float | None = None) -> None:
        if self._asker is None:
            return
        self.pieces.end_line()
        self._bar.start()
        if self._row is None:
            self._row = self._bar.add_task("", total=None)
        self._bar.update(self._row, description=plain(text)[:_LONGEST_NOTE], completed=done, total=total)


@asynccontextmanager
async def calling(
    url: str,
    *,
    token: str | None,
    as_json: bool,
    trace: bool,
    seconds: float,
    answers: Mapping[str, str | JSON],
    roots: tuple[str, ...],
    asks: bool,
) -> AsyncIterator[Calls]:
    """Make the client of a command."""
    console = Console(stderr=True, highlight=False)
    host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    terminal = _Terminal(answers, Asker(console, host) if asks else None, console)
    stack = ExitStack()
    if asks:  # what is asked is no part of the result
        stack.enter_context(create_app_session(output=create_output(sys.stderr)))

    def show(way: Literal["sent", "received"], message: JSON) -> None:
        terminal.stop()
        shown = json.dumps(_short(message), indent=2)
        console.print(Text(f"{'→' if way == 'sent' else '←'} {shown}", style="cyan" if way == "sent" else "green"))

    try:
        async with Client(
            url,
            token=token,
            on_elicit=terminal.on_elicit,
            on_link=terminal.on_link,
            on_sample=terminal.on_sample,
            on_roots=(lambda: roots) if roots else None,
            on_progress=terminal.on_progress,
            on_piece=terminal.on_piece if sys.stdout.isatty() and not as_json else None,
            on_task=terminal.on_task,
            name="mrtr-server",
            bounds=Bounds(request_seconds=seconds),
            on_message=show if trace else None,
        ) as client:
            try:
                yield Calls(client, as_json, terminal.pieces)
            except NotAnswered:
                if terminal.task:  # the same command with answers makes another one
                    await client.cancel_task(terminal.task)
                raise
    finally:
        terminal.stop()
        stack.close()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _short(value: Any, name: str = "") -> Any:
    """Return a message with its states cut: anyone who has a state may replay it."""
    if isinstance(value, dict):
        return {key: _short(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    if name == "requestState" and isinstance(value, str) and len(value) > _SHOWN:
        return f"{value[:_SHOWN]}… ({len(value)} characters)"
    return value

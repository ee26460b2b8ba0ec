"""A client that asks the person at the terminal, or takes answers that were given. Extra: `cli`."""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from typing_extensions import override

from ..client import Bounds, Client, Command, Form, Link, LoginFailed, OAuth, Piece, Progress, Sampling, TaskState
from ..errors import NotAnswered, SetupError, lacking
from ..logs.formats import plain, plain_lines
from ..protocol.ask_kinds import Choice, Filled
from ..protocol.messages import JSON
from .call_arguments import read_field
from .targets import Target
from .terminal_form import Asker

try:
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.output import create_output
    from rich import progress
    from rich.console import Console
    from rich.progress_bar import ProgressBar
    from rich.text import Text
except ImportError as error:
    raise lacking("This command", "cli", error) from error

T = TypeVar("T")

# What may be given for a form or a link in place of its fields.
_CHOICES: Mapping[str, Choice] = {"accept": "accept", "decline": "decline", "cancel": "cancel"}

_SAID = {"true": "accept", "false": "decline"}  # of a link, and of a form without fields

_BAR_WIDTH = 20

_LONGEST_NOTE = 80  # characters of a note on progress

_SHOWN = 24  # characters of a state in the trace


class TerminalPieces:
    """Prints the texts of a result as they come. Other content is left to the result."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._printed: dict[int, str] = {}  # by their block of the result
        self._line_is_open = False

    def show(self, piece: Piece) -> None:
        if not piece.text:
            return
        if piece.block not in self._printed:
            self.end_line()
        self._printed[piece.block] = self._printed.get(piece.block, "") + piece.text
        self._write(plain_lines(piece.text))
        self._line_is_open = not piece.text.endswith("\n")

    def end_line(self) -> None:
        if self._line_is_open:
            self._write("\n")
            self._line_is_open = False

    def unprinted(self, content: list[JSON]) -> list[JSON]:
        """Return the blocks of a result that still have to be printed: all, if a text is not what came in pieces."""
        came = {at: block.get("text") for at, block in enumerate(content)}
        if any(came.get(block) != text for block, text in self._printed.items()):
            return content
        return [block for at, block in enumerate(content) if at not in self._printed]


class Calls(NamedTuple):
    client: Client
    as_json: bool
    pieces: TerminalPieces
    finish: Callable[[], None]  # takes the progress from the terminal, before the result is printed
    folder: Path | None = None  # where bytes of results are saved


class _Bar(progress.ProgressColumn):
    """A bar where it is known how long it will be; else there is no place that a text could use."""

    @override
    def render(self, task: progress.Task) -> ProgressBar | Text:
        done, total = task.fields["done"], task.fields["all"]
        return ProgressBar(total, done, width=_BAR_WIDTH) if total else Text()


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
            _Bar(),
            progress.TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=asker is None,
        )
        self._row: progress.TaskID | None = None
        self.task = ""  # of the call, once it is one

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

    async def log_in(self, page: str) -> None:
        """Ask the person to open the page of a login. Raises `LoginFailed`."""
        self.stop()
        agreed = self._asker is not None and await self._asker.agree(Link("login", "Log in to call this server.", page))
        if agreed != "accept":
            raise LoginFailed("The server wants a login, and its page was not opened")

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
            self._row = self._bar.add_task("", total=None, done=0, all=None)
        # Without a total of rich's own, which would stay where the next note has none.
        self._bar.update(self._row, description=plain(text)[:_LONGEST_NOTE], done=done or 0, all=total)


@asynccontextmanager
async def calling(
    target: Target,
    *,
    era: str | None,
    token: str | None,
    client_id: str | None,
    as_json: bool,
    trace: bool,
    seconds: float,
    answers: Mapping[str, str | JSON],
    roots: tuple[str, ...] = (),
    folder: Path | None = None,
    asks: bool,
) -> AsyncIterator[Calls]:
    console = Console(stderr=True, highlight=False)
    terminal = _Terminal(answers, Asker(console, target.label) if asks else None, console)
    stack = ExitStack()
    if asks:  # what is asked is no part of the result
        stack.enter_context(create_app_session(output=create_output(sys.stderr)))

    def show(way: Literal["sent", "received"], message: JSON) -> None:
        terminal.stop()
        shown = json.dumps(_short(message), indent=2)
        console.print(Text(f"{'→' if way == 'sent' else '←'} {shown}", style="cyan" if way == "sent" else "green"))

    takes_login = token is None and isinstance(target.server, str)
    try:
        async with Client(
            target.server,
            token=None if isinstance(target.server, Command) else token,
            auth=OAuth(terminal.log_in if asks else None, client_id=client_id) if takes_login else None,
            era=era,
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
                yield Calls(client, as_json, terminal.pieces, terminal.stop, folder)
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

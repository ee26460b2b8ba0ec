"""`mrtr-server call`, `list`, `read` and `get-prompt`: a client at the terminal."""

import asyncio
import json
import mimetypes
import re
import sys
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import urlsplit

import click

from ..deployment.environment import CALL_TOKEN
from ..errors import BadReply, CallFailed, MRTRError, NoReply, NotAnswered, RequestRefused, SetupError, lacking
from ..logs.formats import plain, plain_lines
from ..protocol.messages import JSON
from .call_arguments import read_answers, read_arguments, type_of
from .targets import find_target

if TYPE_CHECKING:  # a server over stdio starts without them
    from pydantic import BaseModel

    from .terminal_client import Calls


_MOST_FILES = 100  # of one result; the size of a reply is bounded before
_LONGEST_STEM = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}")


class Bytes(NamedTuple):
    """What can be saved of a block."""

    data: bytes
    kind: str  # as the server says, such as `image/png`
    name: str  # what the server calls it; maybe empty


def bytes_of(block: Mapping[str, Any]) -> Bytes | None:
    """Return the bytes of a block of content, or of a part of a resource; None if it has none. Raises `BadReply`."""
    inner = block.get("resource")
    part = inner if isinstance(inner, dict) else block
    data = part.get("blob") if "blob" in part else part.get("data")
    if not isinstance(data, str):
        return None
    try:
        found = b64decode(data, validate=True)
    except ValueError:
        raise BadReply("The server sent bytes that are not in Base64") from None
    return Bytes(found, str(part.get("mimeType", "")), str(part.get("uri") or part.get("name") or ""))


class Saver:
    """Writes files into a folder. None that is there is overwritten, and no name of a server leads out of it."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder = folder
        self._stem = stem
        self._left = _MOST_FILES

    def save(self, found: Bytes) -> Path:
        """Write a file; return its path. Raises `BadReply` if there are too many, and `SetupError`."""
        if not self._left:
            raise BadReply(f"The result has more than {_MOST_FILES} files")
        self._left -= 1
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._paths(found):
                try:
                    with path.open("xb") as file:  # a link that is there is not followed either
                        file.write(found.data)
                except FileExistsError:
                    continue
                return path
        except OSError as error:
            raise SetupError(f"--save {self._folder}: {error.strerror or error}") from None
        raise SetupError(f"--save {self._folder}: it has too many files of that name")

    def _paths(self, found: Bytes) -> Iterator[Path]:
        """Yield names, each with a number, so that no system has another meaning for one."""
        last = _last_part(found.name)
        stem = _UNSAFE.sub("-", last.rpartition(".")[0] or last).strip("-") or _UNSAFE.sub("-", self._stem).strip("-")
        suffix = mimetypes.guess_extension(found.kind.partition(";")[0].strip()) or ""
        if not suffix and (typed := _SUFFIX.search(last, max(last.rfind("."), 0))):
            suffix = typed[0]
        for number in range(1, 10_000):
            yield self._folder / f"{stem[:_LONGEST_STEM] or 'content'}-{number}{suffix or '.bin'}"


def _last_part(name: str) -> str:
    try:
        parts = urlsplit(name)
    except ValueError:
        return ""
    return (parts.path.rstrip("/") or parts.netloc).rpartition("/")[2]


T = TypeVar("T")

UNANSWERED, UNKNOWN, ENDED = 3, 4, 130  # exit codes: it left questions open, got no reply, was ended by the person

_MOST_NAMES = 20

_LOG_IN = "Call it at a terminal to log in, or give a token with"


_OF_CALLS = ("server", "is_command", "app_dir", "era", "token", "client_id", "trace", "seconds", "roots", "folder")


def calls_server(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a command of a function of `Calls`, with the options of all commands that call a server."""

    @wraps(function)
    def command(*, as_json: bool, answers: tuple[str, ...] = (), **given: Any) -> None:
        options = {name: given.pop(name) for name in _OF_CALLS if name in given}
        _run(partial(function, **given), as_json=as_json, answers=answers, **options)

    for option in (
        click.option(
            "--timeout", "seconds", default=120.0, show_default=True, metavar="SECONDS", help="For one request."
        ),
        click.option("--trace", is_flag=True, help="Show the messages on the error stream, states cut."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON, and ask nobody; exit with 3 if asked."),
        click.option("--token", envvar=CALL_TOKEN, default=None, help=f"A bearer token; better in {CALL_TOKEN}."),
        click.option(
            "--client-id", metavar="ID", help="What the login's server knows this client by; else it registers."
        ),
        click.option("--era", metavar="VERSION", help="The version of the protocol; by default the newest of both."),
        click.option("--app-dir", default="", metavar="PATH", help="The folder in which to look for MODULE."),
        click.option("--stdio", "is_command", is_flag=True, help="SERVER is a command, in quotes, which is started."),
        click.argument("server", metavar="SERVER"),
    ):
        command = option(command)
    return command


_answers = click.option(
    "--answer",
    "answers",
    multiple=True,
    metavar="KEY=VALUE",
    help="Answer a question by its key: its one value, its fields as JSON, or decline; give it again for more.",
)
_roots = click.option(
    "--root", "roots", multiple=True, metavar="URI", help="A directory or file that the server may know of."
)
_save = click.option(
    "--save",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where images, sounds and other bytes are saved; no file is overwritten.",
)


@click.command()
@calls_server
@click.argument("tool", metavar="TOOL")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@_answers
@_save
@_roots
async def call(calls: "Calls", tool: str, arguments: tuple[str, ...]) -> None:
    """Call the tool TOOL of a server. Its questions are asked at the terminal.

    SERVER is a URL, or a MODULE:APP that runs in this process, or with --stdio a command.
    KEY=VALUE is read by the tool's schema: numbers, booleans, JSON for lists and objects. KEY:=JSON is JSON.
    """
    tools = {each.name: each for each in await calls.client.list_tools()}
    found = tools.get(tool)
    if found is None:
        names = [*list(tools)[:_MOST_NAMES], *(["…"] if len(tools) > _MOST_NAMES else [])]
        raise SetupError(f"The server has no tool {tool!r}. It has: {', '.join(names) or 'none'}")
    reply = await calls.client.call(tool, read_arguments(arguments, found.input_schema))
    _print(calls, reply, calls.pieces.unprinted(reply.content), tool)


@click.command()
@calls_server
@click.argument("uri", metavar="URI")
@_answers
@_save
@_roots
async def read(calls: "Calls", uri: str) -> None:
    """Read the resource URI of a server."""
    reply = await calls.client.read(uri)
    _print(calls, reply, reply.contents, uri)


@click.command("get-prompt")
@calls_server
@click.argument("name", metavar="NAME")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@_answers
@_save
@_roots
async def get_prompt(calls: "Calls", name: str, arguments: tuple[str, ...]) -> None:
    """Get the prompt NAME of a server."""
    reply = await calls.client.get_prompt(name, read_arguments(arguments, {}))
    heads: list[JSON] = []
    for each in reply.messages:
        blocks = each.content if isinstance(each.content, list) else [each.content]
        heads += [{"text": f"[{plain(each.role)}]"}, *blocks]
    _print(calls, reply, heads, name)


@click.command("list")
@calls_server
async def list_all(calls: "Calls") -> None:
    """List tools, prompts and resources of a server."""
    client = calls.client
    lists: dict[str, Callable[[], Awaitable[list[Any]]]] = {
        "tools": client.list_tools,
        "prompts": client.list_prompts,
        "resources": client.list_resources,
        "templates": client.list_templates,
    }
    found = {kind: await _listed(load) for kind, load in lists.items()}
    if calls.as_json:
        print_json({kind: [_json_of(row) for row in rows] for kind, rows in found.items()})
        return
    for kind, rows in found.items():
        for row in rows:
            name = getattr(row, "uri", None) or getattr(row, "uri_template", None) or row.name
            about = plain(row.description.partition("\n")[0] or row.title or "")
            click.echo(f"{kind[:-1]:9} {plain(name)}{taken(row)}  {about}".rstrip())


@click.command()
@click.argument("url", metavar="URL")
def logout(url: str) -> None:
    """Forget the tokens that a login at URL has brought."""
    from ..client.token_store import SystemTokens

    SystemTokens().forget(url)


async def _listed(load: Callable[[], Awaitable[list[T]]]) -> list[T]:
    from ..wire import UNKNOWN_METHOD

    try:
        return await load()
    except RequestRefused as refusal:
        if refusal.code != UNKNOWN_METHOD:
            raise
        return []  # a server that has none may not know the method


def taken(row: Any) -> str:
    """Return what a tool, a prompt or a type of event takes: what may be left out is in brackets."""
    schema = getattr(row, "input_schema", None)
    if schema is not None:
        properties, required = schema.get("properties"), schema.get("required")
        wanted = required if isinstance(required, list) else ()
        fields = properties if isinstance(properties, dict) else {}
        names = [(f"{name}:{type_of(field, schema)}", name in wanted) for name, field in fields.items()]
    else:
        names = [(each.name, each.required) for each in getattr(row, "arguments", ())]
    return "".join(f" {plain(name if is_required else f'[{name}]')}" for name, is_required in names)


def _run(
    work: Callable[["Calls"], Awaitable[None]],
    *,
    server: str,
    is_command: bool,
    app_dir: str,
    as_json: bool,
    answers: tuple[str, ...] = (),
    **options: Any,
) -> None:
    try:
        try:
            from .terminal_client import calling
        except SetupError as error:  # `Client` names only a part of what the command needs
            if not isinstance(error.__cause__, ImportError):
                raise
            raise lacking("This command", "cli", error.__cause__) from error
        given = read_answers(answers)
        target = find_target(server, is_command=is_command, app_dir=app_dir)
        asks = sys.stdin.isatty() and sys.stderr.isatty() and not as_json

        async def run() -> None:
            async with calling(target, as_json=as_json, answers=given, asks=asks, **options) as calls:
                await work(calls)

        asyncio.run(run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(ENDED)
    except MRTRError as error:
        _end(error, as_json=as_json)


def _end(error: MRTRError, *, as_json: bool) -> NoReturn:
    """End the process with what a call failed with: as JSON on standard output, for people on the error stream."""
    match error:
        case NotAnswered():
            print_json({"asks": error.questions})
            if not as_json:
                click.echo("These questions are open. Answer them at a terminal, or with --answer KEY=VALUE", err=True)
            sys.exit(UNANSWERED)
        case NoReply():
            click.echo(f"Error: {plain_lines(str(error))}", err=True)
            sys.exit(UNKNOWN)
        case CallFailed():
            if as_json:
                print_json(error.result)
            raise click.ClickException(plain_lines(str(error)) or "The tool failed") from None
        case RequestRefused():
            if as_json:
                print_json({"error": {"code": error.code, "message": error.message, "data": error.data}})
            hint = f". {_LOG_IN} --token or {CALL_TOKEN}" if error.status == 401 else ""
            code = f" ({error.code})" if error.code else ""
            raise click.ClickException(f"{plain_lines(error.message)}{code}{hint}") from None
    raise click.ClickException(plain_lines(str(error))) from None


def _json_of(reply: "BaseModel") -> JSON:
    return reply.model_dump(mode="json", by_alias=True, exclude_none=True)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value))  # in ASCII, so no terminal is told anything


def _print(calls: "Calls", reply: "BaseModel", blocks: list[JSON], stem: str) -> None:
    calls.finish()
    if calls.as_json:
        print_json(_json_of(reply))
    saver = None if calls.folder is None else Saver(calls.folder, stem)
    for block in blocks:
        saved = _saved(saver, block)
        if saved and not calls.as_json:
            click.echo(saved)
        elif not calls.as_json:
            _print_block(block)


def _saved(saver: Saver | None, block: Mapping[str, Any]) -> str:
    """Save the bytes of a block; return what is said of that, which is nothing where there are none to save."""
    found = None if saver is None else bytes_of(block)
    if saver is None or found is None:
        return ""
    return f"[saved {saver.save(found)}: {plain(found.kind) or 'content'}, {len(found.data)} bytes]"


def _print_block(block: Mapping[str, Any]) -> None:
    inner = block.get("resource")
    part = inner if isinstance(inner, dict) else block
    if isinstance(text := part.get("text"), str):
        click.echo(plain_lines(text))
        return
    about = " ".join(
        str(each[name])
        for each, name in ((block, "type"), (part, "mimeType"), (part, "uri"), (part, "name"))
        if name in each
    )
    how = "--save DIR saves it" if "data" in part or "blob" in part else "--json prints it"
    click.echo(f"[{plain(about or 'content')}; {how}]")

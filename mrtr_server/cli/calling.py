"""`mrtr-server call`, `list`, `read` and `get-prompt`: a client at the terminal."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from ..deployment.environment import CALL_TOKEN
from ..errors import CallFailed, MRTRError, NoReply, NotAnswered, RequestRefused, SetupError
from ..extras import lacking
from ..logs.formats import plain, plain_lines
from ..protocol.messages import JSON
from .call_arguments import read_answers, read_arguments

if TYPE_CHECKING:  # a server over stdio starts without them
    from pydantic import BaseModel

    from .terminal_client import Calls

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

UNANSWERED, UNKNOWN, ENDED = 3, 4, 130
"""How a command exits that left questions open, that got no reply, and that the person ended."""

_MOST_NAMES = 20


def _calls(function: F) -> F:
    """Add the options of all commands that call a server."""
    for option in (
        click.option(
            "--timeout", "seconds", default=120.0, show_default=True, metavar="SECONDS", help="For one request."
        ),
        click.option("--trace", is_flag=True, help="Show the messages on the error stream, states cut."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON, and ask nobody; exit with 3 if asked."),
        click.option("--token", envvar=CALL_TOKEN, default=None, help=f"A bearer token; better in {CALL_TOKEN}."),
        click.argument("url", metavar="URL"),
    ):
        function = option(function)
    return function


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


@click.command()
@_calls
@click.argument("tool", metavar="TOOL")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@_answers
@_roots
def call(tool: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Call the tool TOOL of a server. Its questions are asked at the terminal.

    KEY=VALUE is read by the tool's schema: numbers, booleans, JSON for lists and objects. KEY:=JSON is JSON.
    """

    async def work(calls: "Calls") -> None:
        tools = {each.name: each for each in await calls.client.list_tools()}
        found = tools.get(tool)
        if found is None:
            names = [*list(tools)[:_MOST_NAMES], *(["…"] if len(tools) > _MOST_NAMES else [])]
            raise SetupError(f"The server has no tool {tool!r}. It has: {', '.join(names) or 'none'}")
        reply = await calls.client.call(tool, read_arguments(arguments, found.input_schema))
        calls.pieces.end_line()
        _print(calls, reply, calls.pieces.unprinted(reply.content))

    _run(work, **options)


@click.command()
@_calls
@click.argument("uri", metavar="URI")
@_answers
@_roots
def read(uri: str, **options: Any) -> None:
    """Read the resource URI of a server."""

    async def work(calls: "Calls") -> None:
        reply = await calls.client.read(uri)
        _print(calls, reply, reply.contents)

    _run(work, **options)


@click.command("get-prompt")
@_calls
@click.argument("name", metavar="NAME")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@_answers
@_roots
def get_prompt(name: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Get the prompt NAME of a server."""

    async def work(calls: "Calls") -> None:
        reply = await calls.client.get_prompt(name, read_arguments(arguments, {}))
        if calls.as_json:
            _print(calls, reply, [])
        for each in () if calls.as_json else reply.messages:
            click.echo(f"[{plain(each.role)}]")
            for block in each.content if isinstance(each.content, list) else [each.content]:
                _print_block(block)

    _run(work, **options)


@click.command("list")
@_calls
def list_all(**options: Any) -> None:
    """List tools, prompts and resources of a server."""

    async def work(calls: "Calls") -> None:
        client = calls.client
        lists: dict[str, Callable[[], Awaitable[list[Any]]]] = {
            "tools": client.list_tools,
            "prompts": client.list_prompts,
            "resources": client.list_resources,
            "templates": client.list_templates,
        }
        found = {kind: await _listed(load) for kind, load in lists.items()}
        if calls.as_json:
            _print_json({kind: [_json_of(row) for row in rows] for kind, rows in found.items()})
            return
        for kind, rows in found.items():
            for row in rows:
                name = getattr(row, "uri", None) or getattr(row, "uri_template", None) or row.name
                about = plain(row.description.partition("\n")[0] or row.title or "")
                click.echo(f"{kind[:-1]:9} {plain(name)}{_taken(row)}  {about}".rstrip())

    _run(work, **options)


async def _listed(load: Callable[[], Awaitable[list[T]]]) -> list[T]:
    try:
        return await load()
    except RequestRefused as refusal:
        if refusal.status != 404 or not refusal.code:
            raise
        return []  # a server that has none may not know the method


def _taken(row: Any) -> str:
    """Return what a tool or prompt takes, in one line."""
    schema = getattr(row, "input_schema", None)
    if schema is not None:
        properties, required = schema.get("properties"), schema.get("required")
        wanted = required if isinstance(required, list) else ()
        names = [
            name if name in wanted else f"[{name}]" for name in (properties if isinstance(properties, dict) else ())
        ]
    else:
        names = [each.name if each.required else f"[{each.name}]" for each in getattr(row, "arguments", ())]
    return "".join(f" {plain(name)}" for name in names)


def _load_client() -> None:
    """Import what calls: `Client` names only a part of what the command needs, if that is not installed."""
    try:
        from . import terminal_client  # noqa: F401
    except SetupError as error:
        if isinstance(error.__cause__, ImportError):
            raise lacking("This command", "cli", error.__cause__) from error
        raise


def _run(
    work: Callable[["Calls"], Awaitable[None]],
    *,
    url: str,
    token: str | None,
    as_json: bool,
    trace: bool,
    seconds: float,
    answers: tuple[str, ...] = (),
    roots: tuple[str, ...] = (),
) -> None:
    """Run the calls of a command, and end the process as they ended."""
    try:
        _load_client()
        from .terminal_client import calling

        given = read_answers(answers)
        asks = sys.stdin.isatty() and sys.stderr.isatty() and not as_json

        async def run() -> None:
            async with calling(
                url, token=token, as_json=as_json, trace=trace, seconds=seconds, answers=given, roots=roots, asks=asks
            ) as calls:
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
            _print_json({"asks": error.questions})
            if not as_json:
                click.echo("These questions are open. Answer them at a terminal, or with --answer KEY=VALUE", err=True)
            sys.exit(UNANSWERED)
        case NoReply():
            click.echo(f"Error: {plain_lines(str(error))}", err=True)
            sys.exit(UNKNOWN)
        case CallFailed():
            if as_json:
                _print_json(error.result)
            raise click.ClickException(plain_lines(str(error)) or "The tool failed") from None
        case RequestRefused():
            if as_json:
                _print_json({"error": {"code": error.code, "message": error.message, "data": error.data}})
            hint = f". Give a token with --token or {CALL_TOKEN}" if error.status == 401 else ""
            code = f" ({error.code})" if error.code else ""
            raise click.ClickException(f"{plain_lines(error.message)}{code}{hint}") from None
    raise click.ClickException(plain_lines(str(error))) from None


def _json_of(reply: "BaseModel") -> JSON:
    return reply.model_dump(mode="json", by_alias=True, exclude_none=True)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value))  # in ASCII, so no terminal is told anything


def _print(calls: "Calls", reply: "BaseModel", blocks: list[JSON]) -> None:
    if calls.as_json:
        _print_json(_json_of(reply))
        return
    for block in blocks:
        _print_block(block)


def _print_block(block: Mapping[str, Any]) -> None:
    if isinstance(text := block.get("text"), str):
        click.echo(plain_lines(text))
        return
    about = " ".join(str(block[name]) for name in ("type", "mimeType", "uri", "name") if name in block)
    click.echo(f"[{plain(about or 'content')}; --json prints it]")

"""`mrtr-server install` and `uninstall`: a server in the configuration of a host, and out of it again."""

import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import click

from ..deployment.environment import APPLICATION, COMMAND_PREFIX, PREFIX
from ..logs.formats import plain, plain_lines
from ..protocol.messages import JSON
from .hosts import HOSTS, Host, Start, System
from .options import F, load, takes_app_dir

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")  # what every host takes
_SECONDS = 60  # for a server to start in
_COPY = ".before-mrtr"
# What hosts pass on to the servers that they start, as the official SDKs do.
_POSIX = "HOME LOGNAME PATH SHELL TERM USER"
_WINDOWS = (
    "APPDATA HOMEDRIVE HOMEPATH LOCALAPPDATA PROCESSOR_ARCHITECTURE SYSTEMDRIVE SYSTEMROOT TEMP USERNAME USERPROFILE"
)
_VALUE = r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'{\[][^\n]*)"""


def _takes_host(function: F) -> F:
    options = (
        click.option("--config", type=Path, metavar="PATH", help="Its file, instead of the one that it has by itself."),
        click.option("--dry-run", is_flag=True, help="Show the change, and make none."),
        click.option("--yes", is_flag=True, help="Make the change without a question; for scripts."),
    )
    for option in options:
        function = option(function)
    return click.argument("host", type=click.Choice(tuple(HOSTS)))(takes_app_dir(function))


@click.command()
@_takes_host
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("--url", help="The address of a server that runs elsewhere, instead of MODULE:APP.")
@click.option("--name", help="What the host calls it; by default the server's own name, or the host of --url.")
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A variable that the server gets, with its value here or VALUE. The value stands in the file. Repeatable.",
)
@click.pass_context
def install(
    context: click.Context,
    /,
    host: str,
    app: str | None,
    app_dir: str,
    url: str | None,
    name: str | None,
    variables: Sequence[str],
    **how: Any,
) -> None:
    """Write MODULE:APP into the settings of a host.

    A host is an application with a model, which then starts the server over stdio. First the server is started as the
    host will start it: in another folder, with few variables. Then the change is shown, and made after a yes. All else
    in the file stays as it is, byte for byte, and the former file is kept beside it.
    """
    system, target = context.find_object(System) or System.here(), HOSTS[host]
    if (app is None) == (url is None):
        raise click.UsageError("Name the server, MODULE:APP, or its address, --url: one of the two")
    file = _file(target, system, how["config"])
    if app is None:
        name, entry = _remote(target, name, url or "", variables)
    else:
        name, entry = _local(target, name, app, app_dir, variables, system)
    _change(target, file, name, entry, **how)


@click.command()
@_takes_host
@click.argument("name", metavar="NAME|MODULE:APP")
@click.pass_context
def uninstall(context: click.Context, /, host: str, name: str, app_dir: str, **how: Any) -> None:
    """Remove a server from the settings of a host.

    NAME is what the host calls it. MODULE:APP finds what `install` wrote for it in this folder, or in --app-dir.
    """
    system, target = context.find_object(System) or System.here(), HOSTS[host]
    file = _file(target, system, how["config"])
    servers = _servers(target, _read(target, file)[1])
    if ":" in name:
        found = [each for each, entry in servers.items() if _starts(entry, _arguments(name, app_dir))]
    else:
        found = [each for each in servers if each == name]
    if len(found) != 1:
        what = f"{name} is started by {', '.join(found)}: name one" if found else f"{name} is not in {file}"
        raise click.ClickException(plain(f"{what}. It has: {', '.join(servers) or 'no server'}"))
    _change(target, file, found[0], None, **how)


# The entry


def _local(
    target: Host, name: str | None, app: str, app_dir: str, variables: Sequence[str], system: System
) -> tuple[str, JSON]:
    """Return the name and the entry of a server that a host is to start. Raises `click.ClickException`."""
    name = _named(name, load(app, app_dir).name)
    start = Start(sys.executable, _arguments(app, app_dir), dict(_given(variables, system)))
    _try(start, app, target)
    for each in _left_out(start, system):
        click.echo(f"{each} is set here, and the server will not have it: --env {each} puts it into the file")
    return name, target.local(name, start)


def _named(given: str | None, known: str) -> str:
    """Return what a host calls a server: a given name, or one that is made of what it is known by."""
    name = re.sub(r"[^a-z0-9]+", "-", known.lower()).strip("-")[:64] if given is None else given
    if not _NAME.fullmatch(name):
        raise click.ClickException(
            f"{name!r} can't name a server in every host: --name takes 1 to 64 of a-z, 0-9, - and _, such as book-shop"
        )
    return name


def _arguments(app: str, app_dir: str) -> list[str]:
    # -P: the folder in which a host starts it has no say in what is imported.
    return ["-P", "-m", "mrtr_server", "stdio", "--app-dir", os.path.abspath(app_dir), app]


def _starts(entry: Any, arguments: list[str]) -> bool:
    return isinstance(entry, dict) and entry.get("args") == arguments


def _given(variables: Sequence[str], system: System) -> Iterator[tuple[str, str]]:
    for each in variables:
        name, is_given, value = each.partition("=")
        if not name or (not is_given and name not in system.environ):
            raise click.ClickException(f"--env {name}: there is no such variable here; give its value, NAME=VALUE")
        yield name, value if is_given else system.environ[name]


def _left_out(start: Start, system: System) -> list[str]:
    others = (*start.env, APPLICATION)
    names = (each for each in system.environ if each.startswith(PREFIX) and not each.startswith(COMMAND_PREFIX))
    return sorted(each for each in names if each not in others)


def _remote(target: Host, name: str | None, url: str, variables: Sequence[str]) -> tuple[str, JSON]:
    """Return the name and the entry of a server that runs elsewhere. Raises `click.ClickException`."""
    if variables:
        raise click.UsageError("--env is for a server that the host starts, and not for one at a --url")
    if target.remote is None:
        raise click.ClickException(
            f"The file of {target.title} has only servers that it starts. Add the URL in its settings, under Connectors"
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise click.ClickException(f"--url {url!r} has to be the address of the endpoint: https://example.com/mcp")
    name = _named(name, parts.hostname)
    return name, target.remote(name, url)


def _try(start: Start, app: str, target: Host) -> None:
    """Start a server as a host does, and ping it. Raises `click.ClickException` if it does not answer."""
    inherited = {name: os.environ[name] for name in f"{_POSIX} {_WINDOWS}".split() if name in os.environ}
    ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
    with tempfile.TemporaryDirectory() as elsewhere:
        try:
            done = subprocess.run(  # noqa: S603  what the host is to run
                [start.command, *start.args],
                input=ping,
                capture_output=True,
                cwd=elsewhere,
                env={**inherited, **start.env},
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise click.ClickException(f"{app} did not answer within {_SECONDS} s of its start") from None
    if b'"result"' not in done.stdout:
        said = plain_lines(done.stderr.decode(errors="replace")).strip()
        raise click.ClickException(
            f"{app} does not start as {target.title} will start it, in another folder and with few variables "
            f"(--env NAME passes one on):\n{said}"
        )
    click.echo(f"{app} starts as {target.title} will start it")


# The file


def _file(target: Host, system: System, given: Path | None) -> Path:
    if given is not None:
        return given
    places = target.places(system)
    for file, sign in places:
        if sign.exists() or file.exists():
            return file
    raise click.ClickException(
        f"{target.title} has not been started here: there is no {places[-1].sign}. Start it once, or name its file "
        "with --config"
    )


def _text_of(target: Host) -> ModuleType:
    if target.is_yaml:
        from . import yaml_text  # with a library that no other host needs

        return yaml_text
    from . import jsonc_text

    return jsonc_text


_BOM = "\ufeff"


def _read(target: Host, file: Path) -> tuple[bytes, JSON]:
    """Return a file, and what it holds. Raises `click.ClickException`."""
    try:
        content = file.read_bytes() if file.exists() else b""
        return content, _text_of(target).read(content.decode().removeprefix(_BOM))
    except (OSError, ValueError) as error:
        raise click.ClickException(plain(f"{file} can't be read, and stays as it is: {error}")) from None


def _servers(target: Host, held: JSON) -> dict[str, Any]:
    found = held.get(target.top) or {}
    return found if isinstance(found, dict) else {}


def _change(
    target: Host, file: Path, name: str, entry: JSON | None, *, config: Path | None, dry_run: bool, yes: bool
) -> None:
    """Show a change of one entry, ask, and make it. Raises `click.ClickException`."""
    before, held = _read(target, file)
    if entry is not None and _servers(target, held).get(name) == entry:
        click.echo(f"{name} is in {file} already; nothing to change")
        return
    after = _edited(target, file, before, held, name, entry)
    hidden = _secrets([*_servers(target, held).values(), entry])
    for line in difflib.unified_diff(_lines(before), _lines(after), str(file), str(file), lineterm="", n=1):
        click.echo(plain(hidden.sub(r"\1…", line)))
    if dry_run:
        return
    if not yes:
        _ask(f"{name} is there, and differs. Replace it?" if name in _servers(target, held) else "Write this?")
    try:
        kept = _write(file, before, after)
    except OSError as error:
        raise click.ClickException(f"{file} can't be written: {error}") from None
    click.echo(f"{file} is written{f'; {kept} is as it was' if kept else ''}. {target.title} reads it when it starts")


def _secrets(entries: Sequence[Any]) -> re.Pattern[str]:
    """Return what finds the values of variables and headers in JSON and YAML, which are not for a terminal's log."""
    parts = [each.get(field) for each in entries if isinstance(each, dict) for field in ("env", "envs", "headers")]
    names = "|".join(re.escape(name) for part in parts if isinstance(part, dict) for name in part)
    return re.compile(rf"""(["']?(?<![\w-])(?:[A-Z][A-Z0-9_]*{names and "|"}{names})["']?\s*:\s*){_VALUE}""")


def _lines(content: bytes) -> list[str]:
    return content.decode().removeprefix(_BOM).splitlines()


def _edited(target: Host, file: Path, before: bytes, held: JSON, name: str, entry: JSON | None) -> bytes:
    """Return a file with one entry changed, and nothing else, which is checked. Raises `click.ClickException`."""
    text, expected = before.decode(), deepcopy(held)
    mark = _BOM if text.startswith(_BOM) else ""
    changer = _text_of(target)
    try:
        after: str = changer.edit(text.removeprefix(_BOM), target.top, name, entry)
        servers = _servers(target, expected)
        servers.pop(name, None)
        expected[target.top] = servers if entry is None else {**servers, name: entry}
        if (read := changer.read(after)) != expected or {**held, target.top: 0} != {**read, target.top: 0}:
            raise ValueError("other entries would change with this one")
        return (mark + after).encode()
    except ValueError as error:
        said = f"{file} can't be changed safely, and stays as it is: {error}."
        if entry is None:
            raise click.ClickException(plain(f"{said} Take {name} out of {target.top} by hand")) from None
        shown = _secrets([entry]).sub(r"\1…", changer.edit("", target.top, name, entry))
        raise click.ClickException(f"{plain(said)} Add this by hand:\n{plain_lines(shown)}") from None


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise click.ClickException("Nobody can be asked here. --yes makes the change, --dry-run only shows it")
    if not click.confirm(question):
        raise click.ClickException("Nothing was changed")


def _write(file: Path, before: bytes, after: bytes) -> Path | None:
    """Replace a file at once, and return where it is kept as it was. Raises `OSError`."""
    place = Path(os.path.realpath(file))  # a link stays one
    place.parent.mkdir(parents=True, exist_ok=True)
    mode = place.stat().st_mode & 0o777 if place.exists() else 0o600  # it may hold secrets
    if (place.read_bytes() if place.exists() else b"") != before:
        raise OSError("it has changed meanwhile; try again")
    kept = place.with_name(place.name + _COPY) if before else None
    if kept is not None:
        _replace(kept, before, mode)
    _replace(place, after, mode)
    return kept


def _replace(place: Path, content: bytes, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.chmod(temporary, mode)
        os.replace(temporary, place)
    except BaseException:
        os.unlink(temporary)
        raise

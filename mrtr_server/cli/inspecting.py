"""`mrtr-server inspect`, `skill` and `publish`: what a server offers and is, without serving it."""

from pathlib import Path
from typing import Any

import click
from pydantic_core import to_json

from ..addresses import endpoint_url
from ..logs.formats import plain, plain_lines
from ..protocol.messages import JSON
from ..registration.inclusion import LISTINGS, Listing
from ..registration.questions import asked_by, questions_of, section_of
from ..registration.registry import Registry
from ..server import MRTRServer
from .options import load, takes_app

_REGISTRY = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"


@click.command()
@takes_app
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: the lists as a client gets them, and which tools ask."
)
def inspect(app: str, app_dir: str, as_json: bool) -> None:
    """Import MODULE:APP, and say what it offers.

    Nothing is served, and no function of it is called. In CI, compare the JSON with that of before: what clients see
    then changes in a diff.
    """
    server = load(app, app_dir)
    if as_json:
        click.echo(to_json(_offered(server), indent=2).decode())
        return
    for listing in LISTINGS:
        for entry in _listed(server.registry, listing):
            _show(server.registry, listing.removesuffix("s"), entry)


def _show(registry: Registry, what: str, entry: JSON) -> None:
    tool = registry.tools.get(entry["name"]) if what == "tool" else None
    name = entry.get("uri") or entry.get("uriTemplate") or entry["name"]
    takes = _named(entry.get("arguments", ())) if tool is None else _arguments(entry["inputSchema"])
    about = entry.get("title") or entry.get("description", "").partition("\n")[0]
    click.echo(plain(f"{what.replace('resourceTemplate', 'template'):<9} {name}{takes}  {about}".rstrip()))
    for line in () if tool is None else questions_of(tool):
        click.echo(plain(f"          {line}"))


def _arguments(schema: JSON) -> str:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    return f"({', '.join(_argument(name, each, name in required) for name, each in properties.items())})"


def _argument(name: str, schema: Any, is_required: bool) -> str:
    return f"{name}{'' if is_required else '?'}: {_kind(schema if isinstance(schema, dict) else {})}"


def _kind(schema: JSON) -> str:
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    kinds = [_kind(each) for each in schema.get("anyOf", ())] or schema.get("type", "any")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


def _named(arguments: Any) -> str:
    names = [f"{each['name']}{'' if each.get('required') else '?'}" for each in arguments]
    return f"({', '.join(names)})" if names else ""


def _listed(registry: Registry, listing: Listing) -> list[JSON]:
    return registry.listed(listing, registry.keys(listing, shown=True))


def _offered(server: MRTRServer) -> JSON:
    registry = server.registry
    lists: JSON = {listing: _listed(registry, listing) for listing in LISTINGS}
    section, found = registry.asking_section, registry.skills()
    skills = [each.skill.entry(uri, section) for uri, each in found if each.skill is not None]
    return {"server": server.name, **lists, "skills": skills, "asks": asked_by(registry.tools)}


@click.command()
@takes_app
def skill(app: str, app_dir: str) -> None:
    """Print a section for a SKILL.md: which tools of MODULE:APP ask the person, what, and which want a yes.

    An agent that knows it tells the person beforehand, and does not answer for them. With lists_asks=True, app.skills
    adds it by itself.
    """
    section = section_of(load(app, app_dir).registry.tools)
    if not section:
        raise click.ClickException(f"No tool of {app} asks, as far as its code shows that")
    click.echo(plain_lines(section), nl=False)


@click.command()
@takes_app
@click.option(
    "--pypi", metavar="PACKAGE", help="Its package on PyPI, which uvx runs over stdio, in the server's version."
)
@click.option(
    "--output",
    default="server.json",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file.",
)
def publish(app: str, app_dir: str, pypi: str | None, output: Path) -> None:
    """Write server.json, by which MODULE:APP is published in the MCP Registry.

    It has what ServerInfo(name=...) and base_url= say, and has to name an address or a package. Then publish it with
    mcp-publisher, the registry's own command.
    """
    server = load(app, app_dir)
    settings, about = server._parts.settings, server._parts.implementation  # noqa: SLF001  nobody else publishes it
    if settings.info.name is None:
        raise click.ClickException(
            f'{app} has no name for all the world: info=ServerInfo(name="com.example/weather", ...)'
        )
    found: JSON = {"$schema": _REGISTRY, **about}
    if settings.base_url is not None:
        found["remotes"] = [{"type": "streamable-http", "url": endpoint_url(settings.base_url, server.path)}]
    if pypi is not None:
        package = {"registryType": "pypi", "identifier": pypi, "version": about["version"], "runtimeHint": "uvx"}
        found["packages"] = [{**package, "transport": {"type": "stdio"}}]
    if not {"remotes", "packages"} & found.keys():
        raise click.ClickException(f"{app} can't be reached by anybody: set base_url=, or name its package with --pypi")
    output.write_bytes(to_json(found, indent=2) + b"\n")
    click.echo(f"Wrote {output}: {about['name']} {about['version']}")

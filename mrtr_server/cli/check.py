"""`mrtr-server check`: what is wrong or risky about a server, before it is deployed."""

import asyncio
import logging
import os
import sys
from typing import Any

import click

from ..deployment.review import LEVELS, Finding, gain_of_ratified
from ..deployment.shared_resources import WEB_CONCURRENCY
from ..errors import SetupError, StoreUnavailable
from ..renamed import collecting
from ..server import MRTRServer
from ..storage import ENVIRONMENT as DATABASE
from .options import CommandOfVariables, find, takes_app


@click.command(cls=CommandOfVariables)
@takes_app
@click.option("--host", default="127.0.0.1", show_default=True, help="The address that it is to listen on.")
@click.option(
    "--workers",
    default=1,
    envvar=WEB_CONCURRENCY,
    type=click.IntRange(1),
    help="How many processes are to serve it, on all machines; WEB_CONCURRENCY or 1 by default.",
)
@click.option("--strict", is_flag=True, help="Fail for warnings, too.")
def check(app: str, app_dir: str, host: str, workers: int, strict: bool) -> None:
    """Import MODULE:APP, and say what is wrong or risky about it.

    It is an MRTRServer, or an ASGI application in which some are mounted: each of them is checked.

    Names of the release before are an error that lists all of them, with the new ones.

    It looks at the settings, keys, tools and prompts, and connects to the database of MRTR_DATABASE_URL if that is set.
    The exit code is 1 if there is an error; with --strict, also if there is a warning.
    """
    from .dev_server import servers_in  # other commands load nothing of it

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # what the server logs of its setup is among the findings
    try:
        found = _find(app, app_dir)
        servers = list(dict.fromkeys(server for _, server in servers_in(found)))
        if not servers:
            raise click.ClickException(
                f"{app} is a {type(found).__name__}, not an MRTRServer, and no application whose routes lead to one"
            )
        findings = [finding for server in servers for finding in _review(server, found, app, host, workers)]
    finally:
        logging.disable(before)
    findings = list(dict.fromkeys([*asyncio.run(_review_database(workers)), *findings]))
    findings.sort(key=lambda finding: LEVELS.index(finding.level))
    for finding in findings:
        click.echo(f"{finding.level:8} {finding.about}: {finding.message}")
    levels = {finding.level for finding in findings}
    if "error" in levels or (strict and "warning" in levels):
        raise SystemExit(1)
    for server in servers:
        click.echo(_summary(server))


def _find(app: str, app_dir: str) -> Any:
    """Import the application. Raises `click.ClickException`; for old names, with all of them that it uses."""
    found, wrong = None, []
    with collecting() as old:
        try:
            found = find(app, app_dir)
        except click.ClickException as error:
            if not old:
                raise
            wrong = [error.message]
    if old:
        lines = dict.fromkeys(f"{place}: {message}" for place, message in old)
        raise click.ClickException("\n".join(("names of the release before:", *lines, *wrong)))
    return found


def _review(server: MRTRServer, found: Any, app: str, host: str, workers: int) -> list[Finding]:
    from ..transport.sites import sites_in  # loads the routes of Starlette

    around = [found] if found is not server else []
    sites: list[Any] = [*around, *sites_in(vars(sys.modules[app.partition(":")[0]]).values(), server)] or [None]
    # Of a site that is mounted in another one, the outer one counts.
    return min((server.check(host=host, workers=workers, site=site) for site in sites), key=len)


def _summary(server: MRTRServer) -> str:
    from ..dev.rounds import plural
    from .dev_server import offered_counts

    listed = ", ".join(plural(count, what) for what, count in offered_counts(server).items())
    limits = server.limits
    stored = f"{limits.stored_tasks:,} tasks, {limits.stored_states:,} states, {limits.stored_bytes / 2**20:,.0f} MiB"
    lines = [
        f"{server.name!r} can be served: {listed}",
        f"At most {stored} are stored: Limits(stored_...=...)",
        gain_of_ratified(server._parts.dialects),  # noqa: SLF001  nobody else prints it
    ]
    return "\n".join(line for line in lines if line)


async def _review_database(workers: int) -> list[Finding]:
    """Return what is wrong or risky about the database that the environment names; nothing if it names none."""
    url = os.environ.get(DATABASE, "").strip()
    if not url:
        return []
    try:
        from ..storage.sql.administration import review

        return [Finding(level, "database", message) for level, message in await review(url, workers)]
    except SetupError as error:
        return [Finding("error", "database", f"{DATABASE}: {error}")]
    except StoreUnavailable as error:
        return [Finding("error", "database", str(error))]

"""`mrtr-server check`: what is wrong or risky about a server, before it is deployed."""

import asyncio
import logging
from typing import Literal

import click

from ..deployment.web_workers import ENVIRONMENT as WORKERS
from ..errors import SetupError, StoreUnavailable
from ..server import MRTRServer
from ..storage.factory import store_of
from .loading import load, takes_app
from .variables import CommandOfVariables


@click.command(cls=CommandOfVariables)
@takes_app
@click.option("--host", default="127.0.0.1", show_default=True, help="The address that it is to listen on.")
@click.option(
    "--workers",
    default=1,
    envvar=WORKERS,
    type=click.IntRange(1),
    help="How many processes are to serve it, on all machines; WEB_CONCURRENCY or 1 by default.",
)
@click.option("--strict", is_flag=True, help="Fail for warnings, too.")
def check(app: str, app_dir: str, host: str, workers: int, strict: bool) -> None:
    """Import MODULE:APP, and say what is wrong or risky about it.

    It looks at the settings, keys, tools and prompts, and connects to the database of MRTR_DATABASE_URL if that is set.
    The exit code is 1 if there is an error; with --strict, also if there is a warning.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # what the server logs of its setup is among the findings
    try:
        server = load(app, app_dir)
        findings = server.check(host=host, workers=workers)
    finally:
        logging.disable(before)
    lines = [f"{finding.level:8} {finding.about}: {finding.message}" for finding in findings]
    levels = {finding.level for finding in findings}
    for level, message in _try_database():
        lines.insert(0, f"{level:8} database: {message}")
        levels.add(level)
    for line in lines:
        click.echo(line)
    if "error" in levels or (strict and "warning" in levels):
        raise SystemExit(1)
    click.echo(_summary(server))


def _summary(server: MRTRServer) -> str:
    offered = server.registry
    counts = {
        "tool": len(offered.tools),
        "prompt": len(offered.prompts),
        "resource": len(offered.resources) + len(offered.templates),
    }
    listed = ", ".join(f"{count} {what if count == 1 else f'{what}s'}" for what, count in counts.items())
    return f"{server.name!r} can be served: {listed}"


def _try_database() -> list[tuple[Literal["error", "warning"], str]]:
    """Return what is wrong with the database that the environment names; nothing if it is all right, or none is."""

    async def connect() -> str:
        store = store_of()
        if store is None:
            return ""
        try:
            await store.check()
        finally:
            await store.close()
        return store.advice

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # what it logs is its advice
    try:
        advice = asyncio.run(connect())
    except (SetupError, StoreUnavailable) as error:
        return [("error", str(error))]
    finally:
        logging.disable(before)
    return [("warning", advice)] if advice else []

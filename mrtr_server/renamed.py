"""What the release before called otherwise: an old name is refused with the new one, for one release.

`mrtr-server check` collects all of them at once: while it imports an application, they are noted and left out.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

_IN_INFO = ("version", "title", "description", "website_url", "icons")

SERVER_OPTIONS: Mapping[str, str] = {
    **{name: f"use info=ServerInfo({name}=...)" for name in _IN_INFO},
    "database": "use store=, which takes the URL of a database, too",
    "fanout": "use store=: a class of your own that is derived from Store returns it from fanout()",
    "page_size": "use lists=Lists(page_size=...)",
    "list_ttl": "use lists=Lists(cache_seconds=...)",
    "list_scope": 'use lists=Lists(cache="public")',
    **dict.fromkeys(("allowed_origins", "cors_origins"), "use origins="),
    "registers_later": "leave it out: capabilities follow what is registered",
    "lame_duck": "use shutdown=Shutdown(lame_duck=...)",
    "shutdown_seconds": "use shutdown=Shutdown(seconds=...)",
    "ready_needs_store": "use shutdown=Shutdown(ready_needs_store=True)",
    "clock": "use replica(app, clock=...) of mrtr_server.testing",
}

TOOL_OPTIONS: Mapping[str, str] = {
    **{name: f"use task=Task({name}=...)" for name in ("rounds_first", "ttl", "poll")},
    "validate": "use input_schema=InputSchema(schema, validate=False)",
}

RESOURCE_OPTIONS: Mapping[str, str] = {"ttl": "use cache_seconds=", "scope": "use cache="}

SERVER_ATTRIBUTES: Mapping[str, str] = {"lifespan": "running", "overrides": "override"}

CONTEXT: Mapping[str, str] = {"lifespan": "use ctx.opened", "status": "use ctx.progress(message=...)"}

PUBLIC: Mapping[str, str] = {
    "mrtr_server.Client": "ClientInfo",
    "mrtr_server.client.Task": "TaskState",
    "mrtr_server.testing.Task": "TaskView",
}

OPTIONS = frozenset({*SERVER_OPTIONS.values(), *TOOL_OPTIONS.values(), *RESOURCE_OPTIONS.values()})
"""What each option was replaced by, since another function may never have had an option of that name."""

VARIABLES: Mapping[str, str] = {
    **{f"MRTR_{name.upper()}": f"MRTR_INFO_{name.upper()}" for name in _IN_INFO if name != "icons"},
    "MRTR_PAGE_SIZE": "MRTR_LISTS_PAGE_SIZE",
    "MRTR_LIST_TTL": "MRTR_LISTS_CACHE_SECONDS",
    "MRTR_LIST_SCOPE": "MRTR_LISTS_CACHE",
    "MRTR_ALLOWED_ORIGINS": "MRTR_ORIGINS",
    "MRTR_CORS_ORIGINS": "MRTR_ORIGINS",
    "MRTR_REGISTERS_LATER": "",
    "MRTR_LAME_DUCK": "MRTR_SHUTDOWN_LAME_DUCK",
    "MRTR_READY_NEEDS_STORE": "MRTR_SHUTDOWN_READY_NEEDS_STORE",
    "MRTR_METRICS": "MRTR_METRICS_PATH",
}
"""Each with the new one; empty where there is none."""

_collected: list[tuple[str, str]] | None = None


@contextmanager
def collecting() -> Iterator[list[tuple[str, str]]]:
    """Collect old names for as long as the block lasts, each with where it stands, instead of refusing them."""
    global _collected
    _collected = []
    try:
        yield _collected
    finally:
        _collected = None


def is_collected(message: str) -> bool:
    """Note the use of an old name, if they are collected; otherwise it is to be refused with the message."""
    if _collected is None:
        return False
    _collected.append((_place(), message))
    return True


def renamed_in(module: str, members: Mapping[str, object]) -> Callable[[str], object]:
    def missing(name: str) -> object:
        new = PUBLIC.get(f"{module}.{name}")
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        message = f"{module}.{name} is {new} now"
        if not is_collected(message):
            raise ImportError(message)  # an AttributeError would hide the message of `from mrtr_server import ...`
        return members[new]

    return missing


def refused_variables(environment: Collection[str]) -> list[str]:
    return [
        f"{name} is {VARIABLES[name]} now" if VARIABLES[name] else f"{name} is no setting any more; leave it out"
        for name in sorted(VARIABLES.keys() & set(environment))
    ]


def _place() -> str:
    """Return the file and line of the code that uses this package."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (__package__, "importlib"):
        frame = frame.f_back
    return "" if frame is None else f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno}"

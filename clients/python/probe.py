"""What each program here does with its client: list, call, be asked; then print one line of JSON with what worked.

A program connects as the documentation of its client says, and hands its functions to `probe`. The environment variable
`PATIENCE` is how long the person takes to answer, in seconds; then this alone is tried.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE = float(os.environ.get("PATIENCE", "0"))
LIMIT = 25.0
"""How long one thing may take, in seconds, besides the person's time."""

SUMMARY = "Much ado about nothing."
"""What the model answers to everything."""
ANSWERS = {"name": "octocat", "confirm": True}
"""What the person answers, by the field."""

EXPECTED = {
    "tools": ("add", "greet", "summarize", "wait"),
    "prompts": ("review",),
    "resources": ("today",),
    "call": ("20304",),
    "elicit": ("Greeted octocat",),
    "sample": (SUMMARY,),
}
"""What has to be in each result, however the client returns it."""

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "call": ("add", {"a": 20300, "b": 4}),
    "elicit": ("greet", {"city": "Oslo"}),
    "sample": ("summarize", {"text": "a play"}),
}

Found = Callable[[], Awaitable[Any]]
outcomes: dict[str, Any] = {}


delays = iter([PATIENCE])


async def fill_in(schema: dict[str, Any]) -> dict[str, Any]:
    """Fill in a form; the first one as slowly as the person is."""
    await asyncio.sleep(next(delays, 0))
    return {field: ANSWERS[field] for field in schema["properties"]}


async def probe(
    call: Callable[[str, dict[str, Any]], Awaitable[Any]],
    *,
    tools: Found | None = None,
    prompts: Found | None = None,
    resources: Found | None = None,
    elicits: bool = False,
    samples: bool = False,
    era: str | None = None,
) -> None:
    """Try what a client can do.

    Args:
        call: calls a tool by its name.
        tools: lists the tools, if the client can.
        prompts: lists the prompts, if the client can.
        resources: lists the resources, if the client can.
        elicits: whether the client has a handler for forms.
        samples: whether the client has a handler for sampling.
        era: the version that was negotiated, if requests do not say it.
    """
    if era is not None:
        outcomes["era"] = era
    if PATIENCE:
        name, arguments = CALLS["elicit"] if elicits else ("wait", {"seconds": PATIENCE})
        outcomes["patience"] = await attempt(lambda: call(name, arguments), "Greeted" if elicits else "waited")
        return
    for what, found in (("tools", tools), ("prompts", prompts), ("resources", resources)):
        if found is not None:
            outcomes[what] = await attempt(found, *EXPECTED[what])
    for what, able in (("call", True), ("elicit", elicits), ("sample", samples)):
        name, arguments = CALLS[what]
        outcome = await attempt(lambda name=name, arguments=arguments: call(name, arguments), *EXPECTED[what])
        outcomes[what] = outcome if able else {"ok": None, "said": outcome["said"]}


async def attempt(found: Found, *expected: str) -> dict[str, Any]:
    """Try one thing.

    Returns:
        Whether all that was expected is in the result, how many seconds it took, and otherwise what the client said.
    """
    began = time.monotonic()
    try:
        async with asyncio.timeout(LIMIT + PATIENCE):
            said = str(await found())
    except Exception as error:
        said = describe(error)
        ok = False
    else:
        ok = all(each in said for each in expected)
    return {"ok": ok, "seconds": round(time.monotonic() - began, 1), "said": "" if ok else said[:600]}


def describe(error: BaseException) -> str:
    """Return what an error says, or the first one of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def run(main: Callable[[str], Awaitable[None]]) -> None:
    """Run a program with the address of the server, and print what became of it."""
    try:
        asyncio.run(main(sys.argv[1]))  # type: ignore[arg-type]
    except Exception as error:
        outcomes["error"] = describe(error)[:600]
    print("\n" + json.dumps(outcomes), flush=True)

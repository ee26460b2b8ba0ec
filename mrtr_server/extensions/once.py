"""Calls of pages that count once: a page that is loaded again repeats its calls, and gets their former results."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from ..crypto.digests import canonical
from ..flow.single_use import Redeemer
from ..methods.middleware import Method
from ..protocol.apps import FOR_PAGES_ALONE, visibility_of
from ..protocol.messages import JSON, Call, Complete, Outcome, Outlet
from ..protocol.sessions import owner_of_call
from ..registration.registry import Registry
from ..schema.results import failed
from ..storage.rows import Lease

ONCE = "mrtr_once"
"""The name of our tool, through which a page calls another one: hosts drop all of a request but its arguments."""

_LONGEST_ID = 128
_NOT_FOR_PAGES = "There is no such tool for pages."


class OnceForPages:
    """Serves calls that a page makes once by an id of its own.

    `seconds`: for how long a repetition gets the recorded outcome.
    `count`: counts a request for its caller's rate.
    """

    def __init__(
        self,
        registry: Registry,
        redeemer: Redeemer,
        audience: str,
        seconds: float,
        clock: Callable[[], float],
        count: Callable[[Call], Awaitable[None]],
    ) -> None:
        self._registry = registry
        self._redeemer = redeemer
        self._audience = audience
        self._seconds = seconds
        self._clock = clock
        self._count = count

    def around(self, serve: Method) -> Method:
        """Return what serves calls by an id in the place of `serve`."""

        def served(call: Call, outlet: Outlet) -> Awaitable[Outcome]:
            if call.target == ONCE and call.method == "tools/call" and self._registry.find("tools", ONCE) is None:
                return self._serve(call, outlet, serve)
            return serve(call, outlet)

        return served

    async def _serve(self, call: Call, outlet: Outlet, serve: Method) -> Outcome:
        await self._count(call)
        tool, id, arguments = (call.arguments.get(name) for name in ("tool", "once", "arguments"))
        if not isinstance(tool, str) or not isinstance(id, str) or not 0 < len(id) <= _LONGEST_ID:
            return Complete(failed("mrtr_once takes tool= and once=, a name and an id of up to 128 characters."))
        arguments = {} if arguments is None else arguments
        found = self._registry.find("tools", tool)
        if found is None or "app" not in visibility_of(found.entry) or not isinstance(arguments, dict):
            return Complete(failed(_NOT_FOR_PAGES))
        inner = replace(
            call,
            target=tool,
            params={"name": tool, "arguments": arguments},
            arguments=arguments,
            must_mirror=False,
            asked_by="page",  # so that each state of its flow counts once, too
            trace=call.trace.again(),
        )
        if call.state is not None:  # an answer to what it asked
            return await serve(inner, outlet)
        # What a state is to a retry: nobody but its caller can name it.
        named = canonical([self._audience, owner_of_call(call), tool, id]).decode()
        run = partial(self._run, serve, inner, outlet)
        expires = self._clock() + self._seconds
        redeemed = replace(inner, state=named)
        return await self._redeemer.once(redeemed, expires, run, b"once in a page ", canonical(arguments))

    async def _run(self, serve: Method, call: Call, outlet: Outlet, lease: Lease) -> Outcome:
        return await serve(call, outlet)


def entry() -> JSON:
    """Return our tool as lists have it."""
    texts: JSON = {name: {"type": "string"} for name in ("tool", "once")}
    schema = {
        "type": "object",
        "properties": {**texts, "arguments": {"type": "object"}},
        "required": ["tool", "once"],
        "additionalProperties": False,
    }
    meta: JSON = {"ui": {"visibility": ["app"]}, **FOR_PAGES_ALONE}
    text = "For pages of apps alone: it calls a tool once, however often the page is loaded."
    return {"name": ONCE, "description": text, "inputSchema": schema, "_meta": meta}

"""Pages of apps as a host has them: what a page is, and what it may call (MCP Apps)."""

import re
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple

from ..protocol.apps import MIME_TYPE, page_of, visibility_of
from .answers import Answers, Unexpected
from .flow import Flow
from .replies import Reply
from .session import NONE, Many, One, Session

__tracebackhide__ = True  # pytest then shows the test's line instead

_CALLS = re.compile(r"""\bmrtr\.(?:call|name)\(\s*["'`]([A-Za-z0-9_.-]+)["'`]""")
_PREFIX = re.compile(r'const prefix = "([A-Za-z0-9_.-]*)"', re.IGNORECASE)


class PageView(NamedTuple):
    """A page of an app, as a host gets it.

    Args:
        uri: where it was read.
        html: the page, with the script of this package in it.
        csp: from where it may load, and where it may send, by the names of the specification.
        calls: the tools that it calls by `mrtr.call`, by the names that they have here, as far as its text shows them.
        meta: all that it says of itself: `_meta.ui` of the resource.
    """

    uri: str
    html: str
    csp: dict[str, list[str]]
    calls: list[str]
    meta: dict[str, Any]


class App(Generic[One, Many]):
    """The page of a tool, as it calls tools through its host; `client.as_app(tool)` makes one.

    Args:
        client: the client that draws it.
        tool: the tool whose page it is.
    """

    def __init__(self, client: Session[One, Many], tool: str) -> None:
        self._client = client
        self._tool = tool

    def call(self, tool: str, arguments: Mapping[str, Any] = NONE, /, *, answers: Answers = NONE, **named: Any) -> One:
        """Call a tool as the page does, and answer what it asks until it is done.

        Args:
            tool: its name.
            arguments: its arguments.
            answers: by key; see `Flow.answer`.
            named: arguments, too.

        Returns:
            The last reply, as of `Client.call`.

        Raises:
            Unexpected: the tool of the page has none, or the called one is not for pages, which a host refuses.
        """
        return self._client.run_one(self._call(tool, {**arguments, **named}, answers))

    async def _call(self, tool: str, arguments: Mapping[str, Any], answers: Answers) -> Reply:
        tools = await tools_of(self._client)
        _page_of(tools, self._tool)
        if tool not in tools:
            raise Unexpected(f"There is no tool {tool!r} in the list, and a host calls no other")
        if "app" not in visibility_of(tools[tool]):
            raise Unexpected(f"{tool!r} is for models alone: a host refuses the call of a page")
        return await _finished(Flow(self._client, "tools/call", tool, arguments), answers)


async def tools_of(client: Session[Any, Any]) -> dict[str, Any]:
    """Return the tools that a client is shown, by name.

    Args:
        client: the client.

    Returns:
        The entries of the list.
    """
    return {each["name"]: each for each in await client.list_tools(client.transports[0])}


async def read_page(client: Session[Any, Any], tool: str) -> PageView:
    """Read the page of a tool as a host does.

    Args:
        client: the client.
        tool: the tool's name.

    Returns:
        The page.

    Raises:
        Unexpected: the tool has no page, or what is read is none.
    """
    uri = _page_of(await tools_of(client), tool)
    reply = await _finished(Flow(client, "resources/read", uri, NONE), NONE)
    contents = reply.result.get("contents", [])
    if len(contents) != 1 or contents[0].get("mimeType") != MIME_TYPE or "text" not in contents[0]:
        raise Unexpected(f"{uri} is no page of an app. {reply}")
    html, meta = contents[0]["text"], contents[0].get("_meta", {}).get("ui", {})
    found = _PREFIX.search(html)
    prefix = found[1] if found else ""
    calls = [prefix + each for each in dict.fromkeys(_CALLS.findall(html))]
    return PageView(contents[0]["uri"], html, meta.get("csp", {}), calls, meta)


async def _finished(flow: Flow[Any, Any], answers: Answers) -> Reply:
    return await flow._walk.finish(answers)  # noqa: SLF001  awaited here, whatever the client returns


def _page_of(tools: Mapping[str, Any], tool: str) -> str:
    if tool not in tools:
        raise Unexpected(f"There is no tool {tool!r} in the list")
    uri = page_of(tools[tool])
    if uri is None:
        raise Unexpected(f"The tool {tool!r} has no page: give it ui=")
    return uri

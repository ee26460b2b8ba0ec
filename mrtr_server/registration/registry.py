"""All that a server offers, by name."""

from collections.abc import Mapping
from typing import Any

from ..callbacks.callback_service import Callback
from ..errors import SetupError
from ..flow.handler import TaskTerms
from ..protocol.header_params import HeaderParameter
from ..protocol.messages import JSON, TaskSupport
from .completions import Completer
from .prompts import Prompt
from .resources import Resource
from .tools import Tool

LISTINGS = ("tools", "prompts", "resources", "resourceTemplates")

Record = Tool | Prompt | Resource
"""What is listed."""


class Registry:
    """All that a server offers. What is registered later shows in the next list."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.tasks: dict[str, TaskTerms] = {}
        """How calls of tools become tasks, by the name of each tool that has some."""
        self.prompts: dict[str, Prompt] = {}
        self.resources: dict[str, Resource] = {}
        self.templates: dict[str, Resource] = {}
        self.completers: dict[tuple[str, str, str], Completer] = {}
        self.callbacks: dict[str, Callback[Any]] = {}
        self.mirrored: dict[str, tuple[HeaderParameter, ...]] = {}
        """The parameters that headers mirror, by the name of each tool that has some (Tools, x-mcp-header)."""
        self.guarded: set[str] = set()
        """The `LISTINGS` that have an entry with a hook of its own."""

    def add_tool(self, tool: Tool) -> None:
        """Register a tool. Raises `SetupError` if its name is taken."""
        _add(self.tools, "tool", tool.handler.name, tool)
        self._note(tool, "tools")
        if tool.handler.task is not None:
            self.tasks[tool.handler.name] = tool.handler.task
        if tool.headers:
            self.mirrored[tool.handler.name] = tool.headers

    def add_prompt(self, prompt: Prompt) -> None:
        """Register a prompt. Raises `SetupError` if its name is taken."""
        _add(self.prompts, "prompt", prompt.handler.name, prompt)
        self._note(prompt, "prompts")

    def add_resource(self, resource: Resource) -> None:
        """Register a resource or template. Raises `SetupError` if its URI is taken."""
        if resource.template is None:
            _add(self.resources, "resource", resource.entry["uri"], resource)
            self._note(resource, "resources")
        else:
            _add(self.templates, "resource template", resource.entry["uriTemplate"], resource)
            self._note(resource, "resourceTemplates")

    def _note(self, record: Record, listing: str) -> None:
        if record.authorize is not None:
            self.guarded.add(listing)

    def add_completer(self, kind: str, name: str, argument: str, completer: Completer) -> None:
        """Register the completion of an argument. Raises `SetupError` if it has one."""
        _add(self.completers, "completion of", (kind, name, argument), completer)

    def add_callback(self, callback: Callback[Any]) -> None:
        """Register a callback. Raises `SetupError` if its name is taken."""
        _add(self.callbacks, "callback", callback.name, callback)

    def find_resource(self, uri: str) -> tuple[Resource, dict[str, str]] | None:
        """Find what serves a URI, with the values of its template; fixed URIs first, then templates in order."""
        fixed = self.resources.get(uri)
        if fixed is not None:
            return fixed, {}
        for resource in self.templates.values():
            if resource.template is not None and (values := resource.template.match(uri)) is not None:
                return resource, values
        return None

    def records(self, listing: str) -> Mapping[str, Record]:
        """Return what one of the `LISTINGS` lists, by name or URI, in the order of registration."""
        listings: dict[str, Mapping[str, Record]] = {
            "tools": self.tools,
            "prompts": self.prompts,
            "resources": self.resources,
            "resourceTemplates": self.templates,
        }
        return listings[listing]

    def header_parameters(self, tool: str) -> tuple[HeaderParameter, ...]:
        """Return the parameters of a tool that headers mirror (Tools, x-mcp-header); none for an unknown tool."""
        return self.mirrored.get(tool, ())

    def output_schema(self, tool: str) -> JSON | None:
        """Return the schema of a tool's results; None if it has none, or there is no such tool."""
        found = self.tools.get(tool)
        return found.entry.get("outputSchema") if found is not None else None

    def task_support(self, tool: str) -> TaskSupport:
        """Return whether a tool's calls become tasks; those of an unknown tool do not."""
        terms = self.tasks.get(tool)
        if terms is None:
            return "forbidden"
        return "required" if terms.required else "optional"


def _add(records: dict[Any, Any], kind: str, name: object, record: Any) -> None:
    if name in records:
        raise SetupError(f"There is a {kind} {name!r} already; rename or remove one of them")
    records[name] = record

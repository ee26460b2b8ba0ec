"""What tools ask, as far as it can be said beforehand: by what they declare, and what their own code shows."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..flow.asks import Confirm
from ..flow.handler import DeclaredAsk
from .handlers import asks, confirms_by_code
from .tools import Tool

_AGREES = "asks the person to agree"
_SECTION = """## Tools that ask

These tools ask the person while they run. Do not answer for them, and do not say that something is done
before the tool says so.

"""


def asked_by(tools: Mapping[str, Tool]) -> dict[str, list[str]]:
    """Return what each tool asks that asks, by its name."""
    return {name: questions for name, tool in tools.items() if (questions := questions_of(tool))}


def section_of(tools: Mapping[str, Tool]) -> str:
    """Return a section of a `SKILL.md` that says what each tool asks; empty if none does."""
    lines = [f"- `{name}` {' '.join('; '.join(each).split())}\n" for name, each in asked_by(tools).items()]
    return f"{_SECTION}{''.join(lines)}" if lines else ""


def questions_of(tool: Tool) -> list[str]:
    """Return what a tool asks, a line each, as far as what it declares and its code show that."""
    handler = tool.handler
    lines = list(_declared(handler.declared.nodes if handler.declared is not None else ()))
    if confirms_by_code(handler) and not any(line.startswith(_AGREES) for line in lines):
        lines.append(f"{_AGREES} while it runs")
    if not lines and asks(handler):
        lines.append("asks the person while it runs")
    return lines


def _declared(nodes: Any) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, DeclaredAsk):
            message = "" if node.question is None else f": {node.question.params.get('message', '')}"
            yield f"{_AGREES if isinstance(node.ask, Confirm) else 'asks'}{message}"

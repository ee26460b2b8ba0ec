"""Questions of servers, asked at the terminal. Extra: `cli`.

All text of a server is cleaned and framed: it can't move the cursor, nor look as if it came from somebody else.
"""

import asyncio
import re
import webbrowser
from collections.abc import Callable
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

from ..errors import BadReply, NotAnswered, lacking
from ..logs.formats import plain, plain_lines
from ..protocol.ask_kinds import Choice, Filled, Form, Link, Sampling
from ..protocol.messages import JSON
from ..protocol.outgoing import fault_of_page

try:
    import questionary
    from rich.console import Console
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.text import Text
except ImportError as error:
    raise lacking("This command", "cli", error) from error

_SEND, _AGAIN, _DECLINE, _CANCEL = "Send it", "Fill it in again", "Decline", "Cancel"

_MOST_FIELDS, _MOST_CHOICES = 100, 300

_MOST_LINES, _MOST_CHARACTERS, _LONGEST_TITLE, _LONGEST_URL = 40, 4000, 120, 4096
"""How much of a server's text is shown: what it returns as a result is printed whole."""

_FORMATS = {
    "email": re.compile(r"[^@\s]+@[^@\s]+"),
    "uri": re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+"),
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "date-time": re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d.*"),
}

Opener = Callable[[str], Any]


class Asker:
    """Asks the person at the terminal. Ctrl-C dismisses a question, and a second one ends the command.

    `server` is the host of the URL that was called, never a name that the server calls itself.
    """

    def __init__(self, console: Console, server: str, opener: Opener = webbrowser.open) -> None:
        self._console = console
        self._server = plain(server)
        self._open = opener
        self._dismissed = False

    def show(self, text: str) -> None:
        title = Text(f"{self._server} asks")
        self._console.print(Panel(Text(_cut(text)), title=title, title_align="left", border_style="cyan"))

    async def fill(self, form: Form) -> Filled:
        """Ask for the fields of a form, one by one; a confirmation is one yes or no. Raises `BadReply`."""
        _check_size(form)
        self.show(form.message)
        try:
            if name := form.confirms:
                default = form.fields[name].get("default") is True
                return {name: await _asked(questionary.confirm("Do you agree?", default=default))}
            if not form.fields:  # a plain confirmation
                return {} if await _asked(questionary.confirm("Do you agree?", default=False)) else "decline"
            while True:
                content = await self._fields(form)
                choices = [_SEND, _AGAIN, _DECLINE, _CANCEL]
                match await _asked(questionary.select("Your answer", choices=choices)):
                    case "Send it":
                        return content
                    case "Decline":
                        return "decline"
                    case "Cancel":
                        return "cancel"
        except KeyboardInterrupt:
            return self._dismiss()

    async def agree(self, link: Link) -> Choice:
        """Show a page's address, and open it after a yes. One that hides where it leads is not opened."""
        host = host_of(link.url)
        if not host:
            self.show(f"{link.message}\n\n{link.url}")
            self._console.print(Text("This is no plain address of a web page, so it is not opened.", style="yellow"))
            return "cancel"
        self.show(link.message)
        self._console.print(Text(link.url), soft_wrap=True)  # whole, so that it can be copied
        try:
            if not await _asked(questionary.confirm(f"Open this page of {host}?", default=False)):
                return "decline"
        except KeyboardInterrupt:
            return self._dismiss()
        await asyncio.to_thread(self._open, link.url)
        return "accept"

    async def write(self, sampling: Sampling) -> str:
        system = sampling.params.get("systemPrompt")
        self.show(f"{system}\n\n{sampling.text}" if isinstance(system, str) else sampling.text)
        self._console.print("That is for a model. Write its message yourself.")
        try:
            return str(await _asked(questionary.text("Message")))
        except KeyboardInterrupt:
            raise NotAnswered from None

    def _dismiss(self) -> Choice:
        """Return the answer to a question that was dismissed. Raises `CancelledError` when it is the second one."""
        if self._dismissed:
            raise asyncio.CancelledError
        self._dismissed = True
        self._console.print("Dismissed. Ctrl-C again ends the command.", style="dim")
        return "cancel"

    async def _fields(self, form: Form) -> JSON:
        content: JSON = {}
        for name, schema in form.fields.items():
            if schema.get("description"):
                self._console.print(Padding(Text(_cut(str(schema["description"])), style="dim"), (0, 0, 0, 2)))
            value = await _field(name, schema, required=name in form.required)
            if value is not None:
                content[name] = value
        return content


def host_of(url: str) -> str:
    """Return the host of a web page, with its port; empty if the address hides it, or browsers may read another one."""
    return "" if len(url) > _LONGEST_URL or fault_of_page(url) else urlsplit(url).netloc


def _cut(text: str) -> str:
    lines = plain_lines(text[:_MOST_CHARACTERS]).split("\n")
    is_whole = len(text) <= _MOST_CHARACTERS and len(lines) <= _MOST_LINES
    return "\n".join(lines[:_MOST_LINES] if is_whole else [*lines[:_MOST_LINES], "… (cut)"])


def _title(text: Any) -> str:
    return plain(str(text))[:_LONGEST_TITLE] or " "


def _check_size(form: Form) -> None:
    fields = form.fields.values()
    items = [each["items"] for each in fields if isinstance(each.get("items"), dict)]
    if len(fields) > _MOST_FIELDS or any(len(_choices(each)) > _MOST_CHOICES for each in [*fields, *items]):
        raise BadReply(
            f"The form {plain(form.key)} is too large to be asked at a terminal, with over {_MOST_FIELDS} fields or "
            f"{_MOST_CHOICES} choices; it can be given with --answer"
        )


async def _asked(question: questionary.Question) -> Any:
    return await question.unsafe_ask_async()  # Ctrl-C raises KeyboardInterrupt


async def _field(name: str, schema: JSON, *, required: bool) -> Any:
    title = _title(schema.get("title") or name) + ("" if required else " (optional)")
    default, kind = schema.get("default"), schema.get("type")
    if kind == "boolean":
        return await _asked(questionary.confirm(title, default=default is True))
    if choices := _choices(schema):
        options = [questionary.Choice(_title(text), value=[value]) for value, text in choices]
        if not required:
            options.append(questionary.Choice("(leave it out)", value=[None]))
        chosen = next((each for each in options if each.value == [default]), None)
        return (await _asked(questionary.select(title, choices=options, default=chosen)))[0]
    items = schema.get("items")
    if kind == "array" and isinstance(items, dict) and (choices := _choices(items)):
        ticked = default if isinstance(default, list) else []
        boxes = [questionary.Choice(_title(text), value=value, checked=value in ticked) for value, text in choices]
        ticks = await _asked(questionary.checkbox(title, choices=boxes, validate=_count_check(schema)))
        return ticks if ticks or required else None
    text = await _asked(
        questionary.text(
            title,
            default="" if default is None else plain(str(default)),
            validate=lambda typed: problem_of(typed, schema, required=required) or True,
        )
    )
    return value_of(text, schema)


def _choices(schema: JSON) -> list[tuple[Any, str]]:
    titled = schema.get("oneOf") or schema.get("anyOf")
    if isinstance(titled, list):
        found = [each for each in titled if isinstance(each, dict) and "const" in each]
        return [(each["const"], str(each.get("title") or each["const"])) for each in found]
    values, names = schema.get("enum"), schema.get("enumNames")
    if not isinstance(values, list):
        return []
    shown = names if isinstance(names, list) and len(names) == len(values) else values
    return [(value, str(text)) for value, text in zip(values, shown, strict=True)]


def _count_check(schema: JSON) -> Callable[[list[Any]], bool | str]:
    least, most = schema.get("minItems"), schema.get("maxItems")

    def check(ticked: list[Any]) -> bool | str:
        if isinstance(least, int) and len(ticked) < least:
            return f"Choose at least {least}"
        if isinstance(most, int) and len(ticked) > most:
            return f"Choose at most {most}"
        return True

    return check


def value_of(text: str, schema: JSON) -> Any:
    if not text:
        return None
    kind = schema.get("type")
    if kind == "integer":
        return int(text)
    if kind != "number":
        return text
    if not isfinite(number := float(text)):
        raise ValueError(text)
    return number


def problem_of(text: str, schema: JSON, *, required: bool) -> str:
    if not text:
        return "This field is required" if required else ""
    try:
        value = value_of(text, schema)
    except ValueError:
        return "This is no whole number" if schema.get("type") == "integer" else "This is no number"
    size, what = (len(value), " characters") if isinstance(value, str) else (value, "")
    least = schema.get("minLength" if isinstance(value, str) else "minimum")
    most = schema.get("maxLength" if isinstance(value, str) else "maximum")
    if isinstance(least, int | float) and not size >= least:
        return f"At least {least}{what}"
    if isinstance(most, int | float) and not size <= most:
        return f"At most {most}{what}"
    form = _FORMATS.get(str(schema.get("format")))
    if form is not None and not form.fullmatch(text):
        return f"This is no {schema['format']}"
    return ""

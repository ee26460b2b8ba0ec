"""The hands of a person: how they answer what hosts draw in a terminal."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hosts_terminal import KEYS, Terminal

CLOSES = 10.0
"""How long a host may take to take an answer, in seconds."""


@dataclass(frozen=True)
class Typed:
    """A text or a number that is typed."""

    text: str


@dataclass(frozen=True)
class Chosen:
    """One of several choices."""

    choice: str


@dataclass(frozen=True)
class Several:
    """One of several choices where more than one may be chosen."""

    choice: str


Answer: TypeAlias = Typed | Chosen | Several | bool
"""What goes into a field; a bool is yes or no."""
Fields: TypeAlias = Mapping[str, Answer]
"""Answers by the titles of their fields, as regular expressions, in the order of the form."""


class Hand(ABC):
    """How a person answers one host.

    Args:
        terminal: where it runs.
    """

    empty = "…"
    """What a field shows before somebody types."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal

    @abstractmethod
    async def fill(self, fields: Fields) -> None:
        """Fill in a form, and send it."""

    @abstractmethod
    async def decline(self) -> None:
        """Decline a form."""

    @abstractmethod
    async def open(self) -> None:
        """Open the page of a question, and say that all is done there."""

    async def wave_through(self) -> None:
        """Accept a form that is drawn without its fields."""
        await self.terminal.press("enter")

    async def replace(self, held: str, text: str) -> None:
        """Type over what a field holds."""
        old = "" if held.startswith(self.empty) else held
        await self.terminal.type(KEYS["backspace"] * len(old) + text)


class InOneList(Hand):
    """Claude Code: all fields in a list, then `Accept` and `Decline`."""

    empty = "Type something"

    async def fill(self, fields: Fields) -> None:
        """Fill in a form, and send it."""
        for title, answer in fields.items():
            line = await self.terminal.press_until("down", rf"❯ . {title}: ?(.*)$")
            await self._answer(title, answer, line.groups()[-1])
        await self.terminal.press_until("down", "❯ Accept")
        await self.terminal.press("enter")

    async def _answer(self, title: str, answer: Answer, held: str) -> None:
        match answer:
            case Typed(text):
                await self.replace(held, text)
                await self.terminal.wait_for(rf"❯ . {title}: {text}$", CLOSES)
            case bool():
                box = "☒" if answer else "☐"
                if held != box:
                    await self.terminal.press("space")
                    await self.terminal.wait_for(rf"❯ . {title}: {box}$", CLOSES)
            case Chosen(choice):
                await self.terminal.press("right")
                await self.terminal.press_until("down", rf"❯ ◯ {choice}$")
                await self.terminal.press("enter")
            case Several(choice):
                await self.terminal.press("right")
                await self.terminal.press_until("down", rf"❯ ☐ {choice}$")
                await self.terminal.press("space")
                await self.terminal.wait_for(rf"❯ ☒ {choice}$", CLOSES)
                await self.terminal.press("enter")

    async def decline(self) -> None:
        """Decline a form."""
        await self.terminal.press_until("down", "❯ Accept")
        await self.terminal.press_until("right", "❯ Decline")
        await self.terminal.press("enter")

    async def open(self) -> None:
        """Open the page of a question, and say that all is done there."""
        await self.terminal.wait_for("❯ Open in browser", CLOSES)
        await self.terminal.press("enter")
        await self.terminal.press_until("right", "❯ I'm done")
        await self.terminal.press("enter")


class OneByOne(Hand):
    """A host that draws a form field by field, in an order of its own.

    Args:
        terminal: where it runs.
    """

    heading = ""
    """The line with the title of a field."""
    typed = ""
    """The line where a text is typed."""
    choice = ""
    """The line of a choice that the cursor is at."""
    yes, no = "", ""
    """The choices of a yes or no."""

    async def fill(self, fields: Fields) -> None:
        """Fill in a form, and send it."""
        left = dict(fields)
        while left:
            shown = await self.terminal.wait_for("|".join(map(self._heading, left)), CLOSES)
            title = next(title for title in left if re.search(self._heading(title), shown[0]))
            await self._answer(left.pop(title))
            await self.terminal.press("enter")

    def _heading(self, title: str) -> str:
        return self.heading.format(title)

    async def _answer(self, answer: Answer) -> None:
        match answer:
            case Typed(text):
                (held,) = (await self.terminal.wait_for(self.typed.format("(.*)"), CLOSES)).groups()
                await self.replace(held, text)
                await self.terminal.wait_for(self.typed.format(text), CLOSES)
            case bool():
                key, choice = ("up", self.yes) if answer else ("down", self.no)
                await self.terminal.press_until(key, self.choice.format(choice))
            case Chosen(choice):
                await self.terminal.press_until("down", self.choice.format(choice))
            case Several(choice):
                await self.terminal.press_until("down", self.choice.format(f". {choice}"))
                await self.terminal.press("space")
                await self.terminal.wait_for(self.choice.format(f"✓ {choice}"), CLOSES)


class CopilotFields(OneByOne):
    """GitHub Copilot CLI."""

    heading = r"^ {}:?( \*.*)?$"
    typed = r"─\n ❯ ?{}\n ─"
    choice = r"^ ❯ {}$"
    yes, no = "Yes", "No"

    async def decline(self) -> None:
        """Decline a form."""
        await self.terminal.press("ctrl-d")

    async def open(self) -> None:
        """Open the page of a question; that is all."""
        await self.terminal.wait_for("enter open", CLOSES)
        await self.terminal.press("enter")


class CodexFields(OneByOne):
    """Codex CLI."""

    heading = r"^  {}$"
    typed = r"^  › {}$"
    empty = "Type your answer"
    choice = r"^  › \d\. {}$"
    yes, no = "True", "False"

    async def decline(self) -> None:
        """Dismiss a form: there is no other no."""
        await self.terminal.press("escape")

    async def open(self) -> None:
        """Open the page of a question, and say that all is done there."""
        await self.terminal.wait_for(r"› 1\. Open link", CLOSES)
        await self.terminal.press("enter")
        await self.terminal.wait_for(r"› 1\. I finished", CLOSES)
        await self.terminal.press("enter")


HANDS: dict[str, type[Hand]] = {"claude": InOneList, "copilot": CopilotFields, "codex": CodexFields}
"""By what `drawn` in `clients/hosts.toml` says."""

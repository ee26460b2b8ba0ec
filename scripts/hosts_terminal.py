"""A program in a terminal of its own: what a person sees of it, and the keys that they press."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import termios
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pyte
from demo_fleet import end_session

COLUMNS, LINES = 120, 60
LOOK = 1.0
"""How long a person looks for what a key does before they press it again, in seconds."""
PRESSES = 12
"""How often they press it."""
REACTS = 0.3
"""How long a person takes from what they see to a key, in seconds. Hosts lose keys that come at once."""
TYPES = 0.01
"""How long a person who types takes from one key to the next, in seconds."""
KEYS = {
    "enter": "\r",
    "escape": "\x1b",
    "space": " ",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "backspace": "\x7f",
    "ctrl-d": "\x04",
}


class NotSeen(Exception):
    """The screen did not come to show what it should; the message has the screen."""


class _Screen(pyte.Screen):
    """A screen that writes its answers to a program's questions where the program reads them."""

    def __init__(self, master: int) -> None:
        super().__init__(COLUMNS, LINES)
        self._master = master

    def write_process_input(self, data: str) -> None:
        with suppress(BlockingIOError):  # it does not read the answers to all that it asks
            os.write(self._master, data.encode())

    def select_graphic_rendition(self, *attributes: int, **private: bool) -> None:
        """Ignore colours, and what newer terminals mean by this sequence."""


class Terminal:
    """A terminal, and the program in it.

    Args:
        process: the program.
        master: our end of the terminal.
    """

    def __init__(self, process: Process, master: int) -> None:
        self.process = process
        self._master = master
        self._screen = _Screen(master)
        self._stream = pyte.ByteStream(self._screen)
        self._changed = asyncio.Event()
        self._ended = False
        self.seen: set[str] = set()
        """The lines that it has shown since somebody emptied this."""
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the program is gone
            data = b""
        if data:
            self._stream.feed(data)
            self.seen.update(self.text.splitlines())
        else:
            self._ended = True
            asyncio.get_running_loop().remove_reader(self._master)
        self._changed.set()

    def close(self) -> None:
        """Take the terminal from the program."""
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)

    @property
    def text(self) -> str:
        """What is on the screen, without blank lines."""
        return "\n".join(line.rstrip() for line in self._screen.display if not line.isspace())

    def shows(self, pattern: str) -> "re.Match[str] | None":
        """Return where the screen shows a pattern; `^` and `$` are the ends of a line."""
        return re.search(pattern, self.text, re.MULTILINE)

    async def wait_for(self, pattern: str, seconds: float) -> "re.Match[str]":
        """Wait until the screen shows a pattern.

        Raises:
            NotSeen: it does not in so many seconds, or the program ended.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (found := self.shows(pattern)):
                    if self._ended:
                        raise NotSeen(f"The program ended, and shows:\n{self.text}")
                    self._changed.clear()
                    await self._changed.wait()
                return found
        raise NotSeen(f"The screen does not show {pattern} within {seconds:g} s, but:\n{self.text}")

    async def press(self, key: str) -> None:
        """Press a key of `KEYS`."""
        await asyncio.sleep(REACTS)
        os.write(self._master, KEYS[key].encode())

    async def type(self, text: str) -> None:
        """Type a text, key by key."""
        for key in text:
            os.write(self._master, key.encode())
            await asyncio.sleep(TYPES)

    async def press_until(self, key: str, pattern: str) -> "re.Match[str]":
        """Press a key until the screen shows a pattern; not at all if it is there.

        Raises:
            NotSeen: it does not, however often the key is pressed.
        """
        for _ in range(PRESSES):
            with suppress(NotSeen):
                return await self.wait_for(pattern, LOOK)
            await self.press(key)
        return await self.wait_for(pattern, LOOK)


@asynccontextmanager
async def terminal(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> AsyncIterator[Terminal]:
    """Run a program in a terminal until the context ends.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        environment: all of its variables.
    """
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env={**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    except OSError:
        os.close(master)
        raise
    finally:
        os.close(slave)
    shown = Terminal(process, master)
    try:
        yield shown
    finally:
        await end_session(process)
        shown.close()

"""Messages to a server that the client starts: a line each, on its standard input and output (Transports, stdio)."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json

from ..errors import BadReply, ClientError, NoReply, SetupError
from ..protocol.messages import JSON
from ..wire import UNKNOWN_METHOD, write_message
from .exchange import Bounds, Exchange, OnMessage, number_in, read_message

_END_SECONDS = 2.0  # that a server has to end by itself, and again after it was told to

_WHERE = "the command that of an MCP server"


@dataclass(frozen=True)
class Command:
    """A server that the client starts, and ends again: `Command(["uvx", "weather"])`.

    Args:
        arguments: the program and its arguments. No shell reads them.
        environment: its variables; those of this process by default, tokens in them included.
        directory: where it runs; the working directory by default.

    Raises:
        SetupError: there is no program, or the arguments are one text.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str] | None = None
    directory: str | Path | None = None

    def __post_init__(self) -> None:
        if isinstance(self.arguments, str) or not self.arguments:
            raise SetupError(f"Command({self.arguments!r}): give a list of the program and its arguments")


_Arrivals = asyncio.Queue[tuple[JSON, int] | ClientError]  # messages of the server, with their sizes


class StdioConnection:
    is_stream = True

    def __init__(self, command: Command, bounds: Bounds, on_message: OnMessage | None) -> None:
        self._command = command
        self._bounds = bounds
        self._on_message = on_message
        self._waiting: dict[int, tuple[Exchange, _Arrivals]] = {}  # by number, in their order
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._end: ClientError | None = None

    @property
    def is_over(self) -> bool:
        return self._process is None or self._end is not None

    async def open(self) -> None:
        command = self._command
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command.arguments,
                stdin=PIPE,
                stdout=PIPE,
                env=None if command.environment is None else dict(command.environment),
                cwd=command.directory,
                limit=self._bounds.response_bytes,
                start_new_session=True,  # Ctrl-C at the terminal is for the client, which ends the server
            )
        except OSError as error:
            raise SetupError(f"{command.arguments[0]!r} can't be started: {error.strerror or error}") from None
        self._reading = asyncio.create_task(self._read(self._process))

    async def close(self) -> None:
        """End the server: it is to end when its input does; if not, it is told to, and then killed."""
        process, self._process = self._process, None
        if process is None or self._reading is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await process.wait()
                break
            except TimeoutError:
                _signal(process, number)
        await process.wait()
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def end_session(self, headers: Mapping[str, str]) -> None:
        """There is nothing to end but the process."""

    async def exchange(self, exchange: Exchange) -> JSON:
        if exchange.number is None:
            await self._write(exchange.body)
            return {}
        came: _Arrivals = asyncio.Queue()  # its size is bounded by the allowance
        asked: list[tuple[JSON, int]] = []
        self._waiting[exchange.number] = (exchange, came)
        try:
            async with exchange.within(self._bounds.request_seconds):
                await self._write(exchange.body)
                while True:
                    next_ = await came.get()
                    if isinstance(next_, ClientError):
                        raise next_
                    asked = [next_] if _is_question(next_[0]) else []
                    message, size = next_
                    if (result := await exchange.take(message, self._bounds.request_seconds, size)) is not None:
                        return result
                    asked = []
        finally:
            self._waiting.pop(exchange.number, None)
            left = [came.get_nowait() for _ in range(came.qsize())]
            asked += [each for each in left if not isinstance(each, ClientError) and _is_question(each[0])]
            for message, size in asked:  # it may be to another request, which would wait for its answer in vain
                self._pass_on(message, size)

    async def _write(self, body: bytes) -> None:
        if self._end is not None:
            raise self._end
        if self._process is None or self._process.stdin is None:
            raise SetupError("Use the client in an `async with` block")
        if self._on_message is not None:
            self._on_message("sent", from_json(body))
        try:
            self._process.stdin.write(body + b"\n")
            await self._process.stdin.drain()
        except OSError:
            raise await self._why() from None

    async def _why(self) -> ClientError:
        """Return why the server takes nothing any more: what its output says, if that ends soon."""
        if self._reading is not None and self._reading is not asyncio.current_task():
            await asyncio.wait([self._reading], timeout=2 * _END_SECONDS)
        return self._end or NoReply("The server has closed its standard input")

    async def _read(self, process: Process) -> None:
        try:
            assert process.stdout is not None  # noqa: S101  it is a pipe
            while line := await process.stdout.readline():
                if line.strip():
                    await self._take(line)
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await process.wait()
            code = f", with the exit code {process.returncode}" if process.returncode is not None else ""
            self._fail(NoReply(f"The server has ended{code}"))
        except ClientError as error:
            self._fail(error)
        except ValueError:
            self._fail(BadReply(f"The server has sent a line of more than {self._bounds.response_bytes} bytes"))

    def _fail(self, error: ClientError) -> None:
        self._end = error
        for _, came in self._waiting.values():
            came.put_nowait(error)

    async def _take(self, line: bytes) -> None:
        message = read_message(line, _WHERE)
        if self._on_message is not None:
            self._on_message("received", message)
        if _is_question(message) and (reply := self._at_once(message)) is not None:
            await self._write(reply)
        else:
            self._pass_on(message, len(line))

    def _pass_on(self, message: JSON, size: int) -> None:
        """Bring a message to the request that it is to, if that is open."""
        number = self._number_of(message)
        if number not in self._waiting:
            return
        exchange, came = self._waiting[number]
        if "method" not in message:
            del self._waiting[number]  # so that it gets no question of another request any more
        try:
            exchange.allowance.take(size)
            came.put_nowait((message, size))
        except BadReply as error:
            self._waiting.pop(number, None)  # nothing more is kept of it
            is_slow = exchange.silence and size <= exchange.allowance.size
            came.put_nowait(NoReply("More came than was taken, so the stream is lost") if is_slow else error)

    def _at_once(self, message: JSON) -> bytes | None:
        """Return the reply to a question that no call has to be asked for; None if one has."""
        if message["method"] == "ping":
            return write_message(id=message["id"], result={})
        if self._number_of(message) in self._waiting:
            return None
        error = {"code": UNKNOWN_METHOD, "message": "No call is open to which this could belong"}
        return write_message(id=message["id"], error=error)

    def _number_of(self, message: JSON) -> int:
        """Return which request a message is to; a question does not say that, so it is to the first that may ask."""
        if "method" not in message:
            number = message.get("id")
        elif "id" not in message:
            number = number_in(message)
        else:
            number = next((each for each, (exchange, _) in self._waiting.items() if exchange.takes_questions), None)
        return number if type(number) is int else -1


def _is_question(message: JSON) -> bool:
    return "method" in message and "id" in message


def _signal(process: Process, number: int) -> None:
    """Send a signal to a process that runs, and to what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        elif process.returncode is None:
            process.terminate()

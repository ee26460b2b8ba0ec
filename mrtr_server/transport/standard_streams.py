"""Standard input and output, taken for the protocol: nothing else in the process reads or writes them."""

import os
import sys
from dataclasses import dataclass

from ..errors import SetupError

INPUT, OUTPUT, ERROR = 0, 1, 2
"""The descriptors that every process begins with."""


@dataclass(frozen=True, slots=True)
class StandardStreams:
    """Where messages come from, and where they go.

    Args:
        input: a descriptor to read from.
        output: a descriptor to write to.
    """

    input: int
    output: int


class _Process:
    """What was taken of this process."""

    streams: StandardStreams | None = None


def take_standard_streams() -> StandardStreams:
    """Reserve standard input and output for the protocol, once for the process.

    From then on, the output of handlers and of the processes that they start goes to standard error. Their
    standard input is empty. This is not undone: what is printed while the process ends is no message, either.

    Returns:
        Duplicates of both that no other process inherits.

    Raises:
        SetupError: one of them is closed.
    """
    if _Process.streams is None:
        _Process.streams = _take()
    return _Process.streams


def _take() -> StandardStreams:
    nowhere = os.open(os.devnull, os.O_RDWR)  # if one of the three is closed, this is it
    if nowhere <= OUTPUT:
        os.close(nowhere)
        raise SetupError("Standard input or output is closed, so no MCP client can be served over stdio")
    if nowhere == ERROR:
        nowhere = os.dup(nowhere)
    streams = StandardStreams(os.dup(INPUT), os.dup(OUTPUT))
    os.dup2(nowhere, INPUT)
    os.dup2(ERROR, OUTPUT)
    os.close(nowhere)
    if sys.platform == "win32":  # pragma: no cover
        _take_handles(streams)
    else:
        for descriptor in (streams.input, streams.output):
            os.set_blocking(descriptor, True)
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(line_buffering=True)  # what is printed is a log now
    return streams


if sys.platform == "win32":  # pragma: no cover

    def _take_handles(streams: StandardStreams) -> None:
        """Do the same for the handles that processes are started with, and translate no line ends."""
        import ctypes
        import msvcrt

        for descriptor in (streams.input, streams.output):
            msvcrt.setmode(descriptor, os.O_BINARY)
        for descriptor, handle in ((INPUT, -10), (OUTPUT, -11)):  # STD_INPUT_HANDLE, STD_OUTPUT_HANDLE
            ctypes.windll.kernel32.SetStdHandle(handle, msvcrt.get_osfhandle(descriptor))

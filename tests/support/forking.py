"""Starts a Python program by a fork of a process that has imported what it will: that takes a quarter of the time.

A program is run as `python -m` runs it: with its own arguments, folder, environment and output, by its own process.
`start` falls back to a new Python where a fork would differ: for another Python, with variables that an interpreter
reads when it starts, or on a system without forks.
"""

import array
import atexit
import contextlib
import gc
import json
import os
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Protocol

ROOT = Path(__file__).parents[2]

_IMPORTED = ("uvicorn.main", "uvicorn.lifespan.on", "uvicorn.protocols.http.httptools_impl", "uvicorn.loops.uvloop")
_OURS = ("mrtr_server", "mrtr_server.testing", "mrtr_server.storage.sql.store", "mrtr_server.storage.sql.postgresql")

_READ_AT_START = ("PYTHON", "COVERAGE", "CLOCK_AHEAD")  # the last one moves the clock before anything is imported

TIMEOUT = 60.0  # seconds until the process that forks has ended
_MOST = 1_000_000  # bytes of a request: an environment, and arguments


class Started(Protocol):
    """What the tests use of `subprocess.Popen`."""

    pid: int

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


def start(
    module: str, *arguments: str, folder: Path, environment: dict[str, str], output: IO[bytes], python: str
) -> Started:
    """Run `python -m module arguments`; return its process at once."""
    is_like_ours = python == sys.executable and folder == ROOT and "--workers" not in arguments
    read_at_start = {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}
    same = all(os.environ.get(name) == value for name, value in read_at_start.items())
    if not (is_like_ours and same and hasattr(os, "fork")) or "COVERAGE_PROCESS_START" in os.environ:
        command = [python, "-m", module, *arguments]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
    return _Forked(_forker().start(module, arguments, environment, output))


class _Forked:
    def __init__(self, replies: socket.socket) -> None:
        self._replies = replies
        self.returncode: int | None = None
        self.pid = int(self._line())

    def _line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            piece = self._replies.recv(1)
            assert piece, "the process that forks has ended"
            line += piece
        return line.decode()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._replies, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._line())
            self._replies.close()
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Forker:
    """The process that forks, from here."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.forking", str(theirs.fileno())]
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        theirs.close()
        atexit.register(self._end)

    def _end(self) -> None:
        if self.owner == os.getpid():
            self._requests.close()
            self._process.wait(TIMEOUT)

    def start(
        self, module: str, arguments: tuple[str, ...], environment: dict[str, str], output: IO[bytes]
    ) -> socket.socket:
        """Have a program run; return the socket by which its process, and then its end, are told."""
        ours, theirs = socket.socketpair()
        request = json.dumps([module, arguments, environment]).encode("utf-8", "surrogateescape")
        self._requests.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MOST)
        files = array.array("i", [output.fileno(), theirs.fileno()])
        self._requests.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        theirs.close()
        return ours


_FORKERS: list[_Forker] = []


def _forker() -> _Forker:
    if not _FORKERS or _FORKERS[0].owner != os.getpid():  # this process may be a fork itself
        _FORKERS[:] = [_Forker()]
    return _FORKERS[0]


# The process that forks


def _serve(requests: socket.socket) -> tuple[str, list[str]]:
    """Fork for each request; return, in the process of each program, its module and arguments."""
    ended, woken = socket.socketpair()
    for each in (ended, woken):
        each.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is ended:
                    ended.recv(1024)
                    _reap(running)
                    continue
                said, files, _, _ = socket.recv_fds(requests, _MOST, 2)
                if not said:
                    sys.exit()
                module, arguments, environment = json.loads(said.decode("utf-8", "surrogateescape"))
                output, replies = files
                if not (pid := os.fork()):
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.dup2(output, 1)
                    os.dup2(output, 2)
                    selector.close()
                    for each in (requests, ended, woken, *running.values()):
                        each.close()
                    for number in files:
                        os.close(number)
                    os.environ.clear()
                    os.environ.update(environment)
                    random.seed()
                    time.tzset()
                    return module, arguments
                os.close(output)
                running[pid] = socket.socket(fileno=replies)
                running[pid].sendall(b"%d\n" % pid)


def _reap(running: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = found
            with running.pop(pid) as replies, contextlib.suppress(OSError):  # nobody may wait for it any more
                replies.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    for name in (*_IMPORTED, *_OURS):
        __import__(name)
    gc.collect()
    gc.freeze()
    module, arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv = [module, *arguments]
    sys.path[0] = str(ROOT)
    runpy.run_module(module, run_name="__main__", alter_sys=True)

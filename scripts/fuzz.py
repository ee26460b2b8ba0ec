"""What scripts/fuzz runs: requests in any number against servers in this process, and a look at all that comes back."""

import argparse
import asyncio
import gc
import json
import logging
import re
import sys
import time
from collections import Counter, deque
from contextlib import suppress
from random import Random
from typing import Any

from fuzz_ids import AllRequests
from fuzz_issuer import Issuer
from fuzz_requests import Found, Request
from fuzz_server import KINDS, make_servers, make_token_servers
from fuzz_tokens import AUDIENCE, Tokens

from mrtr_server.auth import token_backend
from mrtr_server.live import session_states
from mrtr_server.protocol import sessions

TURNS = 40
"""How many turns of the event loop a request gets before it is looked at whether it waits."""

REPLY_TIMEOUT = 0.002
"""How long it may run then before it counts as a stream that stays open, in seconds."""

MOST_OPEN = 24
"""How many streams are open at once."""

HANGS = 20.0
"""How long a response may take to end once its client has left, in seconds: the round may wait for another one."""

TICK = 0.05
"""How far the clock of the servers goes on with each request, in seconds: what is stored expires on the way."""

KEPT = 50
"""How many sessions and tokens are remembered when it looks for leaks."""

HURRY = 100
"""How many times as fast the clock goes then."""

TOKENS = 0.08
"""Which part of the requests is to servers that take tokens of an issuer."""

KNOWN = ("Tokens can't be verified until",)
"""Errors in the log that are right: the issuer has said what nobody can understand."""

PROGRESS = 50_000
"""After how many requests the memory is printed."""

MOST_SHOWN = 20
"""How many findings are printed."""

LARGEST_SHOWN = 600
"""How much of a request is printed, in bytes."""

_QUESTION = re.compile(rb'\{"jsonrpc":"2\.0","id":("[^"]{60,}"),"method"')
_EVENT = re.compile(rb"^id: (?!end\.)(\S+)$", re.MULTILINE)


class Exchange:
    """One request and what came back.

    Args:
        app: the server.
        request: the request.
        number: which one it is.
    """

    def __init__(self, app: Any, request: Request, number: int) -> None:
        self.request = request
        self.number = number
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self._requests: deque[dict[str, Any]] = deque([{"type": "http.request", "body": request.body}])
        self._gone = asyncio.Event()
        self.task: asyncio.Task[None] = asyncio.ensure_future(app(self._scope(), self._receive, self._send))

    def _scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self.request.method,
            "scheme": "http",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "query_string": b"",
            "root_path": "",
            "headers": self.request.listed(),
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }

    async def _receive(self) -> dict[str, Any]:
        if self._requests:
            return self._requests.popleft()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
        else:
            self.body += message.get("body", b"")

    async def settle(self) -> bool:
        """Run the application, and return whether it is done, and not a stream that stays open."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if self.task.done():
                return True
        await asyncio.wait((self.task,), timeout=REPLY_TIMEOUT)
        return self.task.done()

    async def leave(self) -> bool:
        """Leave as a client does; return whether the application ends then."""
        self._gone.set()
        await asyncio.wait((self.task,), timeout=HANGS)
        return self.task.done()


class Faults(logging.Handler):
    """Collects what is logged as an error, or with an exception.

    Args:
        found: takes each.
    """

    def __init__(self, found: "Findings") -> None:
        super().__init__(logging.WARNING)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record."""
        if record.getMessage().startswith(KNOWN):
            return
        if record.levelno >= logging.ERROR or record.exc_info:
            self._found.add(f"logged: {record.getMessage()[:300]}")


class Findings:
    """What was found, each with the request that it came with."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.current: Exchange | None = None

    def add(self, what: str, exchange: Exchange | None = None) -> None:
        """Note a finding; print it if there have been few."""
        at = exchange or self.current
        kind = re.sub(r"[0-9a-f]{8,}|\d+", "N", what)[:100]
        self.counts[kind] += 1
        if self.counts[kind] > 1 or len(self.counts) > MOST_SHOWN or at is None:
            return
        sent = at.request
        print(f"FOUND in request {at.number} ({sent.what}, {sent.server}, {sent.user or 'nobody'}): {what}")
        print(f"  {sent.method} {sent.headers}\n  {sent.body[:LARGEST_SHOWN]!r}")
        print(f"  -> {at.status} {at.body[:LARGEST_SHOWN]!r}", flush=True)


class Fuzz:
    """Sends the requests, and looks at the responses.

    Args:
        given: the options.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._now = time.time()
        self._tick = TICK
        if given.leaks:
            self._tick *= HURRY
            sessions._REMEMBERED = session_states._REMEMBERED = token_backend.MOST_KNOWN = KEPT  # noqa: SLF001
        self.servers = make_servers(lambda: self._now, given.database)
        served = {
            kind: (not dialects or "2026-07-28" in dialects, not dialects or "2025-11-25" in dialects)
            for kind, dialects in KINDS.items()
        }
        self._random = Random(given.seed)  # noqa: S311  it has to be repeatable
        self._requests = AllRequests(self._random, served)
        self._issuer = Issuer()
        self.servers |= make_token_servers(self._issuer.url, AUDIENCE)
        self._tokens = Tokens(self._random, self._issuer)
        self.tokens: Counter[str] = Counter()
        self._open: deque[Exchange] = deque()
        self.findings = Findings()
        self.statuses: Counter[int] = Counter()
        self.opened = 0

    async def run(self) -> dict[str, int]:
        """Run all requests; return the memory before and after, in kB."""
        count, warm = self._given.count, self._given.count // 10
        before = _memory()
        for number in range(count):
            if number == warm:
                before = _memory()
            self._now += self._tick
            await self._send(number)
            if self._given.progress and number % PROGRESS == PROGRESS - 1:
                print(f"{number + 1:,} requests, {_memory():,} kB", file=sys.stderr, flush=True)
        while self._open:
            await self._leave(self._open.popleft())
        self._requests.found.clear()
        self._issuer.close()
        return {"memory_kb_before": before, "memory_kb_after": _memory()}

    async def _send(self, number: int) -> None:
        request = (self._tokens if self._random.random() < TOKENS else self._requests).next()
        exchange = self.findings.current = Exchange(self.servers[request.server], request, number)
        if request.waits:
            await asyncio.wait((exchange.task,), timeout=HANGS)
            self.tokens["accepted" if exchange.status == 200 else "refused"] += 1
        if await exchange.settle():
            self._look(exchange)
            return
        self.opened += 1
        self._look(exchange)
        self._open.append(exchange)
        if len(self._open) > MOST_OPEN:
            at = number % 7  # not always the oldest
            self._open.rotate(-at)
            await self._leave(self._open.popleft())
            self._open.rotate(at)
        while self._open and self._open[0].task.done():
            self._look(self._open.popleft(), again=True)

    async def _leave(self, exchange: Exchange) -> None:
        if await exchange.leave():
            self._look(exchange, again=True)
        else:
            self.findings.add("hangs after its client has left", exchange)
            exchange.task.cancel()

    def _look(self, exchange: Exchange, *, again: bool = False) -> None:
        """Check a response, as far as it has come, and take the ids in it."""
        status, body, request = exchange.status, exchange.body, exchange.request
        if exchange.task.done() and (error := exchange.task.exception()) is not None:
            self.findings.add(f"raised {error!r}", exchange)
            return
        if not again:
            self.statuses[status] += 1
        if status == 0 and exchange.task.done() and not again:
            self.findings.add("no response", exchange)
        if status >= 500 and not (request.waits and status == 503):
            self.findings.add(f"status {status}", exchange)
        if not again and status and (wrong := request.check(status, body)):
            self.findings.add(wrong, exchange)
        is_stream = exchange.headers.get(b"content-type", b"").startswith(b"text/event-stream")
        if body and is_stream:
            for line in body.split(b"\n"):
                if line.startswith(b"data: ") and (wrong := _message_wrong(line[6:])):
                    self.findings.add(wrong, exchange)
        elif body and status in (200, 400, 404) and (wrong := _message_wrong(body)):
            self.findings.add(wrong, exchange)
        self._take(exchange)

    def _take(self, exchange: Exchange) -> None:
        request, body, found = exchange.request, exchange.body, self._requests.found
        server, user, call = request.server, request.user, request.call
        if (session := exchange.headers.get(b"mcp-session-id")) is not None:
            found["session"].append(Found(session.decode(), server, user))
        found["question"].extend(Found(json.loads(id), server, user) for id in _QUESTION.findall(body))
        found["event"].extend(Found(id.decode(), server, user) for id in _EVENT.findall(body)[-1:])
        if exchange.status == 200 and body[:1] == b"{" and call[0]:
            with suppress(ValueError):
                message = json.loads(body)
                result = message if "method" in message else message.get("result")
                for name, kind in (("requestState", "state"), ("taskId", "task"), ("nextCursor", "cursor")):
                    if isinstance(result, dict) and isinstance(result.get(name), str):
                        found[kind].append(Found(result[name], server, user, call))


def _message_wrong(body: bytes) -> str:
    """Return what is wrong with a JSON-RPC message, or a batch; empty for nothing."""
    try:
        whole = json.loads(body)
    except ValueError:
        return "not JSON"
    for message in whole if isinstance(whole, list) else [whole]:
        if message.get("jsonrpc") != "2.0":
            return "" if set(message) == {"error"} else "not JSON-RPC"
        if "id" in message and type(message["id"]) not in (str, int):
            return "an id of null"
        if "method" not in message and ("result" in message) == ("error" in message):
            return "neither a result nor an error"
        if message.get("error", {}).get("code") == -32603 and "Internal error" in message["error"]["message"]:
            return "an internal error"
    return ""


def _memory() -> int:
    """Return the resident memory of this process, in kB; 0 where that can't be read."""
    gc.collect()
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4
    except OSError:
        return 0


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="how many requests (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which requests (%(default)s)")
    parser.add_argument("--database", help="URL of a database, in place of the memory of the process")
    parser.add_argument("--progress", action="store_true", help=f"print the memory after each {PROGRESS:,}")
    parser.add_argument(
        "--leaks", action="store_true", help="fill caches soon, and let what is stored expire soon: what grows, leaks"
    )
    given = parser.parse_args()
    fuzz = Fuzz(given)
    for name in ("mrtr_server", "asyncio"):
        log = logging.getLogger(name)
        log.addHandler(Faults(fuzz.findings))
        log.propagate = False
    began = time.monotonic()
    memory = asyncio.run(fuzz.run())
    report = {
        "requests": given.count,
        "seed": given.seed,
        "seconds": round(time.monotonic() - began, 1),
        "streams_held": fuzz.opened,
        "tokens": dict(fuzz.tokens),
        "statuses": dict(sorted(fuzz.statuses.items())),
        "findings": dict(fuzz.findings.counts),
        **memory,
    }
    print(json.dumps(report))
    return 1 if fuzz.findings.counts else 0


if __name__ == "__main__":
    sys.exit(main())

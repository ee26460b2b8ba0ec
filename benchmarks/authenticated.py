"""What it costs to know who calls: the same call without tokens, with a token that is known, and with one that is new.

    python benchmarks/authenticated.py

A plain `tools/call` in process, without a network, in turns; processor time of a call in microseconds, the median of
the runs and their range. The tokens are those that an issuer signs with RS256, of about 1 KiB. Its keys are given to
the server, so that nothing is fetched. Every answer is checked, and before and after the runs each server that
authenticates has to refuse callers without a token and with a token of somebody else's key.
"""

import asyncio
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any
from unittest.mock import patch

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from scenarios import PROTOCOL_VERSION

from mrtr_server import BearerTokens, JWTAuth, MRTRServer
from mrtr_server.auth import jwt_keys

RUNS, CALLS = 9, 2_000
ISSUER, AUDIENCE = "https://login.example.com/realms/tools", "https://tools.example.com/mcp"
KEY = rsa.generate_private_key(65537, 2048)
META = {
    "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
BODY = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "add", "arguments": {"a": 1, "b": 2}, "_meta": META},
    }
).encode()
HEADERS = [
    (b"host", b"127.0.0.1"),
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
    (b"mcp-protocol-version", PROTOCOL_VERSION.encode()),
    (b"mcp-method", b"tools/call"),
    (b"mcp-name", b"add"),
    (b"content-length", b"%d" % len(BODY)),
]


def server(auth: Any) -> MRTRServer:
    app = MRTRServer("bench", keys=[bytes(32)], auth=auth)

    @app.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return app


def token(number: int, key: rsa.RSAPrivateKey = KEY) -> str:
    now = int(time.time())
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": f"user-{number}",
        "azp": "desk",
        "iat": now,
        "exp": now + 3600,
        "scope": "openid profile files:read files:write",
        "groups": [f"/company/team-{each}" for each in range(10)],
    }
    return jwt.encode(claims, key, "RS256", headers={"kid": "one"})


async def call(app: MRTRServer, authorization: str | None) -> int:
    """Call the tool, and check its answer; return the status."""
    headers = HEADERS if authorization is None else [*HEADERS, (b"authorization", f"Bearer {authorization}".encode())]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 1),
    }
    received = iter([{"type": "http.request", "body": BODY, "more_body": False}])

    async def receive() -> Any:
        return next(received, None) or await asyncio.Event().wait()

    status, body = 0, b""

    async def send(each: Any) -> None:
        nonlocal status, body
        status, body = each.get("status", status), body + each.get("body", b"")

    await app(scope, receive, send)
    if status == 200 and b'"text":"3"' not in body:
        raise AssertionError(body)
    return status


async def check(app: MRTRServer, *, is_open: bool) -> None:
    """Check that a server refuses who has no token of its own, unless it is open to all."""
    expected = 200 if is_open else 401
    for authorization in (None, token(0, rsa.generate_private_key(65537, 2048)), "token of nobody"):
        if (status := await call(app, authorization)) != expected:
            raise AssertionError(f"{status} instead of {expected}")


async def microseconds(app: MRTRServer, authorizations: Callable[[int], str | None]) -> float:
    began = time.process_time()
    for number in range(CALLS):
        if (status := await call(app, authorizations(number))) != 200:
            raise AssertionError(status)
    return (time.process_time() - began) / CALLS * 1e6


async def measure() -> None:
    public = jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True)

    async def keys(url: str) -> dict[str, Any]:
        return {"keys": [{**public, "kid": "one"}]}

    known, tokens = token(0), [token(number) for number in range(CALLS)]
    known_to, new_to = (
        JWTAuth(ISSUER, audience=AUDIENCE, jwks_uri=ISSUER),
        JWTAuth(ISSUER, audience=AUDIENCE, jwks_uri=ISSUER),
    )
    cases: dict[str, tuple[MRTRServer, Callable[[int], str | None]]] = {
        "no authentication": (server(None), lambda _: None),
        "BearerTokens": (server(BearerTokens({"token": "alice"})), lambda _: "token"),
        "JWTAuth, a known token": (server(known_to), lambda _: known),
        "JWTAuth, a new token each time": (server(new_to), lambda number: tokens[number]),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    with patch.object(jwt_keys, "fetch_json", keys):
        for app, _ in cases.values():
            await check(app, is_open=app is cases["no authentication"][0])
        for _ in range(RUNS):
            for name, (app, authorizations) in cases.items():
                new_to._known.clear()  # noqa: SLF001  or they would be known from the run before
                found[name].append(await microseconds(app, authorizations))
        for app, _ in cases.values():
            await check(app, is_open=app is cases["no authentication"][0])
    print("| a plain call in process, µs of processor time | median | min–max |\n|---|--:|--:|")
    for name, each in found.items():
        print(f"| {name} | {median(each):.1f} | {min(each):.1f}–{max(each):.1f} |")


if __name__ == "__main__":
    asyncio.run(measure())

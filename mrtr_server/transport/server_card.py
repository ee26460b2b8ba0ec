"""What a server says of itself before anybody connects: its card, and a catalog with it (Server Cards, Discovery).

As of commit 8924e08 of experimental-ext-server-card, where the normative text of SEP-2127 is kept.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from ..addresses import endpoint_url
from ..protocol.messages import JSON
from .connection import respond, send_content

CATALOG = "/.well-known/ai-catalog.json"

_SCHEMA = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
_CARD = "application/mcp-server-card+json"
_OPEN_TO_ALL = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET"),
    (b"access-control-allow-headers", b"Content-Type, If-None-Match"),
    (b"access-control-expose-headers", b"ETag"),
)
_KEPT = (b"cache-control", b"public, max-age=3600")


class Document:
    """Serves one document, which anybody may read and keep for an hour, also in a browser."""

    def __init__(self, content: JSON, media_type: str) -> None:
        self._body = to_json(content)
        self._type = media_type.encode()
        self._tag = b'"%b"' % sha256(self._body).hexdigest()[:32].encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        if method == "OPTIONS":
            await respond(send, 204, b"", *_OPEN_TO_ALL)
        elif method not in ("GET", "HEAD"):
            await respond(send, 405, b'{"error":"GET or HEAD"}', (b"allow", b"GET, HEAD, OPTIONS"), *_OPEN_TO_ALL)
        else:
            await send_content(scope, send, self._type, self._body, _KEPT, *_OPEN_TO_ALL, tag=self._tag)


class ServerCard:
    """Serves the card of a server, at the address of its endpoint and `/server-card`, and a catalog with it alone."""

    def __init__(self, path: str, base_url: str, about: Mapping[str, object], versions: Sequence[str]) -> None:
        url = endpoint_url(base_url, path)
        remote = {"type": "streamable-http", "url": url, "supportedProtocolVersions": list(versions)}
        self._path = f"{path}/server-card"
        self._card = Document({"$schema": _SCHEMA, **about, "remotes": [remote]}, _CARD)
        publisher, _, name = str(about["name"]).partition("/")
        domain = ".".join(reversed(publisher.split(".")))
        entry = {"identifier": f"urn:air:{domain}:mcp:{name}", "type": _CARD, "url": f"{url}/server-card"}
        self.catalog = Document({"specVersion": "1.0", "entries": [entry]}, "application/ai-catalog+json")

    def claims(self, path: str) -> bool:
        return path in (self._path, CATALOG)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        document = self._card if scope["path"].endswith(self._path) else self.catalog
        await document(scope, receive, send)

"""The page: its files, what it shows of the server, and the states that it may open."""

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files

from pydantic_core import from_json, to_json
from starlette.types import Receive, Scope, Send

from ..crypto.keys import KeyRing
from ..errors import InvalidRequestState
from ..flow.inspection import inspect_state
from ..transport.response_writer import respond
from .page_rounds import TaskRounds, why_not_local, why_not_page

NAME = "docs"
"""The last part of the page's path; its first parts are those of the endpoint's."""

_TYPES = {"html": b"text/html; charset=utf-8", "css": b"text/css; charset=utf-8", "js": b"text/javascript"}

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "media-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
).encode()
"""Only the page's own files run. The result of a server can be text, or an image that is part of the reply."""

_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
_NO_STORE = (b"cache-control", b"no-store")


class Page:
    """Serves the page.

    `tasks`: what tasks did, where the page looks inside for requests from this machine: it opens states, and sends
        requests as other users; None where it does not.
    `own_codec`: whether states are sealed with a codec of the author's own, which the keys do not open.
    `has_auth`: whether the server authenticates its callers.
    """

    def __init__(
        self, path: str, ring: KeyRing, tasks: TaskRounds | None, token: str, *, own_codec: bool, has_auth: bool
    ) -> None:
        folder, _, endpoint = path.rpartition("/")
        self.path = f"{folder}/{NAME}"
        self._token = token
        self._endpoint = endpoint or "./"
        self._ring = ring
        self._tasks = tasks
        self._own_codec = own_codec
        self._has_auth = has_auth
        self._files = _load_files()

    def claims(self, path: str) -> bool:
        """Return whether a path within the application is the page's."""
        return path == self.path or path.startswith(f"{self.path}/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        below = scope["path"].rpartition(f"/{NAME}")[2]
        if below in ("/state", "/task"):
            await self._look_inside(below, scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await respond(send, 405, b'{"error":"GET or HEAD"}', (b"allow", b"GET, HEAD"))
        elif below == "/":  # or what the page refers to would be one level too deep
            await respond(send, 308, b"", (b"location", f"../{NAME}".encode()))
        elif below == "/about":
            await respond(send, 200, to_json(self._about(scope)), _NO_STORE, *_HEADERS)
        elif (file := self._files.get(below.removeprefix("/"))) is not None:
            await _send_file(scope, send, *file)
        else:
            await respond(send, 404, b'{"error":"Not found"}')

    def _about(self, scope: Scope) -> dict[str, object]:
        why_not, wants_token = "Start the server with debug=True, or with `mrtr-server dev`.", False
        if self._tasks is not None:
            why_not = why_not_page(scope, self._token, reads=True)
            wants_token = bool(why_not) and not why_not_local(scope, reads=True)
        users = why_not or ("A caller is who the token says." if self._has_auth else "")
        return {"endpoint": self._endpoint, "inside": why_not, "users": users, "wantsToken": wants_token}

    async def _look_inside(self, what: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with what a state holds or a task did, for the page on this machine alone."""
        if self._tasks is None:
            await respond(send, 404, b'{"error":"Not found"}')
        elif scope["method"] != "POST":
            await respond(send, 405, b'{"error":"POST"}', (b"allow", b"POST"))
        elif why_not := why_not_page(scope, self._token):
            await respond(send, 403, to_json({"error": f"Only the page on this machine may look inside. {why_not}"}))
        else:
            found: object
            try:
                asked = str(from_json(await _read(receive))[what.removeprefix("/")])
            except (ValueError, KeyError, TypeError):
                found = {"error": f'Send {{"{what.removeprefix("/")}": "..."}}'}
            else:
                found = self._tasks.describe(asked) if what == "/task" else self._describe(asked)
            await respond(send, 200, to_json(found), _NO_STORE)

    def _describe(self, state: str) -> Mapping[str, object]:
        if self._own_codec:
            return {"error": "The states of this server are sealed with its own codec=, which the page can't open."}
        try:
            return {"held": inspect_state(state, self._ring, values=True)}
        except InvalidRequestState as error:
            return {"error": f"This state does not open: {error.reason}"}


LONGEST_BODY = 1024 * 1024
"""How long a request to open a state may be, in bytes."""


async def _read(receive: Receive) -> bytes:
    """Return a body; nothing of one that is too long or does not come to its end."""
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if message["type"] != "http.request" or len(body) > LONGEST_BODY:
            return b""
        if not message.get("more_body"):
            return body


async def _send_file(scope: Scope, send: Send, content: bytes, kind: bytes, tag: bytes) -> None:
    asked = dict(scope["headers"]).get(b"if-none-match", b"")
    headers = [(b"etag", tag), (b"cache-control", b"no-cache"), *_HEADERS]
    body = b""
    if asked == tag:
        status = 304
    else:
        status = 200
        headers += [(b"content-type", kind), (b"content-length", b"%d" % len(content))]
        body = content if scope["method"] == "GET" else b""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _load_files() -> dict[str, tuple[bytes, bytes, bytes]]:
    """Return the page's files by name, each with its content type and its tag; the page itself has no name."""
    found = {}
    for file in files(__package__).joinpath("page_files").iterdir():
        kind = _TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()
            name = "" if file.name == "page.html" else file.name
            found[name] = (content, kind, b'"%b"' % sha256(content).hexdigest()[:32].encode())
    return found

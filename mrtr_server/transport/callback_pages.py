"""The browser's side of callbacks: whose browser it is, what is run, and the page that the person sees."""

import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from html import escape
from inspect import Parameter, isawaitable, iscoroutinefunction
from typing import Any, Protocol, TypeVar, Union, overload
from urllib.parse import parse_qs

from pydantic import PydanticUserError
from starlette.authentication import BaseUser
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Message, Receive, Scope, Send

from ..callbacks.base_url import BaseUrl, origins_of
from ..callbacks.service import PATH, Callback, Callbacks, owner
from ..concurrency.threads import Threads
from ..crypto.signing import Link
from ..errors import FlowError, LinkRefused, PayloadTooLarge, SetupError, StoreUnavailable, ToolError, Unavailable
from ..flow.asks import Refusal
from ..flow.handler import Handler
from ..logs.refusals import RefusalLog
from ..protocol.messages import Principal
from ..protocol.users import principal_of
from ..schema.annotations import union_members
from ..schema.arguments import Stored

logger = logging.getLogger("mrtr_server")

T = TypeVar("T")

Identity = str | Principal | BaseUser | Response | None
Identify = Callable[[Request], Identity | Awaitable[Identity]]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_QUERY = 16 * 1024
_MOST_FIELDS = 1000

_STYLE = "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:32rem;margin:20vh auto;padding:0 1rem}"

_DEFAULTS = {
    "Cache-Control": "no-store",
    # The address has the token, and a provider's code. With no-referrer, a form would be sent with `Origin: null`.
    "Referrer-Policy": "strict-origin",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
}
"""What every page is sent with, unless its response says otherwise."""


class Registering(Protocol):
    """What `@app.callback(...)` is: makes a `Callback` of a function, whose answer is of the type that it returns."""

    @overload
    def __call__(self, function: Callable[..., Coroutine[Any, Any, T | Response]], /) -> Callback[T]: ...
    @overload
    def __call__(self, function: Callable[..., T | Response], /) -> Callback[T]: ...


def build_callback(
    handler: Handler,
    methods: Iterable[str],
    origins: Iterable[str],
    page: Callable[[Request], Response | Awaitable[Response]] | None,
) -> Callback[Any]:
    """Compile a callback. Raises `SetupError` for what can't be one.

    Args:
        handler: the function, and its name.
        methods: the HTTP methods that it takes: GET, POST.
        origins: from where browsers may POST to it, besides the server's own.
        page: makes the page that the person sees when it is done.
    """
    name = handler.name
    if not _NAME.fullmatch(name):
        raise SetupError(f"{name!r} is not a valid name for a callback: use 1 to 64 of A-Z, a-z, 0-9, '_' and '-'")
    if handler.context or handler.inputs or handler.state or len(handler.parameters) not in (1, 2):
        raise SetupError(f"{name}: a callback takes the request, and optionally the CallbackLink over which it came")
    taken = frozenset({methods} if isinstance(methods, str) else methods)
    if not taken or taken - {"GET", "POST"}:
        raise SetupError(f'{name}: methods= takes "GET", "POST", or both')
    others = origins_of(f"{name}: origins", origins)
    if others and "POST" not in taken:
        raise SetupError(f'{name}: origins= apply to POST only; give methods=["POST"], too')
    members = [each for each in union_members(handler.returns) if not _is_response(each)]
    if not members:
        raise SetupError(
            f"{name} only returns responses, so it never reports anything; return the value that the flow waits for, "
            "too"
        )
    returns = Any if handler.returns is Parameter.empty else Union[tuple(members)]  # noqa: UP007
    try:
        stored = Stored(returns)
    except PydanticUserError as error:
        raise SetupError(f"{name}: what it returns can't be kept as {returns!r}: {error}") from error
    two = len(handler.parameters) == 2
    return Callback(
        name,
        handler.function,
        takes_way_back=two,
        returns=returns,
        stored=stored,
        methods=taken,
        origins=others,
        page=page,
    )


def _is_response(member: Any) -> bool:
    return isinstance(member, type) and issubclass(member, Response)


class CallbackPages:
    """Serves the callbacks to browsers.

    Args:
        known: the server's callbacks by name; more may come.
        callbacks: reads the links, and keeps what is reported.
        threads: runs plain functions.
        base: where browsers reach the server.
        identify: says whose browser sent a request; None where nobody is known.
        body_bytes: how large the body of a POST may be, in bytes.
        refusals: logs what is turned away.
    """

    def __init__(
        self,
        known: Mapping[str, Callback[Any]],
        callbacks: Callbacks,
        threads: Threads,
        base: BaseUrl,
        *,
        identify: Identify | None,
        body_bytes: int,
        refusals: RefusalLog,
    ) -> None:
        self._known = known
        self._callbacks = callbacks
        self._threads = threads
        self._base = base
        self._identify = identify
        self._body_bytes = body_bytes
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request to a callback."""
        callback = self._known[scope["path"].rpartition(PATH)[2]]
        response = await self._respond(callback, Request(scope, _capped(receive, self._body_bytes)))
        for name, value in _DEFAULTS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    async def _respond(self, callback: Callback[Any], request: Request) -> Response:
        try:
            return self._refuse(callback, request) or await self._serve(callback, request)
        except LinkRefused as refused:
            logger.warning("Callback %r: refused a link: %s", callback.name, refused.reason)
            return _page(
                400, "This link is not valid", "It may be too old. Go back to where you got it, and try again."
            )
        except ToolError as error:
            return _page(400, "That did not work", str(error) or "Go back, and try again.")
        except PayloadTooLarge:
            return _page(413, "That did not work", "What was sent is too large.")
        except StoreUnavailable as error:
            if not error.reference:  # or it is in the log already
                logger.error("Callback %r: %s", callback.name, error)
            page = _page(503, "That did not work", "Please try again in a moment.")
            page.headers["Retry-After"] = f"{Unavailable.retry_after:g}"
            return page
        except Exception as error:
            reference = secrets.token_hex(4)
            logger.error("Callback %r failed (reference %s)", callback.name, reference, exc_info=error)
            return _page(500, "That did not work", f"Something is wrong here (reference {reference}).")

    def _refuse(self, callback: Callback[Any], request: Request) -> Response | None:
        """Refuse what no person sent, before anything is read."""
        headers = request.headers
        if request.method not in callback.methods:
            return Response(status_code=405, headers={"Allow": ", ".join(sorted(callback.methods))})
        host = headers.get("host", "")
        if not self._base.is_of(host):
            self._refusals.note(
                "Callback %r: refused the host %r: if browsers reach this server by that name, set base_url=",
                callback.name,
                host,
            )
            return _page(403, "This address is not served here", "")
        # A browser sends it with every POST; what has none comes from no page that somebody was lured to.
        origins = headers.getlist("origin") if request.method == "POST" else []
        if origins and not self._takes_from(callback, ", ".join(origins), host):
            self._refusals.note(
                "Callback %r: refused a POST from the origin %r: if that is intended, add it to origins= of the "
                "callback (pages with the Referrer-Policy no-referrer send null)",
                callback.name,
                ", ".join(origins),
            )
            return _page(403, "This was sent from another site", "Go back to where you got the link, and try again.")
        purpose = f"{headers.get('sec-purpose', '')} {headers.get('purpose', '')} {headers.get('x-moz', '')}".lower()
        if "prefetch" in purpose or "preview" in purpose:
            return _page(403, "This page is not opened ahead of time", "")
        return None

    def _takes_from(self, callback: Callback[Any], origin: str, host: str) -> bool:
        return origin.lower() in callback.origins or self._base.is_origin(origin, host)

    async def _serve(self, callback: Callback[Any], request: Request) -> Response:
        if len(request.scope["query_string"]) > _LONGEST_QUERY:
            raise LinkRefused("a query that is too large")
        tokens = request.query_params.getlist("state") or await _posted_tokens(request)
        if len(tokens) != 1:
            raise LinkRefused(f"it has {len(tokens)} tokens")
        link = self._callbacks.unseal_link(callback, tokens[0])
        if (stranger := await self._refuse_stranger(callback, link, request)) is not None:
            return stranger
        if await self._callbacks.find(link.id) is not None:
            return await self._done(callback, request, "This is done already")
        try:
            value = await self._run(callback, link, request)
        except Refusal as refusal:
            kept = await self._callbacks.report(link, {"action": refusal.action})
            text = "Nothing was done." if kept else "This is done already."
            return _page(200, text, "You can close this page.")
        if isinstance(value, Response):  # a form, or a redirect: there is more to come
            return value
        report = {"action": "accept", "content": callback.stored.dump(value)}
        kept = await self._callbacks.report(link, report)
        return await self._done(callback, request, "Done" if kept else "This is done already")

    async def _refuse_stranger(self, callback: Callback[Any], link: Link, request: Request) -> Response | None:
        """Refuse a browser that is not that of the person whom the link was made for."""
        who: Principal | None = None
        if self._identify is not None:
            identity = await self._call(self._identify, request)
            if isinstance(identity, Response):  # such as the way to the login
                return identity
            who = _principal(identity)
        if link.belongs_to(owner(who)) and (who is not None or self._identify is None):
            return None
        reason = "it is another user's" if who is not None or self._identify is None else "nobody is logged in"
        logger.warning("Callback %r: refused a link: %s", callback.name, reason)
        return _page(
            403,
            "This link is for somebody else",
            "Log in here as the person who asked for it, and open it again. If you did not ask for it, somebody may be "
            "trying to use your account: close this page.",
        )

    async def _run(self, callback: Callback[Any], link: Link, request: Request) -> Any:
        if not callback.takes_way_back:
            return await self._call(callback.function, request)
        root = request.scope.get("root_path", "")
        back = self._callbacks.callback_link_of(callback, link, request.headers.get("host", ""), root)
        return await self._call(callback.function, request, back)

    async def _done(self, callback: Callback[Any], request: Request, title: str) -> Response:
        if callback.page is None:
            return _page(200, title, "You can close this page and go back to where you came from.")
        response: Response = await self._call(callback.page, request)
        return response

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the author's: on the loop if it is an `async def`, otherwise in a thread."""
        call = partial(function, *arguments)
        on_loop = iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
        result = call() if on_loop else await self._threads(call)
        return await result if isawaitable(result) else result


async def _posted_tokens(request: Request) -> list[str]:
    """Return the tokens in the form of a POST: a provider's `form_post` has them there, and not in the address."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method != "POST" or kind != "application/x-www-form-urlencoded":
        return []
    try:
        return parse_qs((await request.body()).decode("latin-1"), max_num_fields=_MOST_FIELDS).get("state", [])
    except ValueError:
        raise LinkRefused("a form that has too many fields") from None


def _principal(identity: Any) -> Principal | None:
    if isinstance(identity, str):
        identity = Principal(identity)
    if isinstance(identity, Principal):
        return identity if identity.subject else None
    if identity is not None and not hasattr(identity, "is_authenticated"):
        kind = type(identity).__name__
        raise FlowError(f"identify= returned a {kind}; return a str, a Principal, a Starlette user, or None")
    return principal_of(identity)


def _capped(receive: Receive, limit: int) -> Receive:
    taken = 0

    async def capped() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            raise PayloadTooLarge(limit)
        return message

    return capped


def _page(status: int, title: str, text: str) -> Response:
    """Make a plain page. Whatever is shown is escaped, and nothing in it runs or loads."""
    title, text = escape(title), escape(text)
    html = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1><p>{text}</p></html>\n"
    )
    return HTMLResponse(html, status)

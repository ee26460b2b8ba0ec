"""Callbacks as browsers see them: whose browser it is, which function runs, and the page that the person sees."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from html import escape
from typing import Any, TypeVar
from urllib.parse import parse_qs

from starlette.authentication import BaseUser
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Message, Receive, Scope, Send

from .. import errors
from ..addresses import BaseUrl
from ..concurrency.threads import Threads, call_function
from ..crypto.signing import SignedLink
from ..flow.home import is_async
from ..flow.url_asks import PATH, Callback, Callbacks, owner
from ..logs.failures import report_failure, report_outage
from ..logs.refusals import RefusalLog
from ..protocol.callers import Principal, principal_of
from ..well_formed import well_formed

logger = logging.getLogger("mrtr_server")

T = TypeVar("T")

Identity = str | Principal | BaseUser | Response | None
Identify = Callable[[Request], Identity | Awaitable[Identity]]

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
"""The headers of every page, unless its response has its own."""


class CallbackPages:
    def __init__(
        self,
        known: Mapping[str, Callback[Any]],  # by name; more may be added
        callbacks: Callbacks,
        threads: Threads,
        base: BaseUrl,
        *,
        identify: Identify | None,  # returns whose browser sent a request; None where that can't be known
        body_bytes: int,  # how large the body of a POST may be, in bytes
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
        callback = self._known[scope["path"].rpartition(PATH)[2]]
        response = await self._respond(callback, Request(scope, _capped(receive, self._body_bytes)))
        for name, value in _DEFAULTS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    async def _respond(self, callback: Callback[Any], request: Request) -> Response:
        try:
            return self._refuse(callback, request) or await self._serve(callback, request)
        except errors.LinkRefused as refused:
            self._refusals.note("Callback %r: refused a link: %s", callback.name, refused.reason)
            return _page(
                400, "This link is not valid", "It may be too old. Go back to where you got it, and try again."
            )
        except errors.ToolError as error:
            return _page(400, "That did not work", str(error) or "Go back, and try again.")
        except errors.PayloadTooLarge:
            return _page(413, "That did not work", "What was sent is too large.")
        except errors.Full as error:
            message = "Callback %r: could not report, since %s of Limits(%s=...)"
            self._refusals.note(message, callback.name, error.used_up_by, error.limit)
            status = 429 if isinstance(error, errors.OverShare) else 503
            page = _page(status, "That did not work", "Too much is waiting. Please try again later.")
            page.headers["Retry-After"] = f"{error.retry_after:g}"
            return page
        except errors.StoreUnavailable as error:
            report_outage(error, "Callback %r failed", callback.name)
            page = _page(503, "That did not work", "Please try again in a moment.")
            page.headers["Retry-After"] = f"{errors.Unavailable.retry_after:g}"
            return page
        except Exception as error:
            reference = report_failure("Callback %r failed", callback.name, error=error)
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
        # Browsers send it with every POST, so a POST without it does not come from another site's page.
        origins = headers.getlist("origin") if request.method == "POST" else []
        origin = ", ".join(origins)
        if origins and origin.lower() not in callback.origins and not self._base.is_origin(origin, host):
            self._refusals.note(
                "Callback %r: refused a POST from the origin %r: if that is intended, add it to origins= of the "
                "callback (pages with the Referrer-Policy no-referrer send null)",
                callback.name,
                origin,
            )
            return _page(403, "This was sent from another site", "Go back to where you got the link, and try again.")
        purpose = f"{headers.get('sec-purpose', '')} {headers.get('purpose', '')} {headers.get('x-moz', '')}".lower()
        if "prefetch" in purpose or "preview" in purpose:
            return _page(403, "This page is not opened ahead of time", "")
        return None

    async def _serve(self, callback: Callback[Any], request: Request) -> Response:
        if len(request.scope["query_string"]) > _LONGEST_QUERY:
            raise errors.LinkRefused("a query that is too large")
        tokens = request.query_params.getlist("state") or await _posted_tokens(request)
        if len(tokens) != 1:
            raise errors.LinkRefused(f"it has {len(tokens)} tokens")
        link = self._callbacks.unseal_link(callback, tokens[0])
        person = await self._identified(callback, link, request)
        if isinstance(person, Response):
            return person
        if await self._callbacks.find(link.id) is not None:
            return await self._done(callback, request, "This is done already")
        try:
            value = await self._run(callback, link, request)
        except errors.Refusal as refusal:
            kept = await self._callbacks.report(link, {"action": refusal.action}, person)
            text = "Nothing was done." if kept else "This is done already."
            return _page(200, text, "You can close this page.")
        if isinstance(value, Response):  # a form, or a redirect: there is more to come
            return value
        content, exact = callback.stored.keep(value, f"What the callback {callback.name!r} reports")[0]
        report = {"action": "accept", "content": content, **({} if exact is None else {"exact": exact})}
        kept = await self._callbacks.report(link, report, person)
        return await self._done(callback, request, "Done" if kept else "This is done already")

    async def _identified(
        self, callback: Callback[Any], link: SignedLink, request: Request
    ) -> Principal | Response | None:
        """Return whose link it is, None where nobody is known; a response to the browser of anybody else."""
        who: Principal | None = None
        if self._identify is not None:
            identity = await self._call(self._identify, request)
            if isinstance(identity, Response):  # such as the way to the login
                return identity
            who = _principal(identity)
        if link.belongs_to(owner(who)) and (who is not None or self._identify is None):
            return who
        reason = "it is another user's" if who is not None or self._identify is None else "nobody is logged in"
        self._refusals.note("Callback %r: refused a link: %s", callback.name, reason)
        return _page(
            403,
            "This link is for somebody else",
            "Log in here as the person who asked for it, and open it again. If you did not ask for it, somebody may be "
            "trying to use your account: close this page.",
        )

    async def _run(self, callback: Callback[Any], link: SignedLink, request: Request) -> Any:
        if not callback.takes_link:
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
        name = getattr(function, "__qualname__", type(function).__name__)
        call = partial(function, *arguments)
        return await call_function(call, name, self._threads, is_async=is_async(function))


async def _posted_tokens(request: Request) -> list[str]:
    """Return the tokens in the form of a POST: a provider's `form_post` has them there, and not in the address."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method != "POST" or kind != "application/x-www-form-urlencoded":
        return []
    try:
        return parse_qs((await request.body()).decode("latin-1"), max_num_fields=_MOST_FIELDS).get("state", [])
    except ValueError:
        raise errors.LinkRefused("a form that has too many fields") from None


def _principal(identity: Any) -> Principal | None:
    if isinstance(identity, str):
        identity = Principal(identity)
    if isinstance(identity, Principal):
        return identity if identity.subject else None
    if identity is not None and not hasattr(identity, "is_authenticated"):
        kind = type(identity).__name__
        raise errors.FlowError(f"identify= returned a {kind}; return a str, a Principal, a Starlette user, or None")
    return principal_of(identity)


def _capped(receive: Receive, limit: int) -> Receive:
    taken = 0

    async def capped() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            raise errors.PayloadTooLarge(limit)
        return message

    return capped


def _page(status: int, title: str, text: str) -> Response:
    """Make a plain page. Whatever is shown is escaped, and nothing in it runs or loads."""
    title, text = escape(title), escape(well_formed(text))
    html = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1><p>{text}</p></html>\n"
    )
    return HTMLResponse(html, status)

"""`MRTRServer`: the decorators, the wiring, the ASGI application."""

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Literal, TypeVar, overload

from starlette.authentication import AuthenticationBackend, AuthenticationError
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .asgi import Endpoint
from .content import Icon, ToolAnnotations
from .dialects import DIALECTS, Surface
from .dispatcher import Dispatcher
from .errors import SetupError
from .fanout import Fanout, InProcessFanout
from .handlers import Handler, compile_handler
from .keys import ENVIRONMENT, KeyRing
from .limits import Limits
from .messages import Change
from .registry import Registry, build_completer, build_prompt, build_resource, build_tool, described
from .sealed_state import Codec, SealedCodec
from .signing import Cursors
from .threads import Threads
from .workers import worker_count

logger = logging.getLogger("mrtr_server")

F = TypeVar("F", bound=Callable[..., Any])
Icons = Sequence[Icon | Mapping[str, Any]]


class MRTRServer:
    """An MCP server, and the ASGI application that serves it.

    Run it with `uvicorn module:app`, with any number of workers once `MRTR_KEYS` is set; or mount it in a Starlette or
    FastAPI application. It needs no lifespan events.

    Parameters:
        name: what clients see, and what sealed states are bound to unless `audience` is given.
        version: the server's own version, for clients to see.
        title: a name for people.
        instructions: how a model should use the server.
        website_url: where people can read about it.
        icons: for people to recognize it by.
        path: where the MCP endpoint is. Where the application is mounted, the mount's root is the endpoint, too.
        keys: the key ring: a `KeyRing`, or 32-byte secrets with the sealing one first. From `MRTR_KEYS` if left out.
        audience: what sealed states are bound to; the same on all replicas. The name if left out.
        auth: a Starlette authentication backend; with one, a request that it does not authenticate gets a 401. If
            left out, the user is whoever an authentication middleware around the application says it is.
        codec: seals the states instead of the default one.
        fanout: carries change notifications instead of the one within the process.
        limits: what requests and flows may use.
        dialects: the wire forms to serve, by name: all that there are if left out.
        page_size: how many entries a page of a list has.
        list_ttl: how long clients may keep lists, in seconds.
        list_scope: who may share kept lists; `"private"` by default where there is `auth`, otherwise `"public"`.
        allowed_origins: what browsers may call from, besides loopback: origins such as `"https://app.example.com"`, or
            `"*"`.
        allowed_hosts: what the `Host` header may be; anything if left out.
        middleware: Starlette middleware around the application.
        debug: show clients what went wrong inside. Not for production.
        clock: gives the time, in seconds since the epoch.

    Raises:
        SetupError: something does not fit together; the message says what.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "0.0.0",
        title: str | None = None,
        instructions: str = "",
        website_url: str | None = None,
        icons: Icons = (),
        path: str = "/mcp",
        keys: KeyRing | Sequence[bytes] | None = None,
        audience: str | None = None,
        auth: AuthenticationBackend | None = None,
        codec: Codec | None = None,
        fanout: Fanout | None = None,
        limits: Limits | None = None,
        dialects: Sequence[str] | None = None,
        page_size: int = 250,
        list_ttl: float = 0.0,
        list_scope: Literal["public", "private"] | None = None,
        allowed_origins: Sequence[str] = (),
        allowed_hosts: Sequence[str] | None = None,
        middleware: Sequence[Middleware] = (),
        debug: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not name:
            raise SetupError("MRTRServer needs a name")
        if not path.startswith("/"):
            raise SetupError(f"path={path!r} must start with a slash")
        if page_size < 1:
            raise SetupError("page_size must be at least 1")
        self.name = name
        self._path = path.rstrip("/")
        self._limits = limits or Limits()
        self._registry = Registry()
        self._threads = Threads(self._limits.threads)
        self._fanout: Fanout = fanout or InProcessFanout()
        self._refusal = ""
        ring = self._key_ring(keys)
        chosen = _dialects(dialects)
        versions = [DIALECTS[each].version for each in chosen if DIALECTS[each].version]
        optional: dict[str, Any] = {
            "title": title,
            "websiteUrl": website_url,
            "icons": [_icon(icon) for icon in icons] or None,
        }
        info: dict[str, Any] = {"name": name, "version": version}
        info |= {field: value for field, value in optional.items() if value is not None}
        surface = Surface(info, versions, self._registry.header_parameters)
        dispatcher = Dispatcher(
            self._registry,
            codec or SealedCodec(ring, max_bytes=self._limits.state_bytes),
            Cursors(ring),
            self._fanout,
            self._threads,
            self._limits,
            audience=audience or name,
            instructions=instructions,
            page_size=page_size,
            list_ttl=list_ttl,
            list_scope=list_scope or ("private" if auth is not None else "public"),
            debug=debug,
            clock=clock,
        )
        wired = [DIALECTS[each](surface) for each in chosen]
        endpoint = Endpoint(dispatcher, wired, versions, self._limits, allowed_origins, allowed_hosts)
        self._stack = _wrap(endpoint, auth, middleware)

    # ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "http":
            if self._refusal:
                await JSONResponse({"error": "The server is not set up"}, 500)(scope, receive, send)
            elif self._is_endpoint(scope):
                await self._stack(scope, receive, send)
            else:
                await Response(status_code=404)(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    def _is_endpoint(self, scope: Scope) -> bool:
        path = scope["path"]
        if path == self._path and not scope.get("root_path"):
            return True
        route = _route(scope).rstrip("/")
        if route == self._path:
            return True
        routed = scope.get("endpoint") is self  # by a Route or a Mount of Starlette
        if routed and "app_root_path" not in scope:
            return True  # a Route: whatever path it has is the endpoint's
        return route == "" and (routed or bool(scope.get("root_path")))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                if self._refusal:
                    await send({"type": "lifespan.startup.failed", "message": self._refusal})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if isinstance(self._fanout, InProcessFanout):
                    self._fanout.close()
                self._threads.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # Registration

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | Mapping[str, Any] | None = None,
        icons: Icons = (),
        input_schema: Mapping[str, Any] | None = None,
        answer_within: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]: ...
    def tool(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | Mapping[str, Any] | None = None,
        icons: Icons = (),
        input_schema: Mapping[str, Any] | None = None,
        answer_within: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Any:
        """Register a function as a tool; as `@app.tool`, or as `@app.tool(...)`. The function stays as it is.

        Its parameters become the tool's arguments, besides those of type `Context`, `Inputs` and `State[T]`. What it
        returns becomes text or content if its annotation says so, and structured content otherwise.

        Parameters:
            name: the function's name by default.
            title: a name for people.
            description: what the model reads; the docstring by default.
            annotations: hints on what the tool does.
            icons: for people to recognize it by.
            input_schema: a JSON Schema of the arguments, served as it is. The function then takes one dictionary, or
                `**arguments`. Needs the extra `schemas`.
            answer_within: how long an answer may take, in seconds; `Limits.state_seconds` by default.
            meta: `_meta` of the tool in the list.

        Raises:
            SetupError: the function can't be a tool; the message says why.
        """

        def register(function: F) -> F:
            about = described(function, name, title, description, icons, meta)
            handler = _compile(function, about.name)
            tool = build_tool(
                handler, about, annotations=annotations, input_schema=input_schema, answer_within=answer_within
            )
            self._registry.add_tool(tool)
            return function

        return register if function is None else register(function)

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(
        self,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: Icons = (),
        answer_within: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]: ...
    def prompt(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: Icons = (),
        answer_within: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Any:
        """Register a function as a prompt; as `@app.prompt`, or as `@app.prompt(...)`. The function stays as it is.

        It returns a string (one message of the user's), a `Message`, a content object, a list of those, or a
        `PromptResult`. The parameters are those of `tool`.

        Raises:
            SetupError: the function can't be a prompt; the message says why.
        """

        def register(function: F) -> F:
            about = described(function, name, title, description, icons, meta)
            self._registry.add_prompt(build_prompt(_compile(function, about.name), about, answer_within=answer_within))
            return function

        return register if function is None else register(function)

    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        annotations: Mapping[str, Any] | None = None,
        icons: Icons = (),
        ttl: float = 0.0,
        scope: Literal["public", "private"] = "private",
        answer_within: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]:
        """Register a function as a resource, or as a template of resources if the URI has variables.

        It returns text, bytes, anything that goes to JSON, a `ResourceContents`, or a list of those. For a URI that
        names nothing it raises `NotFound`.

        Parameters:
            uri: a fixed URI, or a template such as `weather://{city}`; `{+path}` matches slashes, too. Each variable
                is a parameter of the function.
            name, title, description, icons, meta, answer_within: as for `tool`.
            mime_type: of what is returned; by its type if left out.
            size: in bytes, if it is known.
            annotations: who it is for and how much it matters.
            ttl: how long a client may keep what it read, in seconds. What depended on an answer is never kept.
            scope: who may share what was kept.

        Raises:
            SetupError: the function can't be a resource; the message says why.
        """

        def register(function: F) -> F:
            about = described(function, name, title, description, icons, meta)
            resource = build_resource(
                _compile(function, about.name),
                about,
                uri,
                mime_type=mime_type,
                size=size,
                annotations=annotations,
                ttl=ttl,
                scope=scope,
                answer_within=answer_within,
            )
            self._registry.add_resource(resource)
            return function

        return register

    def completion(self, argument: str, *, prompt: str | None = None, resource: str | None = None) -> Callable[[F], F]:
        """Register a function that suggests values for an argument of a prompt, or for a variable of a template.

        It takes what has been typed so far, and if it likes a second parameter: the arguments that are known already,
        by name. It returns the values in the order of their rank, or a `Completion`. The first 100 are sent.

        Parameters:
            argument: the argument's name.
            prompt: the prompt's name; or
            resource: the template's URI.

        Raises:
            SetupError: neither or both of `prompt` and `resource` are given, or there is a completion already.
        """
        if (prompt is None) == (resource is None):
            raise SetupError("A completion is for prompt=... or for resource=..., one of the two")
        kind, name = ("prompt", prompt) if prompt is not None else ("resource", resource)

        def register(function: F) -> F:
            handler = _compile(function, getattr(function, "__name__", "completion"))
            self._registry.add_completer(kind, str(name), argument, build_completer(handler))
            return function

        return register

    # Changes

    def notify_tools_changed(self) -> None:
        """Tell listening clients that the list of tools has changed. May be called from any thread."""
        self._fanout.publish(Change("tools"))

    def notify_prompts_changed(self) -> None:
        """Tell listening clients that the list of prompts has changed. May be called from any thread."""
        self._fanout.publish(Change("prompts"))

    def notify_resources_changed(self) -> None:
        """Tell listening clients that the list of resources has changed. May be called from any thread."""
        self._fanout.publish(Change("resources"))

    def notify_resource_updated(self, uri: str) -> None:
        """Tell the clients that listen to a resource that it has changed. May be called from any thread."""
        self._fanout.publish(Change("resource", uri))

    # Keys

    def _key_ring(self, keys: KeyRing | Sequence[bytes] | None) -> KeyRing:
        ring = keys if isinstance(keys, KeyRing) else KeyRing(keys) if keys is not None else KeyRing.from_environment()
        if ring is not None:
            return ring
        workers = worker_count()
        if workers > 1:
            # Raising here would make uvicorn start a new worker for ever; a failed startup ends it.
            self._refusal = (
                f"{self.name}: {workers} workers need one shared key, or a flow that begins in one can't go on in "
                f"another. Start them with {ENVIRONMENT}=$(mrtr-server keygen)"
            )
            logger.error("%s", self._refusal)
        else:
            logger.warning(
                "%s: no keys are given, so this process made its own; flows end when it restarts, and no other "
                "replica can go on with them. Make one with `mrtr-server keygen` and set %s",
                self.name,
                ENVIRONMENT,
            )
        return KeyRing.generate()


class _RequireUser:
    """Lets only authenticated requests through."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["user"].is_authenticated:
            await self._app(scope, receive, send)
        else:
            await _challenge('Bearer realm="mcp"')(scope, receive, send)


def _challenge(challenge: str) -> Response:
    return JSONResponse({"error": "Authentication is required"}, 401, {"WWW-Authenticate": challenge})


def _not_authenticated(connection: HTTPConnection, error: AuthenticationError) -> Response:
    return _challenge('Bearer realm="mcp", error="invalid_token"')


def _wrap(app: ASGIApp, auth: AuthenticationBackend | None, middleware: Sequence[Middleware]) -> ASGIApp:
    """Build the stack once."""
    if auth is not None:
        app = AuthenticationMiddleware(_RequireUser(app), backend=auth, on_error=_not_authenticated)
    for cls, args, kwargs in reversed(middleware):
        app = cls(app, *args, **kwargs)
    return app


def _dialects(names: Sequence[str] | None) -> list[str]:
    if names is None:
        return list(DIALECTS)
    if not names or set(names) - DIALECTS.keys():
        raise SetupError(f"dialects={list(names)!r}: choose from {', '.join(DIALECTS)}")
    return [name for name in DIALECTS if name in names]


def _icon(icon: Icon | Mapping[str, Any]) -> dict[str, Any]:
    return icon.wire() if isinstance(icon, Icon) else dict(icon)


def _compile(function: Callable[..., Any], name: str) -> Handler:
    # The local names where the decorator stands resolve annotations that are strings.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return compile_handler(function, name, frame.f_locals if frame is not None else {})


def _route(scope: Scope) -> str:
    """Give the path within the application that we are mounted in."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    below = path.removeprefix(root)
    return below if below[:1] in ("", "/") else path

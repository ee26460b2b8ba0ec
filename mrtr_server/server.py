"""`MRTRServer`: the decorators, the wiring, the ASGI application."""

import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from inspect import isasyncgenfunction
from types import FrameType
from typing import Any, Literal, TypeVar, overload

from starlette.authentication import AuthenticationBackend
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from .asgi import Endpoint
from .base_url import BaseUrl
from .callback_pages import CallbackPages, Identify, Registering, build_callback
from .callbacks import PATH, Callbacks
from .content import Icon, ToolAnnotations, icon_entries
from .dispatcher import Dispatcher
from .errors import SetupError
from .fanout import Fanout, InProcessFanout
from .flows import Flows
from .gate import wrap
from .handlers import Handler, compile_handler
from .keys import ENVIRONMENT, KeyRing
from .limits import Limits
from .messages import Change
from .registry import Registry, build_completer, build_prompt, build_resource, build_tool, described
from .sealed_state import Codec, SealedCodec
from .signing import Cursors
from .store import InProcessStore, Store
from .threads import Threads
from .workers import worker_count

logger = logging.getLogger("mrtr_server")

F = TypeVar("F", bound=Callable[..., Any])
Icons = Sequence[Icon | Mapping[str, Any]]
Lifespan = Callable[["MRTRServer"], AbstractAsyncContextManager[Any]]


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
        identify: says whose browser sent a request, for callbacks: a function of the request that returns the user's
            identity as text, a `Principal`, a Starlette user, None for nobody, or a response that is sent instead, such
            as the way to your login. It must name users as the authentication does.
        base_url: the address under which browsers reach the application, for callbacks; with the path that it is
            mounted at. If left out, callbacks work on loopback only.
        store: keeps what replicas must share; within the process if left out.
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
        lifespan: a function of the server that gives an asynchronous context manager, such as one with
            `@asynccontextmanager`: entered when the server starts, left when it shuts down. Not where the server is
            mounted: there it is the outer application that starts and ends.
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
        identify: Identify | None = None,
        base_url: str | None = None,
        store: Store | None = None,
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
        lifespan: Lifespan | None = None,
        debug: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not name:
            raise SetupError("MRTRServer needs a name")
        if not path.startswith("/"):
            raise SetupError(f"path={path!r} must start with a slash")
        if page_size < 1:
            raise SetupError("page_size must be at least 1")
        for option, texts in (
            ("dialects", dialects),
            ("allowed_origins", allowed_origins),
            ("allowed_hosts", allowed_hosts),
        ):
            if isinstance(texts, str):
                raise SetupError(f"{option}={texts!r} is one string; give a list: {option}=[{texts!r}]")
        if isasyncgenfunction(lifespan):
            raise SetupError("lifespan= takes a context manager; put @asynccontextmanager before the function")
        self.name = name
        self._path = path.rstrip("/")
        self._limits = limits or Limits()
        self._registry = Registry()
        self._threads = Threads(self._limits.threads)
        self._fanout: Fanout = fanout or InProcessFanout()
        self._refusal = ""
        self._entered = lifespan or nullcontext
        self._workers = worker_count()
        ring = self._key_ring(keys)
        optional: dict[str, Any] = {
            "title": title,
            "websiteUrl": website_url,
            "icons": icon_entries(icons),
        }
        info: dict[str, Any] = {"name": name, "version": version}
        info |= {field: value for field, value in optional.items() if value is not None}
        self._store: Store = store or InProcessStore()
        self._can_identify = identify is not None or auth is None
        base = BaseUrl(base_url)
        callbacks = Callbacks(
            self._registry.callbacks,
            ring,
            self._store,
            audience=audience or name,
            base=base,
            identifies=identify is not None,
            limits=self._limits,
            clock=clock,
        )
        flows = Flows(
            codec or SealedCodec(ring),
            self._threads,
            self._limits,
            callbacks,
            audience=audience or name,
            clock=clock,
        )
        dispatcher = Dispatcher(
            self._registry,
            flows,
            Cursors(ring),
            self._fanout,
            self._threads,
            instructions=instructions,
            page_size=page_size,
            list_ttl=list_ttl,
            list_scope=list_scope or ("private" if auth is not None else "public"),
            debug=debug,
        )
        endpoint = Endpoint(
            dispatcher,
            info,
            self._registry.header_parameters,
            self._limits,
            dialects=dialects,
            allowed_origins=allowed_origins,
            allowed_hosts=allowed_hosts,
        )
        self._stack = wrap(endpoint, auth, middleware)
        pages = CallbackPages(
            self._registry.callbacks,
            callbacks,
            self._threads,
            base,
            identify=identify,
            body_bytes=self._limits.body_bytes,
        )
        self._pages = wrap(pages, None, middleware)  # a browser has no bearer token

    # ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "http":
            if self._refusal:  # mounted, so no failed startup has ended it
                logger.error("%s", self._refusal)
                await JSONResponse({"error": "The server is not set up"}, 500)(scope, receive, send)
            elif self._registry.callbacks and self._is_callback(scope):
                await self._pages(scope, receive, send)
            elif self._is_endpoint(scope):
                await self._stack(scope, receive, send)
            else:
                endpoint = scope.get("root_path", "") + self._path or "/"
                await JSONResponse({"error": f"Not found: the MCP endpoint is {endpoint}"}, 404)(scope, receive, send)
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

    def _is_callback(self, scope: Scope) -> bool:
        route = _route(scope)
        return route.startswith(PATH) and route.removeprefix(PATH) in self._registry.callbacks

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        if self._refusal:
            await send({"type": "lifespan.startup.failed", "message": self._refusal})
            return
        phase = "startup"
        try:
            async with self._entered(self):
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
                if isinstance(self._fanout, InProcessFanout):
                    self._fanout.close()  # ends the open streams
        except Exception as error:
            message = f"{self.name}: lifespan= failed at {phase}: {type(error).__name__}: {error}"
            logger.error("%s", message, exc_info=error)
            await send({"type": f"lifespan.{phase}.failed", "message": message})
        else:
            await send({"type": "lifespan.shutdown.complete"})
        finally:
            self._threads.close()

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
            handler = _compile(function, about.name, answer_within)
            self._registry.add_tool(build_tool(handler, about, annotations=annotations, input_schema=input_schema))
            return function

        return register if function is None else register(_decorated("tool", function))

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
            self._registry.add_prompt(build_prompt(_compile(function, about.name, answer_within), about))
            return function

        return register if function is None else register(_decorated("prompt", function))

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

        if not isinstance(uri, str):
            raise SetupError('A resource needs its URI: use @app.resource("scheme://...")')

        def register(function: F) -> F:
            about = described(function, name, title, description, icons, meta)
            resource = build_resource(
                _compile(function, about.name, answer_within),
                about,
                uri,
                mime_type=mime_type,
                size=size,
                annotations=annotations,
                ttl=ttl,
                scope=scope,
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
        if not isinstance(argument, str):
            raise SetupError('A completion needs its argument: use @app.completion("argument", prompt="...")')
        if (prompt is None) == (resource is None):
            raise SetupError("A completion is for prompt=... or for resource=..., one of the two")
        kind, name = ("prompt", prompt) if prompt is not None else ("resource", resource)

        def register(function: F) -> F:
            handler = _compile(function, getattr(function, "__name__", "completion"))
            self._registry.add_completer(kind, str(name), argument, build_completer(handler))
            return function

        return register

    def callback(
        self,
        name: str,
        *,
        methods: Iterable[Literal["GET", "POST"]] = ("GET",),
        page: Callable[[Request], Response | Awaitable[Response]] | None = None,
    ) -> Registering:
        """Register a function that is called when a person is back from a page: at `{base_url}/callbacks/{name}`.

        It takes the browser's request, and if it likes the `WayBack` over which the person came. What it returns is the
        answer of the ask that gave the page, kept in the store for as long as the flow may last. If it returns a
        Starlette response, that is sent, and the person is not done: a form of your own, or a redirect. `ToolError` is
        shown to the person, who may try again; `Refusal("decline")` is a no to the ask.

        Parameters:
            name: names it in its address.
            methods: what it takes; with POST, a form that it returned can be sent to it.
            page: makes the page that the person sees when it is done; a plain one by default.

        Raises:
            SetupError: the function can't be a callback, or nothing could tell whose browser opens its links.
        """
        if not isinstance(name, str):
            raise SetupError('A callback needs its name: use @app.callback("name")')
        if not self._can_identify:
            raise SetupError(
                f"The callback {name!r} can't tell whose browser opens its links, so a link that is sent to somebody "
                "else would land their login on the sender: with auth=, give MRTRServer an identify= function, too"
            )

        def register(function: Callable[..., Any]) -> Any:
            callback = build_callback(_compile(function, name), methods, page)
            self._registry.add_callback(callback)
            self._share_store(f"the callback {name!r}")
            return callback

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
        given: Any = keys
        if isinstance(given, str | bytes | bytearray) or (
            isinstance(given, list | tuple) and any(isinstance(key, str) for key in given)
        ):
            raise SetupError(
                "keys= takes a KeyRing or a list of 32-byte secrets; text of hex digits is keys=KeyRing.parse(text), "
                "one secret is keys=[secret]"
            )
        workers = self._workers
        try:
            if isinstance(keys, KeyRing):
                return keys
            ring = KeyRing.from_environment() if keys is None else KeyRing(keys)
        except SetupError as error:
            if workers == 1:
                raise
            self._refuse_to_start(str(error))
            return KeyRing.generate()
        if ring is not None:
            return ring
        if workers > 1:
            self._refuse_to_start(
                f"{workers} workers need one shared key, or a flow that begins in one can't go on in another. "
                f"Start them with {ENVIRONMENT}=$(mrtr-server keygen)"
            )
        else:
            logger.warning(
                "%s: no keys are given, so this process made its own; flows end when it restarts, and no other "
                "replica can go on with them. Make one with `mrtr-server keygen` and set %s",
                self.name,
                ENVIRONMENT,
            )
        return KeyRing.generate()

    def _share_store(self, what: str) -> None:
        """Refuse to start where several workers would each keep for themselves what they must share."""
        if self._workers > 1 and not self._store.shared and not self._refusal:
            self._refuse_to_start(
                f"{self._workers} workers need one shared store for {what}, or what one keeps the others never see. "
                "Give MRTRServer a store= that is shared, or start one worker"
            )

    def _refuse_to_start(self, why: str) -> None:
        # Raising at import would make uvicorn start a new worker for ever; a failed startup ends it.
        self._refusal = f"{self.name}: {why}"
        logger.error("%s", self._refusal)


def _decorated(decorator: str, function: Any) -> Any:
    if isinstance(function, str):
        raise SetupError(f"@app.{decorator}({function!r}): use @app.{decorator}(name={function!r})")
    return function


def _compile(function: Callable[..., Any], name: str, answer_within: float | None = None) -> Handler:
    # The local names where the decorator stands resolve annotations that are strings.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return compile_handler(function, name, frame.f_locals if frame is not None else {}, answer_within=answer_within)


def _route(scope: Scope) -> str:
    """Give the path within the application that we are mounted in."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    below = path.removeprefix(root)
    return below if below[:1] in ("", "/") else path

"""`MRTRServer`: the decorators, the wiring, the ASGI application."""

import asyncio
import logging
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from copy import copy
from dataclasses import replace
from inspect import isasyncgenfunction
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args, overload
from urllib.parse import quote

from starlette.authentication import AuthenticationBackend
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from .callbacks.base_url import BaseUrl
from .callbacks.service import PATH, Callbacks
from .concurrency.shutdown import DEFAULT, Shutdown, read_seconds
from .concurrency.threads import Threads
from .crypto.codec import Codec, SealedCodec
from .crypto.cursors import Cursors
from .crypto.keys import KeyRing
from .deployment.shared import Shared
from .errors import SetupError
from .flow.admission import Admission
from .flow.asks import Text
from .flow.authorization import Authorize, Authorizer, compile_hook
from .flow.handler import Handler, TaskTerms
from .flow.service import RoundService
from .flow.single_use import Redeemer
from .hints import PROMPT_OPTIONS, RESOURCE_OPTIONS, SERVER, SERVER_OPTIONS, TOOL_OPTIONS, attributes_of, options_of
from .limits import Limits
from .logs.refusals import RefusalLog
from .logs.text import PlainText, plain
from .methods.dispatcher import Dispatcher, Registered
from .methods.failures import ErrorReporter
from .methods.tools import Tools
from .protocol.content import Icon, ToolAnnotations, icon_entries
from .protocol.messages import Change
from .registration.handlers import calls_background, compile_handler
from .registration.option_types import check_registration, check_settings
from .registration.registry import Registry, build_completer, build_prompt, build_resource, build_tool, described
from .storage.base import Store
from .storage.pubsub import Fanout
from .tasks.service import Tasks
from .tasks.worker import Worker
from .transport.callback_pages import CallbackPages, Identify, Registering, build_callback
from .transport.endpoint import Endpoint
from .transport.gate import build_middleware_stack
from .transport.health import Probes
from .transport.response_writer import closing
from .transport.signals import drain_on_sigterm, forget_sigterm

logger = logging.getLogger("mrtr_server")
logger.addFilter(PlainText())  # here, since it goes behind the filters of the modules above

LIFESPAN = 2 / 3
"""What part of the seconds that are left at the end of a shutdown is for leaving `lifespan=`."""


F = TypeVar("F", bound=Callable[..., Any])
Icons = Sequence[Icon | Mapping[str, Any]]
_UNESCAPED = "/:@!$&'()*+,;="
"""What a path has as it is (RFC 3986, section 3.3), besides letters, digits and what is in no need of it anywhere."""

Lifespan = Callable[["MRTRServer"], AbstractAsyncContextManager[Any]]


class MRTRServer:
    """An MCP server, and the ASGI application that serves it.

    Run it with `uvicorn module:app`, with any number of workers once `MRTR_KEYS` is set (and where there are tasks,
    `MRTR_DATABASE_URL`); or mount it in a Starlette or FastAPI application. It needs no lifespan events.

    Args:
        name: what clients see, and what sealed states are bound to unless `audience` is given.
        version: the server's own version, for clients to see.
        title: a name for people.
        description: what it does, for people and for hosts that show or choose servers.
        instructions: how a model should use the server.
        website_url: where people can read about it.
        icons: for people to recognize it by.
        path: where the MCP endpoint is, with a slash behind it or without. Where the application is mounted, the
            mount's root is the endpoint, too.
        keys: the key ring: a `KeyRing`, or 32-byte secrets with the sealing one first. From `MRTR_KEYS` if left out.
        audience: what sealed states are bound to; the same on all replicas. The name if left out.
        auth: a Starlette authentication backend; with one, a request that it does not authenticate gets a 401. If
            left out, the user is whoever an authentication middleware around the application says it is.
        authorize: says who may use what: a function, sync or async, of the `Caller` and the name of a tool or prompt,
            or the URI of a resource, that returns True or False. It is asked before each round of a call, a read and a
            prompt, for each entry of a list, for a completion, for a resource that somebody listens to and again before
            each change is told. What is refused looks like what is not there.
        identify: says whose browser sent a request, for callbacks: a function of the request that returns the user's
            identity as text, a `Principal`, a Starlette user, None for nobody, or a response that is sent instead, such
            as the way to your login. It must name users as the authentication does.
        base_url: the address under which browsers reach the application, for callbacks; with the path that it is
            mounted at. If left out, callbacks work on loopback only.
        codec: seals the states instead of the default one.
        fanout: carries change notifications. By default the database does, to the listeners on every replica; without
            one, they stay within the process.
        store: what replicas share for tasks, `single_use` tools and callbacks: a `Store` of your own; or
        database: the URL of a database for the built-in one. From `MRTR_DATABASE_URL` if both are left out; without
            any, all of that works within one process, and ends with it.
        limits: what requests and flows may use.
        dialects: the wire forms to serve, by name: all that there are if left out.
        unknown_arguments: what a new call comes to that has arguments which its tool or prompt does not take:
            `"refuse"` names them and the nearest ones to the model, `"ignore"` drops them, for clients that add some.
        registers_later: what is registered only while the server runs, of `"tools"`, `"prompts"`, `"resources"`,
            `"completions"` and `"tasks"`: clients are told of these from the start. Of all else they are told where
            there is some.
        page_size: how many entries a page of a list has.
        list_ttl: how long clients may keep lists, in seconds.
        list_scope: who may share kept lists; `"private"` by default where there is `auth`, otherwise `"public"`. A list
            that depends on `authorize=` is always private.
        allowed_origins: what browsers may call from, besides loopback: origins such as `"https://app.example.com"`, or
            `"*"`.
        allowed_hosts: what the `Host` header may be; anything if left out.
        middleware: Starlette middleware around the application.
        lifespan: a function of the server that gives an asynchronous context manager, such as one with
            `@asynccontextmanager`: entered when the server starts, left when it shuts down. Not where the server is
            mounted: there it is the outer application that starts and ends.
        lame_duck: how long the server goes on accepting connections after SIGTERM, in seconds, while it says that it is
            not ready and hands calls to other replicas; so that whatever routes requests has time to notice.
        shutdown_seconds: how long the whole shutdown may take from SIGTERM on, `lame_duck` included, in seconds; less
            than the orchestrator waits before it kills. What still runs a quarter of that before, or five seconds, is
            cut off. From `MRTR_SHUTDOWN_SECONDS` if left out, or else 25.
        ready_needs_store: whether `/ready` turns to 503 while the store that replicas share is away. Its body says so
            in any case; calls that need no store are served all the same.
        run_tasks: whether this process runs tasks; if not, it starts them and leaves them to others, such as
            `mrtr-server worker`, which share its database.
        debug: show clients what went wrong inside. Not for production.
        clock: gives the time, in seconds since the epoch.

    Raises:
        SetupError: something does not fit together; the message says what.
    """

    @options_of(SERVER_OPTIONS, "MRTRServer")
    def __init__(
        self,
        name: str,
        *,
        version: str = "0.0.0",
        title: str | None = None,
        description: str | None = None,
        instructions: str = "",
        website_url: str | None = None,
        icons: Icons = (),
        path: str = "/mcp",
        keys: KeyRing | Sequence[bytes] | None = None,
        audience: str | None = None,
        auth: AuthenticationBackend | None = None,
        authorize: Authorize | None = None,
        identify: Identify | None = None,
        base_url: str | None = None,
        codec: Codec | None = None,
        fanout: Fanout | None = None,
        store: Store | None = None,
        database: str | None = None,
        limits: Limits | None = None,
        dialects: Sequence[str] | None = None,
        unknown_arguments: Literal["refuse", "ignore"] = "refuse",
        registers_later: Collection[Registered] = (),
        page_size: int = 250,
        list_ttl: float = 0.0,
        list_scope: Literal["public", "private"] | None = None,
        allowed_origins: Sequence[str] = (),
        allowed_hosts: Sequence[str] | None = None,
        middleware: Sequence[Middleware] = (),
        lifespan: Lifespan | None = None,
        lame_duck: float = 1.0,
        shutdown_seconds: float | None = None,
        ready_needs_store: bool = False,
        run_tasks: bool = True,
        debug: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        settings = dict(locals())
        del settings["self"]
        check_settings(settings)
        if not name:
            raise SetupError("MRTRServer needs a name")
        if not path.startswith("/"):
            raise SetupError(f"path={path!r} must start with a slash")
        if page_size < 1:
            raise SetupError("page_size must be at least 1")
        if not lame_duck >= 0:
            raise SetupError("lame_duck must not be negative")
        for option, texts in (
            ("dialects", dialects),
            ("registers_later", registers_later),
            ("allowed_origins", allowed_origins),
            ("allowed_hosts", allowed_hosts),
        ):
            if isinstance(texts, str):
                raise SetupError(f"{option}={texts!r} is one string; give a list: {option}=[{texts!r}]")
        if unknown_arguments not in ("refuse", "ignore"):
            raise SetupError(f'unknown_arguments={unknown_arguments!r}: choose from "refuse", "ignore"')
        if unknown := set(registers_later) - set(get_args(Registered)):
            raise SetupError(f"registers_later={unknown}: choose from {', '.join(get_args(Registered))}")
        if isasyncgenfunction(lifespan):
            raise SetupError("lifespan= takes a context manager; put @asynccontextmanager before the function")
        self.name = name
        self._path = path.rstrip("/")
        self._raw_path = quote(self._path, safe=_UNESCAPED).encode()
        self._limits = limits or Limits()
        self._settings = settings
        self._ignores_unknown = unknown_arguments == "ignore"
        self._registry: Registry = vars(self).get("_registry") or Registry()  # a replica has one already
        self._threads = Threads(self._limits.threads)
        self._shared = Shared(name, keys, store, database, clock)
        self._shutdown = Shutdown(self._read_shutdown(shutdown_seconds, lame_duck))
        self._admission = Admission(self._limits, self._shutdown)
        self._lame_duck = lame_duck
        self._hears_sigterm = False
        self._fanout: Fanout = fanout or self._shared.store.fanout()
        ring = settings["keys"] = self._shared.ring
        self._probes = Probes(self._path, self._why_not_ready, self._shared.is_usable, needs_store=ready_needs_store)
        self._entered = lifespan or nullcontext
        optional: dict[str, Any] = {
            "title": title,
            "description": description,
            "websiteUrl": website_url,
            "icons": icon_entries(icons),
        }
        info: dict[str, Any] = {"name": name, "version": version}
        info |= {field: value for field, value in optional.items() if value is not None}
        self._can_identify = identify is not None or auth is None
        base = BaseUrl(base_url)
        self._callbacks = Callbacks(
            self._registry.callbacks,
            ring,
            self._shared.watched,
            audience=audience or name,
            base=base,
            identifies=identify is not None,
            limits=self._limits,
            clock=clock,
        )
        redeemer = self._redeemer = Redeemer(
            self._shared.watched, SealedCodec(ring, "outcome"), lease=self._limits.lease_seconds, clock=clock
        )
        flows = RoundService(
            codec or SealedCodec(ring),
            redeemer,
            self._threads,
            self._limits,
            self._admission,
            self._callbacks,
            audience=audience or name,
            require_shared_store=self._shared.require_shared_store,
            clock=clock,
        )
        self._tasks = Tasks(
            self._shared.watched,
            ring,
            self._fanout,
            self._admission,
            self._limits,
            answer_within=self._answer_within,
            clock=clock,
        )
        errors = ErrorReporter(debug=debug)
        authorizer = Authorizer(authorize, self._threads)
        tools = Tools(self._registry, flows, self._tasks, self._wake_worker, errors, authorizer)
        self._worker = Worker(self._tasks, tools.run_task, self._registry.tasks, self._admission, self._limits)
        self._run_tasks = run_tasks
        dispatcher = Dispatcher(
            self._registry,
            tools,
            flows,
            self._tasks,
            errors,
            authorizer,
            Cursors(ring),
            self._fanout,
            self._threads,
            instructions=instructions,
            page_size=page_size,
            list_ttl=list_ttl,
            list_scope=list_scope or ("private" if auth is not None else "public"),
            registers_later=frozenset(registers_later),
        )
        refusals = RefusalLog()
        endpoint = Endpoint(
            dispatcher,
            info,
            self._registry.header_parameters,
            self._registry.may_be_task,
            self._limits,
            self._admission,
            dialects=dialects,
            allowed_origins=allowed_origins,
            allowed_hosts=allowed_hosts,
            refusals=refusals,
        )
        # The endpoint looks at its headers itself, and needs a gate only where something stands before it.
        self._stack = build_middleware_stack(endpoint, auth, middleware, refusals) if auth or middleware else endpoint
        pages = CallbackPages(
            self._registry.callbacks,
            self._callbacks,
            self._threads,
            base,
            identify=identify,
            body_bytes=self._limits.body_bytes,
            refusals=refusals,
        )
        self._pages = build_middleware_stack(pages, None, middleware, refusals)  # a browser has no bearer token

    if not TYPE_CHECKING:  # which knows that they are not there
        __getattr__ = attributes_of(SERVER)

    # ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "http":
            if not self._hears_sigterm:  # mounted, so no startup has come
                self._hear_sigterm()
            if self._admission.draining:
                send = closing(scope, send)
            if self._registry.callbacks and self._is_callback(scope) and not self._shared.refusal:
                await self._pages(scope, receive, send)
            elif self._is_endpoint(scope) and not self._shared.refusal:
                await self._stack(scope, receive, send)
            else:
                await self._serve_elsewhere(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def _serve_elsewhere(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = _route(scope).rstrip("/")
        if self._probes.claims(route):
            await self._probes.answer(route, scope, send)
        elif self._shared.refusal:  # mounted, so no failed startup has ended it
            logger.error("%s", self._shared.refusal)
            await JSONResponse({"error": "The server is not set up"}, 500)(scope, receive, send)
        else:
            endpoint = scope.get("root_path", "") + self._path or "/"
            await JSONResponse({"error": f"Not found: the MCP endpoint is {endpoint}"}, 404)(scope, receive, send)

    def _is_endpoint(self, scope: Scope) -> bool:
        # Escaped or not, a path is the same to us; to a gateway that lets paths through by their name it is another.
        raw = scope.get("raw_path") or None
        if scope["path"] == self._path and not scope.get("root_path") and raw in (None, self._raw_path):
            return True
        route = _route(scope)
        routed = scope.get("endpoint") is self  # by a Route or a Mount of Starlette
        if routed and "app_root_path" not in scope:
            return True  # a Route: whatever path it has is the endpoint's
        mounted = routed or bool(scope.get("root_path"))
        if route not in (self._path, f"{self._path}/") and not (mounted and route in ("", "/")):
            return False
        return raw is None or raw.partition(b"?")[0].endswith(quote(route, safe=_UNESCAPED).encode())

    def _is_callback(self, scope: Scope) -> bool:
        route = _route(scope)
        return route.startswith(PATH) and route.removeprefix(PATH) in self._registry.callbacks

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        if refusal := self._shared.refusal or await self._shared.check():
            await send({"type": "lifespan.startup.failed", "message": refusal})
            return
        phase = "startup"
        self._hear_sigterm()
        try:
            async with self._living(run_tasks=self._run_tasks and bool(self._registry.tasks)):
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
        except Exception as error:
            message = plain(f"{self.name}: lifespan= failed at {phase}: {type(error).__name__}: {error}")
            logger.error("%s", message, exc_info=error)
            await send({"type": f"lifespan.{phase}.failed", "message": message})
        else:
            await send({"type": "lifespan.shutdown.complete"})
        finally:
            forget_sigterm(self._admission)
            self._hears_sigterm = False

    @asynccontextmanager
    async def _living(self, *, run_tasks: bool) -> AsyncIterator[None]:
        """Enter `lifespan=`, and run tasks if this process works; at the end drain, and hand them back."""
        shutdown = self._shutdown
        self._admission.reopen()
        try:
            async with AsyncExitStack() as stack:
                entered = self._entered(self)
                await entered.__aenter__()
                stack.push_async_exit(
                    lambda *raised: shutdown.in_time(entered.__aexit__(*raised), f"{self.name}: lifespan=", LIFESPAN)
                )
                if run_tasks:
                    self._worker.start()
                try:
                    yield
                finally:
                    self._admission.shut_down()
                    self.drain()
                    await asyncio.gather(self._worker.close(), self._redeemer.finish(shutdown))  # in the same seconds
            await shutdown.in_time(self._shared.store.close(), f"{self.name}: the store")
        finally:
            if busy := self._threads.busy:
                logger.warning("%s: %d plain functions still run, and end with the process", self.name, busy)
            self._threads.close()
            self._admission.reopen()

    def _read_shutdown(self, given: float | None, lame_duck: float) -> float:
        try:
            seconds = read_seconds(given)
            if lame_duck >= seconds:
                raise SetupError(
                    f"lame_duck={lame_duck:g} must be less than the {seconds:g} seconds that the shutdown may take; "
                    "raise shutdown_seconds="
                )
        except SetupError as error:
            self._shared.refuse(error)
            return lame_duck + DEFAULT
        return seconds

    # Draining

    @property
    def shutdown_seconds(self) -> float:
        """How long a shutdown may take in all, in seconds."""
        return self._shutdown.seconds

    def drain(self) -> None:
        """Begin to drain: readiness turns false, calls are handed to other replicas, open streams end.

        On SIGTERM this happens by itself under uvicorn, and under gunicorn with uvicorn's worker. Call it where another
        server or an orchestrator's hook announces the end; from any thread, or from a signal handler. It lasts until
        the next start.
        """
        self._admission.drain()
        self._callbacks.wake()

    # Tasks

    def worker(self) -> AbstractAsyncContextManager[None]:
        """Run the tasks of the servers that share the store for as long as the block lasts, without serving requests.

        It is what `mrtr-server worker` does, and the same with `run_tasks=False`. `lifespan=` is entered, and left at
        the end. Tasks that have not ended then are handed back at their next boundary, and go on elsewhere.

        Raises:
            SetupError: there is nothing that this process could work on; the message says why.
        """
        if not self._registry.tasks:
            raise SetupError(f"{self.name}: no tool has tasks; a worker needs a tool with @app.tool(task=...)")
        self._shared.check_worker()
        return self._living(run_tasks=True)

    def _wake_worker(self) -> None:
        if self._run_tasks:
            self._worker.start()

    def _answer_within(self, tool: str) -> float:
        found = self._registry.tools.get(tool)
        within = found.handler.answer_within if found is not None else None
        return self._limits.flow_seconds if within is None else within

    def _hear_sigterm(self) -> None:
        self._hears_sigterm = True
        drain_on_sigterm(self._admission, self._lame_duck)

    def _why_not_ready(self) -> str:
        if self._shared.refusal:
            return "not set up"
        return "draining" if self._admission.draining else ""

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
        validate: bool = True,
        confirm: Text | None = None,
        answer_within: float | None = None,
        single_use: bool = False,
        timeout: float | None = None,
        task: Literal["never", "optional", "required"] = "never",
        rounds_first: bool | None = None,
        ttl: float | None = None,
        poll: float | None = None,
        concurrency: int | None = None,
        authorize: Authorize | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]: ...
    @options_of(TOOL_OPTIONS, "@app.tool")
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
        validate: bool = True,
        confirm: Text | None = None,
        answer_within: float | None = None,
        single_use: bool = False,
        timeout: float | None = None,
        task: Literal["never", "optional", "required"] = "never",
        rounds_first: bool | None = None,
        ttl: float | None = None,
        poll: float | None = None,
        concurrency: int | None = None,
        authorize: Authorize | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Any:
        """Register a function as a tool; as `@app.tool`, or as `@app.tool(...)`. The function stays as it is.

        Its parameters become the tool's arguments, besides those of type `Context`, `Inputs` and `State[T]`, and
        those that are annotated with an ask or with `Depends`. What it returns becomes text or content if its
        annotation says so, and structured content otherwise.

        Args:
            name: the function's name by default.
            title: a name for people.
            description: what the model reads; the docstring by default.
            annotations: hints on what the tool does.
            icons: for people to recognize it by.
            input_schema: a JSON Schema of the arguments, served as it is. The function then takes one dictionary, or
                `**arguments`. Needs the extra `schemas`.
            validate: whether arguments are held to `input_schema`; with False it is only served, and the function gets
                whatever the client sent, which it has to check itself.
            confirm: what the person must agree to before the function runs: a text, or a function that makes it from
                arguments and declared parameters, by name. Anything but a yes ends the call.
            answer_within: how long an answer may take, in seconds; `Limits.state_seconds` by default, and in a task as
                long as that lives, `Limits.flow_seconds` at most.
            single_use: redeem each state once in the whole fleet, for tools whose effects must not happen twice: a
                request that comes again gets the outcome that was recorded.
            timeout: how long the function may run in each round, in seconds; waiting for a person, or for its turn,
                does not count. Then an `async def` is cancelled, a plain `def` is left to run on in its thread, and the
                model is told. A step that runs is not cut: the round ends after it.
            task: whether calls become tasks, for clients that take them: `"optional"` means that other clients wait for
                the result, `"required"` that they are refused.
            rounds_first: whether a call begins in rounds, and becomes a task at `ctx.background()`. If left out, it
                does where the function calls that; otherwise it is a task at once.
            ttl: how long a task is kept, from its creation, in seconds, unless its client asks for less;
                `Limits.task_seconds` by default.
            poll: how often its client should ask for it, in seconds; `Limits.poll_seconds` by default.
            concurrency: how many of its tasks run at once in a process; as many as `Limits.tasks` lets by default.
            authorize: says who may call it, besides the server's own; see `MRTRServer`. In a task it is asked before
                each round, with the scopes of the request that created it.
            meta: `_meta` of the tool in the list.

        Raises:
            SetupError: the function can't be a tool; the message says why.
        """
        if task not in ("never", "optional", "required"):
            raise SetupError(f'task={task!r}: choose from "never", "optional", "required"')
        check_registration(single_use=single_use, concurrency=concurrency, input_schema=input_schema)
        terms = {"rounds_first": rounds_first, "ttl": ttl, "poll": poll, "concurrency": concurrency}
        for option, value in terms.items():
            if task == "never" and value is not None:
                raise SetupError(f'{option}={value!r} applies to tasks; give task="optional" or "required", too')
        _check_seconds(ttl=ttl, poll=poll, timeout=timeout)
        if concurrency is not None and concurrency < 1:
            raise SetupError("concurrency= must be at least 1")

        def register(function: F) -> F:
            about = described(function, name, title, description, icons, meta)
            hook = compile_hook(about.name, authorize)
            handler = _compile(function, about.name, answer_within, confirm, single_use or confirm is not None)
            handler = replace(handler, timeout=timeout)
            goes_on = calls_background(handler)
            if goes_on and not handler.is_async:
                raise SetupError(f"{about.name}: ctx.background() is awaited; make the function `async def`")
            if task != "never":
                first = goes_on if rounds_first is None else rounds_first
                handler = replace(handler, task=TaskTerms(task == "required", first, ttl, poll, concurrency))
                self._shared.runs_tasks(about.name, run_tasks=self._run_tasks)
            elif goes_on:
                logger.warning(
                    "%s: %r calls ctx.background() but has no tasks, so the call does nothing; give it "
                    'task="optional" or "required"',
                    self.name,
                    about.name,
                )
            if handler.single_use or handler.declares_confirmation:
                self._shared.require_shared_store(about.name, needed=single_use)
            tool = build_tool(
                handler,
                about,
                annotations=annotations,
                input_schema=input_schema,
                validate=validate,
                ignores_unknown=self._ignores_unknown,
                authorize=hook,
            )
            self._registry.add_tool(tool)
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
        authorize: Authorize | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]: ...
    @options_of(PROMPT_OPTIONS, "@app.prompt")
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
        authorize: Authorize | None = None,
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
            handler = _compile(function, about.name, answer_within)
            if handler.declares_confirmation:
                self._shared.require_shared_store(about.name)
            hook = compile_hook(about.name, authorize)
            prompt = build_prompt(handler, about, ignores_unknown=self._ignores_unknown, authorize=hook)
            self._registry.add_prompt(prompt)
            return function

        return register if function is None else register(_decorated("prompt", function))

    @options_of(RESOURCE_OPTIONS, "@app.resource")
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
        authorize: Authorize | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]:
        """Register a function as a resource, or as a template of resources if the URI has variables.

        It returns text, bytes, anything that goes to JSON, a `ResourceContents`, or a list of those. For a URI that
        names nothing it raises `NotFound`.

        Args:
            uri: a fixed URI, or a template such as `weather://{city}`; `{+path}` matches slashes, too. Each variable
                is a parameter of the function.
            name, title, description, icons, meta, answer_within, authorize: as for `tool`. The hook is given the URI
                that is read; in a list and for a completion, that of the template.
            mime_type: of what is returned; by its type if left out.
            size: in bytes, if it is known.
            annotations: who it is for and how much it matters.
            ttl: how long a client may keep what it read, in seconds. What depended on an answer is never kept.
            scope: who may share what was kept; what depends on `authorize=` is always private.

        Raises:
            SetupError: the function can't be a resource; the message says why.
        """

        if not isinstance(uri, str):
            raise SetupError('A resource needs its URI: use @app.resource("scheme://...")')
        check_registration(mime_type=mime_type, size=size, ttl=ttl, scope=scope)

        def register(function: F) -> F:
            about = described(function, name, title, description, icons, meta)
            handler = _compile(function, about.name, answer_within)
            if handler.declares_confirmation:
                self._shared.require_shared_store(about.name)
            resource = build_resource(
                handler,
                about,
                uri,
                mime_type=mime_type,
                size=size,
                annotations=annotations,
                ttl=ttl,
                scope=scope,
                authorize=compile_hook(about.name, authorize),
            )
            self._registry.add_resource(resource)
            return function

        return register

    def completion(self, argument: str, *, prompt: str | None = None, resource: str | None = None) -> Callable[[F], F]:
        """Register a function that suggests values for an argument of a prompt, or for a variable of a template.

        It takes what has been typed so far, and if it likes a second parameter: the arguments that are known already,
        by name. It returns the values in the order of their rank, or a `Completion`. The first 100 are sent.

        Args:
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
        origins: Iterable[str] = (),
        page: Callable[[Request], Response | Awaitable[Response]] | None = None,
    ) -> Registering:
        """Register a function that is called when a person is back from a page: at `{base_url}/callbacks/{name}`.

        It takes the browser's request, and if it likes the `CallbackLink` over which the person came. What it returns
        is the answer of the ask that gave the page, kept in the store for as long as the flow may last. If it returns a
        Starlette response, that is sent, and the person is not done: a form of your own, or a redirect. `ToolError` is
        shown to the person, who may try again; `Refusal("decline")` is a no to the ask.

        Args:
            name: names it in its address.
            methods: what it takes; with POST, a form that it returned can be sent to it.
            origins: from where else browsers may POST to it, such as `"https://login.example.com"` for a provider that
                answers with a form (OAuth's `form_post`). `"null"` is what a page sends that keeps its origin back.
            page: makes the page that the person sees when it is done; a plain one by default.

        Raises:
            SetupError: the function can't be a callback, or nothing could tell whose browser opens its links.
        """
        if not isinstance(name, str):
            raise SetupError('A callback needs its name: use @app.callback("name")')
        if not self._can_identify:
            raise SetupError(
                f"The callback {name!r} can't tell whose browser opens its links: if a link reached somebody else, "
                "the caller would get that person's login. With auth=, give MRTRServer an identify= function, too"
            )

        def register(function: Callable[..., Any]) -> Any:
            callback = build_callback(_compile(function, name), methods, origins, page)
            self._registry.add_callback(callback)
            self._shared.keeps(f"the callback {name!r}")
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

    # Replicas

    def _replica(self, settings: Mapping[str, Any]) -> Self:
        """Make a server with the same handlers, and the same settings but for these; for `testing.replica`."""
        replica = copy(self)
        MRTRServer.__init__(replica, **{**self._settings, **settings})
        return replica


def _decorated(decorator: str, function: Any) -> Any:
    if isinstance(function, str):
        raise SetupError(f"@app.{decorator}({function!r}): use @app.{decorator}(name={function!r})")
    return function


def _compile(
    function: Callable[..., Any],
    name: str,
    answer_within: float | None = None,
    confirm: Text | None = None,
    single_use: bool = False,
) -> Handler:
    _check_seconds(answer_within=answer_within)
    # The local names where the decorator stands resolve annotations that are strings.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == __package__:
        frame = frame.f_back
    namespace = frame.f_locals if frame is not None else {}
    return compile_handler(
        function, name, namespace, answer_within=answer_within, confirm=confirm, single_use=single_use
    )


def _check_seconds(**options: Any) -> None:
    for option, value in options.items():
        if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
            raise SetupError(f"{option}={value!r} must be a positive number of seconds")


def _route(scope: Scope) -> str:
    """Give the path within the application that we are mounted in."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    below = path.removeprefix(root)
    return below if below[:1] in ("", "/") else path

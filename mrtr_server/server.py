"""`MRTRServer`: the decorators, and the ASGI application."""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from starlette.types import Receive, Scope, Send

from .deployment.settings import Settings
from .deployment.wiring import Parts
from .errors import SetupError
from .flow.handler import Handler
from .hints import PROMPT_OPTIONS, RESOURCE_OPTIONS, SERVER, SERVER_OPTIONS, TOOL_OPTIONS, attributes_of
from .protocol.messages import Change
from .registration.callbacks import Registering, build_callback
from .registration.completions import build_completer
from .registration.keywords import takes, takes_function_or
from .registration.options import CallbackOptions, CompletionOptions, PromptOptions, ResourceOptions, ToolOptions
from .registration.prompts import build_prompt
from .registration.registry import Registry
from .registration.resources import build_resource
from .registration.tools import build_tool
from .transport.response_writer import closing

logger = logging.getLogger("mrtr_server")

F = TypeVar("F", bound=Callable[..., Any])


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

    @takes(Settings["MRTRServer"], "MRTRServer", SERVER_OPTIONS)
    def __init__(self, settings: "Settings[MRTRServer]") -> None:
        self._assemble(settings, Registry())

    def __replace__(self, /, **changes: Any) -> Self:
        """Return a server with the same handlers and other settings, as `copy.replace` asks for it.

        What this server was given, such as a store, both use; what it made for itself, except its keys, the other one
        makes for itself, too. Handlers that are registered later, on either, are on both.

        Args:
            changes: settings, as the constructor takes them.
        """
        other = copy(self)
        other._assemble(replace(self._parts.settings, **changes), self._parts.registry)
        return other

    def _assemble(self, settings: "Settings[MRTRServer]", registry: Registry) -> None:
        self.name = settings.name
        self.path = settings.path.rstrip("/")
        """Where the MCP endpoint is, without a slash at its end."""
        self.registry = registry
        """All that is registered, by name."""
        self._parts = Parts(settings, registry, self)

    if not TYPE_CHECKING:  # which knows that they are not there
        __getattr__ = attributes_of(SERVER)

    # ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        parts = self._parts
        if scope["type"] == "http":
            if not parts.lifecycle.hears_sigterm:  # mounted, so no startup has come
                parts.lifecycle.hear_sigterm()
            if parts.admission.draining:
                send = closing(scope, send)
            await parts.router.find(scope, parts.shared.refusal)(scope, receive, send)
        elif scope["type"] == "lifespan":
            await parts.lifecycle.serve(
                receive, send, run_tasks=parts.settings.run_tasks and bool(parts.registry.tasks)
            )
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    # Draining

    @property
    def shutdown_seconds(self) -> float:
        """How long a shutdown may take in all, in seconds."""
        return self._parts.admission.shutdown.seconds

    def drain(self) -> None:
        """Begin to drain: readiness turns false, calls are handed to other replicas, open streams end.

        On SIGTERM this happens by itself under uvicorn, and under gunicorn with uvicorn's worker. Call it where another
        server or an orchestrator's hook announces the end; from any thread, or from a signal handler. It lasts until
        the next start.
        """
        self._parts.lifecycle.drain()

    # Tasks

    def worker(self) -> AbstractAsyncContextManager[None]:
        """Run the tasks of the servers that share the store for as long as the block lasts, without serving requests.

        It is what `mrtr-server worker` does, and the same with `run_tasks=False`. `lifespan=` is entered, and left at
        the end. Tasks that have not ended then are handed back at their next boundary, and go on elsewhere.

        Raises:
            SetupError: there is nothing that this process could work on; the message says why.
        """
        parts = self._parts
        if not parts.registry.tasks:
            raise SetupError(f"{self.name}: no tool has tasks; they are for @app.tool(task=...)")
        parts.shared.check_worker()
        return parts.lifecycle.run(run_tasks=True)

    # Registration

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    @takes(ToolOptions)
    def tool(self, options: ToolOptions, /) -> Callable[[F], F]: ...
    @takes_function_or(ToolOptions, "@app.tool", TOOL_OPTIONS)
    def tool(self, options: ToolOptions, /) -> Callable[[F], F]:
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

        def register(function: F) -> F:
            parts = self._parts
            tool = build_tool(function, options, ignores_unknown=self._ignores_unknown, server=self.name)
            if tool.handler.task is not None:
                parts.shared.runs_tasks(tool.handler.name, run_tasks=parts.settings.run_tasks)
            self._require_store(tool.handler, single_use=options.single_use)
            parts.registry.add_tool(tool)
            return function

        return register

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    @takes(PromptOptions)
    def prompt(self, options: PromptOptions, /) -> Callable[[F], F]: ...
    @takes_function_or(PromptOptions, "@app.prompt", PROMPT_OPTIONS)
    def prompt(self, options: PromptOptions, /) -> Callable[[F], F]:
        """Register a function as a prompt; as `@app.prompt`, or as `@app.prompt(...)`. The function stays as it is.

        It returns a string (one message of the user's), a `Message`, a content object, a list of those, or a
        `PromptResult`. The parameters are those of `tool`.

        Raises:
            SetupError: the function can't be a prompt; the message says why.
        """

        def register(function: F) -> F:
            prompt = build_prompt(function, options, ignores_unknown=self._ignores_unknown)
            self._require_store(prompt.handler)
            self._parts.registry.add_prompt(prompt)
            return function

        return register

    @takes(ResourceOptions, "@app.resource", RESOURCE_OPTIONS)
    def resource(self, options: ResourceOptions) -> Callable[[F], F]:
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

        def register(function: F) -> F:
            resource = build_resource(function, options)
            self._require_store(resource.handler)
            self._parts.registry.add_resource(resource)
            return function

        return register

    @takes(CompletionOptions, "@app.completion")
    def completion(self, options: CompletionOptions) -> Callable[[F], F]:
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

        def register(function: F) -> F:
            kind = "resource" if options.prompt is None else "prompt"
            name = options.resource if options.prompt is None else options.prompt
            self._parts.registry.add_completer(kind, str(name), options.argument, build_completer(function))
            return function

        return register

    @takes(CallbackOptions, "@app.callback")
    def callback(self, options: CallbackOptions) -> Registering:
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
        parts = self._parts
        if parts.settings.identify is None and parts.settings.auth is not None:
            raise SetupError(
                f"The callback {options.name!r} can't tell whose browser opens its links, so a link that is sent to "
                "somebody else would land their login on the sender: with auth=, give MRTRServer an identify= "
                "function, too"
            )

        def register(function: Callable[..., Any]) -> Any:
            callback = build_callback(function, options)
            parts.registry.add_callback(callback)
            parts.shared.keeps(f"the callback {options.name!r}")
            return callback

        return register

    @property
    def _ignores_unknown(self) -> bool:
        return self._parts.settings.unknown_arguments == "ignore"

    def _require_store(self, handler: Handler, *, single_use: bool = False) -> None:
        if handler.single_use or handler.declares_confirmation:
            self._parts.shared.require_shared_store(handler.name, needed=single_use)

    # Changes

    def notify_tools_changed(self) -> None:
        """Tell listening clients that the list of tools has changed. May be called from any thread."""
        self._parts.fanout.publish(Change("tools"))

    def notify_prompts_changed(self) -> None:
        """Tell listening clients that the list of prompts has changed. May be called from any thread."""
        self._parts.fanout.publish(Change("prompts"))

    def notify_resources_changed(self) -> None:
        """Tell listening clients that the list of resources has changed. May be called from any thread."""
        self._parts.fanout.publish(Change("resources"))

    def notify_resource_updated(self, uri: str) -> None:
        """Tell the clients that listen to a resource that it has changed. May be called from any thread."""
        self._parts.fanout.publish(Change("resource", uri))

"""`MRTRServer`: the decorators, and the ASGI application."""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import typing_extensions
from starlette.types import ASGIApp, Receive, Scope, Send

from .deployment.composition import Composition
from .deployment.settings import Settings
from .deployment.wiring import ServerParts
from .errors import SetupError
from .events.own import check_event_name
from .extensions.questions import check_name
from .fields import takes_fields, takes_function_or
from .flow.authorization import Authorize, compile_hook
from .flow.events import MODES, EventType, Mode
from .flow.home import Home
from .flow.waits import Tickets, Wait, Who
from .hints import PROMPT_OPTIONS, RESOURCE_OPTIONS, SERVER_ATTRIBUTES, SERVER_OPTIONS, TOOL_OPTIONS, attributes_of
from .limits import Limits
from .protocol.apps import AppPage
from .protocol.callers import Caller, Principal, principal_of
from .protocol.messages import Change
from .protocol.outgoing import fault_of_uri
from .registration.options import (
    CallbackOptions,
    CompletionOptions,
    PromptOptions,
    ResourceOptions,
    SkillFolderOptions,
    SkillOptions,
    ToolOptions,
)
from .registration.page_options import PageOptions
from .registration.records import (
    Registering,
    build_callback,
    build_completer,
    build_page,
    build_prompt,
    build_resource,
    build_skill,
    build_skills,
)
from .registration.registry import Registry
from .registration.tools import build_tool
from .storage.health import begin_request
from .transport.connection import closing
from .transport.endpoint import Endpoint

if TYPE_CHECKING:
    from .deployment.review import Finding

logger = logging.getLogger("mrtr_server")

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A")
D = TypeVar("D")
W = typing_extensions.TypeVar("W", default=None)


class MRTRServer(Composition):
    """An MCP server, and the ASGI application that serves it.

    Run it with `uvicorn module:app`, or mount it in a Starlette or FastAPI application. It needs no lifespan events.
    With several workers it needs `MRTR_KEYS`, and where tools have tasks, `MRTR_DATABASE_URL`. What is not given here
    and can be said in text is read from the environment: `path` from `MRTR_PATH`, `Limits(rounds=...)` of `limits` from
    `MRTR_LIMITS_ROUNDS`, and so on.

    Args:
        name: what clients see. Sealed states are bound to it unless `audience` is given.
        info: what the server says of itself, such as its version: a `ServerInfo`.
        instructions: how a model should use the server.
        path: where the MCP endpoint is, with or without a slash at the end. Where the application is mounted, the
            root of the mount is the endpoint, too.
        keys: the key ring: a `KeyRing`, or secrets of 32 bytes, the one that seals first. Default: `MRTR_KEYS`.
        audience: what sealed states are bound to, the same on all replicas. Default: the name.
        auth: a Starlette authentication backend, such as `JWTAuth`. A request that it does not authenticate gets a 401.
            Without one, the user is whoever an authentication middleware around the application has set.
        authorize: decides who may use what: a function, sync or async, of the `Caller` and the name of a tool or prompt
            or the URI of a resource, that returns True or False. It is called before each round of a call, a read and a
            prompt; for each entry of a list; for a completion; for a resource that somebody subscribes to, and again
            before each change is sent. What it refuses looks as if it did not exist.
        scopes: what the credentials of every request must permit. One that lacks some gets a 403 that names them.
        identify: finds out whose browser sent a request to a callback: a function of the request that returns the
            user's identity as text, a `Principal`, a Starlette user, None for nobody, or a response that is sent
            instead, such as a redirect to your login. It must name users as the authentication does.
        base_url: the address under which browsers reach the application, for callbacks, with the path that it is
            mounted at. Without it, callbacks work on loopback only.
        codec: seals the states instead of the default one.
        store: what replicas share for tasks, `single_use` tools, callbacks and change notifications: the URL of a
            database, or a `Store` of your own. Default: `MRTR_DATABASE_URL`. Without one, all of that works within one
            process and ends with it.
        limits: what requests and flows may use.
        rate_limits: how often callers may call: a `RateLimits`. It needs the extra `limits`. Default: as often as they
            like, but for tools with a `rate_limit`.
        dialects: the names of the dialects to serve. Default: all but those that stand in for another one.
        extensions: extensions of the protocol that are your own: the settings that clients are told, by id, such as
            `{"com.example/orders": {"currencies": ["EUR"]}}`. `ctx.client.extension(id)` says what a client declared.
        events: how events are kept: an `Events`.
        webhooks: how events are sent to webhooks: a `Webhooks`.
        apps: how apps of hosts are used: an `Apps`. By default, where replicas share a store, what a tool asks is asked
            in a page by hosts that draw apps and can't elicit.
        unknown_arguments: what happens to a new call with arguments that its tool or prompt does not take: `"refuse"`
            tells the model their names and the nearest known ones, `"ignore"` drops them.
        lists: how lists are paged and cached: a `Lists`.
        origins: from where pages may call and read the answers: origins such as `"https://app.example.com"`, or `"*"`.
            Their browsers are told so (CORS). Pages on loopback may call in any case, and are told so only where they
            are listed here.
        allowed_hosts: the allowed values of the `Host` header. Default: all.
        middleware: Starlette middleware around the application.
        telemetry: whether calls are traced and measured with OpenTelemetry (extra `otel`). Default: where its SDK is
            set up for the process when the server starts. An `OpenTelemetry` says where to.
        metrics: where the metrics are shown in the form of Prometheus: a `Metrics` (extra `prometheus`). Default:
            nowhere.
        docs: whether to serve a page for people, beside the endpoint at `/docs`: it shows what the server offers, and
            calls it round by round. With `debug` it also opens states and calls as other users, for browsers on this
            machine alone.
        lifespan: a function of the server that returns an asynchronous context manager, such as one with
            `@asynccontextmanager`. It is entered when the server starts and left when it shuts down, but not where the
            server is mounted: see `MRTRServer.running`. The value that it yields is `ctx.opened` of handlers.
        shutdown: how long the server takes to end, and what `/ready` says: a `Shutdown`.
        run_tasks: whether this process runs tasks. If not, it starts them and leaves them to processes that share its
            database, such as `mrtr-server worker`.
        debug: show clients what went wrong inside. Not for production.

    Raises:
        SetupError: a setting is wrong, or two do not fit together; the message says which.
    """

    @takes_fields(Settings["MRTRServer"], "MRTRServer", SERVER_OPTIONS)
    def __init__(self, settings: "Settings[MRTRServer]") -> None:
        self._assemble(settings, Registry(Home(settings.name, settings.lifespan)), time.time)

    def __replace__(self, /, **changes: Any) -> Self:
        """Return a server with the same handlers and other settings; `copy.replace` calls it from Python 3.13 on.

        Both servers use what this one was given, such as a store, and its keys. What this one made for itself, the
        other one makes for itself, too. Handlers that are registered later on either one are on both.
        """
        clock = changes.pop("clock", self._parts.clock)  # which the test kit replaces, and nobody else
        other = copy(self)
        other._assemble(replace(self._parts.settings, **changes), self._parts.registry, clock)  # noqa: SLF001  its own class
        return other

    def _assemble(self, settings: "Settings[MRTRServer]", registry: Registry, clock: Callable[[], float]) -> None:
        self.registry = registry
        self._parts = ServerParts(settings, registry, self, clock)
        self.name = settings.name
        self.path = self._parts.settings.path.rstrip("/")
        """Where the MCP endpoint is, without a slash at its end."""

    if not TYPE_CHECKING:  # which knows that they are not there
        __getattr__ = attributes_of(SERVER_ATTRIBUTES)

    # ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        parts = self._parts
        if scope["type"] == "http":
            if not parts.lifecycle.hears_sigterm:  # mounted, so no startup has come
                parts.lifecycle.hear_sigterm()
                parts.observe()
            if parts.admission.draining:
                send = closing(scope, send)
            if parts.shared.store.shared:
                begin_request()
            await parts.router.find(scope, parts.shared.refusal)(scope, receive, send)
        elif scope["type"] == "lifespan":
            await parts.lifecycle.serve(receive, send, run_tasks=parts.settings.run_tasks and parts.registry.has_tasks)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    def _find_known(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Callable[[Any], Awaitable[None]] | None:
        """Return what serves each `KnownRequest` of a head that comes again; None where each is to be looked at."""
        parts = self._parts
        endpoint = parts.router.find(scope, parts.shared.refusal)
        if type(self).__call__ is not _CALL or not isinstance(endpoint, Endpoint) or not endpoint.accepts(headers):
            return None

        def serve(request: Any) -> Awaitable[None]:
            if parts.shared.refusal or parts.admission.draining or not parts.lifecycle.hears_sigterm:
                return self(request.own_scope(), request.receive, request.send)
            if parts.shared.store.shared:
                begin_request()
            return endpoint.serve_known(request)

        return serve

    # Before it is deployed

    def check(self, *, host: str = "127.0.0.1", workers: int = 1, site: ASGIApp | None = None) -> "list[Finding]":
        """Return what is wrong or risky about this server; `mrtr-server check` prints it.

        It looks at the settings and at all that is registered. It connects to nothing.

        Args:
            host: the address that it is to listen on.
            workers: how many processes are to serve it, on all machines.
            site: the application of Starlette or FastAPI that routes to this server, if there is one.

        Returns:
            The findings, the worst first. A test can assert that there are none.
        """
        from .deployment.review import review

        parts = self._parts
        return review(
            parts.settings,
            parts.registry,
            parts.shared,
            dialects=parts.dialects,
            host=host,
            workers=workers,
            server=self,
            site=site,
        )

    # Standard input and output

    def run_stdio(self, *, user: Any = None, scopes: Collection[str] = ()) -> None:
        """Serve the client that started this process, over standard input and output, until it closes the input.

        `mrtr-server stdio` does this for a module. Standard output is the protocol's from then on: what is printed goes
        to standard error. There are no credentials (`auth=`) and no `middleware=`: the client acts for whoever started
        it. Keys and a database are only needed for what outlives the process. It enters `lifespan=`, and runs tasks
        unless `run_tasks=False`.

        Args:
            user: on whose behalf, for `ctx.user`, `ctx.principal` and `authorize=`: a user of Starlette's, such as one
                with an `identity` that you read from the environment. Default: nobody in particular.
            scopes: what that user may do, for `ctx.scopes` and `authorize=`.

        Raises:
            SetupError: the server can't start; the message says why.
        """
        from .deployment.stdio_process import run_stdio

        run_stdio(self._parts, user, frozenset(scopes))

    @property
    def resource_metadata(self) -> ASGIApp:
        """The application that serves the metadata of the protected resource (RFC 9728).

        The server serves it below its own root, but a site with a `Route` to the server does not pass that on. A client
        that looks for it by itself looks below the root of the host. So mount this there, in either case, as
        `Mount("/.well-known/oauth-protected-resource", server.resource_metadata)`.

        Raises:
            SetupError: there is none, since `auth=` names no authorization server.
        """
        if self._parts.resource_metadata is None:
            raise SetupError(f"{self.name}: auth= names no authorization_servers, so there is no metadata")
        return self._parts.resource_metadata

    @property
    def ai_catalog(self) -> ASGIApp:
        """The application that serves the catalog of this server (Server Cards, Discovery).

        The server serves it at the root of its own paths. Below a mount, nobody looks for it there, so serve it at the
        root of the site: `Route("/.well-known/ai-catalog.json", server.ai_catalog)`.

        Raises:
            SetupError: there is none, since the server has no name for all the world, or no address.
        """
        if self._parts.card is None:
            raise SetupError(f"{self.name}: a catalog needs info=ServerInfo(name=...) and base_url=")
        return self._parts.card.catalog

    @property
    def limits(self) -> Limits:
        """The limits that count: those that the code or the environment sets, and the defaults for this store."""
        return self._parts.limits

    # Draining

    @property
    def shutdown_seconds(self) -> float:
        """How long a shutdown may take in all, in seconds."""
        return self._parts.admission.shutdown.seconds

    def drain(self) -> None:
        """Begin to drain: `/ready` returns 503, calls are handed to other replicas, and open streams end.

        SIGTERM does this by itself under uvicorn, and under gunicorn with uvicorn's worker. Call it where another
        server or a hook of the orchestrator announces the end. Any thread and any signal handler may call it. It lasts
        until the next start.
        """
        self._parts.admission.drain()

    # Tasks

    def worker(self) -> AbstractAsyncContextManager[None]:
        """Run the tasks of the servers that share the store for as long as the block lasts, without serving requests.

        `mrtr-server worker` does this, whatever `run_tasks=` is. It enters `lifespan=`, and leaves it at the end. Tasks
        that have not ended by then are handed back at their next boundary and continue elsewhere.

        Raises:
            SetupError: there is nothing that this process could run; the message says why.
        """
        parts = self._parts
        if not parts.registry.has_tasks:
            raise SetupError(f"{self.name}: no tool has tasks; a worker needs a tool with @app.tool(task=...)")
        parts.shared.check_worker()
        return parts.lifecycle.work()

    # Registration

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    @takes_fields(ToolOptions)
    def tool(self, options: ToolOptions, /) -> Callable[[F], F]: ...
    @takes_function_or(ToolOptions, "@app.tool", TOOL_OPTIONS)
    def tool(self, options: ToolOptions, /) -> Callable[[F], F]:  # noqa: D417  it takes their fields
        """Register a function as a tool: `@app.tool`, or `@app.tool(...)` with options.

        The function stays as it is. Its parameters become the tool's arguments, except those of type `Context`,
        `Inputs` and `State[T]`, and those that are annotated with an ask or with `Depends`. What it returns becomes
        text or content if its annotation says so, and structured content otherwise (Tools, Tool Result).

        Args:
            function: the function, where the decorator has no options: `@app.tool`.
            name: the tool's name. Default: the function's.
            title: a name for people.
            description: what the model reads. Default: the docstring.
            annotations: hints on what the tool does.
            icons: for people to recognize it by.
            input_schema: a JSON Schema of the arguments, served as it is, or an `InputSchema`. The function then takes
                one dictionary, or `**arguments`. It needs the extra `schemas`.
            confirm: what the person must agree to before the function runs: a text, or a function that makes it from
                arguments and declared parameters, by name; or a `Confirm(...)` with these.
                Anything but a yes ends the call.
            answer_within: how long an answer may take, in seconds. Default: `Limits.state_seconds`; in a task as long
                as the task lives.
            single_use: redeem each state once in the whole fleet, for tools whose effects must not happen twice. A
                request that is sent again gets the recorded outcome.
            timeout: how long the function may run in each round, in seconds, not counting the time that it waits for a
                person or for its turn. After that an `async def` is cancelled, a plain `def` is left to run in its
                thread, and the model is told. A running step is not interrupted: the round ends after it.
            task: whether calls become tasks, for clients that support them. For other clients, `"optional"` means that
                they wait for the result, and `"required"` that they are refused. A `Task` says how.
            concurrency: how many of its tasks run at once in a process. Default: as many as `Limits.tasks` allows.
            ui: the page that hosts draw with its result, as `ui` returns it; or the URI of a resource of yours,
                `"ui://..."`, that is one (MCP Apps, Resource Discovery); or a `Ui`.
            used_by: who calls a tool that has a page: `"app"` for the page alone, so that no model is shown the tool,
                or `"model"` alone. Default: both. Hosts see to this, and some do not: what must not happen without the
                person asks, with `ctx.confirm` or `confirm=`.
            text: makes what a person and a model read of a structured result, from the value that the function
                returned: a text, content, or a list of them. Default: the value as JSON (Tools, Structured Content).
            rate_limit: how often each caller may call it, such as `"5/minute"`. It needs the extra `limits`.
                `RateLimits(per_tool=...)` overrides it, and says where it is counted. Default: as often as they like.
            authorize: decides who may call it, besides the server's own hook; see `MRTRServer`. In a task it is called
                before each round, with the scopes of the request that created the task.
            scopes: what a caller's credentials must permit, besides the server's `scopes=`. A caller who lacks some
                sees it in the list; using it is answered with a 403 that names the scopes, so that the client can ask
                for them (Authorization, Step-Up Authorization Flow).
            visible: scopes without which it does not exist for a caller, as if `authorize=` had refused.
            meta: `_meta` of the tool in the list.
            tags: what `disable` and `enable` find it by; listed as `tags` of `_meta`.

        Returns:
            The function; or a decorator, where only options are given.

        Raises:
            SetupError: the function can't be a tool; the message says why.
        """

        def register(function: F) -> F:
            parts = self._parts
            tool = build_tool(function, options, parts.registry.home, ignores_unknown=self._ignores_unknown)
            page = options.drawn.page
            if isinstance(page, AppPage) and not parts.registry.serves(page.uri):
                raise SetupError(
                    f"{tool.handler.name}: the page {page.address} belongs to another server; make one of this server "
                    "with app.ui(...)"
                )
            check_name(tool.handler.name)
            parts.prepare(tool.handler, tool.rate)
            parts.registry.add(tool)
            return function

        return register

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    @takes_fields(PromptOptions)
    def prompt(self, options: PromptOptions, /) -> Callable[[F], F]: ...
    @takes_function_or(PromptOptions, "@app.prompt", PROMPT_OPTIONS)
    def prompt(self, options: PromptOptions, /) -> Callable[[F], F]:  # noqa: D417  it takes their fields
        """Register a function as a prompt: `@app.prompt`, or `@app.prompt(...)` with options.

        The function stays as it is. It returns a string (one message of the user), a `Message`, a content object, a
        list of those, or a `PromptResult` (Prompts, Getting a Prompt).

        Args:
            function: the function, where the decorator has no options: `@app.prompt`.
            name: the prompt's name. Default: the function's.
            title: a name for people.
            description: what the prompt is for. Default: the docstring.
            icons: for people to recognize it by.
            meta: `_meta` of the prompt in the list.
            tags: what `disable` and `enable` find it by; see `tool`.
            answer_within: how long an answer may take, in seconds. Default: `Limits.state_seconds`.
            authorize: decides who may get it, besides the server's own hook; see `MRTRServer`.
            scopes: which scopes its callers need to use it; see `tool`.
            visible: which scopes they need to see it in lists.

        Returns:
            The function; or a decorator, where only options are given.

        Raises:
            SetupError: the function can't be a prompt; the message says why.
        """

        def register(function: F) -> F:
            home = self._parts.registry.home
            prompt = build_prompt(function, options, home, ignores_unknown=self._ignores_unknown)
            self._parts.prepare(prompt.handler)
            self._parts.registry.add(prompt)
            return function

        return register

    @takes_fields(ResourceOptions, "@app.resource", RESOURCE_OPTIONS)
    def resource(self, options: ResourceOptions) -> Callable[[F], F]:  # noqa: D417  it takes their fields
        """Register a function as a resource, or as a template of resources if the URI has variables.

        It returns text, bytes, any JSON value, a `ResourceContents`, or a list of those (Resources, Reading Resources).
        For a URI that names nothing it raises `NotFound`.

        Args:
            uri: a fixed URI, or a template such as `weather://{city}`; `{+path}` matches slashes, too. Each variable
                is a parameter of the function.
            name: the resource's name. Default: the function's.
            title: a name for people.
            description: what the resource is. Default: the docstring.
            icons: for people to recognize it by.
            meta: `_meta` of the resource in the list.
            tags: what `disable` and `enable` find it by; see `tool`.
            answer_within: how long an answer may take, in seconds. Default: `Limits.state_seconds`.
            authorize: decides who may read it, besides the server's own hook; see `MRTRServer`. It gets the URI that is
                read; in a list and for a completion, that of the template.
            scopes: which scopes its callers need to read it; see `tool`.
            visible: which scopes they need to see it in lists.
            mime_type: the type of what is returned. Default: text, JSON or bytes, by the value.
            size: in bytes, if it is known; for a fixed URI alone.
            annotations: who it is for and how important it is.
            cache_seconds: how long a client may cache it, in seconds. A result that depended on an answer is never
                cached.
            cache: who may share what was cached: `"public"` for all, `"private"` for each caller alone. A result that
                depends on `authorize=` is always private.

        Returns:
            A decorator that returns the function as it is.

        Raises:
            SetupError: the function can't be a resource; the message says why.
        """

        def register(function: F) -> F:
            resource = build_resource(function, options, self._parts.registry.home)
            self._parts.prepare(resource.handler)
            self._parts.registry.add(resource)
            return function

        return register

    @takes_fields(PageOptions, "app.ui")
    def ui(self, options: PageOptions) -> AppPage:  # noqa: D417  it takes their fields
        """Register a page of an app, for `@app.tool(ui=...)`: hosts draw it with the tool's result (MCP Apps).

        The page is one whole HTML document. A script of this package is put into it, so that it can call tools of this
        server by the names that they have here: `mrtr.call("cancel", {number: 3})`.

        Args:
            page: the path of a file, from the folder of the module that calls this; or a function that returns the
                HTML, sync or async, which may take a `Context` and dependencies as a resource does. A file is checked
                here, what a function returns when it is served.
            name: the page's name, and a part of its URI. Default: that of the file without its ending, or of the
                function.
            title: a name for people.
            description: what the page is.
            csp: from where the page may load, and where it may send: a `Csp`. Default: nowhere.
            permissions: what the page would like to use: `"camera"`, `"microphone"`, `"geolocation"`,
                `"clipboard_write"`.
            domain: an origin of its own for the page, in the form that a host asks for.
            border: whether the host should draw a border around the page. Default: as the host does by itself.

        Returns:
            The page.

        Raises:
            SetupError: the file can't be read, it loads something that `csp` does not allow, or its name is taken.
        """
        parts = self._parts
        page, resource = build_page(options, parts.registry.home, parts.settings.info.version)
        if parts.registry.serves(page.address):
            raise SetupError(f"There is a page {page.address} already; give this one another name=")
        parts.registry.add(resource)
        return page

    @takes_fields(SkillFolderOptions, "app.skills")
    def skills(self, options: SkillFolderOptions) -> None:  # noqa: D417  it takes their fields
        """Serve the Agent Skills in a folder: instructions for agents, with the files that they refer to (Skills).

        Each folder with a `SKILL.md` is a skill, also within another; its place in the folder is its path. The files
        are read here, and served with their digests. What begins with a dot is left out. It needs the extra `skills`.

        Args:
            folder: its path, from the folder of the module that calls this.
            lists_asks: whether each `SKILL.md` ends with a section that says which tools of this server ask, and what;
                digests are of the whole. Tools that `authorize=` or `visible=` hides from some callers are left out.
            tags: what `disable` and `enable` find them by; see `tool`.
            authorize: decides who may read them; see `resource`.
            scopes: which scopes their readers need; see `tool`.
            visible: which scopes they need to see them in lists.

        Raises:
            SetupError: a skill does not fit: its folder is not called as its `name`, its front matter is no YAML or
                lacks a description, it has more than 512 files or 16 MiB, or a link out of the folder. The message says
                which.
        """
        registry = self._parts.registry
        for resource in list(build_skills(options, registry.home)):
            registry.add(resource)

    @takes_fields(SkillOptions, "@app.skill")
    def skill(self, options: SkillOptions) -> Callable[[F], F]:  # noqa: D417  it takes their fields
        """Register a function that makes an Agent Skill when it is read (Skills).

        It returns the instructions, as Markdown without front matter, and may take what the function of a resource
        takes. What is made has no digest, so some hosts decline it; `skills` serves files.

        Args:
            path: its name, or a path that ends with it: `"billing/refunds"`.
            description: what it does and when an agent should use it, in up to 1,024 characters. Default: the
                docstring.
            metadata: more about it, texts by their names.
            lists_asks: whether it ends with a section that says which tools ask; see `skills`.
            tags: what `disable` and `enable` find it by; see `tool`.
            authorize: decides who may read it; see `resource`.
            scopes: which scopes its readers need; see `tool`.
            visible: which scopes they need to see it in lists.

        Returns:
            A decorator that returns the function as it is.

        Raises:
            SetupError: the name can't be that of a skill, or there is no description.
        """

        def register(function: F) -> F:
            resource = build_skill(function, options, self._parts.registry.home)
            self._parts.prepare(resource.handler)
            self._parts.registry.add(resource)
            return function

        return register

    @takes_fields(CompletionOptions, "@app.completion")
    def completion(self, options: CompletionOptions) -> Callable[[F], F]:  # noqa: D417  it takes their fields
        """Register a function that suggests values for an argument of a prompt, or for a variable of a template.

        It takes what has been typed so far and, if it has a second parameter, the arguments that are known already, by
        name. It returns the values, the best first, or a `Completion`. The first 100 are sent (Completion).

        Args:
            argument: the argument's name.
            prompt: the prompt's name; or
            resource: the template's URI.

        Returns:
            A decorator that returns the function as it is.

        Raises:
            SetupError: neither or both of `prompt` and `resource` are given, or the argument has a completion already.
        """

        def register(function: F) -> F:
            kind = "resource" if options.prompt is None else "prompt"
            name = options.resource if options.prompt is None else options.prompt
            registry = self._parts.registry
            registry.add_completer(kind, str(name), options.argument, build_completer(function, registry.home))
            return function

        return register

    @takes_fields(CallbackOptions, "@app.callback")
    def callback(self, options: CallbackOptions) -> Registering:  # noqa: D417  it takes their fields
        """Register a function that is called when a person returns from a page, at `{base_url}/callbacks/{name}`.

        It takes the browser's request and, if it has a second parameter, the `CallbackLink` that the person opened.
        What it returns is the answer of the ask that showed the page, kept in the store for as long as the flow may
        last. If it returns a Starlette response, such as a form or a redirect, that is sent and the person is not done.
        The person sees the message of a `ToolError` and may try again; `Refusal("decline")` answers the ask with a no.

        Args:
            name: its name in the address: 1 to 64 of A-Z, a-z, 0-9, `_` and `-`.
            methods: the HTTP methods that it takes. With POST, a form that it returned can be sent to it.
            origins: from where else browsers may POST to it, such as `"https://login.example.com"` for a provider that
                answers with a form (`form_post` of OAuth). `"null"` stands for pages that hide their origin.
            page: makes the page that the person sees at the end. Default: a plain one.

        Returns:
            A decorator that returns a `Callback`, for `ElicitUrl(callback=...)`.

        Raises:
            SetupError: the function can't be a callback, or nothing could find out whose browser opens its links.
        """
        parts = self._parts
        if parts.settings.identify is None and parts.settings.auth is not None:
            raise SetupError(
                f"The callback {options.name!r} can't tell whose browser opens its links: if a link reached somebody "
                "else, the caller would get that person's login. With auth=, give MRTRServer an identify= function, too"
            )

        def register(function: Callable[..., Any]) -> Any:
            callback = build_callback(function, options)
            parts.registry.add_callback(callback)
            parts.shared.keeps(f"the callback {options.name!r}")
            return callback

        return register

    # Waits for somebody else

    def wait(
        self,
        name: str,
        *,
        about: type[A],
        answer: type[D],
        who: Who,
        four_eyes: bool = True,
        confirmed: bool = True,
    ) -> Wait[A, D]:
        """Declare what flows wait for that somebody else answers, by `ctx.wait_for` and `ctx.answer`.

        It needs a database, or a `store=`: without one, the server does not start.

        Args:
            name: names it: 1 to 64 of A-Z, a-z, 0-9, `_` and `-`.
            about: the type of what is to be decided, such as a model. Whoever may answer sees it.
            answer: the type of the decision.
            who: who may answer: whoever has all of these scopes, or one `Person`. Nobody may who is not authenticated.
            four_eyes: whether the person whose flow waits may never answer, by whatever application.
            confirmed: whether a flow that answers must have asked its person for a confirmation, or sent the person to
                a page with a callback. With False, a model may answer, and so may `answer` of the application.

        Returns:
            The wait.

        Raises:
            SetupError: the name does not fit or is taken, nobody could answer, or a type can't be kept.
        """
        made = Wait(name, about, answer, who, four_eyes=four_eyes, confirmed=confirmed)
        self._parts.registry.add_wait(made)
        self._parts.registry.call_hooks()  # calls that wait are served in another way
        return made

    async def answer(self, ticket: str, value: object, *, by: object, scopes: Collection[str] = ()) -> None:
        """Answer what a flow waits for, from a route or a webhook of the application. The first answer counts.

        It is for waits with `confirmed=False`.

        Args:
            ticket: names the wait.
            value: the answer, of the type that the wait says.
            by: who answers: a `Principal`, or a user of Starlette's, such as `request.user`.
            scopes: what their credentials permit, such as `request.auth.scopes`.

        Raises:
            AlreadyAnswered: somebody was faster.
            Withdrawn: the flow does not wait any more.
            ToolError: they may not answer this, or it is no ticket.
            FlowError: the value is of another type, or the wait needs a confirmation.
            StoreUnavailable: it can't be stored now.
        """
        await self._parts.desk.answer(ticket, value, _caller(by, scopes), is_confirmed=False)

    async def tickets(
        self, wait: Wait[A, D], *, by: object, scopes: Collection[str] = (), cursor: str = "", most: int = 50
    ) -> Tickets[A, D]:
        """Return the open waits that somebody may answer, the newest first, page by page.

        Args:
            wait: what `wait` made.
            by: who asks; as for `answer`.
            scopes: what their credentials permit.
            cursor: where the page begins, as the page before said; empty for the first.
            most: how many tickets a page has at most.

        Returns:
            The page.

        Raises:
            InvalidParams: the cursor is of another list, or of nobody.
            StoreUnavailable: they can't be read now.
        """
        return await self._parts.desk.page(wait, _caller(by, scopes), cursor, most)

    # Events

    def event(
        self,
        name: str,
        *,
        payload: type[D],
        arguments: type[W] | None = None,
        description: str = "",
        matches: Callable[[D, W, Caller], bool | Awaitable[bool]] | None = None,
        shape: Callable[[D, W, Caller], D | Awaitable[D]] | None = None,
        admits: Callable[[W, Caller], bool | Awaitable[bool]] | None = None,
        on_subscribe: Callable[[W, Caller], object] | None = None,
        on_unsubscribe: Callable[[W, Caller], object] | None = None,
        modes: Sequence[Mode] = MODES,
        authorize: Authorize | None = None,
        scopes: Sequence[str] = (),
        visible: Sequence[str] = (),
        meta: Mapping[str, Any] | None = None,
    ) -> EventType[W, D]:
        """Declare a type of event, to which clients of the newest version can subscribe (Events).

        Events are kept in the database, and reach the subscribers of all replicas. Without one, they are kept in this
        process, and end with it.

        Args:
            name: names it, such as `"incident.created"`.
            payload: the type of what an event carries: a model, or another type that is an object in JSON.
            arguments: the model of what a subscriber may choose. Default: there is nothing to choose.
            description: what it is, for people and models.
            matches: whether a subscriber gets an event: a function of the payload, the arguments and the subscriber's
                `Caller`, that returns True or False. It must be quick. Default: all get it.
            shape: makes what a subscriber gets of an event, of the same type: a function of the same three.
            admits: whether a caller may subscribe with these arguments, such as to this mailbox: a function of the
                arguments and the `Caller`, that returns True or False. It is asked again before each delivery. Default:
                whoever may subscribe at all.
            on_subscribe: is called with the arguments and the caller when somebody subscribes. It may be called again
                for the same subscriber, so it must do no harm then. If it fails, so does the subscription.
            on_unsubscribe: is called likewise when a subscriber has gone.
            modes: how it can be delivered: `"poll"`, `"push"` and `"webhook"`. Default: all of them.
            authorize: decides who may subscribe, besides the server's own hook; see `MRTRServer`. It is asked again
                before each delivery, of the caller who subscribed last.
            scopes: which scopes subscribers need; see `tool`.
            visible: which scopes they need to see it in lists.
            meta: `_meta` of it in the list.

        Returns:
            The type, for `emit`.

        Raises:
            SetupError: the name does not fit or is taken, or a type can't be one of an event.
        """
        check_event_name(name)
        made = EventType(
            name,
            arguments=arguments,
            payload=payload,
            description=description,
            matches=matches,
            shape=shape,
            admits=admits,
            on_subscribe=on_subscribe,
            on_unsubscribe=on_unsubscribe,
            modes=modes,
            hook=compile_hook(f"app.event({name!r})", authorize, scopes, visible),
            meta=None if meta is None else dict(meta),
        )
        self._parts.shared.keeps_events(name)
        self._parts.registry.add_event(made)
        return made

    async def emit(
        self,
        event: EventType[Any, D],
        payload: D,
        *,
        id: str | None = None,
        to: Principal | None = None,
        at: float | None = None,
        connection: object = None,
    ) -> bool:
        """Notify subscribers that something has happened: from a route, or any process with the same database.

        In a flow, `ctx.emit` does so once, however often the function runs.

        Args:
            event: what `event` made.
            payload: what happened, of the type that the event says.
            id: names it, as where it comes from does: 1 to 256 characters of ASCII. While it is kept,
                another event of the same type with this id is none. Default: one of its own.
            to: the one person who may hear of it. Default: all who may subscribe.
            at: when it happened, in seconds since the epoch. Default: now.
            connection: your own connection to the same database, of asyncpg, psycopg, SQLAlchemy, sqlite3 or aiosqlite:
                the event is there if your transaction commits.

        Returns:
            Whether it is new.

        Raises:
            FlowError: the payload is of another type or too large to be delivered, or the id can't be one.
            StoreUnavailable: it can't be stored now.
        """
        return await self._parts.events.log.add(event, payload, id=id, to=to, at=at, connection=connection)

    @property
    def _ignores_unknown(self) -> bool:
        return self._parts.settings.unknown_arguments == "ignore"

    # Changes

    def notify_tools_changed(self) -> None:
        """Notify subscribed clients that the list of tools has changed (Subscriptions).

        Any thread may call it.
        """
        self._notify(Change("tools"))

    def notify_prompts_changed(self) -> None:
        """Notify subscribed clients that the list of prompts has changed (Subscriptions).

        Any thread may call it.
        """
        self._notify(Change("prompts"))

    def notify_resources_changed(self) -> None:
        """Notify subscribed clients that the list of resources has changed (Subscriptions).

        Any thread may call it.
        """
        self._notify(Change("resources"))

    def notify_resource_updated(self, uri: str) -> None:
        """Notify the clients that subscribe to a resource that it has changed (Subscriptions).

        Any thread may call it.

        Args:
            uri: of the resource; of a template, with its variables filled in.

        Raises:
            SetupError: it is no URI, so that no client could subscribe to it.
        """
        if fault := fault_of_uri(uri):
            raise SetupError(f"notify_resource_updated: {uri!r} {fault}")
        self._notify(Change("resource", uri))

    def _notify(self, change: Change) -> None:
        self._parts.fanout.publish(change)
        self._parts.registry.notify_including(change)


def _caller(by: object, scopes: Collection[str]) -> Caller:
    return Caller(by if isinstance(by, Principal) else principal_of(by), by, frozenset(scopes))


_CALL = MRTRServer.__call__
"""Whoever has put something else in its place wants to see each request."""

"""What is put around a server's handlers, and together with them: hooks, other applications, changes as it runs."""

from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import fields, replace
from typing import Any, TypeVar, overload

from ..errors import SetupError
from ..flow.authorization import compile_hook
from ..flow.home import CallHook, check_around, check_on_error
from ..registration.inclusion import Inclusion, serves_any
from ..registration.methods import marked_methods
from ..registration.offering import Opening
from ..registration.options import PromptOptions, ResourceOptions, ToolOptions
from ..registration.records import name_of
from ..registration.registry import overridden
from .wiring import ServerParts

F = TypeVar("F", bound=Callable[..., Any])


class Composition:
    """What `MRTRServer` has besides its decorators. It knows its parts."""

    _parts: ServerParts

    # Hooks

    @overload
    def on_error(self, function: F, /) -> F: ...
    @overload
    def on_error(self, /, *, sees_arguments: bool = False, sees_answers: bool = False) -> Callable[[F], F]: ...
    def on_error(
        self, function: Any = None, /, *, sees_arguments: bool = False, sees_answers: bool = False
    ) -> Callable[..., Any]:
        """Register a function that receives each failure in a call, once: `@app.on_error`.

        It is called with a `Failure`, before the reply is sent: a plain `def` in a thread, an `async def` on the event
        loop. Errors for the model (`ToolError`), refusals of a person and errors of a client are no failures.

        Args:
            function: the function, where the decorator has no options.
            sees_arguments: whether `failure.call.arguments` has the arguments of the call.
            sees_answers: whether `failure.call.answers` has what people answered. With both, the traceback of the
                exception keeps its local variables.

        Returns:
            The function as it is; or a decorator, where only options are given.

        Raises:
            SetupError: it does not take one value.
        """

        def register(function: Any) -> Any:
            check_on_error(function)
            self._hook(self._parts.registry.home.on_error, CallHook(function, sees_arguments, sees_answers))
            return function

        return register if function is None else register(function)

    @overload
    def around(self, function: F, /) -> F: ...
    @overload
    def around(
        self, /, *, sees_arguments: bool = False, sees_answers: bool = False, sees_results: bool = False
    ) -> Callable[[F], F]: ...
    def around(
        self,
        function: Any = None,
        /,
        *,
        sees_arguments: bool = False,
        sees_answers: bool = False,
        sees_results: bool = False,
    ) -> Callable[..., Any]:
        """Register a function that runs around each round of a call: `@app.around`.

        It is an `async def` of `(call, call_next)`, a `CallInfo` and a `CallNext`, and awaits `call_next(call)` once.
        That returns how the round `Ended`, or raises the error that the client gets. Of several, the first that was
        registered is the outermost.

        Args:
            function: the function, where the decorator has no options.
            sees_arguments: whether `call.arguments` has the arguments of the call.
            sees_answers: whether `call.answers` has what people answered, and `ended.answered` the questions' texts.
            sees_results: whether `ended.result` has the result. The function may then return
                `dataclasses.replace(ended, result=...)`, and the client gets that. No pieces of a result are sent
                before it is whole.

        Returns:
            The function as it is; or a decorator, where only options are given.

        Raises:
            SetupError: it is no `async def`, or does not take two values.
        """

        def register(function: Any) -> Any:
            check_around(function)
            hook = CallHook(function, sees_arguments, sees_answers, sees_results)
            self._hook(self._parts.registry.home.around, hook)
            return function

        return register if function is None else register(function)

    def _hook(self, hooks: list[CallHook], hook: CallHook) -> None:
        hooks.append(hook)
        self._parts.registry.call_hooks()

    # Dependencies in tests

    def override(self, dependency: Callable[..., Any], function: Callable[..., Any]) -> AbstractContextManager[None]:
        """Put a function into the place of a dependency for as long as a block lasts, in tests.

        Args:
            dependency: the function that `Depends(...)` was given, or that of `lifespan=`.
            function: what takes its place. It may be a dependency itself, with parameters of its own.

        Returns:
            A context manager, which puts back what was there before.

        Raises:
            SetupError: when the block begins: nothing depends on the function, or the other one can't be a dependency.
        """
        return overridden(self._parts.registry, dependency, function)

    # Within another application

    def running(self, outer: object = None, /) -> AbstractAsyncContextManager[None]:
        """Run the server for as long as a block lasts: what an application does in which it is mounted.

        `FastAPI(lifespan=server.running)`, or `async with server.running():` within a lifespan of its own. It enters
        `lifespan=`, runs tasks unless `run_tasks=False`, and drains at the end.

        Args:
            outer: the application that it is mounted in, as Starlette and FastAPI pass it; nothing is done with it.

        Returns:
            A context manager.

        Raises:
            SetupError: the server can't start; the message says why.
        """
        parts = self._parts
        return parts.lifecycle.embed(run_tasks=parts.settings.run_tasks and parts.registry.has_tasks)

    # Other applications

    def include(self, other: "Composition", *, prefix: str = "") -> None:
        """Offer all that another server has registered, now and later, as if it were registered here.

        A tool or prompt `pay` is `billing_pay` with `prefix="billing"`, and a resource `invoices://{id}` is
        `invoices://billing/{id}`. The other server's dependencies, hooks, `lifespan=`, `authorize=`, `scopes=` and the
        rates of its tools keep working. All else, such as keys, credentials, limits and the store, is this server's.

        Args:
            other: the other server.
            prefix: what goes before its names, and into its URIs.

        Raises:
            SetupError: a name is taken, which the message names with both places; the other server needs something that
                this one does not have, such as credentials; or it includes this one.
        """
        parts, its = self._parts, other._parts  # noqa: SLF001  its own class
        settings = its.settings
        name, its_name = parts.settings.name, settings.name
        if settings.auth is not None and parts.settings.auth is None:
            raise SetupError(
                f"{its_name} needs credentials (auth=), and {name} has none: otherwise its tools are open to everybody"
            )
        limits = settings.rate_limits
        for option in ("per_principal", "per_address", "other_requests"):
            if getattr(limits, option, None) is not None:
                raise SetupError(
                    f"{its_name}: RateLimits({option}=...) is for all calls of a server; give it to {name}, which "
                    "includes it"
                )
        shared = None if limits is None else limits.storage
        if shared is not None and (parts.settings.rate_limits is None or parts.settings.rate_limits.storage is None):
            raise SetupError(
                f"{its_name}: RateLimits(storage=...) counts for all replicas together, and {name}, which includes it, "
                "counts in each process; give the storage to that one, too"
            )
        rates = {}
        if limits is not None and limits.per_tool:
            from ..flow.rate_counters import read_rate  # which needs a library that not everybody has

            rates = {tool: read_rate(f"{its_name}: per_tool", text) for tool, text in limits.per_tool.items()}
        inclusion = Inclusion(
            parts.registry.home, prefix, compile_hook(its_name, settings.authorize), tuple(settings.scopes), rates
        )
        lifespan = settings.lifespan
        opening = None if lifespan is None else Opening(its.registry.home, lifespan, other)
        mine, theirs = parts.extensions.declared(), its.extensions.declared()
        for id in mine.keys() & theirs.keys():
            if mine[id] != theirs[id]:
                raise SetupError(
                    f"{name} and {its_name} declare the extension {id!r} with different settings; declare it in one of "
                    "them, or alike"
                )
        parts.registry.include(its.registry, inclusion, opening, settings.extensions or {})

    # Changes as it runs

    def remove_tool(self, name: str) -> None:
        """Remove a tool, also while the server runs: clients are notified, and calls of it fail from then on.

        A round that runs continues to its end.

        Args:
            name: the tool's.

        Raises:
            SetupError: there is no such tool.
        """
        self._parts.registry.remove("tools", name)

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt; see `remove_tool`.

        Args:
            name: the prompt's.

        Raises:
            SetupError: there is no such prompt.
        """
        self._parts.registry.remove("prompts", name)

    def remove_resource(self, uri: str) -> None:
        """Remove a resource, or a template; see `remove_tool`.

        Args:
            uri: its URI, or that of the template with its variables.

        Raises:
            SetupError: there is no such resource.
        """
        self._parts.registry.remove("resourceTemplates" if "{" in uri else "resources", uri)

    def disable(
        self,
        *,
        tools: Collection[str] = (),
        prompts: Collection[str] = (),
        resources: Collection[str] = (),
        tags: Collection[str] = (),
    ) -> None:
        """Serve some of what is registered no longer, as if it were not there, until it is enabled again.

        Clients are notified. A round that runs continues to its end. The change applies to this process, and not to
        what is registered later.

        Args:
            tools: names of tools.
            prompts: names of prompts.
            resources: URIs of resources, and of templates with their variables.
            tags: all that has one of these tags.

        Raises:
            SetupError: nothing has such a name, URI or tag.
        """
        self._turn(tools, prompts, resources, tags, on=False)

    def enable(
        self,
        *,
        tools: Collection[str] = (),
        prompts: Collection[str] = (),
        resources: Collection[str] = (),
        tags: Collection[str] = (),
    ) -> None:
        """Serve again what was disabled; see `disable`.

        Args:
            tools: names of tools.
            prompts: names of prompts.
            resources: URIs of resources, and of templates with their variables.
            tags: all that has one of these tags.

        Raises:
            SetupError: nothing has such a name, URI or tag.
        """
        self._turn(tools, prompts, resources, tags, on=True)

    def _turn(
        self,
        tools: Collection[str],
        prompts: Collection[str],
        resources: Collection[str],
        tags: Collection[str],
        *,
        on: bool,
    ) -> None:
        for option, given in (("tools", tools), ("prompts", prompts), ("resources", resources), ("tags", tags)):
            if isinstance(given, str):
                raise SetupError(f"{option}={given!r} is one string; give a list: {option}=[{given!r}]")
        self._parts.registry.turn({"tools": tools, "prompts": prompts, "resources": resources}, tags, on=on)

    # Objects with methods

    def add(self, instance: object, *, prefix: str = "") -> None:
        """Register the methods of an object that are decorated with `tool`, `prompt` or `resource` of this package.

        All calls share the object, also those that run side by side.

        Args:
            instance: the object.
            prefix: what goes before names, and into URIs, as for `include`.

        Raises:
            SetupError: no method is decorated, or one can't be registered; the message says why.
        """
        server: Any = self
        marked = list(marked_methods(instance))
        uris = [options.uri for _, options in marked if isinstance(options, ResourceOptions)]
        part = Inclusion(self._parts.registry.home, prefix, serves=serves_any(uris))
        with self._parts.registry.of_part(part):
            for method, options in marked:
                name = part.name(name_of(method, options))
                if isinstance(options, ResourceOptions):
                    server.resource(**_given(replace(options, name=name, uri=part.uri(options.uri))))(method)
                elif isinstance(options, ToolOptions):
                    server.tool(**_given(replace(options, name=name)))(method)
                else:
                    server.prompt(**_given(replace(options, name=name)))(method)


def _given(options: ToolOptions | PromptOptions | ResourceOptions) -> dict[str, Any]:
    return {each.name: getattr(options, each.name) for each in fields(options)}

"""The options of the decorators; `MRTRServer` documents them where they are given."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from ..errors import SetupError
from ..flow.asks import Confirm, Text
from ..flow.authorization import Authorize
from ..protocol.content import Annotations, Icon, ToolAnnotations
from ..protocol.media import is_mime_type
from ..protocol.meta import meta_problem
from .option_types import LISTED, RESOURCE, TOOL, check_seconds, check_types

Icons = Sequence[Icon | Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ListedOptions:
    """Options of everything that is listed."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    icons: Icons = ()
    meta: Mapping[str, Any] | None = None
    tags: Collection[str] = ()
    answer_within: float | None = None
    authorize: Authorize | None = None
    scopes: Sequence[str] = ()
    visible: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_types(self, LISTED)
        check_seconds(answer_within=self.answer_within)
        tags: Any = self.tags
        if isinstance(tags, str) or not all(isinstance(tag, str) and tag for tag in tags):
            raise SetupError('tags= takes a list of texts, such as ["billing"]')
        if problem := meta_problem(self.meta or {}):
            raise SetupError(f"meta=: {problem}")
        if self.tags and "tags" in (self.meta or ()):
            raise SetupError("tags= are listed as `tags` of `_meta`, which meta= has, too; keep one of them")


@dataclass(frozen=True)
class Task:
    """How calls of a tool become tasks: `@app.tool(task=Task("optional", ttl=600))`.

    Args:
        mode: what happens to clients that do not support tasks: with `"optional"` they wait for the result, with
            `"required"` they are refused.
        rounds_first: whether a call begins in rounds and becomes a task at `ctx.background()`. Default: True where the
            function calls that; otherwise a call is a task at once.
        ttl: how long a task is kept after its creation, in seconds, unless its client asks for less. Default:
            `Limits.task_seconds`.
        poll: how often a client should ask for the task, in seconds. Default: `Limits.poll_seconds`.

    Raises:
        SetupError: one can't be right; the message says why.
    """

    mode: Literal["optional", "required"] = "optional"
    rounds_first: bool | None = None
    ttl: float | None = None
    poll: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("optional", "required"):
            raise SetupError(f'Task({self.mode!r}): choose from "optional", "required"')
        check_types(self, TOOL)
        check_seconds(ttl=self.ttl, poll=self.poll)


@dataclass(frozen=True)
class InputSchema:
    """A JSON Schema of a tool's arguments, which the tool checks itself: `InputSchema(schema, validate=False)`.

    Args:
        schema: the schema, served as it is.
        validate: whether arguments are validated against it. With False it is only served, and the function gets
            whatever the client sent and has to check it.

    Raises:
        SetupError: one can't be right; the message says why.
    """

    schema: Mapping[str, Any]
    validate: bool = True

    def __post_init__(self) -> None:
        check_types(self, TOOL)


@dataclass(frozen=True, kw_only=True)
class ToolOptions(ListedOptions):
    """Options of `@app.tool`."""

    annotations: ToolAnnotations | Mapping[str, Any] | None = None
    input_schema: Mapping[str, Any] | InputSchema | None = None
    confirm: Text | Confirm | None = None
    single_use: bool = False
    timeout: float | None = None
    task: Literal["never", "optional", "required"] | Task = "never"
    concurrency: int | None = None
    rate_limit: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.task, Task) and self.task not in ("never", "optional", "required"):
            raise SetupError(f'task={self.task!r}: choose from "never", "optional", "required", or give a Task(...)')
        check_types(self, TOOL)
        if self.task == "never" and self.concurrency is not None:
            raise SetupError(
                f'concurrency={self.concurrency!r} applies to tasks; give task="optional" or "required", too'
            )
        check_seconds(timeout=self.timeout)
        if self.concurrency is not None and self.concurrency < 1:
            raise SetupError("concurrency= must be at least 1")

    @property
    def as_task(self) -> Task | None:
        """How calls become tasks; None where they do not."""
        if isinstance(self.task, Task):
            return self.task
        return None if self.task == "never" else Task(self.task)


@dataclass(frozen=True, kw_only=True)
class PromptOptions(ListedOptions):
    """Options of `@app.prompt`."""


@dataclass(frozen=True)
class ResourceOptions(ListedOptions):
    """Options of `@app.resource`."""

    uri: str
    _: KW_ONLY
    mime_type: str | None = None
    size: int | None = None
    annotations: Annotations | Mapping[str, Any] | None = None
    cache_seconds: float = 0.0
    cache: Literal["public", "private"] = "private"

    def __post_init__(self) -> None:
        if not isinstance(self.uri, str):
            raise SetupError('A resource needs its URI: use @app.resource("scheme://...")')
        super().__post_init__()
        check_types(self, RESOURCE)
        if self.mime_type is not None and not is_mime_type(self.mime_type):
            raise SetupError(f'mime_type={self.mime_type!r} is no MIME type; write one such as "text/plain"')


@dataclass(frozen=True)
class CompletionOptions:
    """Options of `@app.completion`."""

    argument: str
    _: KW_ONLY
    prompt: str | None = None
    resource: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.argument, str):
            raise SetupError('A completion needs its argument: use @app.completion("argument", prompt="...")')
        if (self.prompt is None) == (self.resource is None):
            raise SetupError("A completion is for prompt=... or for resource=..., one of the two")


@dataclass(frozen=True)
class CallbackOptions:
    """Options of `@app.callback`."""

    name: str
    _: KW_ONLY
    methods: Iterable[Literal["GET", "POST"]] = ("GET",)
    origins: Iterable[str] = ()
    page: Callable[[Request], Response | Awaitable[Response]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SetupError('A callback needs its name: use @app.callback("name")')

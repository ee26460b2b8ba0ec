"""The options of the decorators; `MRTRServer` documents them where they are given."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from ..errors import SetupError
from ..fields import POSITIVE_SECONDS, Checked, several, takes
from ..flow.asks import Confirm, Text
from ..flow.authorization import Authorize
from ..protocol.apps import AppPage, Ui
from ..protocol.content import Annotations, Icon, ToolAnnotations
from ..protocol.outgoing import is_mime_type, meta_problem

Icons = Sequence[Icon | Mapping[str, Any]]


TAKES_ICONS = takes('a list of icons: [Icon(src="https://...")]', several(Icon, Mapping))


@dataclass(frozen=True, kw_only=True)
class ListedOptions(Checked):
    """Options of everything that is listed."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    icons: Icons = field(default=(), metadata=TAKES_ICONS)
    meta: Mapping[str, Any] | None = None
    tags: Collection[str] = field(default=(), metadata=takes(""))
    answer_within: float | None = field(default=None, metadata=takes(POSITIVE_SECONDS))
    authorize: Authorize | None = None
    scopes: Sequence[str] = field(default=(), metadata=takes(""))
    visible: Sequence[str] = field(default=(), metadata=takes(""))

    def __post_init__(self) -> None:
        super().__post_init__()
        tags: Any = self.tags
        if isinstance(tags, str) or not all(isinstance(tag, str) and tag for tag in tags):
            raise SetupError('tags= takes a list of texts, such as ["billing"]')
        if problem := meta_problem(self.meta or {}):
            raise SetupError(f"meta=: {problem}")
        if self.tags and "tags" in (self.meta or ()):
            raise SetupError("tags= are listed as `tags` of `_meta`, which meta= has, too; keep one of them")


@dataclass(frozen=True)
class Task(Checked):
    """How calls of a tool become tasks: `@app.tool(task=Task("optional", ttl=600))`.

    Args:
        mode: what happens to clients that do not support tasks: with `"optional"` they wait for the result, with
            `"required"` they are refused.
        rounds_first: whether a call begins in rounds and becomes a task at `ctx.background()`; otherwise it is a task
            at once. A function that calls that has to say which.
        ttl: how long a task is kept after its creation, in seconds, unless its client asks for less. Default:
            `Limits.task_seconds`.
        poll: how often a client should ask for the task, in seconds. Default: `Limits.poll_seconds`.

    Raises:
        SetupError: one can't be right; the message says why.
    """

    mode: Literal["optional", "required"] = field(default="optional", metadata=takes(""))
    rounds_first: bool | None = None
    ttl: float | None = field(default=None, metadata=takes(POSITIVE_SECONDS))
    poll: float | None = field(default=None, metadata=takes(POSITIVE_SECONDS))

    def __post_init__(self) -> None:
        if self.mode not in ("optional", "required"):
            raise SetupError(f'Task({self.mode!r}): choose from "optional", "required"')
        super().__post_init__()


@dataclass(frozen=True)
class InputSchema(Checked):
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


@dataclass(frozen=True, kw_only=True)
class ToolOptions(ListedOptions):
    """Options of `@app.tool`."""

    annotations: ToolAnnotations | Mapping[str, Any] | None = None
    input_schema: Mapping[str, Any] | InputSchema | None = None
    confirm: Text | Confirm | None = None
    single_use: bool = False
    timeout: float | None = field(default=None, metadata=takes(POSITIVE_SECONDS))
    task: Literal["never", "optional", "required"] | Task = field(default="never", metadata=takes(""))
    concurrency: int | None = field(default=None, metadata=takes("a number of tasks"))
    rate_limit: str | None = field(default=None, metadata=takes('a rate, such as "5/minute"'))
    ui: AppPage | str | Ui | None = field(
        default=None, metadata=takes("a page, as app.ui(...) returns it, or a Ui(...)")
    )
    used_by: Literal["model", "app"] | None = field(default=None, metadata=takes(""))
    text: Callable[[Any], Any] | None = field(default=None, metadata=takes("a function of the result", callable))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.task, Task) and self.task not in ("never", "optional", "required"):
            raise SetupError(f'task={self.task!r}: choose from "never", "optional", "required", or give a Task(...)')
        if self.task == "never" and self.concurrency is not None:
            raise SetupError(
                f'concurrency={self.concurrency!r} applies to tasks; give task="optional" or "required", too'
            )
        if self.concurrency is not None and self.concurrency < 1:
            raise SetupError("concurrency= must be at least 1")

    @property
    def drawn(self) -> Ui:
        """How it is drawn."""
        return self.ui if isinstance(self.ui, Ui) else Ui(self.ui)

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
    size: int | None = field(default=None, metadata=takes("a number of bytes"))
    annotations: Annotations | Mapping[str, Any] | None = None
    cache_seconds: float = 0.0
    cache: Literal["public", "private"] = "private"

    def __post_init__(self) -> None:
        if not isinstance(self.uri, str):
            raise SetupError('A resource needs its URI: use @app.resource("scheme://...")')
        super().__post_init__()
        if self.mime_type is not None and not is_mime_type(self.mime_type):
            raise SetupError(f'mime_type={self.mime_type!r} is no MIME type; write one such as "text/plain"')


@dataclass(frozen=True, kw_only=True)
class GuardedOptions(Checked):
    """Who may use what is registered, and what finds it."""

    tags: Collection[str] = field(default=(), metadata=takes(""))
    authorize: Authorize | None = None
    scopes: Sequence[str] = field(default=(), metadata=takes(""))
    visible: Sequence[str] = field(default=(), metadata=takes(""))


@dataclass(frozen=True)
class SkillFolderOptions(GuardedOptions):
    """Options of `app.skills`."""

    folder: str | Path = field(metadata=takes('the path of a folder, such as "skills/"'))
    _: KW_ONLY
    lists_asks: bool = False


@dataclass(frozen=True)
class SkillOptions(GuardedOptions):
    """Options of `@app.skill`."""

    path: str
    _: KW_ONLY
    description: str | None = None
    metadata: Mapping[str, str] | None = None
    lists_asks: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            raise SetupError('A skill needs its name: use @app.skill("refunds"), or a path such as "billing/refunds"')
        super().__post_init__()


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

"""What servers return, read with care: they may be anybody's."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from ..errors import BadReply
from ..protocol.messages import JSON, TaskStatus
from ..schema.peer_validator import validator_of


class Read(BaseModel):
    """What a server sent. What is not known of it is left out."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        """Read a field that is null as one that is not there, as some servers send it."""
        if isinstance(value, dict) and None in value.values():
            return {name: each for name, each in value.items() if each is not None}
        return value


M = TypeVar("M", bound=BaseModel)


def read(kind: type[M], value: Any) -> M:
    try:
        found: M = validator_of(kind).validate(value)
    except ValidationError as error:
        where = "; ".join(".".join(map(str, each["loc"])) for each in error.errors()[:3])
        raise BadReply(f"The server sent what is no {kind.__name__}: {where}") from None
    return found


def text_of(blocks: Sequence[JSON]) -> str:
    """Return the text of content, one block a line."""
    return "\n".join(each["text"] for each in blocks if isinstance(each.get("text"), str))


class ToolReply(Read):
    """What a tool returned.

    Args:
        content: its blocks, as sent.
        structured_content: the structured result; None if there is none.
        is_error: whether the tool says that it failed. `Client.call` raises `CallFailed` then.
        meta: what the server adds, as sent.
    """

    content: list[JSON] = Field(default_factory=list)
    structured_content: Any = None
    is_error: bool = False
    meta: JSON = Field(default_factory=dict, alias="_meta")

    @property
    def text(self) -> str:
        """The text of its content."""
        return text_of(self.content)


class _PromptMessage(Read):
    role: str
    content: JSON | list[JSON]


class PromptReply(Read):
    """A prompt, ready for a model.

    Args:
        description: what it is for.
        messages: its messages: each has a `role` and its `content`.
    """

    description: str = ""
    messages: list[_PromptMessage]

    @property
    def text(self) -> str:
        """The text of its messages."""
        contents = [each.content for each in self.messages]
        return text_of([block for each in contents for block in (each if isinstance(each, list) else [each])])


class ResourceReply(Read):
    """What a resource has.

    Args:
        contents: its parts, as sent: each has a `uri`, and a `text` or a `blob` in Base64.
    """

    contents: list[JSON]

    @property
    def text(self) -> str:
        """The text of its parts."""
        return text_of(self.contents)


class Tool(Read):
    """A tool in the list of a server.

    Args:
        name: what it is called by.
        title: for people.
        description: what it does.
        input_schema: the JSON Schema of its arguments.
        output_schema: that of its structured result; None if it has none.
        annotations: hints such as `readOnlyHint`. A server may say what it likes there.
    """

    name: str
    title: str | None = None
    description: str = ""
    input_schema: JSON = Field(default_factory=dict)
    output_schema: JSON | None = None
    annotations: JSON = Field(default_factory=dict)

    @property
    def is_repeatable(self) -> bool:
        """Whether it says that a second call with the same arguments changes nothing more."""
        return self.annotations.get("readOnlyHint") is True or self.annotations.get("idempotentHint") is True


class _PromptArgument(Read):
    name: str
    description: str = ""
    required: bool = False


class Prompt(Read):
    """A prompt in the list of a server.

    Args:
        name: what it is got by.
        title: for people.
        description: what it is for.
        arguments: what it takes: each has a `name`, a `description`, and whether it is `required`.
    """

    name: str
    title: str | None = None
    description: str = ""
    arguments: list[_PromptArgument] = Field(default_factory=list)


class Resource(Read):
    """A resource in the list of a server.

    Args:
        uri: what it is read by.
        name: names it.
        title: for people.
        description: what it has.
        mime_type: of what it has.
    """

    uri: str
    name: str = ""
    title: str | None = None
    description: str = ""
    mime_type: str | None = None


class Template(Read):
    """A template of resources in the list of a server.

    Args:
        uri_template: the form of their URIs (RFC 6570).
        name: names it.
        title: for people.
        description: what they have.
        mime_type: of what they have.
    """

    uri_template: str
    name: str = ""
    title: str | None = None
    description: str = ""
    mime_type: str | None = None


class TaskState(Read):
    """How a task is doing.

    Args:
        task_id: names it; `Client.follow` takes it.
        status: where it is.
        status_message: what it is doing, in words of the server.
    """

    task_id: str
    status: TaskStatus
    status_message: str = ""


class OfferedEvent(Read):
    """A type of event in the list of a server.

    Args:
        name: what it is followed by.
        description: what it is.
        input_schema: the JSON Schema of the arguments, which say which of its events are wanted.
        payload_schema: that of what an event carries.
        delivery: how it is delivered: `"poll"`, `"push"` and `"webhook"`.
        meta: what the server adds, as sent.
    """

    name: str
    description: str = ""
    input_schema: JSON = Field(default_factory=dict)
    payload_schema: JSON = Field(default_factory=dict)
    delivery: list[str] = Field(default_factory=list)
    meta: JSON = Field(default_factory=dict, alias="_meta")


class Event(Read):
    """Something that has happened, as a server tells it.

    Args:
        id: names it: the same for the same event, however often it comes.
        name: of its type.
        data: what it carries. It comes from elsewhere, and is no more to be trusted than the result of a tool.
        at: when it happened, as ISO 8601.
        cursor: where to continue after it; of a page of polled events, where the page began, but for its last one.
            None where the server can't go back.
        meta: what the server adds, as sent.
    """

    id: str = Field(alias="eventId")
    name: str
    data: JSON
    at: str = Field(alias="timestamp")
    cursor: str | None = None
    meta: JSON = Field(default_factory=dict, alias="_meta")


class EventPlace(Read):
    """Where a stream is, and whether events before that are missing."""

    cursor: str | None = None
    truncated: bool = False


class EventPage(EventPlace):
    """What a poll has found."""

    events: list[Event] = Field(default_factory=list)
    has_more: bool = False
    next_poll_ms: Any = None

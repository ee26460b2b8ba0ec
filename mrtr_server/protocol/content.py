"""Content of results and prompts: text, images, audio, resources (Tools, Tool Result)."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
)
from pydantic.alias_generators import to_camel

from ..errors import SetupError
from .addresses import fault_of_icon, fault_of_uri


def _base64(value: Any) -> Any:
    return b64encode(value).decode("ascii") if isinstance(value, bytes | bytearray) else value


Base64 = Annotated[
    bytes | str, BeforeValidator(_base64), WithJsonSchema({"type": "string", "contentEncoding": "base64"})
]
"""Bytes, or text that is already Base64; kept as Base64 text."""


def _without(fault_of: Callable[[str], str]) -> AfterValidator:
    """Return what refuses an address with a fault."""

    def check(address: str) -> str:
        if fault := fault_of(address):
            raise ValueError(f"the address {fault}")
        return address

    return AfterValidator(check)


Uri = Annotated[str, _without(fault_of_uri)]
IconUri = Annotated[str, _without(fault_of_icon)]


class Wire(BaseModel):
    """Base of what is written to the wire: camelCase there, snake_case here."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        serialize_by_alias=True,
        hide_input_in_errors=True,  # which go to the log
    )
    # `meta` has no plain alias below: type checkers would take it for the name of the constructor's parameter.

    def wire(self) -> dict[str, Any]:
        """Return the object as plain JSON, without the fields that are not set."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Annotations(Wire):
    """Hints on who content is for and how much it matters (Resources, Annotations).

    Args:
        audience: who should see it: `"user"`, `"assistant"`, or both.
        priority: how much it matters, from 0 (optional) to 1 (required).
        last_modified: when it was last changed, in ISO 8601.
    """

    audience: list[Literal["user", "assistant"]] | None = None
    priority: Annotated[float, Field(ge=0, le=1)] | None = None
    last_modified: str | None = None


class Icon(Wire):
    """An icon of a server, tool, prompt or resource.

    Args:
        src: where it is: an `https:` address, or a `data:` URI of an image.
        mime_type: its type, such as `"image/png"`, where the URI's own may be wrong or missing.
        sizes: its sizes in pixels, such as `["48x48"]`, or `["any"]`.
        theme: the theme that it is drawn for; None for any.
    """

    src: IconUri
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["light", "dark"] | None = None


def icon_entries(where: str, icons: Iterable[Icon | Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """Return icons as plain JSON; None if there are none. Raises `SetupError` for one that clients must not fetch."""
    entries = [icon.wire() if isinstance(icon, Icon) else dict(icon) for icon in icons]
    for entry in entries:
        src = entry.get("src")
        if fault := fault_of_icon(src) if isinstance(src, str) else "is missing":
            raise SetupError(f"{where}: the src of an icon {fault}")
    return entries or None


class ToolAnnotations(Wire):
    """Hints on what a tool does (Tools, Data Types). Clients take them as hints only.

    Args:
        title: a name for people.
        read_only_hint: whether it changes nothing.
        destructive_hint: whether it may destroy something, and not only add to it.
        idempotent_hint: whether a second call with the same arguments changes nothing more.
        open_world_hint: whether it deals with a world outside, such as the web.
    """

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class Content(Wire):
    """Base of the content blocks."""

    annotations: Annotations | None = None
    meta: dict[str, Any] | None = Field(
        default=None, validation_alias=AliasChoices("meta", "_meta"), serialization_alias="_meta"
    )


class TextContent(Content):
    """Text (Tools, Text Content).

    Args:
        text: the text.
        type: always `"text"`; leave it out.
        annotations: who it is for and how important it is.
        meta: the block's `_meta`.
    """

    type: Literal["text"] = "text"
    text: str


class ImageContent(Content):
    """An image (Tools, Image Content).

    Args:
        data: bytes, or Base64 text.
        mime_type: its type.
        type: always `"image"`; leave it out.
        annotations: who it is for and how important it is.
        meta: the block's `_meta`.
    """

    type: Literal["image"] = "image"
    data: Base64
    mime_type: str = "image/png"


class AudioContent(Content):
    """Audio (Tools, Audio Content).

    Args:
        data: bytes, or Base64 text.
        mime_type: its type.
        type: always `"audio"`; leave it out.
        annotations: who it is for and how important it is.
        meta: the block's `_meta`.
    """

    type: Literal["audio"] = "audio"
    data: Base64
    mime_type: str = "audio/wav"


class ResourceContents(Wire):
    """What a resource holds: text or bytes (Resources, Resource Contents).

    Args:
        uri: of the resource; left out, it is the one that was read.
        mime_type: the type of what it holds.
        text: what it holds, if that is text.
        blob: what it holds otherwise: bytes, or Base64 text.
        meta: its `_meta`.
    """

    uri: Uri = ""
    mime_type: str | None = None
    text: str | None = None
    blob: Base64 | None = None
    meta: dict[str, Any] | None = Field(
        default=None, validation_alias=AliasChoices("meta", "_meta"), serialization_alias="_meta"
    )


class EmbeddedResource(Content):
    """A resource within a result (Tools, Embedded Resources).

    Args:
        resource: the resource, with its `uri`.
        type: always `"resource"`; leave it out.
        annotations: who it is for and how important it is.
        meta: the block's `_meta`.
    """

    type: Literal["resource"] = "resource"
    resource: ResourceContents

    @field_validator("resource")
    @classmethod
    def _refuse_none_without_uri(cls, resource: ResourceContents) -> ResourceContents:
        if not resource.uri:
            raise ValueError("the resource has no uri=, and within a result nothing else says which one it is")
        return resource


class ResourceLink(Content):
    """A link to a resource that the client can read (Tools, Resource Links).

    Args:
        uri: of the resource.
        name: its name.
        title: a name for people.
        description: what it is.
        mime_type: the type of what it holds.
        size: how large it is, in bytes.
        icons: for people to recognize it by.
        type: always `"resource_link"`; leave it out.
        annotations: who it is for and how important it is.
        meta: the block's `_meta`.
    """

    type: Literal["resource_link"] = "resource_link"
    uri: Uri
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None


class ToolResult(Wire):
    """A tool's result in full, for what a plain return value does not say (Tools, Tool Result).

    Args:
        content: blocks for the model; plain strings are taken as text.
        structured_content: any JSON value.
        is_error: whether the call failed.
        meta: the result's `_meta`.
    """

    content: list[Any] = Field(default_factory=list)
    structured_content: Any = None
    is_error: bool = False
    meta: dict[str, Any] | None = Field(
        default=None, validation_alias=AliasChoices("meta", "_meta"), serialization_alias="_meta"
    )


class Message(Wire):
    """A message of a prompt (Prompts, PromptMessage).

    Args:
        content: a content block, or a string for text.
        role: who speaks.
    """

    role: Literal["user", "assistant"] = "user"
    content: Any

    def __init__(self, content: Any, role: Literal["user", "assistant"] = "user") -> None:
        super().__init__(content=content, role=role)


class PromptResult(Wire):
    """A prompt's result in full, with a description of its own (Prompts, Getting a Prompt).

    Args:
        messages: strings (the user's), `Message`s or content blocks.
        description: what the prompt is for.
        meta: the result's `_meta`.
    """

    messages: list[Any]
    description: str | None = None
    meta: dict[str, Any] | None = Field(
        default=None, validation_alias=AliasChoices("meta", "_meta"), serialization_alias="_meta"
    )


class Completion(Wire):
    """Suggestions in full (Completion).

    Args:
        values: the best ones, the best first. The first 100 are sent.
        total: how many there are in all, if that is known.
        has_more: whether there are more than these.
    """

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


CONTENT_TYPES = frozenset({"text", "image", "audio", "resource", "resource_link"})
_WITH_ADDRESSES: dict[str, type[Content]] = {"resource": EmbeddedResource, "resource_link": ResourceLink}


def is_content(value: Any) -> bool:
    """Return whether a value is a content block, of ours or of another library with pydantic models."""
    return hasattr(value, "model_dump") and getattr(value, "type", None) in CONTENT_TYPES


def uses_tools(message: Mapping[str, Any]) -> bool:
    """Return whether a message of a sampling says how the model used tools (Sampling, Tools in Sampling)."""
    return any(each.get("type") in ("tool_use", "tool_result") for each in parts_of(message))


def parts_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the content blocks of a message of a sampling, which may also be one by itself."""
    content = message.get("content")
    return [each for each in (content if isinstance(content, list) else [content]) if isinstance(each, dict)]


def block(value: Any) -> dict[str, Any]:
    """Return a content block as plain JSON; a string becomes text."""
    if isinstance(value, str):
        return {"type": "text", "text": value}
    if is_content(value):
        written = dict(value.model_dump(mode="json", by_alias=True, exclude_none=True))
        if written["type"] in _WITH_ADDRESSES:  # another library takes any address, and a copy of ours may have one
            _WITH_ADDRESSES[written["type"]].model_validate(written)
        return written
    raise TypeError(f"{type(value).__name__} is not content; return a string, or a content object")


def blocks(values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return content blocks as plain JSON."""
    return [block(value) for value in values]

"""Content of results and prompts: text, images, audio, resources (Tools, Tool Result)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from ..errors import SetupError
from .outgoing import Base64, Meta, MimeType, fault_of_icon, fault_of_uri, of_kinds, without_url


def _without(fault_of: Callable[[str], str]) -> AfterValidator:
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


def wire_of(model: type[Wire], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain JSON as a model has it, with the members that the model does not have. Raises `ValidationError`."""
    valid = model.model_validate(given)
    known = {
        name for field, info in model.model_fields.items() for name in (field, info.alias, info.serialization_alias)
    }
    return {**{name: value for name, value in given.items() if name not in known}, **valid.wire()}


def first_problem(error: ValidationError) -> str:
    """Return where the first problem is, and what, without the value."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where and f'{where}: '}{first['msg']}"


def _date(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("it is no date of ISO 8601, as `datetime.isoformat` writes it") from None
    return text


class Annotations(Wire):
    """Hints on who content is for and how much it matters (Resources, Annotations).

    Args:
        audience: who should see it: `"user"`, `"assistant"`, or both.
        priority: how much it matters, from 0 (optional) to 1 (required).
        last_modified: when it was last changed, in ISO 8601.
    """

    audience: list[Literal["user", "assistant"]] | None = None
    priority: Annotated[float, Field(ge=0, le=1)] | None = None
    last_modified: Annotated[str, AfterValidator(_date)] | None = None


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
    entries = []
    for icon in icons:
        given = icon.wire() if isinstance(icon, Icon) else icon
        src = given.get("src")
        if fault := fault_of_icon(src) if isinstance(src, str) else "is missing":
            raise SetupError(f"{where}: the src of an icon {fault}")
        try:
            entries.append(wire_of(Icon, given))
        except ValidationError as error:
            raise SetupError(f"{where}: an icon can't be sent: {first_problem(error)}") from None
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
    meta: Meta | None = Field(default=None, validation_alias=AliasChoices("meta", "_meta"), serialization_alias="_meta")


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
        data: bytes, Base64 text, or a data URL, which is taken apart.
        mime_type: its type; of a data URL, by default that of the URL.
        type: always `"image"`; leave it out.
        annotations: who it is for and how important it is.
        meta: the block's `_meta`.
    """

    type: Literal["image"] = "image"
    data: Base64
    mime_type: Annotated[MimeType, of_kinds("image", "image/png")] = "image/png"

    @model_validator(mode="before")
    @classmethod
    def _take_url_apart(cls, given: Any) -> Any:
        return without_url(given, "data")


class AudioContent(Content):
    """Audio (Tools, Audio Content).

    Args:
        data: bytes, Base64 text, or a data URL, which is taken apart.
        mime_type: its type; of a data URL, by default that of the URL.
        type: always `"audio"`; leave it out.
        annotations: who it is for and how important it is.
        meta: the block's `_meta`.
    """

    type: Literal["audio"] = "audio"
    data: Base64
    mime_type: Annotated[MimeType, of_kinds("audio|video|application", "audio/wav")] = "audio/wav"

    @model_validator(mode="before")
    @classmethod
    def _take_url_apart(cls, given: Any) -> Any:
        return without_url(given, "data")


class ResourceContents(Wire):
    """What a resource holds: text or bytes (Resources, Resource Contents).

    Args:
        uri: of the resource; left out, it is the one that was read.
        mime_type: the type of what it holds.
        text: what it holds, if that is text.
        blob: what it holds otherwise: bytes, Base64 text, or a data URL, which is taken apart.
        meta: its `_meta`.
    """

    uri: Uri = ""
    mime_type: MimeType | None = None
    text: str | None = None
    blob: Base64 | None = None
    meta: Meta | None = Field(default=None, validation_alias=AliasChoices("meta", "_meta"), serialization_alias="_meta")

    @model_validator(mode="before")
    @classmethod
    def _take_url_apart(cls, given: Any) -> Any:
        return without_url(given, "blob")

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if self.text is not None and self.blob is not None:
            raise ValueError("it has text and blob; a resource holds one of them")
        return self


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

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if not self.resource.uri or (self.resource.text is None and self.resource.blob is None):
            raise ValueError("the resource needs its uri, and text or blob; to name a resource alone, use ResourceLink")
        return self


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
    mime_type: MimeType | None = None
    size: Annotated[int, Field(ge=0)] | None = None
    icons: list[Icon] | None = None


class ToolResult(Wire):
    """A tool's result in full, for what a plain return value does not say (Tools, Tool Result).

    Args:
        content: blocks for the model, as content objects or plain JSON; plain strings are taken as text. Left empty, it
            is the JSON of `structured_content`.
        structured_content: any JSON value.
        is_error: whether the call failed.
        meta: the result's `_meta`.
    """

    content: list[Any] = Field(default_factory=list)
    structured_content: Any = None
    is_error: bool = False
    meta: Meta | None = Field(default=None, validation_alias=AliasChoices("meta", "_meta"), serialization_alias="_meta")


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
    meta: Meta | None = Field(default=None, validation_alias=AliasChoices("meta", "_meta"), serialization_alias="_meta")


class Completion(Wire):
    """Suggestions in full (Completion).

    Args:
        values: the best ones, the best first. The first 100 are sent.
        total: how many there are in all, if that is known.
        has_more: whether there are more than these.
    """

    values: list[str]
    total: Annotated[int, Field(ge=0)] | None = None
    has_more: bool | None = None


_BLOCKS: Mapping[str, type[Content]] = {
    "text": TextContent,
    "image": ImageContent,
    "audio": AudioContent,
    "resource": EmbeddedResource,
    "resource_link": ResourceLink,
}

CONTENT_TYPES = frozenset(_BLOCKS)


_MAIN_FIELDS = {"text": "text", "image": "data", "audio": "data", "resource": "resource", "resource_link": "uri"}
"""The fields that make an object of another library content, and not data that happens to have a type."""


def is_content(value: Any) -> bool:
    """Return whether a value is a content block, of ours or of another library with pydantic models."""
    if isinstance(value, Content):
        return True
    kind = getattr(value, "type", None) if hasattr(value, "model_dump") else None
    return isinstance(kind, str) and kind in _MAIN_FIELDS and hasattr(value, _MAIN_FIELDS[kind])


def is_written_content(value: Any) -> bool:
    """Return whether a value is a dictionary that looks like a content block, and may be data all the same."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    return isinstance(kind, str) and kind in _MAIN_FIELDS and _MAIN_FIELDS[kind] in value


def is_content_class(cls: type[BaseModel]) -> bool:
    """Return whether the values of a class are content blocks."""
    kind = cls.model_fields.get("type")
    kinds = () if kind is None else get_args(kind.annotation)
    return any(each in CONTENT_TYPES and _MAIN_FIELDS[each] in cls.model_fields for each in kinds)


def uses_tools(message: Mapping[str, Any]) -> bool:
    """Return whether a message of a sampling says how the model used tools (Sampling, Tools in Sampling)."""
    return any(each.get("type") in ("tool_use", "tool_result") for each in parts_of(message))


def parts_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the content blocks of a message of a sampling, which may also be one by itself."""
    content = message.get("content")
    return [each for each in (content if isinstance(content, list) else [content]) if isinstance(each, dict)]


def block(value: Any) -> dict[str, Any]:
    """Return a content block as plain JSON; a string becomes text. Raises `TypeError` if it can't be sent."""
    if isinstance(value, str):
        return {"type": "text", "text": value}
    if isinstance(value, EmbeddedResource | ResourceLink):  # a copy may have an address that was not checked
        return _checked(value.wire())
    if isinstance(value, Content):
        return value.wire()
    if is_content(value):  # of another library
        return _checked(value.model_dump(mode="json", by_alias=True, exclude_none=True))
    if isinstance(value, Mapping):
        return _checked(value)
    raise TypeError(f"{type(value).__name__} is not content; return a string, or a content object")


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    kind = given.get("type")
    model = _BLOCKS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise TypeError(f"a dictionary is content if its type is one of {', '.join(_BLOCKS)}; this one has another")
    try:
        return wire_of(model, given)
    except ValidationError as error:
        raise TypeError(f"this {kind} content can't be sent: {first_problem(error)}") from None


ROLES = ("user", "assistant")  # who speaks in messages of prompts and samplings


def role_and_content(message: Any) -> tuple[str, Any]:
    """Return who speaks in a message, and what; text and content are the user's. Raises `TypeError`."""
    if isinstance(message, Mapping) and ("role" in message or "type" not in message):
        if "role" not in message or "content" not in message:
            raise TypeError('a message that is a dictionary has "role" and "content"')
        role, content = message["role"], message["content"]
    elif hasattr(message, "role"):
        role, content = message.role, getattr(message, "content", None)
    else:
        return "user", message
    if role not in ROLES:
        raise TypeError(
            f"the role of a message is one of {', '.join(ROLES)}; there is no other, nor one for the system"
        )
    return str(role), content


def sampling_block(value: Any) -> dict[str, Any]:
    """Return a content block of a sampling as plain JSON: it may use tools, and link to nothing. Raises `TypeError`."""
    if hasattr(value, "model_dump") and not isinstance(value, Content):
        value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    match value.get("type") if isinstance(value, Mapping) else None:
        case "tool_use":
            if not (_is_text(value, "id") and _is_text(value, "name") and isinstance(value.get("input"), Mapping)):
                raise TypeError("a tool_use has id and name, which are texts, and input, a dictionary")
            return dict(value)
        case "tool_result":
            content = value.get("content")
            if not (_is_text(value, "toolUseId") and isinstance(content, list | tuple)):
                raise TypeError("a tool_result has toolUseId, a text, and content, a list of content")
            return {**value, "content": blocks(content)}
    written = block(value)
    if written["type"] not in ("text", "image", "audio"):
        raise TypeError("a sampling takes text, images and audio, and no resources")
    return written


def _is_text(given: Mapping[str, Any], name: str) -> bool:
    return isinstance(given.get(name), str)


def blocks(values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return content blocks as plain JSON."""
    return [block(value) for value in values]

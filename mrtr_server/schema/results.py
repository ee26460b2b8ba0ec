"""From what a handler returns to the body of a result."""

from base64 import b64encode
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from inspect import Parameter, isclass, iscoroutinefunction
from types import CoroutineType, GeneratorType, NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, SchemaSerializer, core_schema, from_json, to_jsonable_python

from ..errors import FlowError, SetupError
from ..hints import for_result
from ..protocol.content import (
    Completion,
    Content,
    PromptResult,
    ResourceContents,
    ToolResult,
    block,
    is_content,
    is_content_class,
    is_written_content,
    role_and_content,
)
from ..protocol.messages import JSON
from ..well_formed import well_formed, write_json
from .structured import Structured, written
from .type_parts import union_members

MOST_VALUES = 100  # values of a completion (Completion, Completion Results)

Write = Callable[[Any], JSON]

_LISTS = (list, tuple, Sequence)
_STREAMS = (abc.AsyncIterator, abc.AsyncGenerator, abc.AsyncIterable)
_BYTES = (bytes, bytearray, memoryview)
_ANYTHING = SchemaSerializer(core_schema.any_schema(), core_schema.CoreConfig(ser_json_inf_nan="constants"))
_JSON_TYPES = frozenset({dict, list, tuple, int, float, bool})


def tool_results(where: str, returns: Any) -> tuple[JSON | None, Write]:
    """Return a tool's output schema, None for text and content; and what writes the body of a result."""
    # Bytes, and types without a JSON Schema, are refused by a `SetupError`.
    members = union_members(returns)
    if any(_bare(member) in _BYTES for member in members):
        raise SetupError(
            f"{where} returns bytes, whose kind is not known; return ImageContent(data=...), "
            "AudioContent(data=...), or EmbeddedResource(resource=ResourceContents(uri=..., blob=...))"
        )
    for member in members:
        if hint := for_result(member):
            raise SetupError(f"{where}: {member!r} is another framework's; return {hint}")
    declared = _declared_by(returns)
    if declared is None and (returns in (Parameter.empty, Any, None, NoneType) or any(map(_is_content_type, members))):
        lists = any(get_origin(member) in _LISTS and _is_content_type(member) for member in members)
        return None, _write_blocks if lists else _write_content
    structured = Structured(where, returns if declared is None else declared)

    def write(value: Any) -> JSON:
        if not isinstance(value, ToolResult):
            if isinstance(value, CoroutineType):
                raise _unawaited(value)
            value = list(value) if isinstance(value, GeneratorType) else value  # it can be looked at once
            return _structured(structured.dump(value), value)
        if value.is_error and value.structured_content is None:
            return _in_full(value)
        return _in_full(value.model_copy(update={"structured_content": structured.dump(value.structured_content)}))

    # A list of anything may hold content, whose results have no structure, so no schema is declared.
    return (None, _or_content(write)) if _is_list_of_anything(returns) else (structured.schema, write)


def _or_content(write: Write) -> Write:
    def write_list(value: Any) -> JSON:
        value = _whole(value)
        return _write_content(value) if _has_content(value) else write(value)

    return write_list


def with_text(where: str, returns: Any, write: Write, text: Callable[[Any], Any]) -> Write:
    """Return what writes a result with what `text` makes of its value, in place of the value as JSON."""
    if iscoroutinefunction(text):
        raise SetupError(f"{where}: text= takes a plain function of the result; its function is `async def`")
    if _declared_by(returns) is None and returns not in (Parameter.empty, Any):
        members = [member for member in union_members(returns) if member not in (None, NoneType)]
        if all(map(_is_content_type, members)):
            raise SetupError(
                f"{where}: text= is for structured results, and {returns!r} is text or content already; return a "
                "model, a dataclass or JSON values, or leave text= out"
            )

    def write_with_text(value: Any) -> JSON:
        value = _whole(value)
        body = write(value)
        if "structuredContent" not in body or (isinstance(value, ToolResult) and value.content):
            return body
        made = text(value.structured_content if isinstance(value, ToolResult) else value)
        if (content := _blocks_of(made)) is None:
            raise FlowError(f"text= returned a {type(made).__name__}; return a text, content, or a list of them")
        return {**body, "content": content}

    return write_with_text


def piece_results(where: str, returns: Any) -> Write:
    """Return what writes the body of a result from the pieces that a tool has yielded; text and content only."""
    if returns not in (Parameter.empty, Any):
        if get_origin(returns) not in _STREAMS and returns not in _STREAMS:
            raise SetupError(f"{where} is an async generator; annotate what it yields: AsyncIterator[str]")
        yielded = next(iter(get_args(returns)), Any)
        if not all(map(_is_piece_type, union_members(yielded))):
            raise SetupError(
                f"{where} yields {yielded!r}, but an async generator yields text and content, for which there is no "
                "output schema: annotate AsyncIterator[str] or content such as AsyncIterator[ImageContent], or return "
                "a structured result in place of yielding it"
            )
    return lambda content: {"content": content, "isError": False}


def _is_piece_type(annotation: Any) -> bool:
    return annotation in (Any, NoneType) or (annotation is not ToolResult and _is_content_type(annotation))


def piece_blocks(value: Any) -> Iterator[tuple[JSON, bool]]:
    """Yield each block of content of one piece, and whether it is plain text, which is joined to the last block."""
    for item in value if isinstance(value, list | tuple) else (value,):
        if item is None:
            continue
        if not (isinstance(item, str) or is_content(item)):
            raise FlowError(
                f"The tool yielded a {type(item).__name__}; yield text, or content such as ImageContent(data=...). To "
                "return a structured result or a ToolResult, return it in place of yielding"
            )
        yield block(item), isinstance(item, str)


def _declared_by(returns: Any) -> Any:
    """Return `T`, the type of the structured content, of `Annotated[ToolResult, T]`; None for another annotation."""
    if get_origin(returns) is not Annotated:
        return None
    annotation, first, *_ = get_args(returns)
    is_type = isclass(first) or get_origin(first) is not None
    return first if annotation is ToolResult and is_type else None


def said(text: str, *, is_error: bool = False) -> JSON:
    """Return the body of a result that says something."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def failed(message: str) -> JSON:
    """Return the body of a tool result that failed, with a message for the model (Tools, Error Handling)."""
    return said(message, is_error=True)


def prompt_body(value: Any, description: str | None) -> JSON:
    """Return the body for what a prompt returned: a string, a message, a list of them, or a `PromptResult`."""
    meta = None
    if isinstance(value, PromptResult):
        value, description, meta = value.messages, value.description or description, value.meta
    several = value if isinstance(value, list | tuple) else [value]
    body: JSON = {"messages": [_prompt_message(item) for item in several]}
    if description:
        body["description"] = description
    if meta:
        body["_meta"] = meta
    return body


def resource_body(value: Any, uri: str, mime_type: str | None) -> JSON:
    """Return the body for what a resource returned: text, bytes, JSON, `ResourceContents`, or a list of contents."""
    several = [*map(_ours, value)] if isinstance(value, list | tuple) else []
    if not any(isinstance(item, ResourceContents) for item in several):
        several = [_ours(value)]
    return {"contents": [_contents(item, uri, mime_type) for item in several]}


def _ours(item: Any) -> Any:
    """Return contents of the official SDK as ours, and anything else as it is."""
    if type(item).__name__ in ("TextResourceContents", "BlobResourceContents") and hasattr(item, "model_dump"):
        return ResourceContents.model_validate(item.model_dump(mode="json", by_alias=True, exclude_none=True))
    return item


def completion_body(value: Any) -> JSON:
    """Return the body for what a completion returned: a `Completion`, or values in the order of their rank."""
    if isinstance(value, str):
        raise TypeError("A completion returned one text; return a list of values")
    if not isinstance(value, Completion):
        value = Completion(values=list(value or ()))
    values = value.values[:MOST_VALUES]
    total = len(value.values) if value.total is None else value.total
    has_more = total > len(values) if value.has_more is None else value.has_more
    return {"completion": {"values": values, "total": total, "hasMore": has_more}}


def _is_list_of_anything(returns: Any) -> bool:
    members = [member for member in union_members(returns) if member not in (None, NoneType)]
    return bool(members) and all(
        member in _LISTS or (get_origin(member) in _LISTS and set(get_args(member)) <= {Any, object, ...})
        for member in members
    )


def _whole(value: Any) -> Any:
    """Return the values of a generator, which can be read once, as a list; anything else as it is."""
    return list(value) if isinstance(value, GeneratorType) else value


def _has_content(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(map(is_content, value))


def _is_content_type(annotation: Any) -> bool:
    """Return whether results of this type are text or content, so that no schema describes them."""
    if get_origin(annotation) is Annotated:
        return _is_content_type(get_args(annotation)[0])
    if annotation is str or annotation is ToolResult:
        return True
    if isclass(annotation) and issubclass(annotation, BaseModel):
        return is_content_class(annotation)
    if get_origin(annotation) in _LISTS:
        members = [member for item in get_args(annotation) for member in union_members(item)]
        return any(_bare(member) is not str and _is_content_type(member) for member in members)
    return False


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _write_blocks(value: Any) -> JSON:
    return {"content": [], "isError": False} if value in ([], ()) else _write_content(value)


def _write_content(value: Any) -> JSON:
    if type(value) is str:
        return {"content": [{"type": "text", "text": value}], "isError": False}
    if isinstance(value, ToolResult):
        return _in_full(value)
    if value is None:
        return {"content": [], "isError": False}
    value = _whole(value)
    if (content := _blocks_of(value)) is not None:
        return {"content": content, "isError": False}
    if type(value) not in _JSON_TYPES:
        if isinstance(value, CoroutineType):
            raise _unawaited(value)
        if hint := for_result(type(value)):
            raise FlowError(f"The result is another framework's {type(value).__name__}; return {hint}")
    try:
        return _structured(_jsonable(value), value)
    except (PydanticSerializationError, UnicodeDecodeError) as error:
        why = "it has bytes that are no text" if isinstance(error, UnicodeDecodeError) else error
        raise FlowError(
            f"The result can't be written as JSON ({why}); return text, content, a model, a dataclass or "
            "plain JSON values"
        ) from None


def _blocks_of(value: Any) -> list[JSON] | None:
    if isinstance(value, str) or is_content(value):
        return [block(value)]
    if not (isinstance(value, list | tuple) and value):
        return None
    if _has_content(value):  # what is beside it is text
        return [_part(each) for each in value if each is not None]
    return [block(each) for each in value] if all(isinstance(each, str) for each in value) else None


def _part(value: Any) -> JSON:
    if isinstance(value, str) or is_content(value) or is_written_content(value):
        return block(value)
    written: JSON = _structured(_jsonable(value), value)["content"][0]
    return written


def _jsonable(value: Any) -> Any:
    try:
        return written(
            value, lambda by_alias: _ANYTHING.to_python(value, mode="json", by_alias=by_alias, warnings=False)
        )
    except UnicodeEncodeError:
        return to_jsonable_python(well_formed(value), by_alias=True)


def _unawaited(value: "CoroutineType[Any, Any, Any]") -> FlowError:
    code = value.cr_code
    value.close()  # or Python would warn of it, too
    return FlowError(
        f"The result is a coroutine that was never awaited; write `await {value.__name__}(...)`. It is defined in "
        f'File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_qualname}'
    )


def _structured(plain: Any, value: Any) -> JSON:
    # Raises `FlowError` for content within the value, and `ValueError` for numbers that JSON has not.
    text = plain if isinstance(plain, str) else _json(plain)
    may_hold_content = text is not plain and ('"type":"' in text or '"_meta":' in text)
    if may_hold_content and (found := _content_within(value)) is not None:
        raise FlowError(
            f"The result has {type(found).__name__} within data, which no client would show. Return content by itself, "
            "in a list, or in ToolResult(content=[...], structured_content=...)"
        )
    return {"content": [{"type": "text", "text": text}], "structuredContent": plain, "isError": False}


def _content_within(value: Any) -> Any:
    if isinstance(value, _NO_DATA) or (is_content(value) and type(value).__name__ in _FOREIGN_CONTENT):
        return value
    within: Iterable[Any] = ()
    if isinstance(value, Mapping):
        within = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        within = value
    elif isinstance(value, BaseModel):
        within = (each for _, each in value)
    elif is_dataclass(value) and not isinstance(value, type):
        within = (getattr(value, each.name) for each in fields(value))
    return next((found for each in within if (found := _content_within(each)) is not None), None)


_NO_DATA = (Content, ResourceContents, ToolResult, PromptResult)
_FOREIGN_CONTENT = frozenset({"TextContent", "ImageContent", "AudioContent", "EmbeddedResource", "ResourceLink"})


def _json(value: Any) -> str:
    text = write_json(value, by_alias=True)
    if b"NaN" in text or b"Infinity" in text:
        try:
            from_json(text, allow_inf_nan=False)
        except ValueError:
            raise ValueError("the result has NaN or an infinity, which JSON can't hold") from None
    return text.decode()


def _in_full(result: ToolResult) -> JSON:
    body: JSON = {"content": [block(item) for item in result.content], "isError": result.is_error}
    if result.structured_content is not None:
        written = _structured(_jsonable(result.structured_content), result.structured_content)
        body["structuredContent"] = written["structuredContent"]
        # For clients that show nothing else (Tools, Structured Content).
        body["content"] = body["content"] or written["content"]
    if result.meta:
        body["_meta"] = result.meta
    return body


def _prompt_message(item: Any) -> JSON:
    role, content = role_and_content(item)
    others = item if isinstance(item, Mapping) and "role" in item else {}
    return {**others, "role": role, "content": block(content)}


def _contents(item: Any, uri: str, mime_type: str | None) -> JSON:
    if is_content(item) or isinstance(item, ToolResult | PromptResult) or for_result(type(item)):
        raise TypeError(
            f"{type(item).__name__} is no content of a resource; return text, bytes, or ResourceContents(blob=...)"
        )
    if isinstance(item, ResourceContents):
        written = {"uri": uri, "mimeType": mime_type, **{k: v for k, v in item.wire().items() if v != ""}}
        if "text" not in written and "blob" not in written:
            written["text"] = ""
        return {name: value for name, value in written.items() if value is not None}
    if isinstance(item, bytes | bytearray):
        content: JSON = {"blob": b64encode(item).decode("ascii")}
        mime_type = mime_type or "application/octet-stream"
    elif isinstance(item, str):
        content = {"text": item}
        mime_type = mime_type or "text/plain"
    else:
        content = {"text": _json(_jsonable(item))}
        mime_type = mime_type or "application/json"
    return {"uri": uri, "mimeType": mime_type, **content}

"""How hosts speak with their models: Anthropic's messages, OpenAI's chat completions and responses, Gemini's content.

Each is here as far as a host needs it to let a model call a tool, whole and as server-sent events.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

MODEL = "stand-in"
"""The model's name."""

Body: TypeAlias = dict[str, Any]
Said: TypeAlias = tuple[str, str]
"""A part of a conversation: who said it (`user`, `tool` for what a tool returned, or somebody else), and its text."""
Event: TypeAlias = tuple[str, Body | str]
"""A server-sent event: its name, which may be empty, and its data."""


@dataclass(frozen=True)
class Call:
    """A call of a tool.

    Args:
        name: the tool, as the host names it. A tool in a namespace is `namespace::tool`.
        arguments: what it gets.
    """

    name: str
    arguments: Mapping[str, Any]


Move: TypeAlias = Call | str
"""What a model does: it calls a tool, or says something."""


@dataclass(frozen=True)
class Api:
    """A protocol between hosts and models.

    Args:
        path: how the paths of its requests end.
        tools: return the names of the tools that a request offers.
        said: return the conversation that a request repeats.
        whole: return a reply in one piece.
        events: return a reply as server-sent events.
    """

    path: "re.Pattern[str]"
    tools: Callable[[Body], Iterator[str]]
    said: Callable[[Body], Iterator[Said]]
    whole: Callable[[Move], Body]
    events: Callable[[Move], Iterator[Event]]

    def stream(self, move: Move) -> str:
        """Return a reply as the text of a stream of server-sent events."""
        return "".join(
            (f"event: {name}\n" if name else "") + f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
            for name, data in self.events(move)
        )


def text_of(content: Any) -> str:
    """Return the text in the content of a message, whatever its form."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "\n".join(map(text_of, content))
        case {"text": str(text)}:
            return text
        case {"content": inner}:
            return text_of(inner)
    return json.dumps(content)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{time.time_ns()}"


# Anthropic: POST .../messages


def _message_tools(body: Body) -> Iterator[str]:
    for tool in body.get("tools") or []:
        yield tool["name"]


def _message_said(body: Body) -> Iterator[Said]:
    for message in body["messages"]:
        content = message["content"]
        for part in content if isinstance(content, list) else [content]:
            is_result = isinstance(part, dict) and part.get("type") == "tool_result"
            yield ("tool" if is_result else message["role"]), text_of(part)


def _message(content: list[Body], stop_reason: str | None) -> Body:
    return {
        "id": _new_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _block(move: Move) -> tuple[Body, str]:
    if isinstance(move, str):
        return {"type": "text", "text": move}, "end_turn"
    return {"type": "tool_use", "id": _new_id("toolu"), "name": move.name, "input": dict(move.arguments)}, "tool_use"


def _whole_message(move: Move) -> Body:
    block, stop_reason = _block(move)
    return _message([block], stop_reason)


def _message_events(move: Move) -> Iterator[Event]:
    block, stop_reason = _block(move)
    if isinstance(move, str):
        begun, delta = {**block, "text": ""}, {"type": "text_delta", "text": move}
    else:
        arguments = json.dumps(move.arguments)
        begun, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": arguments}
    stop = {"stop_reason": stop_reason, "stop_sequence": None}
    events: list[Body] = [
        {"type": "message_start", "message": _message([], None)},
        {"type": "content_block_start", "index": 0, "content_block": begun},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    for event in events:
        yield event["type"], event


# OpenAI: POST .../chat/completions


def _chat_tools(body: Body) -> Iterator[str]:
    for tool in body.get("tools") or []:
        yield tool["function"]["name"]


def _chat_said(body: Body) -> Iterator[Said]:
    for message in body["messages"]:
        yield message["role"], text_of(message.get("content"))


def _chat_message(move: Move) -> tuple[Body, str]:
    if isinstance(move, str):
        return {"role": "assistant", "content": move}, "stop"
    function = {"name": move.name, "arguments": json.dumps(move.arguments)}
    call = {"index": 0, "id": _new_id("call"), "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"


def _completion(kind: str, choices: list[Body]) -> Body:
    return {"id": _new_id("chat"), "object": kind, "created": int(time.time()), "model": MODEL, "choices": choices}


_CHAT_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def _whole_chat(move: Move) -> Body:
    message, reason = _chat_message(move)
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {**_completion("chat.completion", [choice]), "usage": _CHAT_USAGE}


def _chat_events(move: Move) -> Iterator[Event]:
    message, reason = _chat_message(move)
    kind = "chat.completion.chunk"
    yield "", _completion(kind, [{"index": 0, "delta": message, "finish_reason": None}])
    yield "", _completion(kind, [{"index": 0, "delta": {}, "finish_reason": reason}])
    yield "", {**_completion(kind, []), "usage": _CHAT_USAGE}
    yield "", "[DONE]"


# OpenAI: POST .../responses


def _response_tools(body: Body) -> Iterator[str]:
    for tool in body.get("tools") or []:
        if "tools" in tool:  # a namespace, with the tools of one server
            yield from (f"{tool['name']}::{inner['name']}" for inner in tool["tools"])
        elif "name" in tool:
            yield tool["name"]


def _response_said(body: Body) -> Iterator[Said]:
    given = body["input"]
    for item in given if isinstance(given, list) else [{"role": "user", "content": given}]:
        if item.get("type", "").endswith("call_output"):
            yield "tool", text_of(item["output"])
        else:
            yield item.get("role", ""), text_of(item.get("content"))


def _item(move: Move) -> Body:
    if isinstance(move, str):
        text = {"type": "output_text", "text": move, "annotations": []}
        kind = {"type": "message", "id": _new_id("msg"), "role": "assistant", "content": [text]}
    else:
        namespace, _, name = move.name.rpartition("::")
        kind = {"type": "function_call", "id": _new_id("fc"), "call_id": _new_id("call"), "name": name}
        kind |= {"arguments": json.dumps(move.arguments)} | ({"namespace": namespace} if namespace else {})
    return {**kind, "status": "completed"}


def _response(status: str, output: list[Body]) -> Body:
    return {
        "id": _new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "model": MODEL,
        "status": status,
        "output": output,
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
    }


def _whole_response(move: Move) -> Body:
    return _response("completed", [_item(move)])


def _response_events(move: Move) -> Iterator[Event]:
    item = _item(move)
    place = {"output_index": 0, "item": item}
    events: list[Body] = [
        {"type": "response.created", "response": _response("in_progress", [])},
        {"type": "response.output_item.added", **place},
        {"type": "response.output_item.done", **place},
        {"type": "response.completed", "response": _response("completed", [item])},
    ]
    if isinstance(move, str):
        part = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        events.insert(2, {"type": "response.output_text.delta", **part, "delta": move})
    for number, event in enumerate(events):
        yield event["type"], {**event, "sequence_number": number}


# Gemini: POST .../models/NAME:generateContent and :streamGenerateContent


def _gemini_tools(body: Body) -> Iterator[str]:
    for tool in body.get("tools") or []:
        yield from (function["name"] for function in tool.get("functionDeclarations", []))


def _gemini_said(body: Body) -> Iterator[Said]:
    for content in body["contents"]:
        for part in content["parts"]:
            if "functionResponse" in part:
                yield "tool", text_of(part["functionResponse"].get("response"))
            else:
                yield content.get("role", ""), text_of(part)


def _whole_gemini(move: Move) -> Body:
    part: Body = {"text": move}
    if isinstance(move, Call):
        part = {"functionCall": {"name": move.name, "args": dict(move.arguments)}}
    return {
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
        "modelVersion": MODEL,
    }


def _gemini_events(move: Move) -> Iterator[Event]:
    yield "", _whole_gemini(move)


APIS = {
    "messages": Api(re.compile("/messages$"), _message_tools, _message_said, _whole_message, _message_events),
    "chat": Api(re.compile("/chat/completions$"), _chat_tools, _chat_said, _whole_chat, _chat_events),
    "responses": Api(re.compile("/responses$"), _response_tools, _response_said, _whole_response, _response_events),
    "gemini": Api(re.compile("enerateContent$"), _gemini_tools, _gemini_said, _whole_gemini, _gemini_events),
}

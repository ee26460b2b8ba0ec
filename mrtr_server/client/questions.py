"""What a server asks a program, and how callbacks answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ..errors import BadReply
from ..protocol.messages import JSON

Choice = Literal["accept", "decline", "cancel"]
"""What a person does with a question: agree, say no, or dismiss it."""

Filled = Mapping[str, Any] | Choice
"""The answer to a form: the fields by name, or what the person does instead."""

Sampled = str | Mapping[str, Any]
"""The answer to a sampling: the text of the model, or the whole result."""

Rooted = Sequence[str | Mapping[str, Any]]
"""The answer to the question for roots: their URIs, or each as the protocol has it."""


class Progress(NamedTuple):
    """A note on how far a call has come.

    Args:
        progress: how far, in the unit of the server.
        total: what it will be at the end; None if that is not known.
        message: what is being done, in words of the server.
    """

    progress: float
    total: float | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the result of a tool, as it comes.

    Args:
        index: which piece of the result it is, from 0.
        block: which block of the result's content it is, or is added to: texts of one block are one text.
        content: the piece, a block of content as plain JSON.
    """

    index: int
    block: int
    content: JSON

    @property
    def text(self) -> str:
        """The text of the piece; empty if it is something else."""
        return str(self.content.get("text", "")) if self.content.get("type") == "text" else ""


@dataclass(frozen=True, slots=True)
class Form:
    """A form to fill in (Elicitation, Form Mode). A confirmation is a form with one boolean, or without fields.

    Args:
        key: names the question in its call.
        message: what the person reads. It is text of the server: show it as that.
        schema: the JSON Schema of the fields.
    """

    key: str
    message: str
    schema: JSON

    @property
    def fields(self) -> Mapping[str, JSON]:
        """The schemas of the fields, by name."""
        return {name: each for name, each in self.schema["properties"].items() if isinstance(each, dict)}

    @property
    def required(self) -> frozenset[str]:
        """The names of the fields that have to be filled in."""
        required = self.schema.get("required")
        return (
            frozenset(each for each in required if isinstance(each, str)) if isinstance(required, list) else frozenset()
        )

    @property
    def confirms(self) -> str:
        """The name of the one field of a confirmation; empty if the form is none."""
        names = list(self.fields)
        return names[0] if len(names) == 1 and self.fields[names[0]].get("type") == "boolean" else ""


@dataclass(frozen=True, slots=True)
class Link:
    """A page that the person is to open (Elicitation, URL Mode).

    Args:
        key: names the question in its call.
        message: what the person reads. It is text of the server: show it as that.
        url: the page. Open it only if the person agrees; it is never fetched by this client.
    """

    key: str
    message: str
    url: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """A message that the client's model is to write (Sampling).

    Args:
        key: names the question in its call.
        params: what is asked for, as sent: `messages`, `systemPrompt`, `maxTokens` and so on.
    """

    key: str
    params: JSON = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text of its messages."""
        messages = self.params.get("messages")
        contents = (
            [each.get("content") for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
        )
        blocks = [block for content in contents for block in (content if isinstance(content, list) else [content])]
        return "\n".join(str(block["text"]) for block in blocks if isinstance(block, dict) and "text" in block)


@dataclass(frozen=True, slots=True)
class RootsWanted:
    """The question for the directories and files that the client works in (Roots).

    Args:
        key: names the question in its call.
    """

    key: str


Question = Form | Link | Sampling | RootsWanted


def read_question(key: str, request: Any) -> Question:
    """Return what a server asks, checked as far as the program relies on it.

    Args:
        key: names it.
        request: as it came.

    Raises:
        BadReply: it is no question of the protocol.
    """
    params = request.get("params") or {} if isinstance(request, dict) else None
    if not isinstance(params, dict):
        raise BadReply(f"The question {key!r} is none")
    match request.get("method"), params.get("mode", "form"):
        case "elicitation/create", "form":
            schema = params.get("requestedSchema")
            if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
                raise BadReply(f"The form {key!r} has no schema")
            return Form(key, str(params.get("message", "")), schema)
        case "elicitation/create", "url" if isinstance(params.get("url"), str):
            return Link(key, str(params.get("message", "")), params["url"])
        case "sampling/createMessage", _:
            return Sampling(key, params)
        case "roots/list", _:
            return RootsWanted(key)
        case _:
            raise BadReply(f"The question {key!r} is of no kind that this client knows")


def write_filled(answer: Filled) -> JSON:
    """Return the answer to a form or a link as it goes over the wire."""
    if isinstance(answer, str):
        return {"action": answer}
    return {"action": "accept", "content": dict(answer)}


def write_sampled(answer: Sampled) -> JSON:
    """Return the answer to a sampling as it goes over the wire."""
    if isinstance(answer, str):
        return {"role": "assistant", "content": {"type": "text", "text": answer}, "model": "unnamed"}
    return dict(answer)


def write_roots(answer: Rooted) -> JSON:
    """Return the roots as they go over the wire."""
    return {"roots": [{"uri": each} if isinstance(each, str) else dict(each) for each in answer]}

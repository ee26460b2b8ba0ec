"""The kinds of asks. Each is one record: all that ask, answer or check look up here what is different in it.

The record holds both ends: the request and its answer on the wire, and what the program or person of a client is
shown. What an author writes is an `Ask` in `flow/asks.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..errors import BadReply
from .callers import nested
from .messages import JSON, Question

Choice = Literal["accept", "decline", "cancel"]
"""What a person does with a question: agree, say no, or dismiss it."""

Filled = Mapping[str, Any] | Choice  # the answer to a form: the fields by name, or what the person does instead
Written = str | Mapping[str, Any]  # the answer to a sampling: the text of the model, or the whole result

Listed = Sequence[str | Mapping[str, Any]]
"""The answer to the question for roots: their URIs, or each as the protocol has it."""


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
        return frozenset(each for each in _listed(required) if isinstance(each, str))

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
        return _text_of_sampling(self.params)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskKind:
    """What is different in a kind of ask."""

    name: str  # with which the digests of its questions begin, and by which operators know it. It contains no dot
    method: str  # the request that the client is to fulfil
    # What a client may have to declare for it, each as a dotted path. The first is what every question of the kind
    # needs.
    capabilities: tuple[str, ...]
    # From the key and the parameters of a question to what the client's program is shown. Raises `BadReply`.
    read: Callable[[str, JSON], Any]
    write: Callable[[Any], JSON] = dict  # from what the program answers to the answer on the wire
    required: str  # the member that every answer has
    mode: str = ""  # in the parameters, where it tells kinds of one method apart; empty for all else
    # Whether an answer approves something, so that it counts only for the question that was shown: with its state,
    # and by its own name.
    approves: bool = False
    confirms: bool = False  # whether a person who accepts has confirmed something, to us or on a page
    reports_back: bool = False  # whether a page reports the answer, whatever the client says
    drawn: str = "form"  # what our page for hosts of apps draws it as
    # What a client can't do that gives the same misfit twice, as in "can't show this form".
    can_not: str = "do what it was asked"
    # From the parameters of a question to what a person reads.
    text: Callable[[JSON], str] = lambda params: str(params.get("message", ""))

    @property
    def member(self) -> str:
        """The capability that has all others of the kind, such as `"elicitation"`."""
        return self.capabilities[0].partition(".")[0]

    @property
    def has_action(self) -> bool:
        """Whether the answer says what the person did, so that whoever does not answer has dismissed the question."""
        return self.required == "action"

    def question(self, params: JSON, *, shape: str = "", needs: tuple[str, ...] = ()) -> Question:
        """Return a question of this kind; `needs` are the capabilities, where the first is not all that it needs."""
        return Question(self.name, self.method, params, needs or self.capabilities[:1], shape)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _read_form(key: str, params: JSON) -> Form:
    schema = params.get("requestedSchema")
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise BadReply(f"The form {key!r} has no schema")
    return Form(key, str(params.get("message", "")), schema)


def _read_link(key: str, params: JSON) -> Link:
    if not isinstance(params.get("url"), str):
        raise _unknown(key)
    return Link(key, str(params.get("message", "")), params["url"])


def _refuse_to_read(key: str, params: JSON) -> Any:
    raise _unknown(key)


def _write_filled(answer: Filled) -> JSON:
    return {"action": answer} if isinstance(answer, str) else {"action": "accept", "content": dict(answer)}


def _write_message(answer: Written) -> JSON:
    if isinstance(answer, str):
        return {"role": "assistant", "content": {"type": "text", "text": answer}, "model": "unnamed"}
    return dict(answer)


def _write_roots(answer: Listed | Mapping[str, Any]) -> JSON:
    if isinstance(answer, Mapping):  # the whole result
        return dict(answer)
    return {"roots": [{"uri": each} if isinstance(each, str) else dict(each) for each in answer]}


def _text_of_sampling(params: JSON) -> str:
    contents = [each.get("content") for each in _listed(params.get("messages")) if isinstance(each, dict)]
    blocks = [block for content in contents for block in (content if isinstance(content, list) else [content])]
    return "\n".join(str(block["text"]) for block in blocks if isinstance(block, dict) and "text" in block)


FORM = AskKind(
    name="form",
    method="elicitation/create",
    mode="form",
    capabilities=("elicitation.form",),
    read=_read_form,
    write=_write_filled,
    required="action",
    can_not="show this form",
)
CONFIRM = replace(FORM, name="confirm", approves=True, confirms=True, drawn="confirm", can_not="show this confirmation")
"""A form on the wire. It is a kind of its own, so that no answer to a form that looks the same is taken for a yes."""

URL = AskKind(
    name="url",
    method="elicitation/create",
    mode="url",
    capabilities=("elicitation.url",),
    read=_read_link,
    write=_write_filled,
    required="action",
    approves=True,
    drawn="link",
)
CALLBACK = replace(URL, name="callback", confirms=True, reports_back=True)

SAMPLE = AskKind(
    name="sample",
    method="sampling/createMessage",
    capabilities=("sampling", "sampling.tools", "sampling.context"),
    read=Sampling,
    write=_write_message,
    required="content",
    can_not="write this message",
    text=_text_of_sampling,
)
ROOTS = AskKind(
    name="roots",
    method="roots/list",
    capabilities=("roots",),
    read=lambda key, _: key,
    write=_write_roots,
    required="roots",
    can_not="list its folders",
)

WAIT = AskKind(name="wait", method="", capabilities=(), read=_refuse_to_read, required="answer", approves=True)
"""A question that somebody else answers, at the server. No client is asked, so clients do not know this kind."""

KINDS: Mapping[str, AskKind] = {each.name: each for each in (FORM, CONFIRM, URL, CALLBACK, SAMPLE, ROOTS)}
"""By name. Of kinds that look the same on the wire, the first is what a client knows."""

_OF_A_LATER_RELEASE = replace(ROOTS, name="", method="", capabilities=("",), required="", approves=True)

ASKABLE: JSON = nested(path for kind in KINDS.values() for path in kind.capabilities)
"""The capabilities of a client that can do whatever it is asked."""


def ask_kind(question: Question | str) -> AskKind:
    """Return the kind of a question, or of the digest of one. An unknown kind approves something."""
    name = question.kind if isinstance(question, Question) else question.partition(".")[0]
    return KINDS.get(name, _OF_A_LATER_RELEASE)


def kind_on_wire(method: object, params: JSON) -> AskKind | None:
    """Return the kind of a request, as far as its client can tell; None if this release knows none."""
    for kind in KINDS.values():
        if kind.method == method and (not kind.mode or params.get("mode", FORM.mode) == kind.mode):
            return kind
    return None


def read_request(key: str, request: Any) -> tuple[AskKind, Any]:
    """Return the kind of a server's question, and what its program is shown. Raises `BadReply` if it is none."""
    params = request.get("params") or {} if isinstance(request, dict) else None
    if not isinstance(params, dict):
        raise BadReply(f"The question {key!r} is none")
    kind = kind_on_wire(request.get("method"), params)
    if kind is None:
        raise _unknown(key)
    return kind, kind.read(key, params)


def _unknown(key: str) -> BadReply:
    return BadReply(f"The question {key!r} is of no kind that this client knows")

"""What a server asks, as a test looks at it, and the answers of a person or a client, as a test writes them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from enum import Enum
from typing import Any, TypeGuard

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from ..protocol.ask_kinds import AskKind, kind_on_wire
from ..protocol.messages import JSON
from ..schema.forms import FIELD

__tracebackhide__ = True  # pytest then shows the test's line instead


class Unexpected(AssertionError):
    """What came is not what the test expected. The message shows both, for a test's report."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One thing that the server asked for.

    Args:
        key: its name on the wire.
        method: the request that the client is to fulfil, such as `"elicitation/create"`.
        params: its parameters, as sent.
        id: what its answer goes by, in the handshake era; empty in others.
    """

    key: str
    method: str
    params: JSON = field(default_factory=dict)
    id: str = ""

    @property
    def kind(self) -> str:
        """What is asked for: `"form"` (a confirmation is one, too), `"url"`, `"sample"` or `"roots"`.

        A kind that the kit does not know fails the test.
        """
        return self.record.name

    @property
    def record(self) -> AskKind:
        """What is different in this kind of ask; see `kind`."""
        if (kind := kind_on_wire(self.method, self.params)) is None:
            raise Unexpected(f"{self.key!r} asks by {self._named}, which this test kit does not know")
        return kind

    @property
    def _named(self) -> str:
        mode = self.params.get("mode") if self.method == "elicitation/create" else None
        return f"{self.method!r} in the mode {mode!r}" if mode is not None else repr(self.method)

    @property
    def message(self) -> str:
        """What the person reads; of a sampling, the text of its messages; of the roots, nothing."""
        return self.record.text(self.params)

    @property
    def schema(self) -> JSON:
        """The JSON Schema of a form."""
        return self._of("form", "requestedSchema")  # type: ignore[no-any-return]

    @property
    def url(self) -> str:
        """The page to open."""
        return str(self._of("url", "url"))

    def _of(self, kind: str, name: str) -> Any:
        if self.kind != kind:
            raise Unexpected(f"{self} does not ask for a {kind}")
        return self.params[name]

    def __str__(self) -> str:
        if kind_on_wire(self.method, self.params) is None:  # still described, in the message of a test that failed
            return f"{self.key!r} ({self._named})"
        return f"{self.key!r} ({self.kind}): {self.message!r}" if self.message else f"{self.key!r} ({self.kind})"


class Asks(dict[str, Asked]):
    """What was asked, by key; a key that was not asked fails the test with all that were."""

    def __init__(self, asked: Iterable[Asked] = (), reply: object = None) -> None:
        super().__init__((each.key, each) for each in asked)
        self._reply = reply

    def __missing__(self, key: str) -> Asked:
        raise Unexpected(f"{key!r} was not asked. {self._reply or f'The server asked {listed(self.values())}.'}")


def listed(asked: Iterable[Asked]) -> str:
    return "; ".join(map(str, asked)) or "nothing"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it goes over the wire. Make one yourself to send what no well-behaved client sends.

    Args:
        raw: the value in `inputResponses`; of a call that stays open, the result of the question's request.
        after: how long the person takes for it, in seconds; see `slowly`.
    """

    raw: Any
    after: float = 0.0


Value = str | float | date | Enum | list[Any]
"""One value, as an ask such as `ctx.elicit("Your name?", str)` wants it."""

_VALUES = (str, int, float, date, Enum, list)

Given = Answer | BaseModel | Mapping[str, Any] | Value
"""An answer; or what a form is filled in with: an instance of its model, the fields by name, or its one value."""

Answerable = Given | Callable[[Asked], Given]
"""An answer, or a function from what is asked to it."""


def _plain(content: BaseModel | Mapping[str, Any] | Value) -> JSON:
    # A field that is None was left out: no form has a null.
    if isinstance(content, BaseModel):
        return content.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dict(content) if isinstance(content, Mapping) else {FIELD: to_jsonable_python(content)}


def accept(content: BaseModel | Mapping[str, Any] | Value | None = None, /, **fields: Any) -> Answer:
    """Answer as a person who filled in a form, or agreed to open a page.

    Args:
        content: an instance of the form's model, the fields by name, or the value of a form of one value.
        fields: the fields by name.

    Returns:
        The answer, to be given under the ask's key.
    """
    if content is None and not fields:
        return Answer({"action": "accept"})
    return Answer({"action": "accept", "content": {**_plain({} if content is None else content), **fields}})


decline = Answer({"action": "decline"})
"""An explicit no."""

cancel = Answer({"action": "cancel"})
"""The question was dismissed."""

yes = accept(confirm=True)
"""The yes to a confirmation."""

no = accept(confirm=False)
"""A confirmation that was sent without the tick."""


def sampled(text: str, *, model: str = "test-model") -> Answer:
    """Answer as the client's model (Sampling).

    Args:
        text: what the model wrote.
        model: its name.

    Returns:
        The answer, to be given under the ask's key.
    """
    return Answer({"role": "assistant", "content": {"type": "text", "text": text}, "model": model})


def roots(*uris: str) -> Answer:
    """Answer with the directories and files that the client works in (Roots).

    Args:
        uris: their URIs, such as `"file:///home/ann/project"`.

    Returns:
        The answer, to be given under the ask's key.
    """
    return Answer({"roots": [{"uri": uri} for uri in uris]})


def slowly(answer: Given, seconds: float) -> Answer:
    """Answer as somebody who takes their time.

    Args:
        answer: what they answer: fields of a form or an instance of its model, `yes`, `sampled(...)` and the like.
        seconds: how long they take, in seconds from when they are asked.

    Returns:
        The answer, to be given under the ask's key.
    """
    return replace(answer if isinstance(answer, Answer) else accept(answer), after=seconds)


def is_function(answer: object) -> TypeGuard[Callable[[Asked], Given]]:
    return callable(answer) and not isinstance(answer, (Answer, BaseModel, Mapping, *_VALUES))


def write(answer: Answerable, asked: Asked | None) -> Answer:
    if is_function(answer):
        if asked is None:
            raise Unexpected("A function can only answer a question that was asked")
        answer = answer(asked)
    if isinstance(answer, Answer):
        return answer
    if not isinstance(answer, BaseModel | Mapping) and not (isinstance(answer, _VALUES) and _is_of_value(asked)):
        raise TypeError(
            f"{answer!r} is not an answer: pass fields, a model, accept(...), decline, sampled(...) or the like; or "
            "the value of a form of one value"
        )
    return accept(answer) if asked is None else Answer(asked.record.write(_plain(answer)))


def _is_of_value(asked: Asked | None) -> bool:
    return asked is None or list(asked.params.get("requestedSchema", {}).get("properties", ())) == [FIELD]


Scripted = Answerable | Sequence[Answerable]
"""An answer, a function that gives one each time, or a list of answers to questions that come under one key in turn."""

Answers = Mapping[str, Scripted]
"""What a test says to each question of a flow, by key."""

"""Asks and answers: what a handler asks for, and what it gets."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar, cast, get_args, get_origin, overload

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from .content import blocks
from .errors import AnswerMisfit, SetupError
from .forms import Form, describe, form
from .journal import UNSET
from .messages import JSON, Question

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

Action = Literal["accept", "decline", "cancel"]


class Refusal(BaseException):
    """The person said no, and the handler did not say that it would branch on that.

    No `Exception`, so that a handler can't swallow it into a go-ahead by accident.
    """

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action


class Elicited(Generic[T]):
    """What a person did with a form, for a handler that branches on it: ask for `Elicited[Model]` instead of `Model`.

    Parameters:
        action: `"accept"`, `"decline"` (an explicit no) or `"cancel"` (dismissed without a choice).
        content: the validated model if accepted, otherwise None.
    """

    __slots__ = ("action", "content")

    def __init__(self, action: Action, content: T | None = None) -> None:
        self.action: Action = action
        self.content = content

    @property
    def accepted(self) -> bool:
        """Whether the form was accepted; `content` is there exactly then."""
        return self.action == "accept"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Elicited) and (self.action, self.content) == (other.action, other.content)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Elicited({self.action!r}, {self.content!r})"


class _Answer(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class Sampled(_Answer):
    """A message that the client's model wrote (Sampling, Creating Messages).

    Parameters:
        role: who speaks; `"assistant"` as a rule.
        content: one content block, or several, as plain JSON.
        model: the model that wrote it.
        stop_reason: why it stopped, if the client says so.
    """

    role: Literal["user", "assistant"] = "assistant"
    content: dict[str, Any] | list[dict[str, Any]]
    model: str = ""
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        """The text of all text blocks."""
        found = self.content if isinstance(self.content, list) else [self.content]
        return "".join(part.get("text", "") for part in found if part.get("type") == "text")


class Root(_Answer):
    """A directory or file that the client works in (Roots)."""

    uri: str
    name: str | None = None


class Roots(_Answer):
    """The roots that the client listed."""

    roots: tuple[Root, ...]


class Ask(ABC, Generic[T]):
    """One thing that a server wants from the client; its answer is a `T`.

    Parameters:
        key: names the ask within its flow, on the wire and in the journal; None for the ask's own default.
    """

    default_key: str
    needs_state = False
    """Whether an answer only counts with the state of the round that asked."""

    def __init__(self, key: str | None = None) -> None:
        self.key = key

    @abstractmethod
    def question(self) -> Question:
        """Give the ask as it goes to the client."""

    @abstractmethod
    def read(self, raw: JSON) -> T:
        """Read an answer.

        Raises:
            AnswerMisfit: it is not what was asked for.
            Refusal: the person declined or dismissed the ask.
        """


class Elicit(Ask[T]):
    """Ask the person to fill in a form (Elicitation, Form Mode).

    Parameters:
        message: why you ask, in words for the person.
        schema: a pydantic model whose fields are the form's; or `Elicited[Model]` to branch on decline and cancel.
        key: see `Ask`; the model's name in snake case by default.

    Raises:
        SetupError: the model can't be a form.
    """

    def __init__(self, message: str, schema: type[T], *, key: str | None = None) -> None:
        super().__init__(key)
        self.message = message
        self._form, self._branches = _form_of(cast(Any, schema))
        self.default_key = self._form.name

    def question(self) -> Question:
        """Give the ask as it goes to the client."""
        params = {"message": self.message, "requestedSchema": self._form.schema}
        return Question("elicitation/create", params, "elicitation.form", self._form.shape)

    def read(self, raw: JSON) -> T:
        """Read an answer; see `Ask.read`."""
        return cast(T, read_form(self._form, self._branches, raw))


class Confirm(Ask[bool]):
    """Ask the person for a yes. Anything but an accepted, true answer ends the call.

    Parameters:
        message: what will happen, in words for the person.
        key: see `Ask`; `confirm` by default.
    """

    default_key = "confirm"
    needs_state = True

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(key)
        self.message = message

    def question(self) -> Question:
        """Give the ask as it goes to the client."""
        return Question("elicitation/create", {"message": self.message, **_CONFIRMATION}, "elicitation.form")

    def read(self, raw: JSON) -> bool:
        """Read an answer; see `Ask.read`. What is read is always True."""
        content = _accepted(raw)
        confirmed = content.get("confirm") if isinstance(content, dict) else None
        if not isinstance(confirmed, bool):
            raise AnswerMisfit("confirm: Please answer yes or no.")
        if not confirmed:
            raise Refusal("decline")
        return True


class ElicitUrl(Ask[bool]):
    """Ask the person to open a page; for what must not pass through the client (Elicitation, URL Mode).

    An accepted answer says that the person agreed to open the page, not that they are done there.

    Parameters:
        message: why, in words for the person.
        url: the page, absolute.
        key: see `Ask`; `open_url` by default.
    """

    default_key = "open_url"
    needs_state = True

    def __init__(self, message: str, url: str, *, key: str | None = None) -> None:
        super().__init__(key)
        self.message = message
        self.url = url

    def question(self) -> Question:
        """Give the ask as it goes to the client."""
        params = {"mode": "url", "message": self.message, "url": self.url}
        return Question("elicitation/create", params, "elicitation.url")

    def read(self, raw: JSON) -> bool:
        """Read an answer; see `Ask.read`. What is read is always True."""
        _accepted(raw)
        return True


class Sample(Ask[Sampled]):
    """Ask the client's model for a message (Sampling).

    Parameters:
        messages: the conversation; a string is one message of the user's, an item is a string, a content object, a
            `Message`, or plain JSON with `role` and `content`.
        max_tokens: how long the message may be, in tokens.
        system_prompt, model_preferences, temperature, stop_sequences, metadata, include_context, tools, tool_choice:
            as in the protocol, plain JSON. `tools` needs a client that declares `sampling.tools`.
        key: see `Ask`; `sample` by default.
    """

    default_key = "sample"

    def __init__(
        self,
        messages: Any,
        *,
        max_tokens: int = 1024,
        system_prompt: str | None = None,
        model_preferences: Mapping[str, Any] | None = None,
        temperature: float | None = None,
        stop_sequences: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        include_context: Literal["none", "thisServer", "allServers"] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(key)
        several = messages if isinstance(messages, list | tuple) else [messages]
        optional = {
            "systemPrompt": system_prompt,
            "modelPreferences": model_preferences,
            "temperature": temperature,
            "stopSequences": stop_sequences,
            "metadata": metadata,
            "includeContext": include_context,
            "tools": tools,
            "toolChoice": tool_choice,
        }
        given = {name: value for name, value in optional.items() if value is not None}
        self._params = {"messages": [sampling_message(m) for m in several], "maxTokens": max_tokens, **given}
        self._needs = "sampling"
        if tools is not None or tool_choice is not None:
            self._needs = "sampling.tools"
        elif include_context in ("thisServer", "allServers"):
            self._needs = "sampling.context"

    def question(self) -> Question:
        """Give the ask as it goes to the client."""
        return Question("sampling/createMessage", self._params, self._needs)

    def read(self, raw: JSON) -> Sampled:
        """Read an answer; see `Ask.read`."""
        return read_model(Sampled, raw)


class ListRoots(Ask["list[Root]"]):
    """Ask for the client's roots (Roots).

    Parameters:
        key: see `Ask`; `roots` by default.
    """

    default_key = "roots"

    def question(self) -> Question:
        """Give the ask as it goes to the client."""
        return Question("roots/list", {}, "roots")

    def read(self, raw: JSON) -> list[Root]:
        """Read an answer; see `Ask.read`."""
        return list(read_model(Roots, raw).roots)


class InputRequired:
    """What a pure function returns to ask: the asks by key, as keywords or as one mapping.

    Parameters:
        asks: the asks by key; the way to use a key that is no Python name, or is `state`.
        state: the handler's own state for its next run; left out, what it kept before stays.
        keywords: the asks by key.

    Raises:
        SetupError: something is no ask, or a key is there twice.
    """

    __slots__ = ("asks", "state")

    def __init__(self, asks: Mapping[str, Ask[Any]] | None = None, /, *, state: Any = UNSET, **keywords: Ask[Any]):
        given = dict(asks or {})
        if twice := given.keys() & keywords.keys():
            raise SetupError(f"InputRequired has the key {min(twice)!r} twice")
        self.asks: dict[str, Ask[Any]] = {**given, **keywords}
        self.state = state
        for key, ask in self.asks.items():
            if not isinstance(ask, Ask):
                raise SetupError(
                    f"InputRequired({key}=...) is no ask: use Elicit, Confirm, ElicitUrl, Sample, ListRoots"
                )


class State(Generic[T]):
    """A pure function's own state, typed. Read `value`; keep another by returning `InputRequired(..., state=...)`.

    Parameters:
        value: what was kept in an earlier round; None in the first.
    """

    __slots__ = ("value",)

    def __init__(self, value: T | None = None) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"State({self.value!r})"


class Inputs:
    """The answers that a pure function has so far, by key.

    In a unit test make one yourself: `Inputs()`, or `Inputs({"github_login": GitHubLogin(name="octocat")})`; a
    `Sampled`, a list of `Root`, True for a confirmation, and `Elicited("decline")` are answers, too.

    Parameters:
        answers: the answers by key.
    """

    __slots__ = ("_answers",)

    def __init__(self, answers: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._answers = answers

    @overload
    def get(self, key: str, asked: type[T], /) -> T | None: ...
    @overload
    def get(self, key: str, asked: Ask[T], /) -> T | None: ...
    def get(self, key: str, asked: Any, /) -> Any:
        """Give the answer for a key, or None while there is no accepted one.

        Parameters:
            key: the key that the ask has in `InputRequired`.
            asked: the model of the form, `Elicited[Model]`, `Sampled`, `Roots`, `Confirm` or `ElicitUrl`; or the ask
                itself, which also checks that the message is the one that the person read.

        Returns:
            The validated answer: a model, an `Elicited`, a `Sampled`, `Roots` (for `ListRoots(...)` a list of `Root`),
            or True.

        Raises:
            Refusal: the person said no, and `asked` does not say that the function branches on that. Let it pass: it
                ends the call, whatever the function does next.
        """
        answer = self._answers.get(key)
        branches = _branches(asked)
        if isinstance(answer, Elicited):
            if branches:
                return answer
            if not answer.accepted:
                raise Refusal(answer.action)
            return answer.content
        return Elicited("accept", answer) if branches and answer is not None else answer


@lru_cache(maxsize=1024)
def reader(asked: Any) -> tuple[str | None, Any, bool]:
    """Say how to read an answer for what a pure function gives to `Inputs.get`.

    Returns:
        The shape that the question must have had (None where any of its method will do), a function from the raw answer
        to the value, and whether the answer only counts with a state.

    Raises:
        SetupError: it is nothing that can be asked for.
    """
    if asked is Confirm:
        return Confirm("").question().shape, Confirm("").read, True
    if asked is ElicitUrl:
        return None, ElicitUrl("", "").read, True
    if asked is Sampled or asked is Roots:
        return None, lambda raw: read_model(asked, raw), False
    elicited, branches = _form_of(asked)
    return elicited.shape, lambda raw: read_form(elicited, branches, raw), False


def read_form(elicited: Form, branches: bool, raw: JSON) -> Any:
    """Read the answer to a form as its model, or as an `Elicited` for a handler that branches."""
    try:
        content = _accepted(raw)
    except Refusal as refusal:
        if branches:
            return Elicited(cast(Action, refusal.action))
        raise
    value = elicited.read(content)
    return Elicited("accept", value) if branches else value


def read_model(model: type[M], raw: JSON) -> M:
    """Read an answer that is no form. Raises `AnswerMisfit`."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise AnswerMisfit(describe(error)) from None


def sampling_message(message: Any) -> JSON:
    """Give a message of a conversation as plain JSON: strings and content blocks are the user's."""
    if isinstance(message, Mapping):
        return dict(message)
    role = getattr(message, "role", "user")
    content = message.content if hasattr(message, "role") else message
    written = blocks(content if isinstance(content, list) else [content])
    return {"role": role, "content": written if isinstance(content, list) else written[0]}


_CONFIRMATION: JSON = {
    "requestedSchema": {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
}


def _accepted(raw: JSON) -> Any:
    action = raw.get("action")
    if action in ("decline", "cancel"):
        raise Refusal(action)
    if action != "accept":
        raise AnswerMisfit("The answer has no action.")
    return raw.get("content", {})


def _branches(asked: Any) -> bool:
    return get_origin(asked) is Elicited or (isinstance(asked, Elicit) and asked._branches)


def _form_of(schema: Any) -> tuple[Form, bool]:
    try:
        return _form_of_type(schema)
    except TypeError:  # not even hashable
        raise SetupError(f"{schema!r} is no form: give a pydantic model, or Elicited[Model]") from None


@lru_cache(maxsize=1024)
def _form_of_type(schema: Any) -> tuple[Form, bool]:
    branches = get_origin(schema) is Elicited
    model = get_args(schema)[0] if branches else schema
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise SetupError(f"{schema!r} is no form: give a pydantic model, or Elicited[Model]")
    return form(model), branches

"""Asks and answers: what a handler asks for, and what it gets."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Annotated, Any, Generic, Literal, Protocol, Self, TypeVar, cast, get_args, get_origin, overload

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel
from pydantic_core import from_json, to_json
from typing_extensions import override

from ..crypto.digests import digest
from ..errors import InvalidAnswer, Refusal, SetupError
from ..protocol.content import first_problem, parts_of, role_and_content, sampling_block, uses_tools
from ..protocol.messages import FORM, JSON, SHORT_MESSAGE, Question
from ..schema.forms import Form, ValueForm, form, may_be_value
from ..schema.misfits import in_words
from ..schema.peer_validator import validator_of
from .journal import CONFIRMATION, UNSET

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

Action = Literal["accept", "decline", "cancel"]


class _Named(Protocol):
    """A function with any parameters, as type checkers know it that infer nothing of `...` for those of a lambda."""

    @property
    def __call__(self) -> Callable[..., str]: ...


_Made = (
    Callable[[], str]
    | Callable[[Any], str]
    | Callable[[Any, Any], str]
    | Callable[[Any, Any, Any], str]
    | Callable[[Any, Any, Any, Any], str]
    | Callable[[Any, Any, Any, Any, Any], str]
)
Text = str | _Made | _Named
"""A text; or, for the ask of a parameter, a function that makes it from the call's arguments and earlier answers."""


class Elicited(Generic[T]):
    """What a person did with a form, for a handler that branches on it: ask for `Elicited[Model]` instead of `Model`.

    Args:
        action: `"accept"`, `"decline"` (an explicit no) or `"cancel"` (dismissed without a choice).
        content: the validated model if accepted, otherwise None.
    """

    __slots__ = ("action", "content")

    def __init__(self, action: Action, content: T | None = None) -> None:
        self.action: Action = action
        self.content = content

    @property
    def accepted(self) -> bool:
        """Whether the form was accepted; for a type checker, ask for `content is not None`."""
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

    Args:
        role: who speaks; `"assistant"` as a rule.
        content: one content block, or several, as plain JSON.
        model: the model that wrote it.
        stop_reason: why it stopped, if the client says so.
    """

    role: Literal["user", "assistant"] = "assistant"
    content: dict[str, Any] | list[dict[str, Any]]
    model: str = ""
    stop_reason: str | None = None

    @field_validator("content")
    @classmethod
    def _refuse_text_that_is_none(cls, content: Any) -> Any:
        for part in content if isinstance(content, list) else [content]:
            if part.get("type") == "text" and not isinstance(part.get("text"), str):
                raise ValueError("a text block has no text")
        return content

    @property
    def text(self) -> str:
        """The text of all text blocks."""
        found = self.content if isinstance(self.content, list) else [self.content]
        return "".join(part["text"] for part in found if part.get("type") == "text")


class Root(_Answer):
    """A directory or file that the client works in (Roots).

    Args:
        uri: where it is: a `file://` URI. An answer with any other is asked for again.
        name: its name for people, if the client says one.
    """

    uri: str
    name: str | None = None

    @field_validator("uri")
    @classmethod
    def _refuse_other_than_files(cls, uri: str) -> str:
        if uri[:7].lower() != "file://":
            raise ValueError("a root's URI begins with file://")
        return uri


class Roots(_Answer):
    """The roots that the client listed (Roots).

    Args:
        roots: in the client's order.
    """

    roots: tuple[Root, ...]


class Ask(Generic[T]):  # not an ABC, since every `isinstance` would run Python code
    """One thing that a server wants from the client; its answer is a `T`.

    Args:
        key: names the ask within its flow, on the wire and in the journal; None for the ask's own default.
    """

    default_key: str
    needs_state = False
    """Whether an answer only counts with the state of the round that asked."""
    texts: tuple[str, ...] = ("message",)
    """The attributes that are texts, so that they may be functions where the ask is a parameter's."""

    def __init__(self, key: str | None = None) -> None:
        self.key = key

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The texts that are still to be made, by attribute."""
        return {name: made for name in self.texts if callable(made := getattr(self, name))}

    def filled(self, texts: Mapping[str, Any]) -> Self:
        """Return the same ask with these texts.

        Args:
            texts: what the functions in `functions` have made, by attribute.

        Returns:
            A copy. This ask does not change.
        """
        ask = copy(self)
        for name, text in texts.items():
            setattr(ask, name, text)
        return ask

    @abstractmethod
    def question(self) -> Question:
        """Return the ask as it goes to the client.

        Raises:
            SetupError: a text is still a function, or a form has no model.
        """

    @abstractmethod
    def parse(self, raw: JSON) -> T:
        """Read an answer.

        Args:
            raw: what the client sent for the ask's key, as plain JSON; it may be anything.

        Returns:
            What the handler gets.

        Raises:
            InvalidAnswer: it is not what was asked for. The ask is then asked again, with the reason.
            Refusal: the person declined or dismissed the ask.
            FlowError: what a page has reported no longer fits the declared type of its callback.
        """


class Elicit(Ask[T]):
    """Ask the person to fill in a form (Elicitation, Form Mode).

    Args:
        message: why you ask, in words for the person. For a parameter, also a function that makes it: its parameters
            are filled by name with the call's arguments, earlier answers and dependencies.
        schema: a pydantic model whose fields are the form's, or the type of one value, such as `str`, `date`, an enum
            or a `Literal`; or `Elicited[...]` of these to branch on decline and cancel. Left out for a parameter,
            since its type says it.
        key: see `Ask`; by default the model's name in snake case, `value` for one value, and the name of a parameter
            of one value.

    Raises:
        SetupError: it can't be a form.
    """

    @overload
    def __init__(self: "Elicit[Any]", message: Text, *, key: str | None = None) -> None: ...
    @overload  # a type that is no class, such as `Literal["a"]` or `str | None`, is an object to type checkers
    def __init__(self, message: str, schema: type[T], *, key: str | None = None) -> None: ...
    @overload
    def __init__(self: "Elicit[Any]", message: str, schema: object, *, key: str | None = None) -> None: ...
    def __init__(self, message: Text, schema: Any = UNSET, *, key: str | None = None) -> None:
        self.key = key  # as `super` would set it, in a fifth of the time
        self.message = message
        self.schema = schema
        if schema is UNSET:
            self.branches = False
        else:
            self._form, self.branches = form_of(schema)
            self.default_key = self._form.name

    @property
    def of_value(self) -> bool:
        """Whether it asks for one value, and not for a model."""
        return self.schema is not UNSET and isinstance(self._form, ValueForm)

    @override
    def question(self) -> Question:
        if self.schema is UNSET:
            raise SetupError(
                "Elicit(message) without a model is for the annotation of a parameter; here, write "
                "Elicit(message, Model)"
            )
        message = self.message
        if type(message) is not str:
            message = written(message)
        if len(message) <= SHORT_MESSAGE:  # most messages of a tool are always the same
            return _known_form(message, self._form)
        return _form_question(message, self._form)

    @override
    def parse(self, raw: JSON) -> T:
        return cast(T, read_form(self._form, self.branches, raw))


class Confirm(Ask[bool]):
    """Ask the person for a yes (Elicitation, Form Mode). Anything but an accepted, true answer ends the call.

    From there on each state of the flow is redeemed once, so one yes lets the rest of the call run once.

    Args:
        message: what will happen, in words for the person; for a parameter, also a function as for `Elicit`.
        key: see `Ask`; `confirm` by default.
        plain: whether to send a form without fields, which clients draw as Accept and Decline; by default it has a box
            to tick. Some clients accept a form without fields by themselves, and some can't draw it: use it where
            you know the clients.
    """

    default_key = "confirm"
    needs_state = True

    def __init__(self, message: Text, *, key: str | None = None, plain: bool = False) -> None:
        super().__init__(key)
        self.message = message
        self.plain = plain

    @override
    def question(self) -> Question:
        schema, shape = _CONFIRMATIONS[self.plain]
        params = {"message": written(self.message), "requestedSchema": schema}
        # A kind of its own: no answer to a form that looks the same can be taken for a yes.
        return Question(CONFIRMATION, "elicitation/create", params, FORM, shape)

    @override
    def parse(self, raw: JSON) -> bool:
        content = accepted(raw, confirming=True)
        confirmed = content.get("confirm") if isinstance(content, dict) else None
        if confirmed is None and self.plain:
            return True
        if not isinstance(confirmed, bool):
            raise InvalidAnswer("confirm: Please answer yes or no.")
        if not confirmed:
            raise Refusal("decline", confirming=True)
        return True


def _refuse_no_json(value: Any) -> Any:
    try:
        from_json(to_json(value), allow_inf_nan=False)
    except ValueError:
        raise ValueError("it can't be written as JSON") from None
    return value


_JSONObject = Annotated[Mapping[str, Any], AfterValidator(_refuse_no_json)]


class _SampleOptions(BaseModel):
    """What clients can read of a sampling, next to its messages."""

    max_tokens: Annotated[int, Field(strict=True, ge=1)]
    system_prompt: str | None = None
    model_preferences: _JSONObject | None = None
    temperature: Annotated[float, Field(strict=True, allow_inf_nan=False)] | None = None
    stop_sequences: Sequence[str] | None = None
    metadata: _JSONObject | None = None
    include_context: Literal["none", "thisServer", "allServers"] | None = None
    tools: Sequence[_JSONObject] | None = None
    tool_choice: _JSONObject | None = None


class Sample(Ask[Sampled]):
    """Ask the client's model for a message (Sampling, Creating Messages).

    Args:
        messages: the conversation; a string is one message of the user's, an item is a string, a content object, a
            `Message`, or plain JSON with `role` and `content`. For a parameter, also a function that returns them.
        max_tokens: how long the message may be, in tokens.
        system_prompt, model_preferences, temperature, stop_sequences, metadata, include_context, tools, tool_choice:
            as in the protocol, plain JSON. `tools` needs a client that declares `sampling.tools`.
        key: see `Ask`; `sample` by default.

    Raises:
        SetupError: a message or an option is not as the protocol has it.
    """

    default_key = "sample"
    texts = ("messages",)

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
        self.messages = messages if callable(messages) else _conversation(messages)
        options = {
            "max_tokens": max_tokens,
            "system_prompt": system_prompt,
            "model_preferences": model_preferences,
            "temperature": temperature,
            "stop_sequences": stop_sequences,
            "metadata": metadata,
            "include_context": include_context,
            "tools": tools,
            "tool_choice": tool_choice,
        }
        given = {name: value for name, value in options.items() if value is not None}
        try:
            _SampleOptions.model_validate(given)
        except ValidationError as error:
            raise SetupError(f"A sampling can't be sent: {first_problem(error)}") from None
        self._params = {to_camel(name): value for name, value in given.items()}

    @override
    def question(self) -> Question:
        params: JSON = {"messages": written(self.messages), **self._params}
        return Question("sample", "sampling/createMessage", params, _needs_of(params))

    @override
    def filled(self, texts: Mapping[str, Any]) -> "Sample":
        return super().filled({name: _conversation(messages) for name, messages in texts.items()})

    @override
    def parse(self, raw: JSON) -> Sampled:
        return read_model(Sampled, raw)


def _needs_of(sampling: JSON) -> tuple[str, ...]:
    """Return the capabilities that the parameters of a sampling need (Sampling, Capabilities)."""
    needs = []
    if "tools" in sampling or "toolChoice" in sampling or any(map(uses_tools, sampling["messages"])):
        needs.append("sampling.tools")
    if sampling.get("includeContext", "none") != "none":
        needs.append("sampling.context")
    return tuple(needs) or ("sampling",)


class ListRoots(Ask["list[Root]"]):
    """Ask for the client's roots (Roots).

    Args:
        key: see `Ask`; `roots` by default.
    """

    default_key = "roots"
    texts = ()

    @override
    def question(self) -> Question:
        return Question("roots", "roots/list", {}, ("roots",))

    @override
    def parse(self, raw: JSON) -> list[Root]:
        return list(read_model(Roots, raw).roots)


def _form_question(message: str, elicited: Form) -> Question:
    params = {"message": message, "requestedSchema": elicited.schema}
    return Question("form", "elicitation/create", params, FORM, elicited.shape)


_known_form = lru_cache(maxsize=128)(_form_question)


def read_form(elicited: Form, branches: bool, raw: JSON) -> Any:
    """Read the answer to a form as its model, or as an `Elicited` for a handler that branches."""
    try:
        content = accepted(raw)
    except Refusal as refusal:
        if branches:
            return Elicited(cast(Action, refusal.action))
        raise
    value = elicited.validate(content)
    return Elicited("accept", value) if branches else value


def read_model(model: type[M], raw: JSON) -> M:
    """Read an answer that is not a form. Raises `InvalidAnswer`."""
    validator = validator_of(model)
    try:
        valid: M = validator.validate(raw)
    except ValidationError as error:
        raise InvalidAnswer(in_words(validator.problems(raw, error))) from None
    return valid


def written(text: Any) -> Any:
    """Return a text as it is. Raises `SetupError` if it is a function."""
    if callable(text):
        raise SetupError(
            "A message can be a function only in the annotation of a parameter, Annotated[..., "
            "Elicit(function)]; pass text here"
        )
    return text


def _conversation(messages: Any) -> list[JSON]:
    try:
        sent = [sampling_message(m) for m in (messages if isinstance(messages, list | tuple) else [messages])]
    except TypeError as error:
        raise SetupError(f"A sampling's messages can't be sent: {error}") from None
    for message, following in zip(sent, [*sent[1:], {}], strict=True):
        _check_tool_results(message, following)
    return sent


def _check_tool_results(message: JSON, following: JSON) -> None:
    """Check that each use of a tool has its result in the next message, and results stand alone (Sampling)."""
    kinds = {each.get("type") for each in parts_of(message)}
    if "tool_result" in kinds and len(kinds) > 1:
        raise SetupError("A sampling's message with tool results must have nothing else; put that into another message")
    used = {each.get("id") for each in parts_of(message) if each.get("type") == "tool_use"}
    results = {each.get("toolUseId") for each in parts_of(following) if each.get("type") == "tool_result"}
    if used - results:
        raise SetupError("Each tool_use of a sampling's message needs its tool_result, by its id, in the next message")


def sampling_message(message: Any) -> JSON:
    """Return a message of a conversation as plain JSON: strings and content blocks are the user's.

    Raises:
        TypeError: it is no message of a sampling.
    """
    role, content = role_and_content(message)
    several = isinstance(content, list | tuple)
    written = [sampling_block(each) for each in (content if several else [content])]
    others = message if isinstance(message, Mapping) and "role" in message else {}
    return {**others, "role": role, "content": written if several else written[0]}


_PLAIN_FORM: JSON = {"type": "object", "properties": {}}
_BOX_TO_TICK: JSON = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
_TEXTS = {"title": "Yes, do it", "description": "Nothing happens without this"}

_CONFIRMATIONS = {
    True: (_PLAIN_FORM, digest({"requestedSchema": _PLAIN_FORM})),
    # Earlier releases sent no texts, and what they have sealed still counts.
    False: (
        {**_BOX_TO_TICK, "properties": {"confirm": {"type": "boolean", **_TEXTS}}},
        digest({"requestedSchema": _BOX_TO_TICK}),
    ),
}
"""The form of a confirmation and its shape, by whether it is plain."""

PLAIN_SHAPE = _CONFIRMATIONS[True][1]
CONFIRMATION_SHAPES = frozenset(shape for _, shape in _CONFIRMATIONS.values())
"""An answer to a form of such a shape may be a yes, so it only counts for a question that was asked."""


def accepted(raw: JSON, *, confirming: bool = False) -> Any:
    """Return the content of an accepted answer; raises as `Ask.parse` does for any other."""
    action = raw.get("action")
    if action == "accept":
        return raw.get("content", {})
    if action in ("decline", "cancel"):
        raise Refusal(action, confirming=confirming)
    raise InvalidAnswer("The answer has no action.")


def form_of(schema: Any) -> tuple[Form, bool]:
    """Find the form of a model, of one value, or of `Elicited[...]`, and whether it is that. Raises `SetupError`."""
    try:
        return _known_form_of(schema)
    except TypeError:  # not hashable
        return _form_of(schema)


def _form_of(schema: Any) -> tuple[Form, bool]:
    branches = get_origin(schema) is Elicited
    asked = get_args(schema)[0] if branches else schema
    if isinstance(asked, type) and issubclass(asked, BaseModel):
        return form(asked), branches
    if not may_be_value(asked):
        raise SetupError(_no_form(schema))
    return ValueForm(asked), branches


_known_form_of = lru_cache(maxsize=1024)(_form_of)


def _no_form(schema: Any) -> str:
    said = f"{schema!r} can't be a form: pass a pydantic model, or the type of one value, such as str"
    if isinstance(schema, list | tuple) and schema and all(isinstance(each, str) for each in schema):
        return f"{said}. A choice is Literal[{', '.join(map(repr, schema))}]"
    return said

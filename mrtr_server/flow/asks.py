"""Asks and answers: what a handler asks for, what it gets, and what a pure function returns to ask."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, cast, get_args, get_origin, overload

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic.alias_generators import to_camel
from typing_extensions import override

from ..crypto.digests import digest
from ..errors import InvalidAnswer, Refusal, SetupError
from ..protocol.apps import AppPage, check_ui
from ..protocol.ask_kinds import CONFIRM, FORM, ROOTS, AskKind
from ..protocol.messages import JSON, SHORT_MESSAGE, Question
from ..schema.forms import Form, ValueForm, form, may_be_value
from ..schema.misfits import in_words
from ..schema.peer_validator import validator_of
from ..well_formed import escape_halves
from .journal import UNSET

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

Action = Literal["accept", "decline", "cancel"]

_Made = (
    Callable[[], str]
    | Callable[[Any], str]
    | Callable[[Any, Any], str]
    | Callable[[Any, Any, Any], str]
    | Callable[[Any, Any, Any, Any], str]
    | Callable[[Any, Any, Any, Any, Any], str]
)

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
"""By whether it is plain: its form, and the shape."""

PLAIN_SHAPE = _CONFIRMATIONS[True][1]

CONFIRMATION_SHAPES = frozenset(shape for _, shape in _CONFIRMATIONS.values())
"""An answer to a form of such a shape may be a yes, so it only counts for a question that was asked."""


class _Named(Protocol):
    """A function with any parameters, as type checkers know it that infer nothing of `...` for those of a lambda."""

    @property
    def __call__(self) -> Callable[..., str]: ...


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


class AnswerModel(BaseModel):
    """An answer with a model of its own: a pure function reads it by that."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)
    kind: ClassVar[AskKind]


class Root(AnswerModel):
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


class Roots(AnswerModel):
    """The roots that the client listed (Roots).

    Args:
        roots: in the client's order.
    """

    kind = ROOTS

    roots: tuple[Root, ...]


class Ask(Generic[T]):  # not an ABC, since every `isinstance` would run Python code
    """One thing that a server wants from the client; its answer is a `T`.

    Args:
        key: names the ask within its flow, on the wire and in the journal; None for the ask's own default.
    """

    default_key: str
    needs_state = False
    """Whether an answer only counts with the state of the round that asked."""
    may_be_declined = False
    """Whether a parameter may have a default, which is its value after a no."""
    types: tuple[Any, ...] = ()
    """The types that the parameter of an ask may have; a form has its own."""
    ui: AppPage | str | None = None
    """The page that draws it where a client can do that; None for none."""
    through_model = False
    """Whether a model may be told to ask the person, where nobody else can."""
    texts: tuple[str, ...] = ("message",)
    """The attributes that are texts, so that they may be functions where the ask is a parameter's."""

    def __init__(self, key: str | None = None) -> None:
        self.key = key

    def filled(self, texts: Mapping[str, Any]) -> Self:
        """Return the same ask with these texts.

        Args:
            texts: what the functions in their place have made, by attribute.

        Returns:
            A copy. This ask does not change.
        """
        ask = copy(self)
        for name, text in texts.items():
            setattr(ask, name, text)
        return ask

    def reader_of(self, wanted: Any) -> Callable[[JSON], Any]:
        """Return what reads an answer as the value of a parameter.

        Args:
            wanted: the type of the parameter.

        Returns:
            A function that reads as `parse` does.
        """
        return self.parse

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
        ui: a page of an app that draws the form where a client can do that, as `app.ui(...)` returns it; other clients
            draw it by themselves.
        through_model: whether, where a client can neither be asked nor draw apps, its model is told to ask the person
            in the chat; and in a host that draws apps, if the person can't answer there. A model may answer by itself:
            it is for what is no permission and no secret.

    Raises:
        SetupError: it can't be a form.
    """

    @overload
    def __init__(
        self: "Elicit[Any]",
        message: Text,
        *,
        key: str | None = None,
        ui: AppPage | str | None = None,
        through_model: bool = False,
    ) -> None: ...
    @overload  # a type that is no class, such as `Literal["a"]` or `str | None`, is an object to type checkers
    def __init__(
        self,
        message: str,
        schema: type[T],
        *,
        key: str | None = None,
        ui: AppPage | str | None = None,
        through_model: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: "Elicit[Any]",
        message: str,
        schema: object,
        *,
        key: str | None = None,
        ui: AppPage | str | None = None,
        through_model: bool = False,
    ) -> None: ...
    def __init__(
        self,
        message: Text,
        schema: Any = UNSET,
        *,
        key: str | None = None,
        ui: AppPage | str | None = None,
        through_model: bool = False,
    ) -> None:
        if through_model:
            self.through_model = True
        if ui is not None:
            check_ui(ui)
            self.ui = ui
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
        ui: a page that draws it, as for `Elicit`.
    """

    default_key = "confirm"
    needs_state = True
    types = (bool,)

    def __init__(
        self, message: Text, *, key: str | None = None, plain: bool = False, ui: AppPage | str | None = None
    ) -> None:
        super().__init__(key)
        if ui is not None:
            check_ui(ui)
            self.ui = ui
        self.message = message
        self.plain = plain

    @override
    def question(self) -> Question:
        schema, shape = _CONFIRMATIONS[self.plain]
        params = {"message": written(self.message), "requestedSchema": schema}
        return CONFIRM.question(params, shape=shape)

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


class ListRoots(Ask["list[Root]"]):
    """Ask for the client's roots (Roots).

    Args:
        key: see `Ask`; `roots` by default.
    """

    default_key = "roots"
    texts = ()
    types = (list[Root],)

    @override
    def question(self) -> Question:
        return ROOTS.question({})

    @override
    def parse(self, raw: JSON) -> list[Root]:
        return list(read_model(Roots, raw).roots)


def _form_question(message: str, elicited: Form) -> Question:
    params = {"message": message, "requestedSchema": elicited.schema}
    return FORM.question(params, shape=elicited.shape)


_known_form = lru_cache(maxsize=128)(_form_question)


def read_form(elicited: Form, branches: bool, raw: JSON) -> Any:
    try:
        content = accepted(raw)
    except Refusal as refusal:
        if branches:
            return Elicited(cast(Action, refusal.action))
        raise
    value = elicited.validate(content)
    return Elicited("accept", value) if branches else value


def read_model(model: type[M], raw: JSON) -> M:
    validator = validator_of(model)
    try:
        valid: M = validator.validate(raw)
    except ValidationError as error:
        raise InvalidAnswer(in_words(validator.problems(raw, error))) from None
    return valid


def written(text: Any) -> Any:
    if callable(text):
        raise SetupError(
            "A message can be a function only in the annotation of a parameter, Annotated[..., "
            "Elicit(function)]; pass text here"
        )
    return text


def accepted(raw: JSON, *, confirming: bool = False) -> Any:
    """Return the content of an accepted answer; raises as `Ask.parse` does for any other."""
    action = raw.get("action")
    if action == "accept":
        return raw.get("content", {})
    if action in ("decline", "cancel"):
        raise Refusal(action, confirming=confirming)
    raise InvalidAnswer("The answer has no action.")


def form_of(schema: Any) -> tuple[Form, bool]:
    """Return the form of a model, of one value, or of `Elicited[...]`, and whether it is that. Raises `SetupError`."""
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


class InputRequired:
    """What a pure function returns to ask: the asks by key, as keywords or as one mapping.

    Args:
        asks: the asks by key; the way to use a key that is no Python name, or is `state`.
        state: the handler's own state for its next run; left out, what it kept before stays.
        keywords: the asks by key.

    Raises:
        SetupError: something is not an ask, or a key is there twice.
    """

    __slots__ = ("asks", "state")

    def __init__(self, asks: Mapping[str, Ask[Any]] | None = None, /, *, state: Any = UNSET, **keywords: Ask[Any]):
        if isinstance(asks, Ask):
            raise SetupError("InputRequired takes its asks by key: InputRequired(login=Elicit(...))")
        if asks:
            if twice := asks.keys() & keywords.keys():
                raise SetupError(f"InputRequired has the key {min(twice)!r} twice")
            keywords = {**asks, **keywords}
        self.asks: dict[str, Ask[Any]] = {escape_halves(key): ask for key, ask in keywords.items()}
        self.state = state
        for key, ask in keywords.items():
            if not isinstance(ask, Ask):
                raise SetupError(f"InputRequired({key}=...) is not an ask: use Elicit(...), Confirm(...) or the like")


class State(Generic[T]):
    """A pure function's own state, typed. Read `value`; keep another by returning `InputRequired(..., state=...)`.

    Args:
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

    Args:
        answers: the answers by key.
    """

    __slots__ = ("_answers",)

    def __init__(self, answers: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._answers = answers

    @overload
    def get(self, key: str, asked: type[M], /) -> M | None: ...
    @overload
    def get(self, key: str, asked: type[Elicited[M]], /) -> Elicited[M] | None: ...
    @overload
    def get(self, key: str, asked: Ask[T], /) -> T | None: ...
    def get(self, key: str, asked: Any, /) -> Any:
        """Return the answer for a key, or None while there is no accepted one.

        Args:
            key: the key that the ask has in `InputRequired`.
            asked: the model of the form, `Elicited[Model]`, `Sampled` or `Roots`; or the ask itself, which also checks
                that the message is the one that the person read. For `Confirm` and `ElicitUrl` it must be the ask.

        Returns:
            The validated answer: a model, an `Elicited`, a `Sampled`, `Roots` (for `ListRoots(...)` a list of `Root`),
            or True.

        Raises:
            Refusal: the person said no, and `asked` does not say that the function branches on that. Let it pass: it
                ends the call, whatever the function does next.
        """
        answer = self._answers.get(key)
        branches = get_origin(asked) is Elicited or (isinstance(asked, Elicit) and asked.branches)
        if isinstance(answer, Elicited):
            if branches:
                return answer
            if not answer.accepted:
                raise Refusal(answer.action)
            return answer.content
        return Elicited("accept", answer) if branches and answer is not None else answer


@lru_cache(maxsize=1024)
def reader(asked: Any) -> tuple[str, str | None, Callable[[JSON], Any]]:
    """Return the kind and the shape (None: any) of what a pure function asks for, and its reader."""
    if isinstance(asked, type) and issubclass(asked, Ask) and asked.needs_state:  # `Confirm`, `ElicitUrl`
        name = asked.__name__
        raise SetupError(f"inputs.get needs the ask itself, {name}(...), to know which question was answered")
    if isinstance(asked, type) and issubclass(asked, AnswerModel) and hasattr(asked, "kind"):
        return asked.kind.name, None, partial(read_model, asked)
    elicited, branches = form_of(asked)
    return FORM.name, elicited.shape, partial(read_form, elicited, branches)

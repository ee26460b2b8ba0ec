"""Pure functions: what they return to ask, and what they read the answers from."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar, get_origin, overload

from pydantic import BaseModel

from ..errors import Refusal, SetupError
from ..protocol.ask_kinds import FORM
from ..protocol.messages import JSON
from ..well_formed import escape_halves
from .asks import AnswerModel, Ask, Confirm, Elicit, Elicited, form_of, read_form, read_model
from .journal import UNSET
from .url_asks import ElicitUrl

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


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
                raise SetupError(
                    f"InputRequired({key}=...) is not an ask: use Elicit, Confirm, ElicitUrl, Sample or ListRoots"
                )


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
    """Find how to read an answer for what a pure function passes to `Inputs.get`, if that is not an ask.

    Return the kind of the question; its shape, None for any; and a function from the raw answer to the value. Raises
    `SetupError`: it is nothing that can be asked for.
    """
    if asked is Confirm or asked is ElicitUrl:
        name = asked.__name__
        raise SetupError(f"inputs.get needs the ask itself, {name}(...), to know which question was answered")
    if isinstance(asked, type) and issubclass(asked, AnswerModel) and hasattr(asked, "kind"):
        return asked.kind.name, None, partial(read_model, asked)
    elicited, branches = form_of(asked)
    return FORM.name, elicited.shape, partial(read_form, elicited, branches)

"""Asks that parameters declare, fitted to the types of their parameters."""

import re
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, cast, get_origin

from ..errors import Refusal, SetupError
from ..flow.asks import Ask, Confirm, Elicit, Elicited
from ..flow.journal import UNSET
from ..protocol.messages import JSON
from .declarations import Declaration, as_written
from .foreign import refuse_foreign_marks


def bind_ask(declaration: Declaration, mark: Ask[Any]) -> tuple[Ask[Any], Callable[[JSON], Any], str]:
    """Check that an ask fits the type of its parameter, and bind it to that.

    Args:
        declaration: the parameter.
        mark: the ask that it is annotated with.

    Returns:
        The ask; the function that makes the parameter's value from an answer; and the key that the ask has by default.

    Raises:
        SetupError: the ask can't fill a parameter of that type, or its default would never be used.
    """
    where, wanted, otherwise = declaration.where, declaration.type, declaration.otherwise
    ask, default_key, may_be_declined = mark, declaration.name, mark.may_be_declined
    if isinstance(mark, Elicit):  # any type may be that of a form
        ask = bound = _bind_form(where, wanted, mark)
        default_key, may_be_declined = default_key if bound.of_value else bound.default_key, not bound.branches
    elif wanted not in mark.types:
        allowed = " or ".join(f"Annotated[{as_written(each)}, {as_written(mark)}(...)]" for each in mark.types)
        raise SetupError(f"{where} is of type {as_written(wanted)}; write {allowed}")
    read = ask.reader_of(wanted)
    if otherwise is UNSET:
        return ask, read, default_key
    if not may_be_declined:
        raise _unused_default(declaration, mark)
    return ask, _or(read, otherwise), default_key


def _unused_default(declaration: Declaration, mark: Ask[Any]) -> SetupError:
    if isinstance(mark, Confirm):
        return SetupError(
            f"{declaration.where} is a confirmation, and the call continues only after a yes; remove its default, or "
            "None from its type"
        )
    kind = "Elicited" if get_origin(declaration.type) is Elicited else as_written(mark)
    return SetupError(
        f"{declaration.where}: {kind} has no other value to fall back to; remove the default, or None from the type"
    )


def _bind_form(where: str, wanted: Any, mark: Elicit[Any]) -> Elicit[Any]:
    if mark.schema not in (UNSET, wanted):
        raise SetupError(
            f"{where} is of type {as_written(wanted)}, but its Elicit asks for {as_written(mark.schema)}; leave "
            "the model out of Elicit(...)"
        )
    try:
        return Elicit(cast(Any, mark.message), wanted, key=mark.key)
    except SetupError as error:
        raise SetupError(f"{where}: {error}") from error


def _or(read: Callable[[JSON], Any], otherwise: Any) -> Callable[[JSON], Any]:
    def read_or(raw: JSON) -> Any:
        try:
            return read(raw)
        except Refusal:
            return otherwise

    return read_or


def text_parameters(function: Callable[..., Any], what: str) -> Mapping[str, Parameter]:
    """Return the parameters of a function that makes a text of an ask.

    Args:
        function: the function.
        what: it is, for errors.

    Raises:
        SetupError: it has no signature, or marks of another framework.
    """
    try:
        parameters = signature(function).parameters
    except ValueError as error:
        raise SetupError(f"{what} has no signature that can be read; wrap it in a lambda") from error
    refuse_foreign_marks(what, parameters.values())
    return parameters


def refuse_braces(where: str, text: Any, known: list[str]) -> None:
    """Refuse a text that looks like an f-string without its f: a person would read the braces.

    Args:
        where: the parameter, for errors.
        text: what the person would read; a text, or the messages of a conversation.
        known: the names that could have been meant.

    Raises:
        SetupError: it has one of these names in braces.
    """
    if not isinstance(text, str):  # a conversation
        for message in text:
            refuse_braces(where, message["content"].get("text", "") if "text" in message["content"] else "", known)
        return
    for name in re.findall(r"\{\s*(\w+)[^{}]*\}", text):
        if name in known:
            raise SetupError(
                f"{where}: the person would read {text!r}, with the braces of {{{name}}}; pass a function: "
                f'lambda {name}: f"... {{{name}}} ..."'
            )

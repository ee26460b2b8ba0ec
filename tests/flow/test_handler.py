"""What is known of a handler before it runs: whether it may wait, ask, or end a round before its effects."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from mrtr_server import Confirm, Context, Depends, Elicit, Inputs, MRTRServer, State
from mrtr_server.flow.handler import Handler

from ..support.models import Login


def plain() -> str:
    return ""


async def with_nothing() -> str:
    return ""


def plain_with_context(ctx: Context) -> str:
    return ""


async def asks_inline(ctx: Context) -> str:
    return ""


def reads_inputs(inputs: Inputs) -> str:
    return ""


def keeps_state(state: State[int], inputs: Inputs) -> str:
    return ""


def asks_by_parameter(login: Annotated[Login, Elicit("Who?")]) -> str:
    return ""


def confirms_by_parameter(sure: Annotated[bool, Confirm("Sure?")]) -> str:
    return ""


def needs_plain(value: Annotated[str, Depends(plain)]) -> str:
    return ""


def needs_plain_with_context(value: Annotated[str, Depends(plain_with_context)]) -> str:
    return ""


def needs_async(value: Annotated[str, Depends(with_nothing)]) -> str:
    return ""


def needs_what_asks_inline(value: Annotated[str, Depends(asks_inline)]) -> str:
    return ""


def opened() -> Iterator[int]:
    yield 1


def needs_teardown(value: Annotated[int, Depends(opened)]) -> str:
    return ""


def handler_of(function: Any, **options: Any) -> Handler:
    app = MRTRServer("known", keys=[bytes(32)])
    app.tool(**options)(function)
    return app.registry.tools[function.__name__].handler


@pytest.mark.parametrize(
    ("function", "may_park", "can_pause"),
    [
        (plain, False, False),
        (with_nothing, False, False),
        (plain_with_context, False, False),
        (asks_inline, True, True),
        (reads_inputs, False, True),
        (keeps_state, False, True),
        (asks_by_parameter, False, True),
        (confirms_by_parameter, False, True),
        (needs_plain, False, False),
        (needs_plain_with_context, False, False),
        (needs_async, False, False),
        (needs_what_asks_inline, True, False),
        (needs_teardown, False, False),
    ],
)
def test_it_may_park_where_it_can_await_an_ask_and_pause_where_it_asks_before_its_effects(
    function: Any, may_park: bool, can_pause: bool
) -> None:
    handler = handler_of(function)
    assert (handler.may_park, handler.can_pause) == (may_park, can_pause)


@pytest.mark.parametrize(
    ("function", "is_pure", "is_simple"),
    [
        (plain, True, True),
        (with_nothing, True, True),
        (plain_with_context, False, False),
        (reads_inputs, True, False),
        (keeps_state, True, False),
        (asks_by_parameter, False, False),
    ],
)
def test_it_is_pure_where_calling_it_is_enough_and_simple_where_it_takes_nothing_of_the_flow(
    function: Any, is_pure: bool, is_simple: bool
) -> None:
    handler = handler_of(function)
    assert (handler.is_pure, handler.is_simple) == (is_pure, is_simple)
    assert not handler_of(function, timeout=5).is_pure


@pytest.mark.parametrize("function", [plain, asks_by_parameter, confirms_by_parameter, needs_plain])
def test_it_declares_a_confirmation_where_a_parameter_is_one_or_confirm_is_given(function: Any) -> None:
    handler = handler_of(function)
    assert handler.declares_confirmation == (function is confirms_by_parameter)
    assert handler_of(function, confirm="Sure?").declares_confirmation


@pytest.mark.parametrize("function", [plain, needs_plain, needs_teardown])
def test_it_has_a_teardown_where_a_dependency_yields(function: Any) -> None:
    assert handler_of(function).has_teardown == (function is needs_teardown)


def test_no_client_fills_what_the_server_does() -> None:
    assert handler_of(keeps_state).own_parameters == {"state", "inputs"}
    assert handler_of(asks_by_parameter).own_parameters == {"login"}
    assert handler_of(plain_with_context).own_parameters == {"ctx"}
    assert handler_of(plain).own_parameters == set()

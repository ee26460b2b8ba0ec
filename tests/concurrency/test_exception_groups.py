"""Of several errors at once, the one that ends a call in its own way counts; the others are in the log."""

import asyncio
import traceback
from collections.abc import Callable
from itertools import permutations

import pytest

from mrtr_server import NotFound, ProtocolError, Refusal, SetupError, StoreUnavailable, ToolError
from mrtr_server.concurrency.threads import Threads, call_function, ending_in
from mrtr_server.errors import CallEnded, FlowError, MissingCapability

IN_ORDER: list[tuple[BaseException, ...]] = [
    (Refusal("decline"),),
    (FlowError("a mistake"),),
    (MissingCapability({"roots": {}}),),
    (ProtocolError("not now"), ToolError("no Emma"), NotFound("no such page")),
    (StoreUnavailable("away"), CallEnded("over")),
    (ValueError("a value"), SetupError("a setting"), KeyError("key")),
]
"""The errors of each row count before those of the rows below."""


def nested(*errors: BaseException) -> BaseException:
    """Return a group that has the last errors deeper than the first ones."""
    group = BaseExceptionGroup("several", errors[-1:])
    for error in reversed(errors[:-1]):
        group = BaseExceptionGroup("several", [error, group])
    return group


@pytest.mark.parametrize("wrap", [nested, lambda *errors: BaseExceptionGroup("several", errors)], ids=["deep", "flat"])
def test_which_of_two_counts_does_not_depend_on_where_they_are(wrap: Callable[..., BaseException]) -> None:
    for row, errors in enumerate(IN_ORDER[:-1]):
        for error in errors:
            for below in IN_ORDER[row + 1 :]:
                for other in below:
                    for pair in permutations((error, other)):
                        assert ending_in(wrap(*pair), "tool") is error
            for same in errors:
                assert ending_in(wrap(error, same), "tool") is error


def test_what_has_nothing_of_ours_is_as_it_was() -> None:
    group = ExceptionGroup("several", IN_ORDER[-1])  # type: ignore[type-var]
    assert ending_in(group, "tool") is group
    assert ending_in(IN_ORDER[-1][0], "tool") is IN_ORDER[-1][0]
    assert ending_in(IN_ORDER[0][0], "tool") is IN_ORDER[0][0]


def test_the_others_are_logged_in_full_and_alone(caplog: pytest.LogCaptureFixture) -> None:
    def fail(name: str) -> ValueError:
        try:
            raise ValueError(name)
        except ValueError as error:
            return error

    ending_in(ExceptionGroup("several", [fail("one"), ToolError("shown"), ExceptionGroup("more", [fail("two")])]), "it")
    assert "'it' raised more than the ToolError that it ended with (reference " in caplog.text
    assert ("ValueError: one" in caplog.text, "ValueError: two" in caplog.text, "shown" in caplog.text) == (
        True,
        True,
        False,
    )
    caplog.clear()
    ending_in(ExceptionGroup("several", [ToolError("shown"), ProtocolError("one"), ToolError("two")]), "it")
    assert [record.levelname for record in caplog.records] == ["WARNING"], "a message for the model is no failure"
    assert caplog.messages[0].endswith("Nobody is told of the others: one; two")
    caplog.clear()
    ending_in(BaseExceptionGroup("one", [ToolError("shown"), CallEnded("over"), asyncio.CancelledError()]), "it")
    assert caplog.records == []


@pytest.mark.parametrize("is_async", [True, False])
def test_a_function_that_raises_a_group_raises_what_counts(is_async: bool) -> None:
    error = ToolError("no Emma")

    def fail() -> None:
        raise ExceptionGroup("several", [error])

    async def fail_async() -> None:
        fail()

    async def run() -> None:
        with pytest.raises(ToolError) as caught:
            await call_function(fail_async if is_async else fail, "it", Threads(1), is_async=is_async)
        assert caught.value is error
        assert error.__context__ is None, "the group would be told as what led to it"
        assert "fail" in "".join(traceback.format_tb(error.__traceback__)) or error.__traceback__ is not None

    asyncio.run(run())


def test_a_group_with_an_exit_does_not_end_the_server() -> None:
    async def leave() -> None:
        raise BaseExceptionGroup("several", [SystemExit(1), ValueError()])

    async def run() -> None:
        with pytest.raises(RuntimeError, match=r"'it' called sys.exit\(\)"):
            await call_function(leave, "it", Threads(1), is_async=True)

    asyncio.run(run())

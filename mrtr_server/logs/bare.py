"""Exceptions without the local variables of the code that raised them."""

from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any


def take_locals(error: BaseException) -> None:
    """Put a traceback without local variables into the place of an exception's own, and of those that led to it.

    It has the same files, lines and functions. Local variables hold whatever the code worked on.

    Args:
        error: the exception, which nobody handles any more.
    """
    for each in _linked(error):
        each.__traceback__ = _bare(each.__traceback__)


def _linked(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


def _bare(traceback: TracebackType | None) -> TracebackType | None:
    calls = []
    while traceback is not None:
        calls.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    made: TracebackType | None = None
    for frame, line in reversed(calls):
        made = TracebackType(made, _stand_in(frame.f_code, frame.f_globals.get("__name__")), -1, line)
    return made


def _model() -> Iterator[None]:
    yield


def _stand_in(code: CodeType, module: Any) -> FrameType:
    """Return a frame of the same function that has run nothing: that of a generator which was never begun."""
    named = _model.__code__.replace(
        co_filename=code.co_filename,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_firstlineno=code.co_firstlineno,
    )
    frame: FrameType = FunctionType(named, {"__name__": module})().gi_frame
    return frame

"""Failures in the log: each under a reference, all that a client sees; and of its traceback the author's part."""

import linecache
import logging
import os
import secrets
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, TypeVar

from ..errors import FlowError, StoreUnavailable

logger = logging.getLogger("mrtr_server")

_OURS = str(Path(__file__).parent.parent) + os.sep

_CALLERS: set[tuple[str, str]] = set()

_STANDARD = os.path.normcase(sysconfig.get_paths()["stdlib"]) + os.sep

_FOLDERS = ("site-packages", "dist-packages")

_MOST_NAMES = 4

F = TypeVar("F", bound=Callable[..., Any])


def calls_author(function: F) -> F:
    """Note that a function calls those of the author's: what it calls is theirs, wherever that is installed."""
    _CALLERS.add((function.__code__.co_filename, function.__code__.co_name))
    return function


CallSite = tuple[CodeType, int, CodeType]  # its code and line, and the function of ours that was called there


def format_call_site(site: CallSite) -> str:
    code, line, _ = site
    return f'File "{code.co_filename}", line {line}, in {code.co_name}'


def format_stack() -> str:
    """Return the author's calls that led here, up to the event loop or the thread; empty if there are none."""
    calls = [frame for frame in _stack() if origin_of(frame.f_code.co_filename) is None]
    return "".join(traceback.format_list([_summary(frame) for frame in reversed(calls)]))


def format_innermost(frame: FrameType) -> str:
    """Return the author's call that led to the innermost frame of a thread, as in a traceback; else that frame."""
    code, line = frame.f_code, frame.f_lineno
    at: FrameType | None = frame
    while at is not None:
        if origin_of(at.f_code.co_filename) is None:
            code, line = at.f_code, at.f_lineno
            break
        at = at.f_back
    return format_call_site((code, line, code))


def format_failure(error: BaseException) -> str:
    """Return a failure with the author's calls alone, and a line on those left out; with all where none is theirs."""
    failure = traceback.TracebackException.from_exception(error, compact=True)
    parts = list(_parts(failure))
    own = {_installed(called) for part in parts for called in _called(part.stack)} - {None}
    cuts = [_Cut(part.stack, own) for part in parts]
    if any(map(len, cuts)) or isinstance(error, FlowError):
        for part, cut in zip(parts, cuts, strict=True):
            part.stack = cut
    if isinstance(error, FlowError):  # it says itself where it comes from
        failure.stack = traceback.StackSummary()
    return "".join(failure.format()).rstrip("\n")


def format_import_failure(error: Exception) -> str:
    if isinstance(error, SyntaxError):  # it names the line itself; the calls are of an import
        return "".join(traceback.format_exception_only(error)).rstrip()
    return format_failure(error)


def format_origin(error: BaseException) -> str:
    written = (call for call in traceback.extract_tb(error.__traceback__) if not call.filename.startswith("<"))
    calls = [call for call in written if origin_of(call.filename) is None]
    return "".join(traceback.format_list(calls[-1:])).rstrip("\n")


def is_raised_by_author(error: BaseException) -> bool:
    return any(origin_of(call.filename) is None for call in traceback.extract_tb(error.__traceback__))


class AuthorsFirst(logging.Filter):
    """Formats the failures of a logger's records with `format_failure`, whatever its handlers are."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            record.exc_text = format_failure(record.exc_info[1])  # handlers take it instead of their own
        return True


class _Cut(traceback.StackSummary):
    """The author's calls of a traceback; some installed packages are the author's own."""

    def __init__(self, calls: traceback.StackSummary, own: set[str | None]) -> None:
        origins = [(call, origin_of(call.filename)) for call in calls]
        super().__init__(call for call, origin in origins if origin is None or origin in own)
        left_out = [origin for _, origin in origins if origin is not None and origin not in own]
        self._rest = ""
        if left_out:
            names = list(dict.fromkeys(left_out))
            listed = ", ".join(names[:_MOST_NAMES]) + (" and others" if len(names) > _MOST_NAMES else "")
            calls_of = "1 call" if len(left_out) == 1 else f"{len(left_out)} calls"
            self._rest = f"  ({calls_of} in {listed} left out{self._where(calls[-1], own)})\n"

    def _where(self, last: traceback.FrameSummary, own: set[str | None]) -> str:
        origin = origin_of(last.filename)
        if origin in (None, "mrtr_server") or origin in own:
            return ""  # what we raise says itself what is wrong
        parts = Path(last.filename).parts
        inside = parts[parts.index(str(origin)) :] if origin in parts else parts[-1:]
        return f"; raised in {'/'.join(inside)}, line {last.lineno}, in {last.name}"

    def __bool__(self) -> bool:
        return len(self) > 0 or bool(self._rest)  # or the line would be left out, too

    def format(self, **options: Any) -> list[str]:
        return [*super().format(**options), *([self._rest] if self._rest else [])]


def _parts(failure: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield failure
    for linked in (failure.__cause__, failure.__context__, *(getattr(failure, "exceptions", None) or ())):
        if linked is not None:
            yield from _parts(linked)


def _called(calls: Iterable[traceback.FrameSummary]) -> Iterator[str]:
    """Yield the files of functions that ours have called for the author: an author's code may be installed, too."""
    caller = ("", "")
    for call in calls:
        if caller in _CALLERS and not call.filename.startswith(_OURS):
            yield call.filename
        caller = call.filename, call.name


def origin_of(file: str) -> str | None:
    """Return the package that a file belongs to; None for the author's own code."""
    if file.startswith(_OURS):
        return "mrtr_server"
    if file.startswith("<frozen "):
        return "python"
    if (installed := _installed(file)) is not None:
        return installed
    if os.path.normcase(file).startswith(_STANDARD):
        return Path(file[len(_STANDARD) :]).parts[0].removesuffix(".py")
    return None


def _installed(file: str) -> str | None:
    parts = Path(file).parts
    for folder in _FOLDERS:
        if folder in parts[:-1]:
            return parts[len(parts) - parts[::-1].index(folder)].removesuffix(".py")
    return None


def _stack() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and origin_of(frame.f_code.co_filename) not in ("asyncio", "threading"):
        yield frame
        frame = frame.f_back


def _summary(frame: FrameType) -> traceback.FrameSummary:
    code = frame.f_code
    linecache.lazycache(code.co_filename, frame.f_globals)
    return traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name)


# Exceptions without the local variables of the code that raised them


def take_locals(error: BaseException) -> None:
    """Remove local variables, which hold whatever code worked on, from an exception that nobody handles any more."""
    for each in linked(error):
        each.__traceback__ = _bare(each.__traceback__)


def linked(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all that led to it, once each."""
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


# References


Noted = list[tuple[BaseException, str]]  # failures, each with its reference

_noted: ContextVar[Noted | None] = ContextVar("mrtr_server_failures", default=None)


@contextmanager
def noting(failures: Noted) -> Iterator[None]:
    """Note the failures that are reported in the block, and in the tasks and threads that it starts."""
    token = _noted.set(failures)
    try:
        yield
    finally:
        _noted.reset(token)


def report_failure(
    what: str,
    *values: object,
    why: str = "",
    error: BaseException | None = None,
    fields: Mapping[str, str] | None = None,
    noted: BaseException | None = None,
) -> str:
    """Log a failure under a new reference, and return that: 8 hex digits.

    The values are no answer, argument or state. The error is logged with its traceback, which may show such; leave it
    out where `why` says it all. What is noted (see `noting`) is the error, or `noted`.
    """
    reference = secrets.token_hex(4)
    facts = {"event": "failure", "reference": reference, **(fields or {})}
    logger.error(
        f"{what} (reference %s)%s", *values, reference, why and f": {why}", exc_info=error, extra={"fields": facts}
    )
    failures, error = _noted.get(), noted or error
    if failures is not None and error is not None and all(error is not known for known, _ in failures):
        failures.append((error, reference))
    return reference


def report_outage(error: StoreUnavailable, what: str, *values: object) -> str:
    """Log that the store is unavailable, unless it is in the log, and return the reference, which the error gets."""
    if not error.reference:
        error.reference = report_failure(what, *values, why=str(error), noted=StoreUnavailable(str(error)))
    return error.reference

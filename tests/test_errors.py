"""The tree of errors: drawn as it is, and complete."""

import ast
import builtins
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import mrtr_server
from mrtr_server import Refusal, errors
from mrtr_server.errors import (
    CallEnded,
    InternalFault,
    InvalidRequest,
    InvalidRequestState,
    MissingCapability,
    OverBudget,
    PayloadTooLarge,
    RequestError,
    StateFault,
    UnknownMethod,
    UnknownTarget,
    UnsupportedVersion,
)
from mrtr_server.protocol.messages import NEEDS_TASKS
from mrtr_server.testing import Unexpected

ROOT = Path(mrtr_server.__file__).parent
SOURCES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
LINE = re.compile(r"^    (?P<branches>(?:│   |    )*(?:├── |└── )?)(?P<name>[A-Z]\w+)(?: {2,}(?P<says>.+))?$")


def drawn() -> Iterator[tuple[str, str | None, str | None]]:
    """Each error of the drawing, with the one that it hangs from, and what is said of it."""
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := LINE.match(line):
            depth = len(found["branches"]) // 4
            del above[depth:]
            yield found["name"], above[-1] if above else None, found["says"]
            above.append(found["name"])


def exceptions(sources: Mapping[str, ast.Module]) -> Iterator[tuple[str, str, str]]:
    """Each class of the sources that is an exception, wherever in them it stands, with its base and its file."""
    classes = [
        (node.name, [ast.unparse(base).rpartition(".")[2].partition("[")[0] for base in node.bases], path)
        for path, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    known = {
        name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
    }
    while found := [each for each in classes if known.intersection(each[1])]:
        classes = [each for each in classes if each not in found]
        known |= {name for name, _, _ in found}
        yield from ((name, base, path) for name, bases, path in found for base in bases if base in known)


def test_every_exception_of_the_package_hangs_in_the_tree_as_it_is_drawn() -> None:
    between = {"Exception": "BaseException"}  # Python's own, which is not drawn
    beside = {("RoundOver", "SystemExit"), ("UnfitUrl", "ValueError")}  # what a task group and a validator know it by
    found = {(name, base) for name, base, path in exceptions(SOURCES) if path == "errors.py"}
    here = [(name, between.get(base, base)) for name, base in found - beside]
    assert sorted((name, parent) for name, parent, _ in drawn() if parent is not None) == sorted(here)


def test_no_exception_is_elsewhere_but_the_failure_of_a_test_which_is_that_of_an_assertion() -> None:
    elsewhere = {(name, base) for name, base, path in exceptions(SOURCES) if path != "errors.py"}
    assert elsewhere == {("Unexpected", "AssertionError")}
    assert issubclass(Unexpected, AssertionError)


def test_the_drawing_says_of_each_what_it_is() -> None:
    assert [name for name, _, says in drawn() if not says] == ["BaseException", "MRTRError"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class Mine(Exception): ...", [("Mine", "Exception")]),
        ("class Mine(errors.Unknown): ...", []),
        ("class Mine(builtins.KeyError): ...", [("Mine", "KeyError")]),
        ("def make():\n    class _Mine(ValueError): ...", [("_Mine", "ValueError")]),
        ("class Mine(Theirs): ...\nclass Theirs(OSError): ...", [("Theirs", "OSError"), ("Mine", "Theirs")]),
        ("class Mine(BaseExceptionGroup[E], Named): ...", [("Mine", "BaseExceptionGroup")]),
        ("class Record(Generic[T]): ...", []),
    ],
)
def test_the_search_finds_those_that_are_missing(source: str, found: list[tuple[str, str]]) -> None:
    assert [(name, base) for name, base, _ in exceptions({"some/module.py": ast.parse(source)})] == found


def test_the_end_of_a_call_is_no_error_so_that_nothing_that_catches_errors_catches_it() -> None:
    assert not issubclass(CallEnded, Exception)
    assert issubclass(Refusal, CallEnded)


IN_THE_CHAT = "Ask the user in the chat, and call again if an argument takes the answer."
YOURSELF = "Write the message yourself, and call again if an argument takes it."
FOLDERS = "Ask the user for the folders, and call again if an argument takes them."
OTHERWISE = "Otherwise tell the user that this needs another client."
IN_ANY_CASE = "Tell the user that this needs another client."

REQUEST_ERRORS: list[RequestError] = [
    InvalidRequest("not a request", 7),
    PayloadTooLarge(5),
    UnknownMethod("x" * 10_000),
    UnknownTarget("tool", "x" * 10_000),
    UnknownTarget("resource", "file:///a"),
    InvalidRequestState("expired"),
    OverBudget("too many", "rounds", 10, seen=11),
    UnsupportedVersion("x" * 10_000, ["2026-07-28"]),
    UnsupportedVersion("1999", []),
    MissingCapability({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}),
    MissingCapability.in_version("2025-06-18", "a choice of several, as the field 'toppings' is", "elicitation"),
    InternalFault("abcd1234"),
    InternalFault("abcd1234", "ZeroDivisionError: division by zero"),
]


@pytest.mark.parametrize("error", REQUEST_ERRORS, ids=lambda error: type(error).__name__)
def test_what_a_client_is_told_is_one_short_line_and_plain_json(error: RequestError) -> None:
    assert "\n" not in error.message
    assert 0 < len(error.message) < 500
    assert str(error) == error.message
    assert json.loads(json.dumps(error.data)) == error.data


def test_data_lets_a_client_mend_its_request() -> None:
    assert PayloadTooLarge(5).data == {"limit": "body_bytes", "value": 5}
    assert UnknownTarget("tool", "a").data == {"name": "a"}
    assert UnknownTarget("prompt", "a").data == {"name": "a"}
    assert UnknownTarget("resource", "file:///a").data == {"uri": "file:///a"}
    assert OverBudget("too many", "rounds", 10, seen=11).data == {"limit": "rounds", "value": 10, "seen": 11}
    assert UnsupportedVersion("1999", ["2026-07-28"]).data == {"supported": ["2026-07-28"], "requested": "1999"}
    assert MissingCapability({"roots": {}}).data == {"requiredCapabilities": {"roots": {}}}


@pytest.mark.parametrize(
    ("required", "named"),
    [
        ({"elicitation": {"form": {}}}, f"form elicitation. {IN_THE_CHAT} {OTHERWISE}"),
        ({"elicitation": {"url": {}}, "roots": {}}, f"URL elicitation, roots. {FOLDERS} {OTHERWISE}"),
        ({"elicitation": {"form": {}, "url": {}}}, f"form elicitation, URL elicitation. {IN_THE_CHAT} {OTHERWISE}"),
        ({"elicitation": {"url": {}}}, f"URL elicitation. {IN_ANY_CASE}"),
        ({"elicitation": {}}, f"elicitation. {IN_THE_CHAT} {OTHERWISE}"),
        ({"sampling": {"tools": {}}}, f"sampling with tools. {YOURSELF} {OTHERWISE}"),
        (NEEDS_TASKS, f"tasks. {IN_ANY_CASE}"),
        ({"extensions": {"com.example/orders": {}}}, f"com.example/orders. {IN_ANY_CASE}"),
        ({"something.new": {}}, f"something.new. {IN_ANY_CASE}"),
    ],
)
def test_a_missing_capability_is_named_in_the_text_with_what_the_model_can_do_instead(
    required: dict[str, Any], named: str
) -> None:
    error = MissingCapability(required)
    assert error.message == f"This request needs capabilities that the client did not declare: {named}"
    assert error.data == {"requiredCapabilities": required}


def test_a_refused_state_says_why_to_the_log_alone() -> None:
    expired, forged = InvalidRequestState("expired"), InvalidRequestState("forged or damaged")
    assert (expired.message, expired.data, str(expired)) == (forged.message, forged.data, str(forged))
    assert expired.reason == "expired"


def test_each_word_for_a_state_that_does_not_open_is_in_the_docs() -> None:
    page = (ROOT.parent / "docs" / "telemetry.md").read_text()
    assert [fault for fault in StateFault if f"`{fault}`" not in page] == []


def test_an_internal_fault_shows_its_reference_and_its_detail_only_where_it_was_given() -> None:
    assert InternalFault("abcd1234").message == "Internal error (reference abcd1234)"
    assert InternalFault("abcd1234").data == {"reference": "abcd1234"}
    assert InternalFault("abcd1234", "ZeroDivisionError").message == "ZeroDivisionError"


def test_references_into_the_log_are_made_in_one_module() -> None:
    making = {
        path
        for path, tree in SOURCES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node).endswith("token_hex(4)")
    }
    assert making == {"logs/failures.py"}


REPORTED_TO_NOBODY = {
    "deployment/lifecycle.py: serve": "the web server ends, and is told by the message; no client has called",
    "flow/home.py: _hold": "the server shuts down; no client has called",
    "flow/single_use.py: _deliver": "the client has its reply, or has left",
    "flow/teardown.py: _leave": "the client is told what the handler ended with, which has a reference of its own",
    "methods/hooked_calls.py: report": "a hook that is told of failures has failed; it must not be told of that",
    "tasks/worker.py: _again_and_again": "the worker tries again; no task has failed",
    "transport/web_server.py: close": "the process ends; its clients connect to the next one",
}
"""The functions that log a traceback by themselves, each with the reason why nobody is to get a reference."""


def logged_tracebacks(path: str, node: ast.AST, function: str = "") -> Iterator[str]:
    """Each call of the sources that logs a traceback, as its file and its function."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = node.name
    if isinstance(node, ast.Call):
        named = {keyword.arg for keyword in node.keywords}
        if "exc_info" in named or re.search(r"\blog\w*\.exception$", ast.unparse(node.func)):
            yield f"{path}: {function}"
    for child in ast.iter_child_nodes(node):
        yield from logged_tracebacks(path, child, function)


def test_a_failure_gets_its_reference_where_its_traceback_is_logged() -> None:
    logging = [found for path, tree in SOURCES.items() for found in logged_tracebacks(path, tree)]
    assert sorted(logging) == sorted(["logs/failures.py: report_failure", *REPORTED_TO_NOBODY])


@pytest.mark.parametrize("line", ["logger.error('x', exc_info=error)", "logger.exception('x')", "log.exception('x')"])
def test_each_way_to_log_a_traceback_is_seen(line: str) -> None:
    source = ast.parse(f"async def f():\n    {line}\n    task.exception()")
    assert list(logged_tracebacks("a.py", source)) == ["a.py: f"]

"""The tree of errors: drawn as it is, and complete."""

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import mrtr_server
from mrtr_server import errors
from mrtr_server.errors import (
    InternalFault,
    InvalidRequest,
    InvalidRequestState,
    MissingCapability,
    MRTRError,
    OverBudget,
    PayloadTooLarge,
    RequestError,
    UnknownMethod,
    UnknownTarget,
    UnsupportedVersion,
)
from mrtr_server.flow import asks
from mrtr_server.protocol.messages import NEEDS_TASKS
from mrtr_server.testing import Unexpected

LINE = re.compile(r"^    (?P<branches>(?:│   |    )*(?:├── |└── )?)(?P<name>[A-Z]\w+)(?: {2,}(?P<says>.+))?$")


def drawn() -> Iterator[tuple[str, str | None]]:
    """Each error of the drawing, with the one that it hangs from."""
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := LINE.match(line):
            depth = len(found["branches"]) // 4
            del above[depth:]
            yield found["name"], above[-1] if above else None
            above.append(found["name"])


def tree(root: type[Exception], parent: str | None = None) -> Iterator[tuple[str, str | None]]:
    """Each error that the module defines, with its base, in the order of definition."""
    yield root.__name__, parent
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child, root.__name__)


def test_the_tree_is_drawn_as_it_is() -> None:
    assert sorted(drawn()) == sorted(tree(MRTRError))


def test_the_module_defines_nothing_else() -> None:
    assert {name for name, _ in drawn()} == {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == errors.__name__
    }


def test_every_error_of_the_package_is_in_the_tree() -> None:
    root = Path(mrtr_server.__file__).parent
    names = [".".join(path.relative_to(root.parent).with_suffix("").parts) for path in root.rglob("*.py")]
    outside = {
        value
        for name in names
        for value in vars(import_module(name.removesuffix(".__init__"))).values()
        if isinstance(value, type)
        and issubclass(value, BaseException)
        and value.__module__.startswith("mrtr_server")
        and not issubclass(value, MRTRError)
        and not value.__name__.startswith("_")
    }
    # The end of a call, such as by a person's no, is not an error, and nothing that catches errors may catch it; and
    # the failure of a test is that of an assertion.
    assert outside == {asks.CallEnded, asks.Refusal, Unexpected}
    assert issubclass(Unexpected, AssertionError)
    assert not issubclass(asks.CallEnded, Exception)
    assert issubclass(asks.Refusal, asks.CallEnded)


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
    MissingCapability({"elicitation": {"url": {}}}),
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
        ({"elicitation": {"form": {}}}, "form elicitation"),
        ({"elicitation": {"url": {}}, "roots": {}}, "URL elicitation, roots"),
        ({"elicitation": {}}, "elicitation"),
        ({"sampling": {"tools": {}}}, "sampling with tools"),
        (NEEDS_TASKS, "tasks"),
        ({"something.new": {}}, "something.new"),
    ],
)
def test_a_missing_capability_is_named_in_the_text_since_most_clients_show_nothing_else(
    required: dict[str, Any], named: str
) -> None:
    error = MissingCapability(required)
    assert error.message == f"This request needs capabilities that the client did not declare: {named}"
    assert error.data == {"requiredCapabilities": required}


def test_a_refused_state_says_why_to_the_log_alone() -> None:
    expired, forged = InvalidRequestState("expired"), InvalidRequestState("forged or damaged")
    assert (expired.message, expired.data, str(expired)) == (forged.message, forged.data, str(forged))
    assert expired.reason == "expired"


def test_an_internal_fault_shows_its_reference_and_its_detail_only_where_it_was_given() -> None:
    assert InternalFault("abcd1234").message == "Internal error (reference abcd1234)"
    assert InternalFault("abcd1234").data == {"reference": "abcd1234"}
    assert InternalFault("abcd1234", "ZeroDivisionError").message == "ZeroDivisionError"

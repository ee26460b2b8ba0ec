"""The dialects as a set: which one takes a request, what each makes of an error, what they keep to themselves."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from mrtr_server import InsufficientScope, MRTRServer, ProtocolError, SetupError
from mrtr_server.errors import (
    AnswerNotShared,
    Busy,
    CutOff,
    Declined,
    ExtensionError,
    Full,
    HandshakeNotServed,
    HeaderMismatch,
    InternalFault,
    InvalidParams,
    InvalidRequest,
    InvalidRequestState,
    MissingCapability,
    NotExecuted,
    OverBudget,
    OverShare,
    PagesRequired,
    ParseError,
    PayloadTooLarge,
    RateLimited,
    RequestError,
    SessionEnded,
    Unavailable,
    UnknownMethod,
    UnknownTarget,
    UnsupportedVersion,
    overloaded,
)
from mrtr_server.protocol.dialect import Dialect, Surface
from mrtr_server.protocol.served_dialects import DIALECTS, ENCODINGS, UNVERSIONED, load_encodings

from ..conftest import Serve
from ..support.serving import ROOT, in_thread
from ..support.wire import ACCEPT, JSON, VERSION, Reply, Wire, modern, request

PACKAGE = ROOT / "mrtr_server"
SHARED = {"event_codes", "dialect", "handshake_versions", "served_dialects"}
FORMS = {"draft_encodings", "drafts", "handshake", "v2026_07_28"}
MODULES = [PACKAGE / "protocol" / f"{name}.py" for name in sorted(SHARED | FORMS)]

OLD = "2025-11-25"
UNKNOWN = "v999.0.0"


# Which dialect takes a request


def app(**options: list[str]) -> MRTRServer:
    served = MRTRServer("chosen", keys=[bytes(32)], **options)  # type: ignore[arg-type]

    @served.tool
    def hello() -> int:
        return 5

    return served


def written_by(reply: Reply) -> str | int:
    """Return which dialect wrote a reply, or the code of the error."""
    if "result" in reply.message:
        if "tools" not in reply.result and not isinstance(reply.result.get("structuredContent"), int):
            return "handshake"  # the others send 5 as it is
        return "modern" if "resultType" in reply.result else "draft"
    code = reply.code
    assert code is not None
    return code


def send(wire: Wire, method: str, header: str | None, meta: str | None, session: bool) -> Reply:
    """Send a request that names versions in these places."""
    named = {"name": "hello"} if method == "tools/call" else {"protocolVersion": OLD} if method == "initialize" else {}
    message = modern(method, named) if meta else request(method, named)
    if meta:
        message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = meta
    headers = {"Content-Type": "application/json", "Accept": ACCEPT, "Mcp-Method": method}
    if method == "tools/call":
        headers["Mcp-Name"] = "hello"
    if header:
        headers["MCP-Protocol-Version"] = header
    if session:
        headers["Mcp-Session-Id"] = "session"
    return wire.send(json.dumps(message).encode(), headers)


# method, version in the header, version in _meta, a session id; and who answers, or with what
CHOICES = [
    ("tools/call", None, None, False, "draft"),
    ("tools/call", VERSION, VERSION, False, "modern"),
    ("tools/call", VERSION, VERSION, True, "modern"),  # a session id says nothing in 2026-07-28
    ("tools/call", VERSION, None, False, -32602),  # modern and malformed, no draft
    ("tools/call", VERSION, None, True, -32602),
    ("tools/call", None, VERSION, False, -32020),  # modern, and its header is missing
    ("tools/call", None, VERSION, True, -32020),
    ("tools/call", UNKNOWN, UNKNOWN, False, -32022),
    ("tools/call", UNKNOWN, None, False, -32602),
    ("tools/call", UNKNOWN, VERSION, False, -32020),
    ("tools/call", VERSION, UNKNOWN, False, -32020),
    ("tools/call", None, UNKNOWN, False, -32020),
    ("tools/call", OLD, None, False, "handshake"),
    ("tools/call", OLD, None, True, "handshake"),
    ("tools/call", OLD, VERSION, False, -32020),  # `_meta` says modern, the header does not
    ("tools/call", OLD, OLD, False, "handshake"),
    ("tools/call", OLD, "2025-06-18", False, -32020),
    ("tools/call", None, OLD, False, -32020),
    ("tools/call", None, None, True, "handshake"),  # a session that does not open is one all the same
    ("initialize", None, None, False, "handshake"),
    ("initialize", None, None, True, "handshake"),
    ("initialize", OLD, None, False, "handshake"),
    ("initialize", UNKNOWN, None, False, -32602),  # a version of the future, and malformed
    ("initialize", VERSION, VERSION, False, -32601),  # modern, which has no such method
    ("tools/list", None, None, False, "draft"),
    ("tools/list", VERSION, VERSION, False, "modern"),
]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Wire]]:
    """All dialects, and each one alone."""
    with ExitStack() as stack:
        wires = {}
        chosen_by_name = {"all": None, "modern": [VERSION], "handshake": [OLD], "draft": ["sep-draft"]}
        for name, chosen in chosen_by_name.items():
            served = app() if chosen is None else app(dialects=chosen)
            wires[name] = Wire(f"http://127.0.0.1:{stack.enter_context(in_thread(served))}/mcp")
            stack.callback(wires[name].close)
        yield wires


@pytest.mark.parametrize(("method", "header", "meta", "session", "expected"), CHOICES)
def test_the_versions_in_a_request_choose_its_dialect(
    servers: dict[str, Wire], method: str, header: str | None, meta: str | None, session: bool, expected: str | int
) -> None:
    reply = send(servers["all"], method, header, meta, session)
    assert written_by(reply) == expected
    assert reply.message["id"] == 1
    if expected == -32022:
        assert reply.error.data["supported"] == [VERSION]


def test_a_progress_token_alone_does_not_make_a_request_modern(servers: dict[str, Wire]) -> None:
    message = request("tools/call", {"name": "hello", "_meta": {"progressToken": 1}})
    assert written_by(servers["all"].draft(message)) == "draft"


class TestNarrowing:
    def test_without_the_drafts_a_request_must_name_its_version(self, servers: dict[str, Wire]) -> None:
        wire = servers["modern"]
        assert written_by(send(wire, "tools/call", VERSION, VERSION, False)) == "modern"
        assert written_by(send(wire, "tools/call", None, None, False)) == -32020
        assert written_by(send(wire, "tools/call", None, None, True)) == -32020
        refused = send(wire, "initialize", None, None, False)
        assert refused.status == 200, "many clients show HTTP errors alone"
        assert refused.error.data == {"supported": [VERSION], "requested": OLD}
        assert VERSION in refused.error.message
        assert "dialects=" in refused.error.message, "who can change it reads what to change"

    def test_without_the_others_only_a_handshake_is_served(self, servers: dict[str, Wire]) -> None:
        wire = servers["handshake"]
        assert written_by(send(wire, "initialize", None, None, False)) == "handshake"
        assert written_by(send(wire, "tools/call", OLD, None, False)) == "handshake"
        refused = send(wire, "tools/call", VERSION, VERSION, False)
        assert (refused.status, refused.code) == (400, -32022)
        assert refused.error.data["supported"] == [OLD, "2025-06-18", "2025-03-26", "2024-11-05"]
        assert written_by(send(wire, "tools/call", None, None, False)) == -32020

    @pytest.mark.parametrize(("header", "meta"), [(VERSION, VERSION), (None, VERSION), (VERSION, None), (OLD, None)])
    def test_without_the_ratified_protocol_no_version_is_served(
        self, servers: dict[str, Wire], header: str | None, meta: str | None
    ) -> None:
        wire = servers["draft"]
        assert written_by(send(wire, "tools/call", None, None, False)) == "draft"
        refused = send(wire, "tools/call", header, meta, False)
        assert (refused.status, refused.code) == (400, -32022)
        assert refused.error.data["supported"] == []

    def test_needs_names_of_dialects(self) -> None:
        for wrong in ([], ["2025-06-18"], [VERSION, "x"]):
            with pytest.raises(SetupError, match="choose from 2026-07-28, 2025-11-25, sep-draft"):
                app(dialects=wrong)

    def test_needs_one_form_for_clients_that_name_no_version(self) -> None:
        for other in UNVERSIONED - {"sep-draft"}:
            with pytest.raises(SetupError, match=f"choose one of {other}, sep-draft"):
                app(dialects=[VERSION, "sep-draft", other])
        assert {"sep-draft", *ENCODINGS} == UNVERSIONED
        assert tuple(load_encodings()[0]) == ENCODINGS

    def test_loads_no_other_encoding_where_none_is_named(self) -> None:
        served = "import sys, mrtr_server; mrtr_server.MRTRServer('x', keys=[bytes(32)]);"
        done = subprocess.run(
            [sys.executable, "-c", served + "print('mrtr_server.protocol.draft_encodings' in sys.modules)"],
            capture_output=True,
            check=True,
        )
        assert done.stdout == b"False\n"

    def test_keeps_the_order_in_which_they_are_asked(self, serve: Serve) -> None:
        wire = serve(app(dialects=["sep-draft", VERSION]))
        assert written_by(send(wire, "tools/call", VERSION, VERSION, False)) == "modern"
        assert written_by(send(wire, "tools/call", None, None, False)) == "draft"


# Errors

# Each error with its HTTP status, its JSON-RPC code, and its data on the wire.
ERRORS: list[tuple[RequestError, int, int, JSON | None]] = [
    (ParseError("x"), 400, -32700, None),
    (InvalidRequest("x", 5), 400, -32600, None),
    (PayloadTooLarge(10), 413, -32600, {"limit": "body_bytes", "value": 10}),
    (UnknownMethod("x/y"), 404, -32601, None),
    (UnknownMethod("tools/call", "not as a task", {"name": "x"}), 404, -32601, {"name": "x"}),
    (InvalidParams("x"), 400, -32602, None),
    (InvalidParams("x", {"name": "y"}), 400, -32602, {"name": "y"}),
    (UnknownTarget("tool", "y"), 400, -32602, {"name": "y"}),
    (UnknownTarget("prompt", "y"), 400, -32602, {"name": "y"}),
    (UnknownTarget("task", "y"), 400, -32602, {"taskId": "y"}),
    (UnknownTarget("resource", "a://y"), 400, -32602, {"uri": "a://y"}),
    (InvalidRequestState("the secret reason"), 400, -32602, None),
    (OverBudget("x", "rounds", 3, more=1), 400, -32602, {"limit": "rounds", "value": 3, "more": 1}),
    (HeaderMismatch("x"), 400, -32020, None),
    (MissingCapability({"roots": {}}), 400, -32021, {"requiredCapabilities": {"roots": {}}}),
    (MissingCapability.in_version("2025-06-18", "a page"), 400, -32021, {"protocolVersion": "2025-06-18"}),
    (UnsupportedVersion("v9", ["v1"]), 400, -32022, {"supported": ["v1"], "requested": "v9"}),
    (HandshakeNotServed("v9", ["v1"]), 200, -32022, {"supported": ["v1"], "requested": "v9"}),
    (SessionEnded(), 404, -32600, None),
    (AnswerNotShared(), 503, -32603, None),
    (PagesRequired({}), 500, -32603, None),
    (ProtocolError("x"), 200, -32603, None),
    (Declined("x", {"action": "decline"}), 200, -31001, {"action": "decline"}),
    (Busy(1.5), 503, -31002, None),
    (Full("stored_tasks", 5), 503, -31002, {"limit": "stored_tasks", "value": 5}),
    (overloaded(1.5), 503, -31002, {"retryAfter": 2}),
    (
        RateLimited("per_tool", "5/minute", 1.5),
        429,
        -31002,
        {"limit": "per_tool", "value": "5/minute", "retryAfter": 2},
    ),
    (OverShare("listeners", 5), 429, -31002, {"limit": "listeners", "value": 5}),
    (InsufficientScope("a", "b"), 403, -31003, {"requiredScopes": ["a", "b"]}),
    (CutOff(), 503, -32603, None),
    (ExtensionError(-32023, "Not found", {"kind": "event"}), 200, -32023, {"kind": "event"}),
    (InternalFault("abcd"), 500, -32603, {"reference": "abcd"}),
    (Unavailable("abcd"), 503, -32603, {"reference": "abcd"}),
    (NotExecuted("abcd"), 503, -32603, {"reference": "abcd"}),
]


AS_EVERYWHERE = (HeaderMismatch, InsufficientScope, SessionEnded, UnsupportedVersion)
"""What has a status of its own in the handshake era, too; whatever else answers a request has 200."""


def below(kind: type[RequestError]) -> set[type[RequestError]]:
    """Return all classes below one in the tree."""
    return {each for child in kind.__subclasses__() for each in {child, *below(child)}}


@pytest.fixture(params=[*DIALECTS, *ENCODINGS])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return {**DIALECTS, **load_encodings()[0]}[request.param](
        Surface({"name": "x", "version": "1"}, [VERSION], lambda tool: "forbidden")
    )


def test_every_error_is_in_the_table() -> None:
    ours = {kind for kind in below(RequestError) if kind.__module__.startswith("mrtr_server.")}
    assert {type(error) for error, *_ in ERRORS} == ours


@pytest.mark.parametrize(("error", "status", "code", "data"), ERRORS, ids=lambda value: type(value).__name__)
def test_every_error_has_a_status_and_a_code_in_every_dialect(
    dialect: Dialect, error: RequestError, status: int, code: int, data: JSON | None
) -> None:
    if dialect.name == OLD and not isinstance(error, AS_EVERYWHERE):
        status, code = 200, -32002 if data == {"uri": "a://y"} else code
    if dialect.name == OLD and isinstance(error, PagesRequired):  # the one dialect that has them
        code, data = -32042, {"elicitations": []}
    reply = dialect.error("id-1", error)
    assert reply.status == status
    written = {"code": code, "message": error.message} | ({} if data is None else {"data": data})
    assert json.loads(reply.body) == {"jsonrpc": "2.0", "id": "id-1", "error": written}
    assert b"secret" not in reply.body


@pytest.mark.parametrize(("error", "status", "code", "data"), ERRORS, ids=lambda value: type(value).__name__)
def test_what_is_no_request_is_refused_with_an_http_error_in_every_dialect(
    dialect: Dialect, error: RequestError, status: int, code: int, data: JSON | None
) -> None:
    reply = dialect.refuse(error)
    assert reply.status == status
    assert json.loads(reply.body).get("id") == error.request_id


def test_a_client_that_is_to_come_later_is_told_when(dialect: Dialect) -> None:
    assert dialect.error(1, Busy(1.5)).headers == ((b"retry-after", b"2"),)
    assert dialect.error(1, InvalidParams("x")).headers == ()


def test_an_error_of_another_package_is_still_an_error(dialect: Dialect) -> None:
    class Homemade(RequestError):
        pass

    class Strict(InvalidParams):
        pass

    assert dialect.error(1, Homemade("x")).status == (200 if dialect.name == OLD else 500)
    assert dialect.error(1, Strict("x")).status == (200 if dialect.name == OLD else 400)
    del Homemade, Strict


def test_an_id_that_could_not_be_read_is_left_out(dialect: Dialect) -> None:
    assert set(json.loads(dialect.error(None, ParseError("x")).body)) == {"jsonrpc", "error"}
    assert json.loads(dialect.error(0, ParseError("x")).body)["id"] == 0
    assert json.loads(dialect.error("", ParseError("x")).body)["id"] == ""


def test_no_code_of_ours_is_in_the_range_that_json_rpc_reserves() -> None:
    protocol = {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022, -32042}
    ours = {code for kind in DIALECTS.values() for _, code in kind.codes.values()} - protocol
    assert ours == {-31001, -31002, -31003}


# What dialects keep to themselves


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_siblings_never_import_each_other(module: Path) -> None:
    """A little repetition beats an `if version`."""
    siblings = FORMS - {module.stem} - ({"drafts"} if module.stem == "draft_encodings" else set())
    imported = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            imported |= {*parts, *(name.name for name in node.names if not node.module)}
        elif isinstance(node, ast.Import):
            imported |= {part for name in node.names for part in name.name.split(".")}
    if module.stem != "served_dialects":
        assert not imported & siblings


def strays(pattern: str) -> list[str]:
    """Find what matches in the package's code, outside the dialects; words in docstrings and comments don't count."""
    return [f"{place}: {text}" for place, text in constants() if re.search(pattern, text)]


@cache
def constants() -> list[tuple[str, str]]:
    """Return the place and the text of each constant outside the dialects, but for documentation."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path in MODULES:
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
                found.append((f"{path.name}:{node.lineno}", f"-{node.operand.value!r}"))
            elif isinstance(node, ast.Constant) and id(node) not in documentation:
                found.append((f"{path.name}:{node.lineno}", str(node.value)))
    return found


def test_versions_of_the_protocol_are_named_nowhere_else() -> None:
    assert strays(r"(?<!/schemas/)\b20\d\d-\d\d-\d\d\b") == []  # a schema of the registry has a date of its own


def test_codes_of_json_rpc_are_named_nowhere_else() -> None:
    assert strays(r"-3[12]\d\d\d") == []


def test_the_strays_are_found_where_there_are_some() -> None:
    """The search above would otherwise pass by finding nothing anywhere."""
    assert strays(r"^requestState is not valid")
    assert any(each.startswith("endpoint.py") for each in strays(r"^405$"))

"""The layers of the package: imports go downwards only, and a library is imported where a table says so."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

import mrtr_server

ROOT = Path(mrtr_server.__file__).parent

# The highest first, as in docs/architecture.md: a package imports from those below it in this table, and from itself.
PACKAGES = {
    "testing": "the test kit",
    "__main__": "the commands, as `python -m mrtr_server`",
    "cli": "the commands",
    "dev": "what an author sees while writing a server",
    "new": "a project to begin with",
    "client": "a client for programs",
    "server": "the decorators, and the ASGI application",
    "deployment": "one server: its settings, its parts and its life; and what several workers share",
    "playground": "the page for people",
    "wire": "a client's side of the wire",
    "transport": "HTTP over ASGI; and standard input and output",
    "auth": "who calls, by their tokens",
    "telemetry": "spans, metrics and the log line of a call",
    "methods": "one function for each method",
    "live": "calls that stay open while the client answers",
    "tasks": "background flows",
    "registration": "a decorated function becomes a record",
    "flow": "one round against a journal",
    "rates": "how often callers may call",
    "callbacks": "signed links back from a browser",
    "storage": "what replicas share",
    "schema": "types to JSON Schema and back",
    "protocol": "neutral messages, and the dialects",
    "crypto": "keys, sealing, signing",
    "concurrency": "threads, deadlines and batches",
    "logs": "what goes to the log",
    "tally": "what is counted",
    "limits": "what requests and flows may use",
    "hints": "words of other frameworks",
    "extras": "optional libraries, and how to install them",
    "loopback": "what is on this machine",
    "well_formed": "text without halves of characters",
    "given": "which fields of an object its author gave",
    "errors": "the one tree of exceptions",
    "_version": "the release",
}
TOP = "__init__"
"""The package's own namespace, which may import from anywhere."""

IN_THE_DOCS = re.findall(r"^\| (`.+`) \| .+ \|$", (ROOT.parent / "docs" / "architecture.md").read_text(), re.MULTILINE)
LEVEL = {package: level for level, package in enumerate(reversed(PACKAGES))}
DIALECTS = {"protocol.drafts", "protocol.handshake", "protocol.v2026_07_28"}
HANDSHAKE = {f"protocol.handshake_{part}" for part in ("entries", "questions", "tasks", "versions")}
ENCODINGS = "protocol.draft_encodings"
"""Other forms of a dialect, built on it."""

NAMED_ANSWERS = "protocol.draft_answers"
"""Answers in these forms."""

PENDING = "protocol.pending_elicitations"
"""What a draft adds to tasks of a ratified version."""

WIRE = (
    DIALECTS
    | HANDSHAKE
    | {ENCODINGS, NAMED_ANSWERS, PENDING}
    | {f"protocol.{each}" for each in ("dialect", "all_dialects", "headers", "jsonrpc")}
)
"""What knows the forms of messages on the wire."""

CHOICE = "protocol.served_dialects"
"""Which of them are served: who makes a server passes it on, and knows none."""

ONLY_IMPORTERS = {
    "cryptography": {"crypto.codec"},
    "jsonschema_rs": {"schema.json_schema"},
    "itsdangerous": {"crypto.signing"},
    "click": {
        "cli",
        *(f"cli.{each}" for each in ("check", "database", "dev", "keys", "loading", "log_options", "run", "states")),
        *(f"cli.{each}" for each in ("calling", "new", "stdio", "tasks", "variables", "worker")),
    },
    "sqlite3": {"dev.effects", "storage.sql.sqlite", "storage.sql.sqlite_file"},
    "asyncpg": {"storage.sql.postgresql"},
    "starlette": {
        *(
            f"transport.{each}"
            for each in (
                "asgi_server",
                "authentication",
                "callback_pages",
                "challenges",
                "connection",
                "cors",
                "endpoint",
                "gate",
                "health",
                "metrics_page",
                "refused_bodies",
                "resource_metadata",
                "response_writer",
                "routing",
                "site",
            )
        ),
        *(
            f"auth.{each}"
            for each in ("bearer", "fixed_tokens", "introspection", "jwt_auth", "jwt_keys", "token_backend")
        ),
        "dev.refused_requests",
        "protocol.users",
        "flow.context",
        "flow.hooks",
        *(f"registration.{each}" for each in ("callbacks", "option_types", "options")),
        *(f"deployment.{each}" for each in ("lifecycle", "settings", "wiring")),
        *(f"playground.{each}" for each in ("local", "observed_rounds", "page")),
        "server",
        "testing.transports",
    },
    "uvicorn": {
        *(f"transport.{each}" for each in ("one_write", "whole_responses", "repeated_heads")),
        "cli.web_servers",
        *(f"dev.{each}" for each in ("process", "reloading")),
    },
    "httptools": {"transport.whole_responses"},
    "granian": {"cli.web_servers"},
    "pydantic_settings": {"deployment.environment"},
    "http": {"testing.transports"},
    "jwt": {"auth.jwt_keys"},
    "limits": {"rates.counters"},
    "redis": {"rates.counters"},
    "prompt_toolkit": {"cli.terminal_client"},
    "pydantic": {  # what authors declare as models, and what is read of it
        "cli.calling",
        "client.results",
        "deployment.environment",
        *(f"flow.{each}" for each in ("asks", "inputs", "pure", "step_arguments", "steps", "undone", "url_asks")),
        *(f"protocol.{each}" for each in ("content", "draft_answers")),
        "registration.dependencies",
        *(f"schema.{each}" for each in ("annotations", "arguments", "defaults", "exact", "forms", "peer_validator")),
        *(f"schema.{each}" for each in ("problems", "results", "stored", "texts", "values")),
        "testing.answers",
        "well_formed",
    },
    "rich": {"cli.terminal_client", "cli.terminal_form"},
    "questionary": {"cli.terminal_form"},
    "httpx": {"auth.fetching", "client.client", "client.connection"},
    "opentelemetry": {f"telemetry.{each}" for each in ("choice", "instruments", "spans")},
    "prometheus_client": {"telemetry.prometheus"},
}
"""Where a library is imported, and nowhere else. Most have one module; ASGI, HTTP and the commands have a package."""

ANYWHERE = {
    "pydantic_core": "reads and writes JSON",
    "typing_extensions": "has what the oldest Python lacks of `typing`",
}
"""What any module may import, and why."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def level(module: str) -> int:
    """Where a module's package stands in the table."""
    return LEVEL[module.partition(".")[0]]


SOURCES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
MODULES = sorted(SOURCES.keys() - {TOP})
TREES = {module: ast.parse(path.read_text()) for module, path in SOURCES.items()}
NEUTRAL = [module for module in MODULES if level(module) <= LEVEL["methods"] and module not in WIRE]
"""The dispatcher and all below it, which know no version and no wire."""


def imports(module: str) -> Iterator[str]:
    """The full names of all that a module imports, wherever in it the import stands."""
    package = module.split(".") if SOURCES[module].name == "__init__.py" else module.split(".")[:-1]
    package = ["mrtr_server", *(package if module != TOP else [])]
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = ".".join([*base, *([node.module] if node.module else [])])
            inside = {f"{full}.{alias.name}".removeprefix("mrtr_server.") for alias in node.names}
            named = inside & SOURCES.keys()  # `from . import keys` imports a module
            yield from (f"mrtr_server.{name}" for name in named) if named else [full]


def siblings(module: str) -> set[str]:
    """The modules of the package that a module imports."""
    found = {name.removeprefix("mrtr_server.") for name in imports(module) if name.split(".")[0] == "mrtr_server"}
    return {TOP if name == "mrtr_server" else name for name in found}


def outsiders(module: str) -> set[str]:
    """The top-level names of all else that it imports."""
    return {name.split(".")[0] for name in imports(module)} - {"mrtr_server"}


def test_every_package_is_in_the_table() -> None:
    assert {module.partition(".")[0] for module in MODULES} == PACKAGES.keys()


def test_the_table_of_the_documentation_has_the_same_packages_in_the_same_order() -> None:
    said = [name for row in IN_THE_DOCS for name in re.findall(r"`([\w.]+)`", row) if "." not in name]
    assert [name for name in said if name in PACKAGES] == list(PACKAGES)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downwards_only(module: str) -> None:
    assert {other for other in siblings(module) if other == TOP or level(other) > level(module)} == set()


def test_modules_of_a_package_import_each_other_in_no_circle() -> None:
    waiting = {
        module: {other for other in siblings(module) if other != module and level(other) == level(module)}
        for module in MODULES
    }
    while ready := [module for module, needs in waiting.items() if not needs & waiting.keys()]:
        for module in ready:
            del waiting[module]
    assert waiting == {}


def test_the_package_imports_itself_by_relative_names() -> None:
    absolute = [
        module
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("mrtr_server"))
        or (isinstance(node, ast.Import) and any(alias.name.startswith("mrtr_server") for alias in node.names))
    ]
    assert absolute == []


def test_sibling_dialects_never_import_each_other() -> None:
    for dialect in DIALECTS:
        assert siblings(dialect) & (DIALECTS | {ENCODINGS}) == set()
    assert siblings(ENCODINGS) & DIALECTS == {"protocol.drafts"}


def test_only_the_edge_knows_the_dialects() -> None:
    knowing = {module for module in MODULES if siblings(module) & WIRE} - WIRE - {CHOICE}
    assert {module.partition(".")[0] for module in knowing} == {"transport", "testing", "wire"}
    assert {module for module in MODULES if CHOICE in siblings(module)} == {
        "deployment.review",  # which are served
        "deployment.settings",  # which names are there
        "deployment.wiring",
        "transport.endpoint",
        "transport.stdio",
    }


@pytest.mark.parametrize("library", ONLY_IMPORTERS)
def test_a_library_is_imported_where_the_table_says(library: str) -> None:
    assert {module for module in SOURCES if library in outsiders(module)} == ONLY_IMPORTERS[library]


def test_every_library_outside_of_the_standard_one_has_its_place() -> None:
    imported = {library for module in SOURCES for library in outsiders(module)}
    placed = {library for library in ONLY_IMPORTERS if library not in sys.stdlib_module_names} | ANYWHERE.keys()
    assert imported - sys.stdlib_module_names == placed


@pytest.mark.parametrize("library", ANYWHERE)
def test_what_may_be_imported_anywhere_is_imported_in_many_packages(library: str) -> None:
    assert len({module.partition(".")[0] for module in SOURCES if library in outsiders(module)}) > 3


def test_what_is_sealed_is_bound_to_its_place_by_one_module() -> None:
    # The state of a flow is bound by its journal, since any codec may seal it.
    sealing = {
        module
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and "SealedCodec" in [alias.name for alias in node.names]
    }
    assert sealing == {TOP, "crypto.place_codec", "deployment.wiring", "flow.inspection"}  # which only opens


class TestNeutrality:
    """The dispatcher and all below it know no version of the protocol, no HTTP status and no JSON-RPC code."""

    VERSION = re.compile(r"20\d\d-\d\d-\d\d|DRAFT|draft")

    def test_it_is_about_most_of_the_package(self) -> None:
        flow = {f"flow.{each}" for each in ("context", "journal", "round", "runner")}
        assert flow | {"methods.dispatcher", "registration.registry", "protocol.messages", "errors"} <= set(NEUTRAL)

    @pytest.mark.parametrize("module", sorted({*(set(MODULES) - WIRE), TOP}))
    def test_no_version_is_named_outside_of_the_dialects(self, module: str) -> None:
        assert self.VERSION.findall(SOURCES[module].read_text()) == []

    def test_the_search_finds_what_it_looks_for(self) -> None:
        found = {module for module in MODULES if self.VERSION.search(SOURCES[module].read_text())}
        elsewhere = {ENCODINGS, NAMED_ANSWERS, PENDING, "protocol.all_dialects", "protocol.handshake_versions"}
        assert found == DIALECTS | elsewhere

    def numbers(self, module: str) -> set[int]:
        tree = TREES[module]
        sliced = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Slice) for part in ast.walk(node)}
        found = set()
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.UnaryOp)
                and isinstance(node.op, ast.USub)
                and isinstance(node.operand, ast.Constant)
            ):
                if isinstance(node.operand.value, int):
                    found.add(-node.operand.value)
            elif isinstance(node, ast.Constant) and type(node.value) is int and id(node) not in sliced:
                found.add(node.value)
        return found

    @pytest.mark.parametrize("module", NEUTRAL)
    def test_no_status_and_no_code_is_there(self, module: str) -> None:
        statuses = {status.value for status in HTTPStatus} - {100}  # a hundred is also just a number
        if module in ("limits", "schema.problems"):
            statuses -= {200}  # and this one a depth, and a length
        assert self.numbers(module) & statuses == set()
        assert [number for number in self.numbers(module) if number <= -31_000] == []

    def test_such_numbers_are_found_where_they_belong(self) -> None:
        assert {400, 404, 413, 500, -32602, -32021} <= self.numbers("protocol.dialect")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.alone
class TestImport:
    EXTRAS = "jsonschema_rs asyncpg jwt opentelemetry limits uvloop httptools rich questionary"
    OTHERS = "mcp mcp_types fastapi httpx uvicorn hypothesis pytest"

    def test_no_extra_is_loaded(self) -> None:
        names = f"{self.EXTRAS} {self.OTHERS}".split()
        assert run(f"import sys, mrtr_server; print([name for name in {names} if name in sys.modules])") == "[]"

    def test_making_a_server_with_a_tool_loads_none_either(self) -> None:
        code = f"""
import sys
from mrtr_server import MRTRServer
app = MRTRServer("x", keys=[bytes(32)])
@app.tool
def tool(city: str) -> str:
    return city
print([name for name in {self.EXTRAS.split()} if name in sys.modules])
"""
        assert run(code) == "[]"

    def test_a_sqlite_database_loads_none_and_postgresql_its_driver(self, tmp_path: Path) -> None:
        code = f"""
import sys
from mrtr_server.storage.factory import store_of
store_of("URL")
print([name for name in {self.EXTRAS.split()} if name in sys.modules])
"""
        assert run(code.replace("URL", f"sqlite:///{tmp_path}/x.db")) == "[]"
        assert run(code.replace("URL", "postgresql://u@localhost/x")) == "['asyncpg']"

    def test_a_raw_schema_loads_the_one_that_it_needs(self) -> None:
        code = """
import sys
from mrtr_server import MRTRServer
app = MRTRServer("x", keys=[bytes(32)])
app.tool(name="raw", input_schema={"type": "object"})(lambda **arguments: None)
print([name for name in ("jsonschema", "jsonschema_rs") if name in sys.modules])
"""
        assert run(code) == "['jsonschema_rs']"

    def test_without_the_extra_the_error_says_how_to_install_it(self) -> None:
        code = """
import sys
sys.modules["jsonschema_rs"] = None
from mrtr_server import MRTRServer, SetupError
app = MRTRServer("x", keys=[bytes(32)])
try:
    app.tool(name="raw", input_schema={"type": "object"})(lambda **arguments: None)
except SetupError as error:
    print(error)
"""
        assert run(code).endswith(
            "needs jsonschema_rs. Install the extra 'schemas', or: pip install 'jsonschema-rs>=0.60'"
        )

    def test_a_raw_schema_that_is_only_served_needs_no_extra(self) -> None:
        code = """
import sys
sys.modules["jsonschema_rs"] = None
from mrtr_server import MRTRServer
app = MRTRServer("x", keys=[bytes(32)])
app.tool(name="raw", input_schema={"type": "object"}, validate=False)(lambda **arguments: None)
print("served")
"""
        assert run(code) == "served"

    def test_it_takes_less_than_three_times_what_its_libraries_take(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # What is installed is compiled.
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
        monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # it would trace ours alone
        libraries = (
            "asyncio, cryptography.hazmat.primitives.ciphers.aead, pydantic.json_schema, starlette.authentication"
        )
        # Time of the processor, in turn, and the best of a few: a machine that is slow for a while is so for both.
        code = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"
        took = [(float(run(code.format("mrtr_server"))), float(run(code.format(libraries)))) for _ in range(7)]
        assert min(ours for ours, _ in took) < 3 * min(theirs for _, theirs in took), took

"""The layers of the package: imports go downwards only, and each outside library has one way in."""

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

# The layers of the design, and within a layer rows: a module may import from any row above its own, and from no other.
ROWS: list[tuple[int, str]] = [
    (0, "_version annotations digests errors hints threads together workers"),
    (1, "extras"),
    (1, "base_url content foreign json_size keys limits log_text messages patterns refusals shutdown"),
    (1, "sqlite_file sqlite_mode tracebacks uri_templates"),
    (1, "in_flight"),
    (1, "option_types"),
    (2, "admission auth database fanout journal schema sealed_state signing task_changes task_questions task_store"),
    (2, "store tables task_waiting"),
    (2, "notices watched_store"),
    (2, "fanout_sql task_store_sql"),
    (2, "store_sql"),
    (2, "stores"),
    (2, "callbacks cursors forms idempotency json_schema recorded results dialects.base"),
    (2, "asks raw_schema sealed_tasks steps dialects.modern dialects.sep_draft"),
    (2, "authorization authorized_changes dialects faults url_asks"),
    (2, "inputs"),
    (3, "round signals"),
    (3, "context teardown"),
    (3, "filling signatures"),
    (3, "declared"),
    (3, "handlers unknown_arguments"),
    (3, "registry"),
    (4, "runner"),
    (5, "redemption"),
    (5, "flows tasks"),
    (5, "task_changes task_run"),
    (5, "tool_calls worker"),
    (5, "dispatcher"),
    (6, "response_writer"),
    (6, "callback_pages gate sse"),
    (6, "connection"),
    (6, "asgi probes shared"),
    (7, "server"),
    (8, "upgrade"),
    (8, "migrations.versions.redemptions_and_kept migrations.versions.tasks_and_changes"),
    (8, "cli testing.failure testing.observing testing.servers testing.wire"),
    (8, "testing.asked testing.loop"),
    (8, "testing.answers testing.replies"),
    (8, "testing.script testing.transports"),
    (8, "testing.session"),
    (8, "testing.flow"),
    (8, "testing.client"),
    (8, "testing"),
]
TOP = "__init__"
"""The package's own namespace, which may import from anywhere."""

ROW = {module: row for row, (_, modules) in enumerate(ROWS) for module in modules.split()}
LAYER = {module: layer for layer, modules in ROWS for module in modules.split()}

MIGRATIONS = {"migrations.versions.redemptions_and_kept", "migrations.versions.tasks_and_changes"}
ONLY_IMPORTERS = {
    "cryptography": {"sealed_state"},
    "jsonschema_rs": {"json_schema"},
    "itsdangerous": {"signing"},
    "click": {"cli"},
    "sqlalchemy": {
        *MIGRATIONS,
        "sqlite_file",
        "upgrade",
        "database",
        "store_sql",
        "tables",
        "task_store_sql",
        "notices",
    },
    "alembic": {*MIGRATIONS, "upgrade"},
    "asyncpg": {"database"},
    "aiosqlite": set(),  # SQLAlchemy loads it
    "starlette": {
        *(
            "auth",
            "callback_pages",
            "connection",
            "gate",
            "asgi",
            "option_types",
            "probes",
            "response_writer",
            "server",
        ),
        "testing.transports",
    },
    "uvicorn": {"cli"},
    "http": {"testing.transports"},
}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
MODULES = sorted(SOURCES.keys() - {TOP})
TREES = {module: ast.parse(path.read_text()) for module, path in SOURCES.items()}
NEUTRAL = [
    module for module in MODULES if ROW.get(module, 99) <= ROW["dispatcher"] and not module.startswith("dialects")
]
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


def test_every_module_has_its_layer() -> None:
    assert sorted(ROW) == MODULES
    assert [layer for layer, _ in ROWS] == sorted(layer for layer, _ in ROWS)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downwards_only(module: str) -> None:
    assert {other for other in siblings(module) if ROW.get(other, 99) >= ROW[module]} == set()


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
    dialects = {module for module in MODULES if module.startswith("dialects.")} - {"dialects.base"}
    assert len(dialects) >= 2
    for dialect in dialects:
        assert siblings(dialect) & dialects == set()


def test_only_the_edge_knows_the_dialects() -> None:
    knowing = {module for module in MODULES if any(name.partition(".")[0] == "dialects" for name in siblings(module))}
    edge = {module.partition(".")[0] for module in knowing} - {"dialects"}
    assert edge <= {"connection", "asgi", "testing"}


@pytest.mark.parametrize("library", ONLY_IMPORTERS)
def test_a_library_has_one_way_in(library: str) -> None:
    assert {module for module in SOURCES if library in outsiders(module)} == ONLY_IMPORTERS[library]


class TestNeutrality:
    """The dispatcher and all below it know no version of the protocol, no HTTP status and no JSON-RPC code."""

    VERSION = re.compile(r"20\d\d-\d\d-\d\d|DRAFT|draft")

    def test_it_is_about_most_of_the_package(self) -> None:
        assert {"dispatcher", "runner", "round", "context", "registry", "journal", "messages", "errors"} <= set(NEUTRAL)

    @pytest.mark.parametrize(
        "module", sorted({*(set(MODULES) - {m for m in MODULES if m.startswith("dialects")}), TOP})
    )
    def test_no_version_is_named_outside_of_the_dialects(self, module: str) -> None:
        assert self.VERSION.findall(SOURCES[module].read_text()) == []

    def test_the_search_finds_what_it_looks_for(self) -> None:
        found = {module for module in MODULES if self.VERSION.search(SOURCES[module].read_text())}
        assert found == {module for module in MODULES if module.startswith("dialects")} - {"dialects.base"}

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
        if module in ("limits", "schema"):
            statuses -= {200}  # and this one a depth, and a length
        assert self.numbers(module) & statuses == set()
        assert [number for number in self.numbers(module) if number <= -31_000] == []

    def test_such_numbers_are_found_where_they_belong(self) -> None:
        assert {400, 404, 413, 500, -32602, -32021} <= self.numbers("dialects.base")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


class TestImport:
    EXTRAS = "jsonschema_rs sqlalchemy aiosqlite asyncpg alembic jwt opentelemetry limits uvloop httptools"
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

    def test_a_database_loads_those_that_it_needs(self) -> None:
        code = f"""
import sys
from mrtr_server import InProcessStore, SQLStore, Store
print([name for name in {self.EXTRAS.split()} if name in sys.modules])
"""
        assert run(code) == "['sqlalchemy']"
        code = code.replace(", SQLStore", "").replace(
            "print(", "from mrtr_server.storage.factory import store_of; store_of()\nprint("
        )
        assert run(code) == "[]"

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

    def test_it_takes_less_than_four_tenths_of_a_second(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # What is installed is compiled.
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
        # Time of the processor, and the best of a few: a busy machine is not the package's fault.
        code = "import time; start = time.process_time(); import mrtr_server; print(time.process_time() - start)"
        assert min(float(run(code)) for _ in range(5)) < 0.4

"""What an import loads, and how long it takes."""

import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.alone
class TestImport:
    EXTRAS = "jsonschema_rs asyncpg jwt opentelemetry limits uvloop httptools rich questionary"
    OTHERS = "mcp mcp_types fastapi httpx h11 uvicorn hypothesis pytest"

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
from mrtr_server.storage import store_of
store_of("URL")
print([name for name in {self.EXTRAS.split()} if name in sys.modules])
"""
        assert run(code.replace("URL", f"sqlite:///{tmp_path}/x.db")) == "[]"
        assert run(code.replace("URL", "postgresql://u@localhost/x")) == "['asyncpg']"

    def test_a_raw_schema_loads_the_one_that_it_needs(self) -> None:
        code = """
import sys
from mrtr_server import InputSchema, MRTRServer
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
from mrtr_server import InputSchema, MRTRServer
app = MRTRServer("x", keys=[bytes(32)])
app.tool(name="raw", input_schema=InputSchema({"type": "object"}, validate=False))(lambda **arguments: None)
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
        # Time of the processor, in turn: a machine that is slow for a while is so for both. Without the garbage
        # collector, which goes through all objects wherever their number brings it to that.
        code = "import gc, time; gc.disable(); t = time.process_time(); import {}; print(time.process_time() - t)"
        took = [float(run(code.format("mrtr_server"))) / float(run(code.format(libraries))) for _ in range(9)]
        assert median(took) < 3, took

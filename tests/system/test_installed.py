"""What `pip install mrtr_server` installs, and nothing else, serves flows and tasks on SQLite by several processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from mrtr_server.testing import Client, yes

from ..support.serving import KEYS, ROOT, in_process

APP = """
import os
from mrtr_server import Context, MRTRServer

app = MRTRServer("installed")

@app.tool(single_use=True)
async def pay(ctx: Context) -> str:
    await ctx.confirm("Pay?")
    return await ctx.step(paid)

@app.tool(task="required")
async def work(ctx: Context) -> str:
    await ctx.confirm("Work?")
    return await ctx.step(paid)

def paid() -> str:
    with open("paid", "a") as file:
        file.write("paid\\n")
    return "paid"
"""


def run(*command: object) -> str:
    """Run a command, and return what it prints."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python in an environment of its own, with the package and what that requires."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("mrtr_server-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "environment")
    python = folder / "environment" / "bin" / "python"
    run(*pip, "--python", python, "install", wheel)
    return python


def test_it_has_no_driver_and_no_extra(python: Path) -> None:
    libraries = ["asyncpg", "sqlalchemy", "aiosqlite", "alembic", "greenlet", "jsonschema_rs", "uvloop"]
    code = f"from importlib.util import find_spec; print([name for name in {libraries} if find_spec(name)])"
    assert run(python, "-I", "-c", code) == "[]\n"


def test_it_makes_a_project(python: Path, tmp_path: Path) -> None:
    folder = tmp_path / "book-shop"
    run(python, "-I", "-m", "mrtr_server", "new", folder)
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from book_shop.server import app
from mrtr_server.testing import Client, yes
print(Client(app).call("order", title="Dune", answers={"amount": {"copies": 2}, "confirm": yes}).text)
"""
    assert run(python, "-I", "-c", code, folder) == "2 × Dune ordered\n"


def test_two_processes_share_a_file(python: Path, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    environment = {"MRTR_KEYS": KEYS, "MRTR_DATABASE_URL": f"sqlite:///{tmp_path}/store.db"}
    with in_process(
        "app:app", "--workers", "2", log=tmp_path / "log", environment=environment, python=python, folder=tmp_path
    ) as server:
        assert server.port, server.text
        url = f"http://127.0.0.1:{server.port}/mcp"
        flow = Client(url).flow("pay")
        flow.start()
        assert flow.answer(confirm=yes).text == "paid"
        for _ in range(5):  # each comes by a connection of its own, to one of the two
            assert Client(url).flow("pay").start().questions == {"confirm": "Pay?"}
            assert flow.replay().text == "paid"
        assert Client(url, tasks=True).call("work", answers={"confirm": yes}).text == "paid"
        assert server.stop() == 0
    assert (tmp_path / "paid").read_text() == "paid\n" * 2
    assert (tmp_path / "store.db").stat().st_size > 0

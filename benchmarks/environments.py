"""One virtual environment for each peer, made when it is missing or its packages have changed."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from contenders import ENVIRONMENTS, HERE, NODE

CONSTRAINTS = HERE / "constraints.txt"
RUNS_ON = ("uvicorn", "uvloop", "httptools")
REPORTED = (
    "mrtr_server",
    "mcp",
    "fastmcp",
    "starlette",
    "pydantic",
    "pydantic_core",
    "cryptography",
    "anyio",
    *RUNS_ON,
)

_VERSIONS = """
import importlib.metadata, json, sys
found = {each.metadata["Name"].lower().replace("-", "_"): each.version for each in importlib.metadata.distributions()}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))
"""


def make_environment(name: str, root: Path) -> Path:
    """Return the Python of the environment `name` below `root`, or the program for Node, after making it if need be."""
    home = root / name
    if name in NODE:
        return _make_packages(home, NODE[name])
    python = home / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    packages = (*ENVIRONMENTS[name], *RUNS_ON)
    recipe = json.dumps([sys.version, packages, CONSTRAINTS.read_text(), _own_dependencies(name)])
    stamp = home / "recipe.json"
    if python.exists() and stamp.exists() and stamp.read_text() == recipe:
        return python
    print(f"Making the environment {home}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(CONSTRAINTS), *packages], check=True)
    stamp.write_text(recipe)
    return python


def _make_packages(home: Path, packages: tuple[str, ...]) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    stamp = home / "recipe.json"
    if not stamp.exists() or stamp.read_text() != json.dumps(packages):
        print(f"Making the packages {home}", file=sys.stderr)
        npm = ["npm", "install", "--prefix", str(home), "--no-audit", "--no-fund", "--ignore-scripts", *packages]
        subprocess.run(npm, check=True, stdout=sys.stderr)
        stamp.write_text(json.dumps(packages))
    program = f"{home.name}.mjs"  # beside its packages, where Node looks for them
    return Path(shutil.copy(HERE / "servers" / program, home / program))


def read_versions(python: Path) -> dict[str, str]:
    """Return the versions of the packages that bear on the figures, in the environment of `python`."""
    if python.suffix == ".mjs":
        node = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True).stdout.strip()
        return {"node": node, **dict(package.rsplit("@", 1) for package in NODE[python.stem])}
    found = subprocess.run([str(python), "-c", _VERSIONS, *REPORTED], check=True, capture_output=True, text=True)
    versions: dict[str, str] = json.loads(found.stdout)
    return versions


def _own_dependencies(name: str) -> list[str]:
    # The code of an editable install is always current; what it depends on is not.
    if "--editable" not in ENVIRONMENTS[name]:
        return []
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["fast"]]

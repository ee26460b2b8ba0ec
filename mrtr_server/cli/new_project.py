"""The files of a new project."""

import json
import keyword
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from .._version import __version__
from ..errors import SetupError

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_LONGEST = 40

_FILES: Mapping[str, str] = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "AGENTS.md": "AGENTS.md.txt",
    "{package}/__init__.py": "package_init.py.txt",
    "{package}/server.py": "server.py.txt",
    "tests/test_server.py": "test_server.py.txt",
    "Dockerfile": "Dockerfile.txt",
    ".dockerignore": "dockerignore.txt",
    ".github/workflows/ci.yml": "ci.yml.txt",
    ".github/dependabot.yml": "dependabot.yml.txt",
    ".gitignore": "gitignore.txt",
}

WHEEL = f"wheels/mrtr_server-{__version__}-py3-none-any.whl"

_FROM_INDEX: Mapping[str, str] = {"@wheel@": "", "@copy_wheels@": "", "@about_wheels@": ""}

_FROM_WHEEL: Mapping[str, str] = {
    "@wheel@": f"{WHEEL} ",
    "@copy_wheels@": "COPY wheels ./wheels\n",
    "@about_wheels@": f"""
The folder `wheels` has the mrtr_server that this project was made with, which did not come from an index. Commit it.
Once an index has mrtr_server, remove the folder, and `{WHEEL}`
from this file, the workflow and the Dockerfile.
""",
}
"""What the files say where no index may have this release, or has another project of its name: its wheel is at hand."""


def make_project(folder: Path, origin: str = "") -> str:
    """Make a project in a folder, whose name it has; return the name of its package. Raises `SetupError`, `OSError`.

    Args:
        folder: where it is made.
        origin: what this package was installed from, as `installed_from` says it.
    """
    folder = folder.resolve()
    package = package_of(folder.name)
    if folder.exists() and not folder.is_dir():
        raise SetupError(f"{folder} is a file; choose another name")
    if folder.is_dir() and any(folder.iterdir()):
        raise SetupError(f"{folder} is not empty; choose another name, or an empty folder")
    values = {"@name@": folder.name, "@package@": package, "@version@": __version__}
    values |= _FROM_WHEEL if origin else _FROM_INDEX
    for name, source in _FILES.items():
        text = (files(__package__) / "project_files" / source).read_text("utf-8")
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        path = folder / name.format(package=package)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return package


def installed_from() -> str:
    """Return what pip can install this package from again (PEP 610): a path or an address; empty for an index."""
    try:
        noted = json.loads(distribution("mrtr_server").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return ""
    url: str = noted.get("url", "")
    if vcs := noted.get("vcs_info"):
        return f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    split = urlsplit(url)
    return url2pathname(split.path) if split.scheme == "file" else url


def package_of(name: str) -> str:
    """Return the name of the package of a project. Raises `SetupError`, which says why it can't be one."""
    if len(name) > _LONGEST or not _NAME.fullmatch(name):
        raise SetupError(
            f"{name!r} can't be the name of a project: it takes at most {_LONGEST} lower-case letters, digits, - and "
            "_, and begins with a letter, such as book-shop"
        )
    package = name.replace("-", "_")
    if keyword.iskeyword(package) or keyword.issoftkeyword(package):
        raise SetupError(f"{name!r} is a word of Python's own; choose another name")
    if package in sys.stdlib_module_names or package in ("tests", "mrtr_server") or _is_installed(package):
        raise SetupError(f"There is a module {package!r} already, which the project would hide; choose another name")
    return package


def _is_installed(package: str) -> bool:
    spec = find_spec(package)
    return spec is not None and spec.origin is not None

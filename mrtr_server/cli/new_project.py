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
    "{package}/__init__.py": "package_init.py.txt",
    "{package}/server.py": "server.py.txt",
    "tests/test_server.py": "test_server.py.txt",
    "Dockerfile": "Dockerfile.txt",
    ".dockerignore": "dockerignore.txt",
    ".github/workflows/ci.yml": "ci.yml.txt",
    ".github/dependabot.yml": "dependabot.yml.txt",
    ".gitignore": "gitignore.txt",
}
"""The files of a project, each with the one that it is made of."""


def make_project(folder: Path) -> str:
    """Make a project in a folder, whose name it has.

    Args:
        folder: where; it is made if it is not there.

    Returns:
        The name of its package.

    Raises:
        SetupError: the name can't be that of a project, or there is something in the folder.
        OSError: the folder can't be written to.
    """
    folder = folder.resolve()
    package = package_of(folder.name)
    if folder.exists() and not folder.is_dir():
        raise SetupError(f"{folder} is a file; choose another name")
    if folder.is_dir() and any(folder.iterdir()):
        raise SetupError(f"{folder} is not empty; choose another name, or an empty folder")
    values = {"@name@": folder.name, "@package@": package, "@version@": __version__}
    for name, source in _FILES.items():
        text = (files(__package__) / "project_files" / source).read_text("utf-8")
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        path = folder / name.format(package=package)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return package


def installed_from() -> str:
    """Return the folder that this package was installed from; empty where it came from an index.

    The installer notes it (PEP 610). An index may not have what a project then needs.
    """
    try:
        noted = distribution("mrtr_server").read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    url = urlsplit(json.loads(noted)["url"] if noted else "")
    return url2pathname(url.path) if url.scheme == "file" else ""


def package_of(name: str) -> str:
    """Return the name of the package of a project.

    Args:
        name: the project's.

    Raises:
        SetupError: it can't be one; the message says why.
    """
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

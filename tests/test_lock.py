"""The lock files pin what pyproject.toml asks for, by hashes, and everybody installs from them."""

import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
BASE: list[str] = PROJECT["project"]["dependencies"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
GROUPS: dict[str, list[str]] = PROJECT["dependency-groups"]
# What each file is for, as scripts/lock makes it.
ASKED = {
    "test": [*BASE, *chain(*EXTRAS.values(), *GROUPS.values())],
    "image": [
        *BASE,
        *EXTRAS["fast"],
        *EXTRAS["schemas"],
        *EXTRAS["postgres"],
        *EXTRAS["auth"],
        *EXTRAS["limits"],
        *GROUPS["image"],
    ],
    "build": GROUPS["build"],
    "docs": [*BASE, *chain(*EXTRAS.values()), *GROUPS["build"], *GROUPS["docs"]],
}


class Pin:
    """One package of a lock file.

    Args:
        text: its lines.
    """

    def __init__(self, text: str) -> None:
        requirement = Requirement(text.partition("\\")[0])
        (specifier,) = requirement.specifier
        assert specifier.operator == "=="
        self.name = canonicalize_name(requirement.name)
        self.version = Version(specifier.version)
        self.hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}", text)
        self.is_asked_for = "mrtr-server (pyproject.toml" in text or "(pyproject.toml:" in text


def pins(lock: str) -> Iterator[Pin]:
    for text in re.split(r"\n(?=\w)", (ROOT / "requirements" / f"{lock}.txt").read_text()):
        if not text.startswith("#"):
            yield Pin(text)


def test_there_are_no_other_lock_files() -> None:
    assert {path.stem for path in (ROOT / "requirements").iterdir()} == set(ASKED)


@pytest.mark.parametrize("lock", ASKED)
def test_every_version_fits_pyproject(lock: str) -> None:
    versions = {pin.name: pin.version for pin in pins(lock)}
    for requirement in map(Requirement, ASKED[lock]):
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, (
            f"{requirement}: run scripts/lock"
        )


@pytest.mark.parametrize("lock", ASKED)
def test_nothing_is_pinned_that_pyproject_no_longer_asks_for(lock: str) -> None:
    asked = {canonicalize_name(Requirement(line).name) for line in ASKED[lock]}
    assert {pin.name for pin in pins(lock) if pin.is_asked_for} == asked, "run scripts/lock"


@pytest.mark.parametrize("lock", ASKED)
def test_every_package_has_hashes(lock: str) -> None:
    assert [pin.name for pin in pins(lock) if not pin.hashes] == []


@pytest.mark.parametrize("lock", ["image", "build"])
def test_what_is_served_is_what_is_tested(lock: str) -> None:
    tested = {pin.name: pin.version for pin in pins("test")}
    assert {pin.name: tested[pin.name] for pin in pins(lock)} == {pin.name: pin.version for pin in pins(lock)}


def test_the_dockerfile_and_the_scripts_install_by_hash() -> None:
    files = [ROOT / "Dockerfile", *(path for path in (ROOT / "scripts").iterdir() if path.suffix in ("", ".sh"))]
    installs = [
        command.strip()
        for path in files
        if path.is_file() and path.name != "lock"  # which asks for newer ones
        for command in re.findall(r"pip install ([^&\n]+)", path.read_text().replace("\\\n", " "))
    ]
    assert len(installs) >= 4
    for command in installs:
        # The project itself has no hash, and brings nothing.
        assert re.search(r"--require-hashes +--requirement|--no-deps|-version-check pip$", command), command

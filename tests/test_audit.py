"""The bills of materials of a release name every package of its lock file, in its version."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from .test_lock import ASKED, ROOT, pins


def bill_of(lock: str, file: Path) -> dict[str, object]:
    """Return the bill of a lock file, made as `scripts/audit` makes it, which validates it besides."""
    command = [
        *(str(Path(sys.executable).with_name("cyclonedx-py")), "requirements", "--pyproject", "pyproject.toml"),
        *("--mc-type", "library", "--output-reproducible", "--spec-version", "1.6", "--no-validate"),
        *("--output-file", str(file)),
        f"requirements/{lock}.txt",
    ]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=120)
    made: dict[str, object] = json.loads(file.read_text())
    return made


@pytest.mark.parametrize("lock", ASKED)
def test_a_bill_of_materials_names_every_locked_package_and_its_hashes(lock: str, tmp_path: Path) -> None:
    made = bill_of(lock, tmp_path / "sbom.json")
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    components = made["components"]
    assert isinstance(components, list)
    named = {canonicalize_name(each["name"]): Version(each["version"]) for each in components}
    assert named == {pin.name: pin.version for pin in pins(lock)}
    hashed = {canonicalize_name(each["name"]) for each in components if each["externalReferences"][0]["hashes"]}
    assert hashed == named.keys()


def test_the_script_makes_a_bill_of_each_lock_file_by_the_same_command() -> None:
    script = (ROOT / "scripts" / "audit").read_text()
    assert script.count(f"for lock in {' '.join(sorted(ASKED, key=['image', 'build', 'test', 'docs'].index))}; do") == 2
    for option in ("--output-reproducible", "--mc-type library", "--spec-version 1.6", "--strict", "--require-hashes"):
        assert option in script

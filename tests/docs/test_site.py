"""The documentation site builds without a warning, and its reference has every public name."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from docs_reference import GROUPS  # noqa: E402


@pytest.mark.parametrize("package", ["mrtr_server", "mrtr_server.client", "mrtr_server.testing"])
def test_every_public_name_is_in_the_reference_once(package: str) -> None:
    listed = [name for group in GROUPS if group.package == package for name in group.names.split()]
    source = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())
    imported = [node for node in ast.walk(source) if isinstance(node, ast.ImportFrom)]
    public = {each.asname for node in imported for each in node.names if each.asname and each.asname[0] != "_"}
    assert sorted(listed) == sorted(public)


@pytest.mark.processes
def test_it_builds_without_a_warning() -> None:
    done = subprocess.run([sys.executable, "scripts/docs.py"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "build" / "site"
    for page in ["index", "tasks/index", *(f"reference/{group.file}/index" for group in GROUPS)]:
        text = (site / f"{page}.html").read_text()
        assert (
            re.findall(r'<script[^>]* src="?http[^>]*>|<link[^>]* rel="?stylesheet[^>]* href="?http[^>]*>', text) == []
        )
    for group in GROUPS:
        text = (site / "reference" / group.file / "index.html").read_text()
        assert [name for name in group.names.split() if f'id="{group.package}.{name}"' not in text] == []

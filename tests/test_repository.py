"""What a stranger expects of a repository is there, and says the same everywhere."""

import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrtr_server import __version__
from mrtr_server.testing.session import ERAS

ROOT = Path(__file__).parent.parent
URLS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
CHECKED_IN_PART = {"registration/registry.py"}
"""Modules that turn a check off for all of them; none should."""
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_every_address_of_the_project_is_in_the_same_place() -> None:
    home = URLS["Homepage"]
    site = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["site_url"]
    assert all(url.startswith(home) for name, url in URLS.items() if name != "Documentation")
    assert URLS["Documentation"] == site
    pages = [ROOT / name for name in ("CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md")]
    for page in [*pages, *FORMS]:
        for url in re.findall(r"https://github\.com/[\w./-]+", page.read_text()):
            assert url.startswith(f"{home}/"), f"{page.name}: {url}"


def test_no_module_of_the_package_turns_a_check_off_for_all_of_it() -> None:
    """What is right about one line is said on that line, and so the next one is checked."""
    package = ROOT / "mrtr_server"
    found = [
        path.relative_to(package).as_posix()
        for path in sorted(package.rglob("*.py"))
        if re.search(r"^#\s*(ruff\s*:\s*noqa|flake8\s*:\s*noqa|(mypy|pyright)\s*:)", path.read_text(), re.MULTILINE)
    ]
    assert [path for path in found if path not in CHECKED_IN_PART] == []


class TestTheChangelog:
    TITLES = re.findall(r"^## \[(.+?)\]\((.+?)\)(?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    def test_begins_with_what_is_not_released(self) -> None:
        assert self.TITLES[0][0] == "Unreleased"
        assert self.TITLES[0][1].endswith(f"/compare/v{__version__}...HEAD")

    def test_has_this_version_and_those_before_with_dates(self) -> None:
        assert self.TITLES[1][0] == __version__
        for version, link, day in self.TITLES[1:]:
            assert link.endswith(f"/releases/tag/v{version}")
            date.fromisoformat(day)
        days = [day for _, _, day in self.TITLES[1:]]
        assert days == sorted(days, reverse=True)

    def test_has_no_other_headings_of_that_level(self) -> None:
        assert len(re.findall(r"^## ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)) == len(self.TITLES)


def test_security_fixes_are_promised_for_this_version() -> None:
    supported = re.findall(r"^\| (\d+\.\d+)\.x \| yes \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert __version__.rpartition(".")[0] in supported


class TestThePageOfWhatIsSupported:
    TEXT = (ROOT / "docs" / "support.md").read_text()

    def rows(self, part: str) -> list[str]:
        """Return what the first column of a part's table names."""
        table = self.TEXT.partition(f"\n## {part}\n")[2].partition("\n## ")[0]
        return [
            name
            for row in re.findall(r"^\| ([\w., -]*\d[\w., -]*|sep-draft) \|", table, re.MULTILINE)
            for name in row.split(", ")
        ]

    def test_has_every_python(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        named = [line.rpartition(":: ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
        assert self.rows("Python") == named
        assert project["requires-python"] == f">={named[0]}"

    def test_has_every_version_of_the_protocol(self) -> None:
        assert self.rows("Versions of the protocol") == list(ERAS)


def test_each_commit_is_checked_by_the_tools_of_the_test_script() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    script = (ROOT / "scripts" / "test").read_text()
    for hook in local["hooks"]:
        assert " ".join(hook["entry"].split()[: 2 if "ruff" in hook["entry"] else 1]) in script, hook["id"]


@pytest.mark.parametrize("form", [form for form in FORMS if form.name != "config.yml"], ids=lambda form: form.stem)
def test_issue_forms_have_what_is_required_of_them(form: Path) -> None:
    parsed: dict[str, Any] = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(parsed)
    fields = [field for field in parsed["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    assert all(field["attributes"]["label"] for field in fields)


def test_new_issues_are_led_to_the_private_way_for_vulnerabilities() -> None:
    links = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text())["contact_links"]
    private = f"{URLS['Homepage']}/security/advisories/new"
    assert private in [link["url"] for link in links]
    assert private in (ROOT / "SECURITY.md").read_text()

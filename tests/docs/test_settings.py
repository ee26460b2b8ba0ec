"""The page of settings has every setting, limit and option, with its variable and its default."""

import re
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from mrtr_server import Apps, Limits, Lists, Metrics, ServerInfo, Shutdown
from mrtr_server.cli.run import run
from mrtr_server.deployment.environment import ELSEWHERE, unknown_variables, variables
from mrtr_server.deployment.settings import LAME_DUCK, Settings

from .test_pages import PAGES, in_figures

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()


def rows(section: str) -> list[list[str]]:
    """Return the cells of the table in a section, without its head."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    table = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def code(cell: str) -> str:
    return cell.strip("`") if cell.startswith("`") else ""


GROUPS: dict[str, Any] = {
    "ServerInfo": ServerInfo,
    "Apps": Apps,
    "Lists": Lists,
    "Shutdown": Shutdown,
    "Metrics": Metrics,
}
SECTIONS = [("Settings of the server", "", Settings)]
SECTIONS += [
    (name, next(f.name for f in fields(Settings) if name in str(f.type)), kind) for name, kind in GROUPS.items()
]


def settable(kind: Any) -> "list[Field[Any]]":
    """Every field, but for the name that `MRTRServer` takes first: it is no keyword."""
    return [field for field in fields(kind) if (kind, field.name) != (Settings, "name")]


EVERY = [(section, field) for section, _, kind in SECTIONS for field in settable(kind)]


@pytest.mark.parametrize(("section", "group", "kind"), SECTIONS)
def test_every_setting_is_there_with_its_variable(section: str, group: str, kind: Any) -> None:
    read = {each.setting: each.name for each in variables() if each.group == group}
    read |= {} if group else {setting: name for name, setting in ELSEWHERE.items()}
    written = {code(cells[0]): code(cells[1]) for cells in rows(section)}
    assert written == {field.name: read.get(field.name, "") for field in settable(kind)}


NOT_NONE = {"lame_duck": f"{LAME_DUCK:g}"}
"""Figures that stand for None."""


@pytest.mark.parametrize(("section", "field"), EVERY, ids=lambda each: getattr(each, "name", each))
def test_every_setting_is_there_with_its_default(section: str, field: "Field[Any]") -> None:
    (cell,) = (cells[2] for cells in rows(section) if code(cells[0]) == field.name)
    default = field.default
    if isinstance(default, bool):
        assert cell == str(default).lower()
    elif isinstance(default, int | float):
        assert cell == f"{default:g}"
    elif isinstance(default, str) and default:
        assert code(cell) == default
    elif is_dataclass(default):
        assert code(cell) == f"{type(default).__name__}()"
    else:  # what stands for it, or none
        assert cell == NOT_NONE.get(field.name, cell) != ""
        assert not cell.isdigit() or field.name in NOT_NONE


def test_every_limit_is_there_with_its_variable_and_its_default() -> None:
    read = {each.setting: each.name for each in variables() if each.group == "limits"}
    written = {code(cells[0]): (code(cells[1]), in_figures(cells[2])) for cells in rows("Limits")}
    assert written == {field.name: (read[field.name], field.default) for field in fields(Limits)}
    assert MISSING not in [field.default for field in fields(Limits)]


def test_every_option_of_run_is_there_with_its_variable() -> None:
    written: dict[str, str] = {}
    for options, names, *_ in rows("Options of mrtr-server run"):
        written |= zip(re.findall(r"`(--.+?)`", options), re.findall(r"`(\w+)`", names), strict=True)
    read = {option.opts[0]: f"MRTR_RUN_{option.name}".upper() for option in run.params if option.opts[0][:2] == "--"}
    assert written == {name: variable for name, variable in read.items() if name != "--help"}


@pytest.mark.parametrize("option", [option for option in run.params if isinstance(option.default, str | int | float)])
def test_defaults_of_options_are_as_written(option: object) -> None:
    name, default = option.opts[0], option.default  # type: ignore[attr-defined]
    (cells,) = (cells for cells in rows("Options of mrtr-server run") if f"`{name}`" in cells[0])
    if isinstance(default, bool) or default == "":
        assert cells[2] in ("off", "none", "the working directory")
    else:
        assert (f"{default:g}" if isinstance(default, float) else str(default)) in cells[2].split(", ") or cells[
            2
        ] == default


def test_each_variable_that_a_page_names_is_read() -> None:
    named = {name for page in PAGES for name in re.findall(r"\bMRTR_[A-Z_]+\b", page.read_text())}
    assert len(named) > 60
    assert unknown_variables(dict.fromkeys(named, "")) == {}
    options = {f"MRTR_RUN_{option.name}".upper() for option in run.params} | {"MRTR_RUN_TASKS"}  # which is a setting
    assert {name for name in named if name.startswith("MRTR_RUN_")} <= options

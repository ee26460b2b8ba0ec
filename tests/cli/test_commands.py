"""The command `mrtr-server`."""

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from click.testing import CliRunner

from mrtr_server import KeyRing, __version__
from mrtr_server.cli import main


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, prog_name="mrtr-server")
    assert result.exit_code == 0, result.output
    return result.output


def test_it_is_installed_under_its_name() -> None:
    (script,) = entry_points(group="console_scripts", name="mrtr-server")
    assert script.load() is main


def test_keygen_prints_one_key_that_a_ring_takes_and_nothing_else() -> None:
    printed = run("keygen")
    assert printed.endswith("\n")
    assert len(KeyRing.parse(printed)) == 1
    assert len(KeyRing.parse(f"{printed.strip()},{run('keygen')}")) == 2


def test_no_two_keys_are_alike() -> None:
    assert len({run("keygen") for _ in range(20)}) == 20


def test_it_says_its_version() -> None:
    assert run("--version") == f"mrtr-server, version {__version__}\n"


def test_help_names_every_command_with_what_it_does() -> None:
    printed = run("--help")
    for name, command in main.commands.items():
        assert name in printed
        assert command.help
        assert command.help.partition(".")[0] in printed


class TestTheNameOfAServer:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder with modules, in which the command looks."""
        monkeypatch.setattr(sys, "path", sys.path[:])
        for name, code in {
            "named_own": "text = 'x'",
            "named_broken": "import not_installed",
            "named_refused": "from mrtr_server import MRTRServer\napp = MRTRServer('')",
            "named_mistyped": "from mrtr_server import MRTRServer\nshop = MRTRServer('x')\n@shop.tol\ndef f(): ...",
            "named_wrong": "limit = int('ten')",
            "named_unread": "def app(:",
            "named_otherwise": "from mrtr_server import MRTRServer\nshop = MRTRServer('x')",
        }.items():
            monkeypatch.delitem(sys.modules, name, raising=False)
            (tmp_path / f"{name}.py").write_text(code)
        return tmp_path

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("nowhere:app", "There is no module 'nowhere'"),
            ("nowhere.at_all:app", "There is no module 'nowhere.at_all'"),
            ("named_own:other", "The module 'named_own' has no 'other'"),
            ("named_own:text", "is a str, not an MRTRServer"),
            ("named_own", "must be a module and the server in it"),
            (":app", "must be a module and the server in it"),
            ("named own:app", "must be a module and the server in it"),
            ("named_own.py:app", "Name the module and not its file: named_own:app"),
            ("./named_own.py", "Name the module and not its file: named_own:app"),
            ("named_otherwise:app", "The module 'named_otherwise' has no 'app'. It has the server 'shop'"),
        ],
    )
    def test_says_what_is_wrong_with_it(self, folder: Path, name: str, says: str) -> None:
        result = CliRunner().invoke(main, ["worker", "--app-dir", str(folder), name])
        assert result.exit_code == 1
        assert says in result.output
        assert "Traceback" not in result.output

    @pytest.mark.parametrize("command", ["worker", "check", "stdio"])
    @pytest.mark.parametrize(
        ("name", "line", "says"),
        [
            ("named_broken", 1, "ModuleNotFoundError: No module named 'not_installed'"),
            ("named_refused", 2, "MRTRServer needs a name"),
            ("named_mistyped", 3, "has no attribute 'tol'"),
            ("named_wrong", 1, "ValueError: invalid literal for int() with base 10: 'ten'"),
            ("named_unread", 1, "SyntaxError: invalid syntax"),
        ],
    )
    def test_a_fault_in_the_module_itself_is_told_with_its_line(
        self, folder: Path, command: str, name: str, line: int, says: str
    ) -> None:
        result = CliRunner().invoke(main, [command, "--app-dir", str(folder), f"{name}:app"])
        assert result.exit_code == 1
        assert f"Error: {name}:app can't be imported:\n" in result.output
        assert f'{name}.py", line {line}' in result.output
        assert says in result.output
        assert "loading.py" not in result.output


def test_an_unknown_command_fails() -> None:
    result = CliRunner().invoke(main, ["keyless"])
    assert result.exit_code == 2
    assert "No such command 'keyless'" in result.output

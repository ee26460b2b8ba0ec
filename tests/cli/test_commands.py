"""The command `mrtr-server`."""

from importlib.metadata import entry_points

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


def test_an_unknown_command_fails() -> None:
    result = CliRunner().invoke(main, ["keyless"])
    assert result.exit_code == 2
    assert "No such command 'keyless'" in result.output

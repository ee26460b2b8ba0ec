"""`mrtr-server install` and `uninstall`: a server in the configuration of each host, and out of it again."""

import json
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from mcp import Client, StdioServerParameters

from mrtr_server.cli import main
from mrtr_server.cli.hosts import System

from ..support.serving import TIMEOUT

WEATHER = '''
from mrtr_server import MRTRServer

app = MRTRServer("My Weather", keys=[bytes(32)])

@app.tool
def forecast(city: str) -> str:
    """Tell the weather."""
    return "sunny"
'''

Install = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a server, in which the command runs."""
    folder = tmp_path / "weather"
    folder.mkdir()
    (folder / "weather.py").write_text(WEATHER)
    monkeypatch.chdir(folder)
    yield folder
    sys.modules.pop("weather", None)
    sys.path[:] = [each for each in sys.path if each not in ("", str(folder))]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def command(home: Path) -> Install:
    """Runs a command on a machine of a system, with the fake home."""

    def run(*arguments: str, platform: str = "linux", **environ: str) -> Result:
        return CliRunner().invoke(main, arguments, obj=System(platform, home, environ))

    return run


def started(folder: Path) -> dict[str, Any]:
    """Return the entry of the server, as most hosts have it."""
    arguments = ["-P", "-m", "mrtr_server", "stdio", "--app-dir", str(folder), "weather:app"]
    return {"command": sys.executable, "args": arguments}


SUPPORT, ROAMING = "Library/Application Support", "AppData/Roaming"
FILES = {
    ("claude-desktop", "linux"): ".config/Claude/claude_desktop_config.json",
    ("claude-desktop", "darwin"): f"{SUPPORT}/Claude/claude_desktop_config.json",
    ("claude-desktop", "win32"): f"{ROAMING}/Claude/claude_desktop_config.json",
    ("claude-code", "linux"): ".claude.json",
    ("claude-code", "darwin"): ".claude.json",
    ("claude-code", "win32"): ".claude.json",
    ("cursor", "linux"): ".cursor/mcp.json",
    ("cursor", "darwin"): ".cursor/mcp.json",
    ("cursor", "win32"): ".cursor/mcp.json",
    ("vscode", "linux"): ".config/Code/User/mcp.json",
    ("vscode", "darwin"): f"{SUPPORT}/Code/User/mcp.json",
    ("vscode", "win32"): f"{ROAMING}/Code/User/mcp.json",
    ("gemini", "linux"): ".gemini/settings.json",
    ("gemini", "darwin"): ".gemini/settings.json",
    ("gemini", "win32"): ".gemini/settings.json",
    ("goose", "linux"): ".config/goose/config.yaml",
    ("goose", "darwin"): ".config/goose/config.yaml",
    ("goose", "win32"): f"{ROAMING}/Block/goose/config/config.yaml",
}
TOPS = {"vscode": "servers", "goose": "extensions"}

JSON_FILE = (
    '\ufeff// mine\r\n{\r\n\t"theme": "dark", /* as\r\n it was */\r\n\t"@": {\r\n'
    '\t\t// the other one\r\n\t\t"other": {"url": "http://x", "unknown": [1,]}, // last\r\n\t},\r\n}'
)
YAML_FILE = (
    "# mine\r\nGOOSE_MODE: auto\r\n@: # all\r\n    # the other one\r\n    other:\r\n        x: 1 # kept\r\n\r\nz: 2"
)


def file_of(host: str) -> bytes:
    return (YAML_FILE if host == "goose" else JSON_FILE).replace("@", TOPS.get(host, "mcpServers")).encode()


def servers_in(file: Path, host: str) -> Any:
    text = file.read_text()
    return (yaml.safe_load(text) if host == "goose" else json.loads(text))[TOPS.get(host, "mcpServers")]


class TestEachHost:
    @pytest.mark.parametrize(("host", "platform"), FILES)
    def test_has_a_server_in_its_own_file_and_all_else_survives(
        self, host: str, platform: str, command: Install, home: Path, folder: Path
    ) -> None:
        file = home / FILES[host, platform]
        file.parent.mkdir(parents=True)
        file.write_bytes(file_of(host))
        what = ("weather:app",) if host == "claude-desktop" else ("--url", "https://weather.example/mcp")
        done = command("install", host, *what, "--name", "weather", "--yes", platform=platform)
        assert done.exit_code == 0, done.output
        after = file.read_bytes()
        assert b"weather" in after
        assert all(line in after for line in file_of(host).splitlines(keepends=True))
        kept = file.with_name(f"{file.name}.before-mrtr")
        assert kept.read_bytes() == file_of(host)
        done = command("uninstall", host, "weather", "--yes", platform=platform)
        assert done.exit_code == 0, done.output
        assert file.read_bytes() == file_of(host)

    @pytest.mark.parametrize(
        ("host", "entry"),
        [
            ("claude-code", {"type": "http", "url": "https://weather.example/mcp"}),
            ("cursor", {"url": "https://weather.example/mcp"}),
            ("vscode", {"type": "http", "url": "https://weather.example/mcp"}),
            ("gemini", {"httpUrl": "https://weather.example/mcp"}),
            (
                "goose",
                {
                    "type": "streamable_http",
                    "name": "weather-example",
                    "enabled": True,
                    "uri": "https://weather.example/mcp",
                    "timeout": 300,
                },
            ),
        ],
    )
    def test_calls_a_server_at_a_url(self, host: str, entry: Any, command: Install, home: Path) -> None:
        file = home / "new" / "file"
        done = command("install", host, "--url", "https://weather.example/mcp", "--config", str(file), "--yes")
        assert done.exit_code == 0, done.output
        assert servers_in(file, host) == {"weather-example": entry}
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert [each.name for each in file.parent.iterdir()] == ["file"]  # there is nothing to keep

    @pytest.mark.parametrize("host", ["claude-desktop", "claude-code", "cursor", "vscode", "gemini", "goose"])
    def test_starts_a_server_of_a_module(self, host: str, command: Install, home: Path, folder: Path) -> None:
        file = home / "file"
        done = command(
            "install", host, "weather:app", "--config", str(file), "--yes", "--env", "A=b", "--env", "C", C="ü\\"
        )
        assert done.exit_code == 0, done.output
        env = {"A": "b", "C": "ü\\"}
        entry = {**started(folder), "env": env}
        if host == "goose":
            entry = {"type": "stdio", "name": "my-weather", "enabled": True, "envs": env, "timeout": 300}
            entry |= {"cmd": sys.executable, "args": started(folder)["args"]}
        elif host not in ("claude-desktop", "gemini"):
            entry = {"type": "stdio", **entry}
        assert servers_in(file, host) == {"my-weather": entry}
        assert command("uninstall", host, "weather:app", "--config", str(file), "--yes").exit_code == 0
        assert servers_in(file, host) == {}

    def test_of_windows_sees_the_folder_of_its_package(self, command: Install, home: Path, folder: Path) -> None:
        package = home / "local/Packages/Claude_pzs8sxrjxfjjc/LocalCache/Roaming/Claude"
        package.mkdir(parents=True)
        done = command(
            "install", "claude-desktop", "weather:app", "--yes", platform="win32", LOCALAPPDATA=str(home / "local")
        )
        assert done.exit_code == 0, done.output
        assert (package / "claude_desktop_config.json").exists()

    def test_is_found_where_its_variables_say(self, command: Install, home: Path) -> None:
        (home / "config" / "goose").mkdir(parents=True)
        url = ("--url", "https://weather.example/mcp", "--yes")
        variables = {"XDG_CONFIG_HOME": str(home / "config"), "CLAUDE_CONFIG_DIR": str(home / "config")}
        assert command("install", "goose", *url, **variables).exit_code == 0
        assert command("install", "claude-code", *url, **variables).exit_code == 0
        assert (home / "config" / ".claude.json").exists()
        assert (home / "config" / "goose" / "config.yaml").exists()

    def test_that_was_never_started_is_said(self, command: Install, home: Path) -> None:
        done = command("install", "cursor", "--url", "https://weather.example/mcp", "--yes")
        assert done.exit_code == 1
        assert f"Cursor has not been started here: there is no {home / '.cursor'}" in done.output

    def test_that_starts_all_its_servers_itself_takes_no_url(self, command: Install, home: Path) -> None:
        (home / ".config/Claude").mkdir(parents=True)
        done = command("install", "claude-desktop", "--url", "https://weather.example/mcp", "--yes")
        assert done.exit_code == 1
        assert "Add the URL in its settings, under Connectors" in done.output


@pytest.mark.anyio
async def test_what_is_installed_serves_a_client(command: Install, home: Path, folder: Path, tmp_path: Path) -> None:
    assert command("install", "gemini", "weather:app", "--config", str(home / "file"), "--yes").exit_code == 0
    entry = servers_in(home / "file", "gemini")["my-weather"]
    async with Client(StdioServerParameters(**entry, cwd=str(tmp_path))) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["forecast"]


class TestAServerIsTriedFirst:
    def test_one_that_cant_be_imported(self, command: Install, home: Path, folder: Path) -> None:
        (folder / "weather.py").write_text("import nowhere_at_all")
        done = command("install", "gemini", "weather:app", "--config", str(home / "file"), "--yes")
        assert done.exit_code == 1
        assert "No module named 'nowhere_at_all'" in done.output
        assert not home.exists()

    def test_one_that_needs_this_folder(self, command: Install, home: Path, folder: Path) -> None:
        (folder / "data.txt").write_text("x")
        (folder / "weather.py").write_text(f"open('data.txt').close()\n{WEATHER}")
        done = command("install", "gemini", "weather:app", "--config", str(home / "file"), "--yes")
        assert done.exit_code == 1
        assert "weather:app does not start as Gemini CLI will start it, in another folder" in done.output
        assert "No such file or directory: 'data.txt'" in done.output
        assert not home.exists()

    def test_one_that_needs_a_variable(
        self, command: Install, home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (folder / "weather.py").write_text(f"import os\nos.environ['WEATHER_KEY']\n{WEATHER}")
        monkeypatch.setenv("WEATHER_KEY", "sesame")
        install = ("install", "gemini", "weather:app", "--config", str(home / "file"), "--yes")
        assert "--env NAME passes one on" in command(*install).output
        assert not home.exists()
        done = command(*install, "--env", "WEATHER_KEY", WEATHER_KEY="sesame")
        assert servers_in(home / "file", "gemini")["my-weather"]["env"] == {"WEATHER_KEY": "sesame"}
        assert "sesame" not in done.output

    def test_a_variable_of_the_server_that_is_set_here_is_offered(
        self, command: Install, home: Path, folder: Path
    ) -> None:
        install = ("install", "gemini", "weather:app", "--config", str(home / "file"), "--dry-run")
        done = command(*install, "--env", "MRTR_KEYS", MRTR_PAGE_SIZE="7", MRTR_KEYS="00" * 32)
        offers = [line for line in done.output.splitlines() if "is set here" in line]
        assert offers == [
            "MRTR_PAGE_SIZE is set here, and the server will not have it: --env MRTR_PAGE_SIZE puts it into the file"
        ]
        assert "00" * 32 not in done.output


URL = ("--url", "https://weather.example/mcp", "--name", "weather")


class TestTheChange:
    @pytest.fixture
    def file(self, home: Path) -> Path:
        home.mkdir()
        return home / "file"

    def test_is_shown_and_not_made(self, command: Install, file: Path) -> None:
        file.write_text('{\n  "mcpServers": {\n    "a": {"env": {"KEY": "hush", "low": "hush"}, "x": 1}\n  }\n}\n')
        before = file.read_bytes()
        done = command("install", "gemini", *URL, "--config", str(file), "--dry-run")
        assert done.exit_code == 0
        assert done.output.splitlines() == [
            f"--- {file}",
            f"+++ {file}",
            "@@ -2,3 +2,6 @@",
            '   "mcpServers": {',
            '-    "a": {"env": {"KEY": …, "low": …}, "x": 1}',
            '+    "a": {"env": {"KEY": …, "low": …}, "x": 1},',
            '+    "weather": {',
            '+      "httpUrl": "https://weather.example/mcp"',
            "+    }",
            "   }",
        ]
        assert file.read_bytes() == before
        assert [each.name for each in file.parent.iterdir()] == ["file"]

    def test_is_not_made_where_nobody_can_be_asked(self, command: Install, file: Path) -> None:
        done = command("install", "gemini", *URL, "--config", str(file))
        assert done.exit_code == 1
        assert "--yes makes the change" in done.output
        assert not file.exists()

    def asked(self, file: Path, answer: str, meanwhile: Callable[[], object] = lambda: None) -> tuple[int, str]:
        """Run the command at a terminal and answer it; return its exit code and what it said at the end."""
        arguments = [sys.executable, "-m", "mrtr_server", "install", "gemini", *URL, "--config", str(file)]
        master, slave = pty.openpty()
        pipe = subprocess.PIPE
        with (
            open(master, "wb", buffering=0) as terminal,
            subprocess.Popen(arguments, stdin=slave, stdout=pipe, stderr=subprocess.STDOUT) as process,
        ):
            assert process.stdout is not None
            os.close(slave)
            said = b""
            while not said.endswith(b"weather is there, and differs. Replace it? [y/N]: "):
                said += process.stdout.read(1) or pytest.fail(said.decode())
            meanwhile()
            terminal.write(f"{answer}\n".encode())
            rest, _ = process.communicate(timeout=TIMEOUT)
            return process.returncode, rest.decode()

    def test_is_made_after_a_yes_at_a_terminal(self, file: Path) -> None:
        file.write_text('{"mcpServers": {"weather": {"httpUrl": "https://old.example/mcp"}}}')
        code, said = self.asked(file, "n")
        assert (code, said.splitlines()[-1]) == (1, "Error: Nothing was changed")
        assert "old.example" in file.read_text()
        assert self.asked(file, "y")[0] == 0
        assert servers_in(file, "gemini") == {"weather": {"httpUrl": "https://weather.example/mcp"}}

    def test_is_not_made_if_the_file_has_changed_since_it_was_shown(self, file: Path) -> None:
        file.write_text('{"mcpServers": {"weather": {"httpUrl": "https://old.example/mcp"}}}')
        code, said = self.asked(file, "y", lambda: file.write_text("{}"))
        assert code == 1
        assert "it has changed meanwhile; try again" in said
        assert [(each.name, each.read_text()) for each in file.parent.iterdir()] == [("file", "{}")]

    def test_is_none_if_the_entry_is_there(self, command: Install, file: Path) -> None:
        command("install", "goose", *URL, "--config", str(file), "--yes")
        before = file.stat()
        done = command("install", "goose", *URL, "--config", str(file))
        assert (done.exit_code, done.output) == (0, f"weather is in {file} already; nothing to change\n")
        assert file.stat() == before

    def test_leaves_a_link_and_the_mode_of_its_file(self, command: Install, file: Path) -> None:
        real = file.with_name("real.json")
        real.write_text("{}")
        real.chmod(0o640)
        file.symlink_to("real.json")
        assert command("install", "gemini", *URL, "--config", str(file), "--yes").exit_code == 0
        assert file.is_symlink()
        assert "weather" in real.read_text()
        kept = real.with_name("real.json.before-mrtr")
        assert kept.read_text() == "{}"
        assert [stat.S_IMODE(each.stat().st_mode) for each in (real, kept)] == [0o640, 0o640]

    @pytest.mark.parametrize(
        ("host", "content", "said"),
        [
            ("gemini", b'{\n  "a": 1\n  "b": 2\n}', "line 3: Expecting ',' delimiter"),
            ("gemini", b'{"mcpServers": []}', "line 1: it is no object"),
            ("gemini", b"\xff\xfe{\x00}\x00", "can't decode byte"),
            ("goose", b"a: 1\n b: 2", "line 2"),
            ("goose", b"a: 1\nextensions: {b: {c: 1}}", "line 2: extensions is no mapping with a line for each entry"),
            ("goose", b"a: 1\n...\n", "by hand:\nextensions:\n  weather:\n    type: "),
        ],
    )
    def test_of_a_file_that_is_not_understood_is_refused(
        self, host: str, content: bytes, said: str, command: Install, file: Path
    ) -> None:
        file.write_bytes(content)
        done = command("install", host, *URL, "--config", str(file), "--yes")
        assert done.exit_code == 1
        assert str(file) in done.output
        assert "stays as it is" in done.output
        assert said in done.output
        assert file.read_bytes() == content


class TestWhatIsAskedFor:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("gemini",), "one of the two"),
            (("gemini", "weather:app", *URL), "one of the two"),
            (("gemini", *URL, "--env", "A=b"), "--env is for a server that the host starts"),
            (("gemini", "--url", "weather.example/mcp", "--name", "w"), "has to be the address of the endpoint"),
            (("gemini", "--url", "https://me:pw@weather.example/mcp"), "has to be the address of the endpoint"),
            (("gemini", "--url", "https://weather.example/mcp", "--name", "My Weather"), "such as book-shop"),
            (("gemini", "weather:app", "--env", "NOT_SET"), "there is no such variable here"),
        ],
    )
    def test_is_refused_if_it_makes_no_sense(
        self, arguments: tuple[str, ...], said: str, command: Install, home: Path, folder: Path
    ) -> None:
        done = command("install", *arguments, "--config", str(home / "file"), "--yes")
        assert done.exit_code != 0
        assert said in done.output
        assert not home.exists()

    def test_uninstall_says_what_there_is(self, command: Install, home: Path) -> None:
        file = ("--config", str(home / "file"), "--yes")
        command("install", "gemini", *URL, *file)
        for name in ("wether", "weather:app"):
            done = command("uninstall", "gemini", name, *file)
            assert done.exit_code == 1
            assert f"{name} is not in {home / 'file'}. It has: weather" in done.output

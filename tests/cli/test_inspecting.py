"""`mrtr-server inspect`, `skill` and `publish`: what a server offers and is, without serving it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft7Validator

from mrtr_server.cli import main
from mrtr_server.testing import Client

SHOP = '''
from typing import Annotated, Literal

from mrtr_server import Context, Elicit, MRTRServer

app = MRTRServer("shop", keys=[bytes(32)])

@app.tool
def find(book: str, most: int = 5, order: Literal["new", "old"] = "new", shop: str | None = None) -> list[str]:
    """Find books.

    By their titles.
    """
    return []

@app.tool(confirm=lambda amount: f"Pay {amount}?")
def pay(amount: int) -> str:
    """Pay."""
    raise AssertionError("no function is called")

@app.tool(confirm="Wipe all?")
def wipe() -> str:
    """Wipe."""
    raise AssertionError("no function is called")

@app.tool
async def order(ctx: Context) -> str:
    """Order."""
    await ctx.elicit("How many?", int)
    await ctx.confirm("Sure?")
    return "ordered"

@app.tool
async def name(who: Annotated[str, Elicit("Who are you?")]) -> str:
    """Greet."""
    return who

@app.tool
async def ask(ctx: Context) -> str:
    """Ask."""
    return await ctx.elicit("Who?", str)

@app.prompt
def review(text: str, tone: str = "kind") -> str:
    """Have a text reviewed."""
    return text

@app.resource("shop://{city}/opening", name="opening")
def opening(city: str) -> str:
    """When a shop\\x1b[31m opens."""
    return city

@app.skill("refunds")
def refunds() -> str:
    """Refund."""
    raise AssertionError("no function is called")

app.disable(tools=["ask"])
silent = MRTRServer("silent", keys=[bytes(32)])
silent.tool(find)
'''


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "inspected_shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("inspected_shop", None)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


class TestInspect:
    def test_shows_what_there_is_with_types_and_what_is_asked(self) -> None:
        done = run("inspect", "inspected_shop:app")
        assert done.exit_code == 0, done.output
        assert done.output.splitlines() == [
            "tool      find(book: string, most?: integer, order?: one of new, old, shop?: string or null)  Find books.",
            "tool      pay(amount: integer)  Pay.",
            "          asks the person to agree",
            "tool      wipe()  Wipe.",
            "          asks the person to agree: Wipe all?",
            "tool      order()  Order.",
            "          asks the person to agree while it runs",
            "tool      name()  Greet.",
            "          asks: Who are you?",
            "prompt    review(text, tone?)  Have a text reviewed.",
            "resource  skill://refunds/SKILL.md  Refund.",
            "template  shop://{city}/opening  When a shop\\x1b[31m opens.",
        ]

    def test_prints_as_json_what_clients_get(self) -> None:
        found = json.loads(run("inspect", "inspected_shop:app", "--json").output)
        module = sys.modules["inspected_shop"]
        client = Client(module.app)
        for listing, method in {
            "tools": "tools/list",
            "prompts": "prompts/list",
            "resources": "resources/list",
            "resourceTemplates": "resources/templates/list",
            "skills": "skills/list",
        }.items():
            assert found[listing] == client.request(method).result[listing]
        assert found["server"] == "shop"
        assert found["asks"] == {
            "pay": ["asks the person to agree"],
            "wipe": ["asks the person to agree: Wipe all?"],
            "order": ["asks the person to agree while it runs"],
            "name": ["asks: Who are you?"],
        }

    def test_says_what_is_no_server(self) -> None:
        done = run("inspect", "inspected_shop:find")
        assert done.exit_code == 1
        assert "inspected_shop:find is a function, not an MRTRServer" in done.output


class TestSkill:
    def test_is_a_section_that_says_which_tools_ask(self) -> None:
        assert run("skill", "inspected_shop:app").output == (
            "## Tools that ask\n\n"
            "These tools ask the person while they run. Do not answer for them, and do not say that something is done\n"
            "before the tool says so.\n\n"
            "- `pay` asks the person to agree\n"
            "- `wipe` asks the person to agree: Wipe all?\n"
            "- `order` asks the person to agree while it runs\n"
            "- `name` asks: Who are you?\n"
        )

    def test_is_none_where_nothing_asks(self) -> None:
        done = run("skill", "inspected_shop:silent")
        assert done.exit_code == 1
        assert "No tool of inspected_shop:silent asks" in done.output


class TestPublish:
    @pytest.fixture(autouse=True)
    def _servers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        (tmp_path / "published.py").write_text(
            "from mrtr_server import MRTRServer, ServerInfo\n"
            "info = ServerInfo(name='com.example/weather', version='1.2.0', description='Forecasts', title='Weather')\n"
            "app = MRTRServer('w', keys=[bytes(32)], info=info, base_url='https://example.com/', path='/tools/mcp')\n"
            "local = MRTRServer('w', keys=[bytes(32)], info=info)\n"
            "nameless = MRTRServer('w', keys=[bytes(32)])\n"
        )
        monkeypatch.chdir(tmp_path)
        yield
        sys.modules.pop("published", None)

    def test_writes_what_the_registry_takes(self, tmp_path: Path) -> None:
        schema = json.loads((Path(__file__).parents[1] / "schemas" / "registry-server.json").read_text())
        about = {"name": "com.example/weather", "version": "1.2.0", "title": "Weather", "description": "Forecasts"}
        remotes = [{"type": "streamable-http", "url": "https://example.com/tools/mcp"}]
        package = {"registryType": "pypi", "identifier": "my-weather", "version": "1.2.0", "runtimeHint": "uvx"}
        packages = [{**package, "transport": {"type": "stdio"}}]
        for server, options, more in (
            ("app", [], {"remotes": remotes}),
            ("local", ["--pypi", "my-weather"], {"packages": packages}),
            ("app", ["--pypi", "my-weather", "--output", "other.json"], {"remotes": remotes, "packages": packages}),
        ):
            done = run("publish", f"published:{server}", *options)
            assert done.exit_code == 0, done.output
            found = json.loads((tmp_path / (options[3] if len(options) > 2 else "server.json")).read_text())
            Draft7Validator(schema).validate(found)
            assert found.pop("$schema") == schema["$id"]
            assert found == {**about, **more}

    @pytest.mark.parametrize(
        ("server", "message"),
        [
            ("nameless", "has no name for all the world"),
            ("local", "set base_url=, or name its package with --pypi"),
        ],
    )
    def test_says_what_is_missing(self, server: str, message: str) -> None:
        done = run("publish", f"published:{server}")
        assert done.exit_code == 1
        assert message in done.output

"""What operators do to logins: they see them, end them, forget people, seal rows anew, and begin another epoch."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mrtr_server.cli import main

from .conftest import KEY, Stage, make

Run = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of the database."""
    return tmp_path / "logins.db"


@pytest.fixture
def run(file: Path) -> Run:
    """Run a command of an operator."""
    environment = {"MRTR_DATABASE_URL": f"sqlite:///{file}", "MRTR_KEYS": KEY.hex()}

    def invoke(*arguments: str, typed: str = "") -> Result:
        result = CliRunner(env=environment).invoke(main, arguments, input=typed)
        assert result.exit_code == 0, result.output
        return result

    return invoke


def serve(stage: Stage, file: Path) -> str:
    """Start a replica; return its address."""
    return stage.serve(make(stage.provider.login(), store=f"sqlite:///{file}"))


class TestWritesThatAreLost:
    def test_let_no_refresh_token_count_twice(self, stage: Stage, file: Path, run: Run) -> None:
        client = stage.client(serve(stage, file))
        first = client.tokens(stage.browser())
        second = client.refresh(first).json()
        with sqlite3.connect(file) as database:  # what a standby lacks that is promoted
            database.execute("DELETE FROM mrtr_redemptions")
        run("db", "new-epoch")
        for used in (first, second):
            refused = client.refresh(used)
            assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")
        client = stage.client(serve(stage, file))  # it knows no other epoch
        assert client.refresh(client.tokens(stage.browser())).status_code == 200

    def test_let_no_code_and_no_login_under_way_count_twice(self, stage: Stage, file: Path, run: Run) -> None:
        client, browser = stage.client(serve(stage, file)), stage.browser()
        code = client.came(browser)["code"]
        to_provider = browser.answer(browser.open(client.page()))
        run("db", "new-epoch")
        assert client.redeem(code).json()["error"] == "invalid_grant"
        page = browser.go(to_provider)
        assert (page.status_code, "Begin again" in page.text) == (400, True)

"""What operators do to logins: they see them, end them, forget people, and begin another epoch."""

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mrtr_server import Limits
from mrtr_server.cli import main

from .conftest import KEY, Stage, make
from .test_logins import said
from .test_upstream_tokens import server

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


def listed(run: Run) -> list[dict[str, str]]:
    """Return the logins that an operator sees."""
    return [json.loads(line) for line in run("logins", "list", "--json").stdout.splitlines()]


def serve(stage: Stage, file: Path) -> str:
    """Start a replica; return its address."""
    return stage.serve(make(stage.provider.login(), store=f"sqlite:///{file}"))


def test_logins_are_listed_until_they_end(stage: Stage, file: Path, run: Run) -> None:
    base = serve(stage, file)
    first, second = stage.client(base), stage.client(base, client_name="Second")
    tokens = first.tokens(stage.browser())
    assert len(listed(run)) == 1
    second.tokens(stage.browser())
    stage.provider.set(user="hubot")
    second.tokens(stage.browser())
    mine = {"issuer": stage.provider.url, "principal": "583231", "person": "octocat"}
    assert [each["client"] for each in listed(run) if mine.items() <= each.items()] == ["Second", "Tests"]
    assert len(run("logins", "list").stdout.splitlines()) == 3
    pages, more = list[str](), list[str]()
    for _ in range(4):
        page = run("logins", "list", "--limit", "1", *more)
        pages += page.stdout.splitlines()
        more = page.stderr.rpartition(" or add ")[2].split()
    assert pages == run("logins", "list").stdout.splitlines(), "page by page, each once"
    first.post("/revoke", token=tokens["refresh_token"])
    assert [each["client"] for each in listed(run)] == ["Second", "Second"]
    with closing(sqlite3.connect(file)) as database:  # of the person's tokens nothing stays for a month
        kept = database.execute("SELECT count(*) FROM mrtr_kept WHERE expires > ?", [time.time() + 3600])
        assert kept.fetchone() == (3,)


def test_an_operator_ends_the_logins_of_a_person_and_not_those_of_others(stage: Stage, file: Path, run: Run) -> None:
    client = stage.client(serve(stage, file))
    tokens = client.tokens(stage.browser())
    stage.provider.set(user="hubot")
    others = client.tokens(stage.browser())
    run("logins", "end", "-", "--issuer", stage.provider.url, typed="583231\n")
    assert [each["person"] for each in listed(run)] == ["hubot"]
    assert client.refresh(tokens).json()["error"] == "invalid_grant"
    assert client.refresh(others).status_code == 200
    stage.provider.set(user="octocat")
    assert client.refresh(client.tokens(stage.browser())).status_code == 200  # who logs in again


def test_a_full_store_keeps_no_login_from_its_end(stage: Stage, file: Path, run: Run) -> None:
    app = make(stage.provider.login(), store=f"sqlite:///{file}", limits=Limits(stored_states=10, caller_share=0.5))
    client = stage.client(stage.serve(app))
    tokens = client.tokens(stage.browser())
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE mrtr_usage SET states = 20000000")
    assert client.post("/revoke", token=tokens["refresh_token"]).status_code == 200
    run("logins", "end", "583231", "--issuer", stage.provider.url)
    assert listed(run) == []


def test_the_token_of_a_person_is_used_no_more_once_their_logins_have_ended(stage: Stage, file: Path, run: Run) -> None:
    client = stage.client(stage.serve(server(stage.provider, store=f"sqlite:///{file}")))
    tokens = client.tokens(stage.browser(), scope="repo")
    assert said(client.call(tokens, "repos")) == ["read:user", "repo"]
    run("logins", "end", "583231", "--issuer", stage.provider.url)
    assert client.call(tokens, "repos").status_code == 403


def test_a_person_who_is_forgotten_has_no_login_and_no_row(stage: Stage, file: Path, run: Run) -> None:
    client = stage.client(serve(stage, file))
    tokens = client.refresh(client.tokens(stage.browser())).json()
    stage.provider.set(user="hubot")
    others = client.tokens(stage.browser())
    result = run("forget", "583231", "--issuer", stage.provider.url)
    # The code and a refresh token that were used; the person's tokens, and how often they were refreshed.
    assert "mrtr_redemptions: 2 rows\n" in result.stdout
    assert "mrtr_kept: 2 rows\n" in result.stdout
    assert [each["person"] for each in listed(run)] == ["hubot"]
    assert client.refresh(tokens).json()["error"] == "invalid_grant"
    assert client.refresh(others).status_code == 200
    with closing(sqlite3.connect(file)) as database, database:  # as once its seven days are over
        database.execute("DELETE FROM mrtr_forgotten")
    assert client.refresh(tokens).json()["error"] == "invalid_grant"


class TestWritesThatAreLost:
    def test_let_no_refresh_token_count_twice(self, stage: Stage, file: Path, run: Run) -> None:
        client = stage.client(serve(stage, file))
        first = client.tokens(stage.browser())
        with closing(sqlite3.connect(file)) as database, closing(sqlite3.connect(":memory:")) as backup:
            database.backup(backup)
            second = client.refresh(first).json()
            backup.backup(database)  # as a standby that lacks the last writes
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

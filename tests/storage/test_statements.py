"""The files of statements: one for each database, with all that is run there, and nothing that is not."""

import ast
import re
from pathlib import Path

import pytest

import mrtr_server
from mrtr_server.storage.sql import database
from mrtr_server.storage.sql.database import number_parameters, read_migrations, read_statements

PACKAGE = Path(mrtr_server.__file__).parent
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|WITH)\s")
SQLITE, POSTGRESQL = read_statements("sqlite"), read_statements("postgresql")


def test_both_have_the_same_but_for_what_only_one_of_them_can() -> None:
    one_by_one = {"renew_grant", "holds_task", "find_any_subscription"}
    assert SQLITE.keys() - POSTGRESQL.keys() == one_by_one
    in_batches = {"renew_grants", "find_leases", "find_tasks"}
    plans = {"keep_plans", "claim_from_many"}  # a file is looked through in the same way however much is in it
    of_a_server = {"notify", "has_version_table", "lock_version", "read_clock", "answers_itself", "is_writable"}
    listeners = {"note_listener", "count_listeners"}
    lives = {"find_timeline", "note_timeline", "find_most_connections", "find_standbys"}  # a file has neither
    events = {"add_event_and_tell", "find_oldest_writer", "restart_events", "restart_floors"}
    indexes = {"find_indexes", "drop_index", "try_to_lock_indexes"}  # a file has one writer, who makes indexes, too
    assert POSTGRESQL.keys() - SQLITE.keys() == in_batches | of_a_server | listeners | lives | indexes | events | plans


def test_they_differ_in_lists_and_in_locks_only() -> None:
    def words(statement: str) -> str:
        return " ".join(statement.replace('"', "").split())

    different = {name for name in SQLITE.keys() & POSTGRESQL.keys() if words(SQLITE[name]) != words(POSTGRESQL[name])}
    assert different == {
        *("claim_tasks", "any_free_task", "renew_tasks"),  # a column in a list
        "change_task",  # by which transaction a task comes to wait, which a file does not ask
        "look_at_tasks",  # the same, and how bytes are written
        *(
            "list_tasks",
            "find_referenced_tasks",
        ),  # how bytes are written, the types of parameters, and the order of ids
        *("find_waits", "find_referenced_waits", "list_logins"),  # the same
        "list_owned_tasks",  # how bytes are written
        *(
            "sweep_redemptions",
            "sweep_values",
            "sweep_tasks",
            "sweep_notices",
            "sweep_forgotten",
            "sweep_waits",
            "sweep_events",
            "sweep_subscriptions",
        ),  # FOR UPDATE SKIP LOCKED
        *("new_epoch", "interrupt_tasks"),  # chance, the time, and FOR UPDATE
        "measure",  # LATERAL
        "overdue_tasks",  # dead rows, which a file does not have
        "write_notices",  # one after the other, and for those who listen as well
        *("add_event", "read_events", "trim_events"),  # positions, and LATERAL
        *("put_subscription", "advance_subscriptions"),  # FOR UPDATE, and how JSON is looked through
    }


@pytest.mark.parametrize("read", [SQLITE, POSTGRESQL], ids=["sqlite", "postgresql"])
def test_each_is_one_statement_without_comments(read: dict[str, str]) -> None:
    for name, statement in read.items():
        if name != "keep_plans":  # settings of a connection, which are no statements of tables
            assert SQL.match(statement), name
            assert ";" not in statement, name
        assert "--" not in statement, name


def test_migrations_come_in_the_order_of_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_HERE", tmp_path)
    (tmp_path / "migrations").mkdir()
    for number in (10, 9, 2):
        (tmp_path / "migrations" / f"{number}.sqlite.sql").write_text(f"SELECT {number};\n")
    assert list(read_migrations("sqlite")) == ["2", "9", "10"]


def test_each_is_used() -> None:
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    unused = {name for name in SQLITE | POSTGRESQL if f'"{name}"' not in sources and not name.startswith("sweep_")}
    assert unused == set()


def test_none_stands_elsewhere() -> None:
    found = {
        (path.name, node.value)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.match(node.value)
    }
    assert found == set()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_migrations_are_numbered_without_a_gap(database: str) -> None:
    migrations = read_migrations(database)
    assert list(migrations) == [str(number + 1) for number in range(len(migrations))]
    assert all(migrations.values())


def test_parameters_are_numbered_in_the_order_of_their_first_use() -> None:
    numbered = number_parameters("SELECT :b, :a, :b, x::text, :now FROM y WHERE a = ANY(:ids::text[])", "clock()")
    assert numbered == ("SELECT $1, $2, $1, x::text, clock() FROM y WHERE a = ANY($3::text[])", ("b", "a", "ids"))

"""The statements of a database, read from the file that holds them."""

import re
from pathlib import Path

_HERE = Path(__file__).parent
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_END = re.compile(r";(?:\n(?! )|\s*$)")
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)


def read_statements(database: str) -> dict[str, str]:
    """Return the statements of one kind of database, by their names.

    Args:
        database: `"sqlite"` or `"postgresql"`.

    Returns:
        Each statement without its comments, with parameters such as `:state`.
    """
    _, *parts = _NAME.split((_HERE / f"{database}.sql").read_text())
    return {
        name: _COMMENT.sub("", text).strip().rstrip(";") for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def read_migrations(database: str) -> dict[str, list[str]]:
    """Return the statements that lead to each version of the tables, in the order of the versions.

    Args:
        database: `"sqlite"` or `"postgresql"`.
    """
    files = sorted((_HERE / "migrations").glob(f"*.{database}.sql"), key=lambda file: int(file.name.partition(".")[0]))
    return {file.name.partition(".")[0]: _split(file.read_text()) for file in files}


def number_parameters(statement: str, clock: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with numbered parameters, and their names in the order of the numbers.

    Args:
        statement: as `read_statements` returns it.
        clock: the expression that stands for `:now`, which is no parameter then.
    """
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        name = found[1]
        if name == "now":
            return clock
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _PARAMETER.sub(number, statement), tuple(names)


def _split(script: str) -> list[str]:
    # The inner lines of a statement, such as the body of a trigger, are indented.
    return [statement.strip() for statement in _END.split(_COMMENT.sub("", script)) if statement.strip()]

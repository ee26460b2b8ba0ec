"""What scripts/lint.py finds, in small packages that are wrong in one place."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
from lint_docs import check_parameters, check_surface, check_words
from lint_layers import (
    check_dialects,
    check_layers,
    check_libraries,
    check_names,
    check_numbers,
    check_probes,
    check_seals,
    layers_of,
)
from lint_sources import Finding, Package

LAYERS = ["server", "transport", "methods", "flow", "protocol", "errors"]
NUMBERS = count()


WITH_TOO_MANY = '''class A:
    """A.

    Args:
        x: one.
        y: two.
    """
    def __init__(self, x: int) -> None: ...
'''

WITH_TOO_FEW = '''__all__ = ["Line", "wait"]

class Line:
    """A line."""

    def join(self): ...
    @property
    def length(self): ...
    def _leave(self): ...

def wait(what: str, seconds: float) -> bool:
    """Wait.

    Args:
        seconds: how long.
    """
    raise TimeoutError
'''


def make(folder: Path, modules: Mapping[str, str]) -> Package:
    """Write a package, by the names and the text of its modules."""
    root = folder / f"house_{next(NUMBERS)}"
    for name, text in {"__init__": "", **modules}.items():
        path = root / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Package(root)


def found(findings: Iterator[Finding]) -> list[str]:
    return [f"{each.path.name}:{each.line}: {each.text}" for each in findings]


def test_the_layers_are_those_of_the_table_in_the_page() -> None:
    page = "| package | for |\n|---|---|\n| `server` | decorators |\n| `storage`, `storage.sql` | what `x` is |\n"
    assert layers_of(page) == ["server", "storage"]


class TestLayers:
    def test_that_import_downwards_have_nothing_wrong(self, tmp_path: Path) -> None:
        package = make(
            tmp_path, {"server": "from .flow.round import Round", "flow.round": "from ..errors import E", "errors": ""}
        )
        assert found(check_layers(package, LAYERS)) == []

    @pytest.mark.parametrize(
        ("modules", "finding"),
        [
            (
                {"flow.round": "\nfrom ..server import App", "server": ""},
                "round.py:2: imports server, which is above flow",
            ),
            (
                {"flow.round": "import x\ndef f():\n    from .. import run"},
                "round.py:3: imports __init__, which is above flow",
            ),
            ({"cellar": ""}, "cellar.py:1: cellar has no row in the table of packages in docs/architecture.md"),
        ],
    )
    def test_that_do_not_are_found(self, tmp_path: Path, modules: dict[str, str], finding: str) -> None:
        assert found(check_layers(make(tmp_path, modules), LAYERS)) == [finding]

    def test_circles_are_found(self, tmp_path: Path) -> None:
        package = make(
            tmp_path, {"flow.a": "from .b import x", "flow.b": "from . import a", "flow.c": "from .a import x"}
        )
        assert found(check_layers(package, LAYERS)) == [
            "a.py:1: imports flow.b in a circle",
            "b.py:1: imports flow.a in a circle",
            "c.py:1: imports flow.a in a circle",
        ]

    def test_the_own_name_of_the_package_is_found(self, tmp_path: Path) -> None:
        package = make(tmp_path, {"server": ""})
        (tmp_path / package.name / "server.py").write_text(f"from {package.name}.flow import x")
        again = Package(tmp_path / package.name)
        assert found(check_names(again)) == ["server.py:1: the package imports itself by relative names"]


def test_a_library_that_is_imported_elsewhere_or_is_in_no_table_is_found(tmp_path: Path) -> None:
    package = make(tmp_path, {"flow.round": "import json, pydantic_core\nfrom jwt.api import x\nimport numpy.linalg"})
    lines = found(check_libraries(package))
    assert lines[:2] == [
        "round.py:2: jwt is imported only where scripts/lint_layers.py says so",
        "round.py:3: numpy is in no table of scripts/lint_layers.py",
    ]
    assert "__init__.py:1: scripts/lint_layers.py: auth.jwt_keys imports no jwt" in lines[2:]


class TestDialects:
    @pytest.mark.parametrize(
        ("modules", "finding"),
        [
            (
                {"flow.round": "from ..protocol.envelope import read"},
                "only the edge of the server knows protocol.envelope",
            ),
            (
                {"flow.round": "from ..protocol.served_dialects import S"},
                "is for those that serve, and for who makes them",
            ),
            (
                {"protocol.drafts": "from . import handshake"},
                "a dialect does not know another one, such as protocol.handshake",
            ),
            ({"flow.round": "SINCE = '2026-07-28'"}, "names a version of the protocol, which only the dialects do"),
        ],
    )
    def test_are_known_at_the_edge_alone(self, tmp_path: Path, modules: dict[str, str], finding: str) -> None:
        others = {f"protocol.{each}": "" for each in ("jsonrpc", "handshake", "served_dialects")}
        (line,) = found(check_dialects(make(tmp_path, {**others, **modules})))
        assert line.endswith(finding)

    def test_numbers_of_the_wire_are_found_below_the_dispatcher(self, tmp_path: Path) -> None:
        package = make(
            tmp_path, {"flow.round": "A = 404\nB = -32602\nC = text[:200]\nD = 100", "transport.http": "A = 404"}
        )
        assert found(check_numbers(package, LAYERS)) == [
            "round.py:1: 404 is of HTTP or JSON-RPC, which only the edge knows",
            "round.py:2: -32602 is of HTTP or JSON-RPC, which only the edge knows",
        ]


def test_what_seals_without_a_place_is_found(tmp_path: Path) -> None:
    package = make(tmp_path, {"flow.round": "from ..crypto.codec import SealedCodec"})
    assert found(check_seals(package)) == ["round.py:1: what is sealed is bound to its place by crypto.place_codec"]


def test_who_asks_a_store_what_it_is_is_found(tmp_path: Path) -> None:
    source = """
isinstance(store, TaskStore)
isinstance(self.store, base.TaskStore | None)
isinstance(given, (SQLStore, int))
getattr(self._store, "fanout", None)
hasattr(database, "notifies")
isinstance(error, StoreUnavailable)
getattr(row, "status")
hasattr(app, "store")
"""
    lines = found(check_probes(make(tmp_path, {"flow.round": source})))
    assert [line.split(":")[1] for line in lines] == ["2", "3", "4", "5", "6"]


class TestDocstrings:
    def test_that_speak_or_are_no_sentences_are_found(self, tmp_path: Path) -> None:
        source = 'def a():\n    """Gives a."""\ndef b():\n    """Return b"""\ndef _c():\n    """Anything"""\n'
        assert found(check_words(make(tmp_path, {"flow.round": source}))) == [
            "round.py:2: a docstring that begins with 'Gives'",
            "round.py:3: b: the first paragraph of the docstring is no whole sentence",
        ]

    def test_that_describe_no_parameter_are_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        package = make(tmp_path, {"flow": WITH_TOO_MANY})
        assert found(check_parameters(package)) == ["flow.py:1: A has no parameter y"]

    def test_of_the_surface_say_everything(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        name = f"mrtr_server_{next(NUMBERS)}"
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(WITH_TOO_FEW)
        assert found(check_surface(Package(tmp_path / name), [importlib.import_module(name)])) == [
            "__init__.py:3: Line.join has no docstring",
            "__init__.py:3: Line.length has no docstring",
            "__init__.py:11: wait does not describe its parameter what",
            "__init__.py:11: wait does not describe what it returns",
            "__init__.py:11: wait does not describe what it raises",
            "__init__.py:11: wait: the description of seconds does not name its unit, such as seconds",
        ]

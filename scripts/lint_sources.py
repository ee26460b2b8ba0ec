"""The modules of a package, as the checks of scripts/lint.py read them."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TOP = "__init__"
"""The package's own namespace, which may import from anywhere."""


@dataclass(frozen=True)
class Finding:
    """What is wrong, and where."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Source:
    """A module: its name inside the package, and its text."""

    name: str
    path: Path
    text: str
    tree: ast.Module = field(repr=False)

    @property
    def package(self) -> str:
        """The package that it belongs to, or itself where it is on its own."""
        return self.name.partition(".")[0]

    def finding(self, node: ast.AST | int, text: str) -> Finding:
        """Return what is wrong at a node, or in a line."""
        return Finding(self.path, node if isinstance(node, int) else getattr(node, "lineno", 1), text)


class Package:
    """All modules of a package, by their names inside it."""

    def __init__(self, root: Path) -> None:
        self.name = root.name
        self.sources: Mapping[str, Source] = {
            source.name: source for source in (_read(root, path) for path in sorted(root.rglob("*.py")))
        }

    def imports(self, source: Source) -> Iterator[tuple[ast.stmt, str]]:
        """Yield the full name of each module that a module imports, wherever in it the import stands."""
        inside = source.name.split(".") if source.path.name == "__init__.py" else source.name.split(".")[:-1]
        above = [self.name, *(inside if source.name != TOP else [])]
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Import):
                yield from ((node, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = above[: len(above) - node.level + 1] if node.level else []
                full = ".".join([*base, *([node.module] if node.module else [])])
                names = {f"{full}.{alias.name}".removeprefix(f"{self.name}.") for alias in node.names}
                modules = names & self.sources.keys()  # `from . import keys` imports a module
                yield from ((node, f"{self.name}.{name}") for name in sorted(modules)) if modules else [(node, full)]

    def siblings(self, source: Source) -> Iterator[tuple[ast.stmt, str]]:
        """Yield the modules of the package that a module imports."""
        for node, name in self.imports(source):
            if name.partition(".")[0] == self.name:
                yield node, name.partition(".")[2] or TOP

    def libraries(self, source: Source) -> Iterator[tuple[ast.stmt, str]]:
        """Yield the top-level names of all else that it imports."""
        for node, name in self.imports(source):
            if (library := name.partition(".")[0]) != self.name:
                yield node, library


def _read(root: Path, path: Path) -> Source:
    parts = path.relative_to(root).with_suffix("").parts
    name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
    text = path.read_text()
    return Source(name, path, text, ast.parse(text))

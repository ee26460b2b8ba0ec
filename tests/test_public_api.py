"""The public surface: the names that are documented and no others, each with its documentation."""

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from inspect import signature
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, get_overloads

import pytest

import mrtr_server
import mrtr_server.testing

ROOT = Path(mrtr_server.__file__).parent

NAMES = """
    Annotations AudioContent BearerTokens Callback CallbackLink Caller Client Codec Completion Confirm Context Depends
    Elicit Elicited ElicitUrl EmbeddedResource Fanout Header Icon IdempotencyKey ImageContent
    InProcessStore InputRequired Inputs KeyRing Limits ListRoots Message MRTRError MRTRServer NotFound Principal
    PromptResult ProtocolError Redemption Refusal ResourceContents ResourceLink Root Roots Sample Sampled
    SealedCodec SetupError SignedCodec State Store StoreUnavailable TaskRow TaskStore TextContent
    ToolAnnotations ToolError ToolResult
"""
LOADED_WHEN_ASKED_FOR = ["SQLStore"]
"""They need an extra. Type checkers see them as they see the others."""
PUBLIC = NAMES.split() + LOADED_WHEN_ASKED_FOR

ELSEWHERE = ("flow", "methods", "registration", "server", "tasks")
"""The parts of the package whose documentation is still being written."""


def modules() -> Iterator[ModuleType]:
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        yield importlib.import_module(name)


MODULES = {module.__name__: module for module in modules()}


def public(
    node: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The public classes, functions and methods, by qualified name. A name in Python's own hands is not ours."""
    for child in node.body:
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or child.name.startswith("_"):
            continue
        decorators = {ast.unparse(decorator) for decorator in child.decorator_list}
        if "overload" not in decorators:
            yield prefix + child.name, child
        if isinstance(child, ast.ClassDef):
            yield from public(child, f"{prefix}{child.name}.")


def test_the_public_names_are_the_documented_ones() -> None:
    found = {
        name for name, value in vars(mrtr_server).items() if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert sorted([*found, *LOADED_WHEN_ASKED_FOR]) == sorted(PUBLIC)


def test_any_other_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'mrtr_server' has no attribute 'SQLstore'"):
        mrtr_server.SQLstore  # type: ignore[attr-defined]  # noqa: B018


def test_every_name_is_exported_for_type_checkers_too() -> None:
    # They take `from .x import X` for private, and `from .x import X as X` for public.
    tree = ast.parse((ROOT / "__init__.py").read_text())
    (for_type_checkers,) = (node for node in tree.body if isinstance(node, ast.If))
    exported = [
        (alias.name, alias.asname)
        for node in [*tree.body, *for_type_checkers.body]
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    ]
    assert [name for name, renamed in exported if renamed != name] == []
    assert sorted(name for name, _ in exported if name != "__version__") == sorted(PUBLIC)
    assert (ROOT / "py.typed").is_file()


def test_the_version_is_a_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", mrtr_server.__version__)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented(name: str) -> None:
    value = getattr(mrtr_server, name)
    first = (inspect.getdoc(value) or "").partition("\n")[0]
    assert first.endswith((".", ".)"))
    # Its own words: neither inherited nor what dataclasses make up.
    assert vars(value)["__doc__"]
    assert not first.startswith(f"{name}(")


@pytest.mark.parametrize("module", MODULES)
class TestDocumentation:
    def tree(self, module: str) -> ast.Module:
        return ast.parse(Path(MODULES[module].__file__ or "").read_text())

    def test_no_first_line_personifies_the_function(self, module: str) -> None:
        """A function returns and checks (PEP 257); it does not give, say or tell."""
        if module.startswith(tuple(f"mrtr_server.{each}" for each in ELSEWHERE)):
            pytest.skip("is being written")
        documented = (
            ast.get_docstring(node) or ""
            for node in ast.walk(self.tree(module))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        )
        assert [doc for doc in documented if re.match("(give|say|tell)s?\\b", doc, re.IGNORECASE)] == []

    def test_the_first_paragraph_is_one_or_more_whole_sentences(self, module: str) -> None:
        docs = {name: ast.get_docstring(node) or "." for name, node in public(self.tree(module))}
        paragraphs = {name: doc.partition("\n\n")[0] for name, doc in docs.items()}
        assert [name for name, text in paragraphs.items() if not text.endswith((".", ":", ".)"))] == []

    def test_every_documented_parameter_is_one(self, module: str) -> None:
        wrong = []
        for name, node in public(self.tree(module)):
            if documented := documented_parameters(ast.get_docstring(node) or ""):
                wrong += [f"{name}({unknown})" for unknown in documented - parameters_of(MODULES[module], name)]
        assert wrong == []


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions of the public surface, and the methods of its classes, by name."""
    for module in (mrtr_server, mrtr_server.testing):
        for name, value in vars(module).items():
            if name.startswith("_") or inspect.ismodule(value) or not callable(value):
                continue
            found = {name: value} if inspect.isfunction(value) else dict(inspect.getmembers(value, inspect.isroutine))
            for method, function in found.items():
                ours = getattr(function, "__module__", None) or ""
                if not method.startswith("_") and ours.startswith("mrtr_server"):
                    yield name if inspect.isfunction(value) else f"{name}.{method}", function


@pytest.mark.parametrize(("name", "function"), [pytest.param(*each, id=each[0]) for each in callables()])
def test_every_public_function_with_arguments_documents_them(name: str, function: Callable[..., Any]) -> None:
    if function.__module__.startswith(tuple(f"mrtr_server.{each}" for each in ELSEWHERE)):
        pytest.skip("is being written")
    doc, described = inspect.getdoc(function) or "", signature(function)
    if taken := described.parameters.keys() - {"self"}:
        assert documented_parameters(doc) == taken
    if taken and described.return_annotation not in (None, "None", inspect.Signature.empty):
        assert "\nReturns:\n" in doc


def documented_parameters(doc: str) -> set[str]:
    """The names in the section `Args:`."""
    section = re.search(r"^Args:\n((?: {4}.*\n?|\n)+)", doc, re.MULTILINE)
    lines = section[1].splitlines() if section else []
    named = (re.match(r" {4}([a-z_]+(?:, [a-z_]+)*):", line) for line in lines)
    return {name for found in named if found for name in found[1].split(", ")}


def parameters_of(module: ModuleType, name: str) -> set[str]:
    """The names that a function takes; of a class, those that its constructor takes and its fields."""
    value = attrgetter(name)(module)
    taken = set(signature(value).parameters)
    for overload in get_overloads(value):
        taken |= set(signature(overload).parameters)
    return taken | getattr(value, "__annotations__", {}).keys()

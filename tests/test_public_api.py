"""The public surface: the names that are documented and no others, each with its documentation."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from inspect import signature
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import get_overloads

import pytest

import mrtr_server

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

VERBS = """
    Add Answer Ask Begin Bring Call Cancel Carry Change Check Collect Compile Complete Connect Count Decode Decrypt
    Derive Describe Digest Drop Encrypt End Extend Fail Fill Find Follow Forget Format Get Give Go Grant Hand Hear
    Hold Keep Lead Lease Leave Let Log Look Make Manage Move Name Never Note Offer Open Park Pass Print Put Reach Read
    Refuse Register Remember Remove Respond Resume Return Run Say Seal Send Serve Shut Sign Start Store Take Tell
    Upgrade Use Validate Wait Wake Watch Write Yield
"""
"""The words that a function's documentation begins with: what to do, as one tells somebody to do it."""


def modules() -> Iterator[ModuleType]:
    for path in sorted(ROOT.rglob("*.py")):
        if path.parent.name == "migrations":  # what Alembic runs by itself
            continue
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


def is_property(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(each).endswith("property") for each in node.decorator_list
    )


def is_command(node: ast.AST) -> bool:
    """A command's documentation is its help, in the words of command lines."""
    return isinstance(node, ast.FunctionDef) and any("click." in ast.unparse(each) for each in node.decorator_list)


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

    def test_every_module_says_what_it_holds(self, module: str) -> None:
        first = (ast.get_docstring(self.tree(module)) or "").partition("\n\n")[0]
        assert first.endswith((".", ":", ".)"))

    def test_every_public_class_and_function_says_what_it_is_or_does(self, module: str) -> None:
        assert [name for name, node in public(self.tree(module)) if not ast.get_docstring(node)] == []

    def test_the_first_line_of_a_function_tells_what_to_do(self, module: str) -> None:
        functions = {
            name: ast.get_docstring(node) or ""
            for name, node in public(self.tree(module))
            if not isinstance(node, ast.ClassDef) and not is_property(node) and not is_command(node)
        }
        assert [
            f"{name}: {doc}"
            for name, doc in functions.items()
            if re.split(r"\W", doc, maxsplit=1)[0] not in VERBS.split()
        ] == []

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

"""The public surface: the names that are documented and no others, each with its documentation."""

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from inspect import Signature, signature
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, get_overloads

import pytest
from pydantic import BaseModel

import mrtr_server
import mrtr_server.client
import mrtr_server.testing
from mrtr_server.methods.dispatcher import Dispatcher

ROOT = Path(mrtr_server.__file__).parent

NAMES = """
    Annotations AudioContent BearerTokens CallInfo CallNext Callback CallbackLink Caller Client Codec Completion Confirm
    Context Depends
    Elicit Elicited ElicitUrl EmbeddedResource Ended Failure Fanout FlowContinues Header Icon IdempotencyKey
    ImageContent
    InProcessStore InputRequired Inputs InsufficientScope IntrospectionAuth
    JWTAuth KeyRing Limits ListRoots Message MRTRError MRTRServer NotFound OpenTelemetry Principal
    PromptResult ProtocolError RateLimits Redemption Refusal ResourceContents ResourceLink Root Roots Sample Sampled
    SealedCodec SetupError SignedCodec State Store StoreUnavailable TaskRow TaskStore TextContent
    ToolAnnotations ToolError ToolResult prompt resource tool
"""
LOADED_WHEN_ASKED_FOR = ["SQLStore"]
"""They need an extra. Type checkers see them as they see the others."""
PUBLIC = NAMES.split() + LOADED_WHEN_ASKED_FOR


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
    assert vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__
    assert not first.startswith(f"{name}(")


@pytest.mark.parametrize("module", MODULES)
class TestDocumentation:
    def tree(self, module: str) -> ast.Module:
        return ast.parse(Path(MODULES[module].__file__ or "").read_text())

    def test_no_docstring_personifies_what_it_documents(self, module: str) -> None:
        """A function returns and checks (PEP 257); it does not give, say or tell."""
        documented = (
            node.value.value
            for node in ast.walk(self.tree(module))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        assert [doc for doc in documented if re.match("(give|say|tell)s?\\b", doc, re.IGNORECASE)] == []

    def test_the_first_paragraph_is_one_or_more_whole_sentences(self, module: str) -> None:
        docs = {name: ast.get_docstring(node) or "." for name, node in public(self.tree(module))}
        paragraphs = {name: doc.partition("\n\n")[0] for name, doc in docs.items()}
        assert [name for name, text in paragraphs.items() if not text.endswith((".", ":", ".)"))] == []

    def test_every_documented_parameter_is_one(self, module: str) -> None:
        wrong = []
        for name, node in public(self.tree(module)):
            if named := descriptions(ast.get_docstring(node) or "").keys():
                wrong += [f"{name}({unknown})" for unknown in named - parameters_of(MODULES[module], name)]
        assert wrong == []


def documented() -> Iterator[tuple[str, Callable[..., Any]]]:
    """All that is called of the public surface: its functions, its classes, and their methods, by name."""
    yield "SQLStore", mrtr_server.SQLStore
    yield from methods("SQLStore", mrtr_server.SQLStore)
    for module in (mrtr_server, mrtr_server.client, mrtr_server.testing):
        for name, value in vars(module).items():
            if name.startswith("_") or not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            if inspect.isfunction(value) or is_made_by_us(value):
                yield name, value
            yield from methods(name, value)


def is_made_by_us(value: type) -> bool:
    """Whether a class says how it is made: not one of Python's own ways, nor that of a protocol."""
    makers = {getattr(value, maker, None) for maker in ("__init__", "__new__")}
    ours = any(inspect.isfunction(maker) and maker.__module__.startswith("mrtr_server") for maker in makers)
    return ours or issubclass(value, BaseModel | tuple) or dataclasses.is_dataclass(value)


def methods(name: str, value: type | Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    for method, function in inspect.getmembers(value, inspect.isroutine) if inspect.isclass(value) else ():
        ours = (getattr(function, "__module__", None) or "").startswith("mrtr_server")
        if ours and not method.startswith("_") and callable(function):  # for Python 3.13 a cached property is a routine
            yield f"{name}.{method}", function


DOCUMENTED = pytest.mark.parametrize(("name", "function"), [pytest.param(*each, id=each[0]) for each in documented()])


@DOCUMENTED
def test_every_parameter_of_the_public_surface_is_documented(name: str, function: Callable[..., Any]) -> None:
    """An overriding method that says nothing itself has the words of the one that it overrides."""
    taken = getattr(function, "model_fields", signature(function).parameters).keys() - {"self"}
    of_overloads = {each for overload in get_overloads(function) for each in signature(overload).parameters}
    described = descriptions(inspect.getdoc(function) or "").keys()
    assert taken <= described
    assert described <= taken | of_overloads | getattr(function, "__annotations__", {}).keys()


@DOCUMENTED
def test_every_public_function_that_returns_something_says_what(name: str, function: Callable[..., Any]) -> None:
    if inspect.isclass(function):
        return
    doc, described = inspect.getdoc(function) or "", signature(function)
    if described.parameters.keys() - {"self"} and described.return_annotation not in (None, "None", Signature.empty):
        assert "\nReturns:\n" in doc


@DOCUMENTED
def test_what_a_public_function_raises_by_itself_is_documented(name: str, function: Callable[..., Any]) -> None:
    code = vars(function).get("__init__") if inspect.isclass(function) else function
    if inspect.isfunction(code) and Path(inspect.getfile(code)).is_relative_to(ROOT):
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
        raised = {ast.unparse(node.exc) for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc}
        assert not raised or "\nRaises:\n" in (inspect.getdoc(function) or "")


SERVED = ast.parse((ROOT / "methods/dispatcher.py").read_text())
METHODS = sorted(
    {
        ast.unparse(value)
        for node in ast.walk(SERVED)
        if isinstance(node, ast.Dict)
        for value in node.values
        if isinstance(value, ast.Attribute)
    }
)
"""What serves the methods of the protocol, as the table of the dispatcher names it."""


@pytest.mark.parametrize("served", METHODS)
def test_what_serves_a_method_names_the_section_of_the_specification(served: str) -> None:
    parameter, method = served.split(".")
    kind = inspect.get_annotations(Dispatcher.__init__, eval_str=True)[parameter]
    first = (inspect.getdoc(getattr(kind, method)) or "").partition("\n")[0]
    assert re.search(r"`(GET|[A-Za-z/]+)` \([A-Z][A-Za-z -]+, [A-Z][A-Za-z -]+\)", first), first


UNITS = {
    "second": r"seconds$|^(ttl|timeout|lease|keep|poll|lame_duck|list_ttl|answer_within)$",
    "byte": r"bytes$|^size$",
}
"""What the description of a number must name, by the parameter's name."""


@DOCUMENTED
def test_durations_and_sizes_name_their_unit(name: str, function: Callable[..., Any]) -> None:
    described = descriptions(inspect.getdoc(function) or "")
    numbers = {
        each.name: described[each.name]
        for each in signature(function).parameters.values()
        if re.search(r"\b(int|float)\b", str(each.annotation))
    }
    wrong = [
        each
        for each, text in numbers.items()
        for unit, names in UNITS.items()
        if re.search(names, each) and unit not in text
    ]
    assert wrong == []


def descriptions(doc: str) -> dict[str, str]:
    """What the section `Args:` says of each parameter, by its name."""
    section = re.search(r"^Args:\n((?: {4}.*\n?|\n)+)", doc, re.MULTILINE)
    found: dict[str, str] = {}
    for entry in re.split(r"^ {4}(?! )", section[1] if section else "", flags=re.MULTILINE)[1:]:
        names, _, text = entry.partition(":")
        found |= dict.fromkeys((name.strip(" *") for name in names.split(",")), text)
    return found


def parameters_of(module: ModuleType, name: str) -> set[str]:
    """The names that a function takes; of a class, those that its constructor takes and its fields."""
    value = attrgetter(name)(module)
    taken = set(signature(value).parameters)
    for overload in get_overloads(value):
        taken |= set(signature(overload).parameters)
    return taken | getattr(value, "__annotations__", {}).keys()

"""What docstrings must say, and where."""

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from inspect import Signature, signature
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, get_overloads

from lint_sources import TOP, Finding, Package, Source
from pydantic import BaseModel

PERSONIFIES = re.compile(r"(give|say|tell)s?\b", re.IGNORECASE)
ENDS_A_SENTENCE = (".", ":", ".)")

UNITS = {
    "second": re.compile(r"seconds$|^(ttl|timeout|lease|keep|poll|lame_duck|answer_within)$"),
    "byte": re.compile(r"bytes$|^size$"),
}
"""What the description of a number must name, by the parameter's name."""

NAMED = ("_", "test_")
"""How names begin of methods that need no docstring: the name of a contract's test is its rule."""

Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def check_words(package: Package) -> Iterator[Finding]:
    """Yield docstrings that begin with a word for people, or whose first paragraph is no sentence.

    A function returns and checks (PEP 257); it does not give, say or tell.
    """
    for source in package.sources.values():
        for node in ast.walk(source.tree):
            text = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else None
            if isinstance(text, str) and PERSONIFIES.match(text):
                yield source.finding(node, f"a docstring that begins with {text.split()[0]!r}")
        for name, node in _public(source.tree):
            first = (ast.get_docstring(node) or ".").partition("\n\n")[0]
            if not first.endswith(ENDS_A_SENTENCE):
                yield source.finding(node, f"{name}: the first paragraph of the docstring is no whole sentence")


def check_parameters(package: Package) -> Iterator[Finding]:
    """Yield descriptions of parameters that are not there."""
    for source in package.sources.values():
        for name, node in _public(source.tree):
            if named := descriptions(ast.get_docstring(node) or "").keys():
                module = importlib.import_module(f"{package.name}.{source.name}".removesuffix(f".{TOP}"))
                for unknown in sorted(named - _parameters(attrgetter(name)(module))):
                    yield source.finding(node, f"{name} has no parameter {unknown}")


def _public(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Documented]]:
    """Yield the public classes, functions and methods, by qualified name."""
    for child in node.body:
        if isinstance(child, Documented) and not child.name.startswith("_"):
            if "overload" not in map(ast.unparse, child.decorator_list):
                yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from _public(child, f"{prefix}{child.name}.")


def _parameters(value: Any) -> set[str]:
    """Return the names that a function takes; of a class, those that its constructor takes and its fields."""
    taken = set(signature(value).parameters)
    for overload in get_overloads(value):
        taken |= set(signature(overload).parameters)
    return taken | getattr(value, "__annotations__", {}).keys()


def check_surface(package: Package, modules: Sequence[ModuleType]) -> Iterator[Finding]:
    """Yield what the documentation of the public surface lacks.

    Args:
        package: the package.
        modules: those whose names are the public surface.
    """
    sources = {source.path: source for source in package.sources.values()}
    for module in modules:
        for name in module.__all__:
            if inspect.isclass(value := getattr(module, name)) or inspect.isfunction(value):
                for text in _of_name(name, value):
                    yield _found(sources, value, text)
    seen: set[int] = set()
    for name, function in _callables(modules):
        if id(function) not in seen:
            seen.add(id(function))
            for text in _of_callable(name, function):
                yield _found(sources, function, text)


def _found(sources: dict[Path, Source], value: Any, text: str) -> Finding:
    try:
        plain = inspect.unwrap(value)
        source = sources[Path(inspect.getsourcefile(plain) or "")]
        return source.finding(inspect.getsourcelines(plain)[1], text)
    except (KeyError, OSError, TypeError):
        return next(iter(sources.values())).finding(1, text)


def _of_name(name: str, value: Any) -> Iterator[str]:
    first = (inspect.getdoc(value) or "").partition("\n")[0]
    if not first.endswith((".", ".)")):
        yield f"{name}: the first line of its docstring is no sentence"
    # Its own words: neither inherited nor what dataclasses make up.
    own = vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__
    if not own or first.startswith(f"{name}("):
        yield f"{name} has no docstring of its own"
    if inspect.isclass(value):
        for member, _ in inspect.getmembers_static(value, _is_code):
            if not (member.startswith(NAMED) or inspect.getdoc(getattr(value, member))):
                yield f"{name}.{member} has no docstring"


def _is_code(value: Any) -> bool:
    """Return whether this is a method or a property of ours."""
    code = value.fget if isinstance(value, property) else getattr(value, "__func__", getattr(value, "func", value))
    return inspect.isfunction(code) and code.__module__.startswith("mrtr_server")


def _callables(modules: Sequence[ModuleType]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield all that is called of the public surface: its functions, its classes, and their methods, by name."""
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield name, value
            elif inspect.isclass(value):
                if _is_made_by_us(value):
                    yield name, value
                yield from _methods(name, value)


def _is_made_by_us(value: type) -> bool:
    """Return whether a class says how it is made: not one of Python's own ways, nor that of a protocol."""
    makers = {getattr(value, maker, None) for maker in ("__init__", "__new__")}
    ours = any(inspect.isfunction(maker) and maker.__module__.startswith("mrtr_server") for maker in makers)
    return ours or issubclass(value, BaseModel | tuple) or dataclasses.is_dataclass(value)


def _methods(name: str, value: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for method, function in inspect.getmembers(value, inspect.isroutine):
        ours = (getattr(function, "__module__", None) or "").startswith("mrtr_server")
        # For Python 3.13 a cached property is a routine.
        if ours and not method.startswith(NAMED) and callable(function):
            yield f"{name}.{method}", function


def _of_callable(name: str, function: Callable[..., Any]) -> Iterator[str]:
    """Yield what the docstring of a function or class lacks.

    An overriding method that has none has the words of the one that it overrides.
    """
    doc, called = inspect.getdoc(function) or "", signature(function)
    described = descriptions(doc)
    taken = getattr(function, "model_fields", called.parameters).keys() - {"self"}
    of_overloads = {each for overload in get_overloads(function) for each in signature(overload).parameters}
    for missing in sorted(taken - described.keys()):
        yield f"{name} does not describe its parameter {missing}"
    fields = getattr(function, "__annotations__", {}).keys()
    for unknown in sorted(described.keys() - (taken | of_overloads | fields)):
        yield f"{name} has no parameter {unknown}"
    if not inspect.isclass(function):
        returns = called.return_annotation not in (None, "None", Signature.empty)
        if called.parameters.keys() - {"self"} and returns and "\nReturns:\n" not in doc:
            yield f"{name} does not describe what it returns"
    if _raises(function) and "\nRaises:\n" not in doc:
        yield f"{name} does not describe what it raises"
    for each in called.parameters.values():
        if re.search(r"\b(int|float)\b", str(each.annotation)):
            for unit, names in UNITS.items():
                if names.search(each.name) and unit not in described.get(each.name, ""):
                    yield f"{name}: the description of {each.name} does not name its unit, such as {unit}s"


def _raises(function: Callable[..., Any]) -> bool:
    code = vars(function).get("__init__") if inspect.isclass(function) else function
    if (
        not inspect.isfunction(code)
        or not code.__module__.startswith("mrtr_server")
        or code.__code__.co_filename == "<string>"
    ):
        return False
    tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    return any(isinstance(node, ast.Raise) and node.exc for node in ast.walk(tree))


def check_served(package: Package, dispatcher: type) -> Iterator[Finding]:
    """Yield what serves a method of the protocol, and does not name its section of the specification.

    Args:
        package: the package.
        dispatcher: has the table of what serves the methods.
    """
    source = package.sources["methods.dispatcher"]
    served = {
        ast.unparse(value)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Dict)
        for value in node.values
        if isinstance(value, ast.Attribute)
    }
    kinds = inspect.get_annotations(vars(dispatcher)["__init__"], eval_str=True)
    for each in sorted(served):
        parameter, _, method = each.partition(".")
        first = (inspect.getdoc(getattr(kinds[parameter], method)) or "").partition("\n")[0]
        if not re.search(r"`(GET|[A-Za-z/]+)` \([A-Z][A-Za-z -]+, [A-Z][A-Za-z -]+\)", first):
            yield source.finding(1, f"{each} does not name the section of the specification: {first}")


def descriptions(doc: str) -> dict[str, str]:
    """Return what the section `Args:` says of each parameter, by its name."""
    section = re.search(r"^Args:\n((?: {4}.*\n?|\n)+)", doc, re.MULTILINE)
    found: dict[str, str] = {}
    for entry in re.split(r"^ {4}(?! )", section[1] if section else "", flags=re.MULTILINE)[1:]:
        names, _, text = entry.partition(":")
        found |= dict.fromkeys((name.strip(" *") for name in names.split(",")), text)
    return found

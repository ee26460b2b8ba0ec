"""An extension of griffe, which reads the code for the reference: signatures that only Python itself knows.

The options of `MRTRServer` and of its decorators are the fields of frozen objects. Named tuples and pydantic's models
are made of their fields. The source shows none of these signatures.
"""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from inspect import Parameter
from operator import attrgetter
from typing import Any

import griffe
from pydantic import BaseModel

KINDS = {
    Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}
_TAKES_OPTIONS = ("takes(", "takes_function_or(")
_MADE_OF_FIELDS = {"NamedTuple", "Wire"}
_MODULE = re.compile(r"\b(?:\w+\.)+(?=[A-Za-z_])")
_OBJECT = re.compile(r"<(?:built-in )?(?:function|class) '?([\w.]+)'?[^>]*>")


class Signatures(griffe.Extension):
    """Sets the signatures of functions that take options, and of classes that are made of fields."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Mend what was read of this package."""
        if pkg.name != "mrtr_server":
            return
        for found in list(_all(pkg)):
            if isinstance(found, griffe.Function):
                if any(str(each.value).startswith(_TAKES_OPTIONS) for each in found.decorators):
                    found.parameters, found.overloads = griffe.Parameters(*_of_function(found)), None
            elif isinstance(found, griffe.Class) and _MADE_OF_FIELDS & {str(base) for base in found.bases}:
                first = griffe.Parameter("self", kind=griffe.ParameterKind.positional_only)
                init = griffe.Function("__init__", parameters=griffe.Parameters(first, *_of_fields(found)))
                found.set_member("__init__", init)


def _all(parent: griffe.Object) -> Iterator[griffe.Object]:
    for member in parent.members.values():
        if isinstance(member, griffe.Object):
            yield member
            yield from _all(member)


def _runtime(found: griffe.Object) -> Any:
    module = found.module.path
    return attrgetter(found.path.removeprefix(f"{module}."))(import_module(module))


def _of_function(found: griffe.Function) -> list[griffe.Parameter]:
    return [_parameter(each) for each in inspect.signature(_runtime(found)).parameters.values()]


def _of_fields(found: griffe.Class) -> list[griffe.Parameter]:
    """Return the parameters of a named tuple or of a model."""
    made = _runtime(found)
    if issubclass(made, BaseModel):
        return [
            _parameter(
                Parameter(
                    name,
                    Parameter.KEYWORD_ONLY,
                    annotation=field.annotation,
                    default=Parameter.empty if field.is_required() else field.get_default(call_default_factory=True),
                )
            )
            for name, field in made.model_fields.items()
        ]
    return [_parameter(each) for each in inspect.signature(made).parameters.values()]


def _parameter(parameter: Parameter) -> griffe.Parameter:
    annotation = default = None
    if parameter.annotation is not parameter.empty:
        annotation = _short(inspect.formatannotation(parameter.annotation))
    if parameter.default is not parameter.empty:
        default = _short(repr(parameter.default))
    return griffe.Parameter(parameter.name, annotation=annotation, kind=KINDS[parameter.kind], default=default)


def _short(text: str) -> str:
    """Return text without the names of modules, as it is in the source."""
    return _MODULE.sub("", _OBJECT.sub(r"\1", text)).replace("~", "").replace("NoneType", "None")

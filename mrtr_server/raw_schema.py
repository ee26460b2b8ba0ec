"""Arguments of tools that are given by a raw JSON Schema. The only importer of jsonschema."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from pydantic_core import to_json

from .digests import canonical
from .errors import SetupError
from .extras import lacking
from .schema import MOST_PROBLEMS, ArgumentsMisfit, problem

try:
    from jsonschema import Draft202012Validator, SchemaError, ValidationError
    from jsonschema.validators import extend, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable
except ImportError as error:  # pragma: no cover  tests run with every extra
    raise lacking("input_schema=", "schemas", error) from error


_UNKNOWN: Any = object()

_NAMES_ONLY = frozenset({"required", "dependentRequired", "additionalProperties", "unevaluatedProperties"})
"""Keywords of which jsonschema's message repeats names, and no values."""


class RawArguments:
    """Arguments that a raw schema describes. The schema is served as it is.

    References to the network are never followed: a schema that has one fails every call.

    Parameters:
        where: the tool's name, for errors.
        schema: a JSON Schema of type object; 2020-12 unless its `$schema` says otherwise.
        parameter: the handler's parameter that takes all arguments as one dictionary; None to give each by name.

    Raises:
        SetupError: it is no valid schema, or not one of an object.
    """

    def __init__(self, where: str, schema: Mapping[str, Any], parameter: str | None) -> None:
        if schema.get("type") != "object":
            raise SetupError(f'{where}: input_schema must have "type": "object"')
        self.schema = dict(schema)
        self._parameter = parameter
        self.by_name = parameter is None
        dialect = self.schema.get("$schema", Draft202012Validator.META_SCHEMA["$schema"])
        validator = validator_for({"$schema": dialect}, default=_UNKNOWN)
        if validator is _UNKNOWN:
            raise SetupError(f"{where}: the schema dialect {dialect!r} is not known")
        try:
            validator.check_schema(self.schema)
        except SchemaError as error:
            raise SetupError(f"{where}: input_schema is not valid: {error.message}") from error
        # A `$schema` would bring jsonschema's own check of `uniqueItems` back wherever a reference leads to it.
        held = {name: value for name, value in self.schema.items() if name != "$schema"}
        extended: Any = extend(validator, {"uniqueItems": _unique_items})  # type: ignore[no-untyped-call]
        self._validator = extended(held, registry=Registry())

    def read(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Validate raw arguments and give them as keyword arguments, or raise `ArgumentsMisfit`."""
        try:
            problems = [_problem(error) for error in islice(self._validator.iter_errors(raw), MOST_PROBLEMS)]
        except Unresolvable as error:
            problems = [problem((), f"the tool's schema has a reference that can't be followed: {error}")]
        if problems:
            raise ArgumentsMisfit(problems)
        return {self._parameter: dict(raw)} if self._parameter else dict(raw)


def _unique_items(_validator: Any, wanted: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """Check `uniqueItems` in one pass; jsonschema compares each item with each."""
    if wanted is True and isinstance(instance, list) and len(set(map(canonical, instance))) < len(instance):
        yield ValidationError("has items that are equal")


def _problem(error: ValidationError) -> tuple[str, str]:
    keyword: Any = error.validator
    if error.schema is False:
        return problem(error.absolute_path, "a value stands where the schema allows none")
    if keyword in _NAMES_ONLY:
        return problem(error.absolute_path, error.message)
    # Not jsonschema's message: it repeats the value, whatever its size.
    return problem(error.absolute_path, f'does not fit "{keyword}": {to_json(error.validator_value).decode()}')

"""Arguments of tools that are given by a raw JSON Schema. The only importer of jsonschema."""

from collections.abc import Mapping
from typing import Any

from .errors import SetupError
from .schema import ArgumentsMisfit

try:
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable
except ImportError as error:  # pragma: no cover  tests run with every extra
    raise SetupError("input_schema= needs jsonschema: pip install 'mrtr_server[schemas]'") from error


_UNKNOWN: Any = object()


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
        dialect = self.schema.get("$schema", Draft202012Validator.META_SCHEMA["$schema"])
        validator = validator_for({"$schema": dialect}, default=_UNKNOWN)
        if validator is _UNKNOWN:
            raise SetupError(f"{where}: the schema dialect {dialect!r} is not known")
        try:
            validator.check_schema(self.schema)
        except SchemaError as error:
            raise SetupError(f"{where}: input_schema is not valid: {error.message}") from error
        self._validator = validator(self.schema, registry=Registry())

    def read(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Validate raw arguments and give them as keyword arguments, or raise `ArgumentsMisfit`."""
        try:
            problems = [(".".join(map(str, e.absolute_path)), e.message) for e in self._validator.iter_errors(raw)]
        except Unresolvable as error:
            problems = [("", f"the tool's schema has a reference that can't be followed: {error}")]
        if problems:
            raise ArgumentsMisfit(problems)
        return {self._parameter: dict(raw)} if self._parameter else dict(raw)

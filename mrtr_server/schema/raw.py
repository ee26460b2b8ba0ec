"""Arguments of tools that are given by a raw JSON Schema."""

from collections.abc import Mapping
from typing import Any

from ..errors import ArgumentsMisfit, SetupError
from ..limits import Limits
from .lenient import DEFAULTS, LenientReading


class RawArguments:
    """Arguments that a raw schema describes. Clients are served the schema unchanged.

    Args:
        where: the tool's name, for errors.
        schema: a JSON Schema of type object; 2020-12 unless its `$schema` says otherwise.
        parameter: the handler's parameter that takes all arguments as one dictionary; None to pass each by name.
        validate: whether arguments are validated against the schema; if not, they arrive as the client sent them.

    Raises:
        SetupError: the schema is not one of an object, or arguments can't be validated against it; see `JSONSchema`.
    """

    def __init__(self, where: str, schema: Mapping[str, Any], parameter: str | None, *, validate: bool = True) -> None:
        if schema.get("type") != "object":
            raise SetupError(f'{where}: input_schema must have "type": "object"')
        self.schema = dict(schema)
        self._parameter = parameter
        self.by_name = parameter is None
        self._problems = None
        if validate:
            from .json_schema import JSONSchema  # optional: needs jsonschema-rs

            self._problems = JSONSchema(where, self.schema).problems
            self._lenient = LenientReading(self.schema)

    def validate(self, raw: Mapping[str, Any], limits: Limits = DEFAULTS) -> dict[str, Any]:
        """Validate raw arguments, and return them as keyword arguments; see `Arguments.validate`."""
        if self._problems is not None and (problems := self._problems(raw)):
            meant = self._lenient.read(raw, limits)
            if meant is raw or (problems := self._problems(meant)):
                raise ArgumentsMisfit(problems)
            raw = meant
        return {self._parameter: dict(raw)} if self._parameter else dict(raw)

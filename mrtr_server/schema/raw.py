"""Arguments of tools that are given by a raw JSON Schema."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ArgumentsMisfit, SetupError
from ..limits import Limits
from .lenient import DEFAULTS, LenientReading

DEEPEST = 64
"""How many schemas may stand within each other: deeper ones describe arguments that no request holds."""

_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords whose value has a schema under each name, and is none itself."""


class RawArguments:
    """Arguments that a raw schema describes. Clients are served the schema unchanged.

    Args:
        where: the tool's name, for errors.
        schema: a JSON Schema of type object; 2020-12 unless its `$schema` says otherwise.
        parameter: the handler's parameter that takes all arguments as one dictionary; None to pass each by name.
        validate: whether arguments are validated against the schema; if not, they arrive as the client sent them.

    Raises:
        SetupError: the schema is not one of an object, or too deep, or arguments can't be validated against it; see
            `JSONSchema`.
    """

    def __init__(self, where: str, schema: Mapping[str, Any], parameter: str | None, *, validate: bool = True) -> None:
        if schema.get("type") != "object":
            raise SetupError(f'{where}: input_schema must have "type": "object"')
        if _is_too_deep(schema):
            raise SetupError(
                f"{where}: input_schema= has more than {DEEPEST} schemas within each other, which many clients can't "
                "read; move parts into $defs, and refer to them"
            )
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


def _is_too_deep(schema: Mapping[str, Any]) -> bool:
    level: list[Any] = [schema]
    for _ in range(DEEPEST):
        # One that stands in several places is looked at once, or a few levels of the same would take for ever.
        level = list({id(part): part for each in level for part in _parts(each)}.values())
        if not level:
            return False
    return True


def _parts(schema: Any) -> Iterator[Any]:
    """Return the objects and lists right within a schema; one that holds schemas by name or in order is none itself."""
    if not isinstance(schema, Mapping):
        yield from (each for each in schema if isinstance(each, Mapping | list | tuple))
        return
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, Mapping):
            yield from (each for each in value.values() if isinstance(each, Mapping | list | tuple))
        elif isinstance(value, list | tuple):
            yield from (each for each in value if isinstance(each, Mapping | list | tuple))
        elif isinstance(value, Mapping):
            yield value

"""What somebody may choose, as one model describes it: its schema, and from JSON back to the model."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import InvalidParams, SetupError
from .generator import NO_SCHEMA, arguments_schema, reason_of
from .misfits import in_words
from .peer_validator import PeerValidator

_NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class ModelArguments:
    """Arguments that a model describes; None where there are none. Raises `SetupError`."""

    def __init__(self, where: str, model: Any) -> None:
        self._where = where
        self._validator: PeerValidator | None = None
        self.schema = _NOTHING
        if model is not None:
            try:
                adapter: TypeAdapter[Any] = TypeAdapter(model)
                self.schema = arguments_schema(adapter)
            except NO_SCHEMA as error:
                raise SetupError(f"{where}: {reason_of(error)}") from error
            self._validator = PeerValidator(where, adapter)
        if self.schema.get("type") != "object":
            raise SetupError(f"{where}: arguments= must be an object in JSON, such as a model")
        self._known = frozenset(self.schema.get("properties", {}))
        self._takes_others = bool(self.schema.get("additionalProperties"))

    def validate(self, raw: Mapping[str, Any]) -> Any:
        """Return what was sent as the model; None without one. Raises `InvalidParams`."""
        if unknown := [] if self._takes_others else [name for name in raw if name not in self._known]:
            known = ", ".join(sorted(self._known)) or "none"
            raise InvalidParams(f"{self._where} has no argument {str(unknown[0])[:64]!r}; it has: {known}")
        if self._validator is None:
            return None
        try:
            return self._validator.validate(raw)
        except ValidationError as error:
            raise InvalidParams(f"{self._where}: {in_words(self._validator.problems(raw, error))}") from None

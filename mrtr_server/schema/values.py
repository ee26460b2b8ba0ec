"""Forms of one value: the form has one field, `value`, and its answer is the value itself."""

from dataclasses import is_dataclass
from typing import Any, get_origin

from pydantic import PydanticUserError, create_model
from pydantic_core import SchemaError
from typing_extensions import is_typeddict

from ..errors import SetupError
from .forms import Form

FIELD = "value"
"""The name of the one field, as other frameworks have it, too."""


class ValueForm(Form):
    """The form of one value (Elicitation, Requested Schema).

    Args:
        annotation: the type of the value.

    Raises:
        SetupError: no form can show such a value.
    """

    def __init__(self, annotation: Any) -> None:
        try:
            super().__init__(create_model("Value", value=(annotation, ...)))
        except (SetupError, PydanticUserError, SchemaError) as error:
            lines = str(error).splitlines()
            why = lines[-1 if isinstance(error, SchemaError) else 0].strip()
            why = why.partition(". ")[0]  # without what pydantic says could be done
            raise SetupError(f"{annotation!r} can't be a form: {why}") from None

    def validate(self, content: Any) -> Any:
        """Validate the content of an accepted answer, and return the value; see `Form.validate`."""
        return getattr(super().validate(content), FIELD)


def may_be_value(annotation: Any) -> bool:
    """Return whether what was passed is a type without fields of its own: one value, and no form by itself.

    Args:
        annotation: what was passed.
    """
    if is_dataclass(annotation) or is_typeddict(annotation):
        return False
    return isinstance(annotation, type) or get_origin(annotation) is not None

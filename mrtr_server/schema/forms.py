"""Forms: the flat JSON Schema that a client renders, from a model or one value (Elicitation, Requested Schema)."""

import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from math import inf, isfinite
from typing import Any, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError, create_model
from pydantic.alias_generators import to_snake
from pydantic_core import SchemaError
from typing_extensions import is_typeddict

from ..crypto.digests import digest
from ..errors import InvalidAnswer, SetupError
from ..logs import logger
from ..protocol.messages import NamedChoices
from ..well_formed import refuse_halves
from .generator import NO_SCHEMA, TitleFreeSchema
from .misfits import LenientReading, in_words
from .peer_validator import PeerValidator

_FORMATS = {"email", "uri", "date", "date-time"}

_KEYWORDS = {
    "string": {"type", "title", "description", "default", "minLength", "maxLength", "format", "enum", "oneOf"},
    "integer": {"type", "title", "description", "default", "minimum", "maximum"},
    "number": {"type", "title", "description", "default", "minimum", "maximum"},
    "boolean": {"type", "title", "description", "default"},
    "array": {"type", "title", "description", "default", "minItems", "maxItems", "items"},
}

_ONE_WORD = re.compile(
    "BitBucket|ChatGPT|DevOps|FaceBook|GitHub|GitLab|GraphQL|JavaScript|LinkedIn|MySQL|OAuth|OpenAI|OpenID|PayPal|"
    "PostgreSQL|TypeScript|WhatsApp|WordPress|YouTube"
)

_ALLOWED = "a form can have strings, numbers, booleans, choices of strings, and lists of such choices"

_UNSAYABLE = {
    "pattern": "a pattern",
    "exclusiveMinimum": "an exclusive bound (ge= gives an inclusive one)",
    "exclusiveMaximum": "an exclusive bound (le= gives an inclusive one)",
    "multipleOf": "a number that it must be a multiple of",
    "enumNames": "titles, but no choices that they belong to",
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "not", "if"), "a condition"),
}
"""Limits of an answer that no form can show, so the person who fills it in would not know them."""


class Form:
    """The form of one model. Raises `SetupError` for a field that no form can show, or whose pattern is dangerous."""

    def __init__(self, model: type[BaseModel]) -> None:
        self.model = model
        self.name = snake_case(model.__name__)
        try:
            schema = model.model_json_schema(schema_generator=TitleFreeSchema, mode="validation")
        except NO_SCHEMA as error:
            raise SetupError(f"{model.__name__} can't be a form: {error}") from error
        self._validator = PeerValidator(model.__name__, TypeAdapter(model))
        self._lenient = LenientReading(schema)
        definitions = schema.get("$defs", {})
        schema = _resolve(schema, definitions)  # a model that refers to itself is among the definitions, too
        if schema.get("type") != "object":
            raise SetupError(f"{model.__name__} can't be a form: it has no fields of its own")
        always = frozenset(schema.get("required", ()))
        required = set(always)
        properties: dict[str, Any] = {}
        for name, field in schema.get("properties", {}).items():
            flat, optional = _flatten(f"{model.__name__}.{name}", field, definitions)
            properties[name] = flat
            if optional:
                required.discard(name)
        if not properties:
            raise SetupError(
                f"{model.__name__} can't be a form: it has no fields, and some clients never end such a form; ask for "
                "a yes with Confirm(...)"
            )
        self.schema: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            self.schema["required"] = [name for name in properties if name in required]
        refuse_halves(model.__name__, {f"the form of {model.__name__}": self.schema})
        self.shape = digest({"requestedSchema": self.schema})
        self._names = frozenset(properties)
        self._needs_nulls = always - required

    def validate(self, content: Any) -> BaseModel:
        """Return an accepted answer as the model, without unknown fields; `InvalidAnswer` names each wrong field."""
        if not isinstance(content, dict):
            raise InvalidAnswer("The form came back empty.")
        if self._names.issuperset(content):
            known = content.copy()  # which validators of the author's may change
        else:
            known = {name: value for name, value in content.items() if name in self._names}
        if self._needs_nulls:
            for name in self._needs_nulls:
                known.setdefault(name, None)
        try:
            return self._validated(known)
        except ValidationError as error:
            meant = self._lenient.without_nulls(known)
            raise InvalidAnswer(in_words(self._validator.problems(meant, error))) from None
        except Exception as error:  # a validator of the author's; its message and traceback may hold the answer
            logger.error("A validator of %s failed on an answer with %s", self.model.__name__, type(error).__name__)
            raise InvalidAnswer("The answer can't be used.") from None

    def _validated(self, known: Mapping[str, Any]) -> BaseModel:
        valid: BaseModel
        try:
            valid = self._validator.validate(known)
        except ValidationError:
            if (meant := self._lenient.without_nulls(known)) is known:
                raise
            valid = self._validator.validate(meant)
        return valid


@lru_cache(maxsize=1024)
def form(model: type[BaseModel]) -> Form:
    """Return the form of a model, compiled once. Raises `SetupError` as `Form` does."""
    return Form(model)


def snake_case(name: str) -> str:
    """Return a class name in snake case: `GitHubLogin` becomes `github_login`."""
    return to_snake(_ONE_WORD.sub(lambda word: word[0].capitalize(), name))


def _flatten(where: str, field: dict[str, Any], definitions: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    field = _resolve(field, definitions)
    optional = False
    if "anyOf" in field:
        branches = [_resolve(branch, definitions) for branch in field["anyOf"]]
        others = [branch for branch in branches if branch.get("type") != "null"]
        optional = len(others) < len(branches)
        if len(others) != 1:
            raise SetupError(f"{where} is a union; {_ALLOWED}")
        field = {**others[0], **{name: value for name, value in field.items() if name != "anyOf"}}
    return _plain(where, field, definitions), optional


def _plain(where: str, field: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    field = _typed(where, field)
    kind = field["type"]
    if kind == "string":
        field |= _choice(where, field, "oneOf")
    if kind == "array":
        field["items"] = _choices(where, _resolve(field.get("items", {}), definitions))
    if kind == "integer":
        _close_bounds(field)
    _check_keywords(where, field)
    default = field.get("default")
    if default is None or (isinstance(default, float) and not isfinite(default)):  # no field can show it
        field.pop("default", None)
    if field.get("format", "email") not in _FORMATS:
        del field["format"]
    return {name: value for name, value in field.items() if name in _KEYWORDS[kind]}


def _typed(where: str, field: dict[str, Any]) -> dict[str, Any]:
    if field.get("writeOnly") or field.get("format") == "password":
        raise SetupError(
            f"{where} is a secret, but the client sees what is typed into a form; ask for it on a page, with elicit_url"
        )
    if field.get("format") == "binary":
        raise SetupError(
            f"{where} is bytes, which nobody can type; ask for a str, or for a file on a page, with elicit_url"
        )
    if isinstance(const := field.pop("const", None), str):  # a Literal of one value
        field = {**field, "type": "string", "enum": [const]}
    elif const is not None:
        raise SetupError(f"{where} is a constant that is not a string; {_ALLOWED}")
    if "oneOf" in field and field.get("type") is None:
        field["type"] = "string"
    kind = field.get("type")
    if not isinstance(kind, str) or kind not in _KEYWORDS:
        raise SetupError(f"{where} is {_name(field)}; {_ALLOWED}")
    if kind != "string" and field.keys() & {"enum", "oneOf"}:
        raise SetupError(f"{where} is a choice of values that are not strings; {_ALLOWED}")
    return field


def _check_keywords(where: str, field: dict[str, Any]) -> None:
    for keyword, what in _UNSAYABLE.items():
        if keyword in field and keyword not in _KEYWORDS[field["type"]]:
            raise SetupError(
                f"{where} has {what}, which a form can't show. Describe it in the field's description, and "
                "check it with pydantic's AfterValidator: an answer that it rejects is asked for again, with "
                "the reason"
            )


def _choices(where: str, items: dict[str, Any]) -> dict[str, Any]:
    if isinstance(const := items.pop("const", None), str):
        items = {**items, "type": "string", "enum": [const]}
    if all("const" in option for option in items.get("anyOf", [{}])):
        items = {**items, "type": "string"}
    if items.get("type") == "string" and (choice := _choice(where, items, "anyOf")):
        return choice if "anyOf" in choice else {"type": "string", **choice}
    raise SetupError(f"{where} is a list of {_name(items).removeprefix('of ')}; {_ALLOWED}")


def _choice(where: str, field: dict[str, Any], keyword: str) -> dict[str, Any]:
    """Remove `enum` or titled options from a field, and return them as forms have them, options under `keyword`."""
    values, names = field.pop("enum", None), field.pop("enumNames", None)
    options = [option for each in ("oneOf", "anyOf") for option in field.pop(each, ())]
    if options:
        if not all(isinstance(option, dict) and isinstance(option.get("const"), str) for option in options):
            raise SetupError(f"{where} is a union; {_ALLOWED}")
        listed = [option["const"] for option in options]
        if values is not None and sorted(values) != sorted(listed):
            raise SetupError(f"{where} has the values {values}, but its titles are for {listed}")
        values, names = listed, [option["title"] for option in options if isinstance(option.get("title"), str)] or None
    if names is None:
        return {} if values is None else {"enum": values}
    if values is None:
        raise SetupError(f"{where} has {_UNSAYABLE['enumNames']}: use Literal[...] or an enum for the choices")
    if len(names) != len(values) or not all(isinstance(name, str) for name in names):
        raise SetupError(
            f"{where} has {len(values)} choices and {len(names)} titles; give every choice a title, or none"
        )
    titled = [{"const": value, "title": name} for value, name in zip(values, names, strict=True)]
    return {keyword: NamedChoices(titled) if keyword == "oneOf" and not options else titled}


def _close_bounds(field: dict[str, Any]) -> None:
    """Forms know no exclusive bounds; between integers they can be said without."""
    if "exclusiveMinimum" in field:
        field["minimum"] = max(field.pop("exclusiveMinimum") + 1, field.get("minimum", -inf))
    if "exclusiveMaximum" in field:
        field["maximum"] = min(field.pop("exclusiveMaximum") - 1, field.get("maximum", inf))


def _resolve(field: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    reference = field.get("$ref")
    if reference is None:
        return dict(field)
    target = definitions[reference.rpartition("/")[2]]
    inlined = {name: value for name, value in target.items() if name not in ("title", "description")}
    return {**inlined, **{name: value for name, value in field.items() if name != "$ref"}}


def _name(field: dict[str, Any]) -> str:
    if field.get("type") == "object":
        return "a nested object"
    if field.get("type") == "array":
        return "a nested list"
    return "free text" if field.get("type") == "string" else f"of type {field.get('type', 'anything')}"


# Forms of one value: the form has one field, and its answer is the value itself


FIELD = "value"  # the name of the one field, which other frameworks use, too


class ValueForm(Form):
    """The form of one value. Raises `SetupError` where no form can show such a value."""

    def __init__(self, annotation: Any) -> None:
        try:
            super().__init__(create_model("Value", value=(annotation, ...)))
        except (SetupError, *NO_SCHEMA) as error:
            lines = str(error).splitlines()
            why = lines[-1 if isinstance(error, SchemaError) else 0].strip()
            why = why.partition(". ")[0]  # without what pydantic says could be done
            raise SetupError(f"{annotation!r} can't be a form: {why}") from None

    def validate(self, content: Any) -> Any:
        """Return the value in an accepted answer; see `Form.validate`."""
        return getattr(super().validate(content), FIELD)


def may_be_value(annotation: Any) -> bool:
    """Return whether a type has no fields of its own: one value, and no form by itself."""
    if is_dataclass(annotation) or is_typeddict(annotation):
        return False
    return isinstance(annotation, type) or get_origin(annotation) is not None

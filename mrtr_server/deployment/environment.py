"""Settings from the environment: `MRTR_LIMITS_ROUNDS` for `Limits(rounds=...)` of `MRTRServer(limits=...)`.

What the code gives counts more. The variables follow from the fields of `Settings` and of the groups in them, so a new
field has its variable by itself, if text can say what it takes.
"""

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, ValidationError, create_model

from ..crypto.keys import ENVIRONMENT as KEYS
from ..errors import SetupError
from ..fields import Group, having
from ..renamed import VARIABLES, is_collected, refused_variables
from ..storage import ENVIRONMENT as DATABASE
from .settings import Settings
from .shared_resources import DECLARED

logger = logging.getLogger("mrtr_server")

PREFIX = "MRTR_"

ELSEWHERE = {KEYS: "keys", DATABASE: "store"}

DIRECT_DATABASE = "MRTR_DATABASE_DIRECT_URL"
APPLICATION = "MRTR_APP"
COMMAND_PREFIX = "MRTR_RUN_"  # before the options of `mrtr-server run`

# The token of the commands that call servers.
CALL_TOKEN = "MRTR_CALL_TOKEN"  # noqa: S105

_IN_CODE = frozenset({"name", *ELSEWHERE.values()})
_ALLOWED = {"bool_parsing": "; write true or false"}  # what to write instead, by the type of pydantic's error


class Variable(NamedTuple):
    name: str
    group: str  # the field of `Settings` whose value has the setting, such as "limits"; empty for one that stands alone
    setting: str
    kind: Any  # what it takes, as a type

    @property
    def field(self) -> str:
        return self.name.removeprefix(PREFIX).lower()


@cache
def variables() -> Sequence[Variable]:
    """Return the variables that a server reads, besides those in `ELSEWHERE`."""
    alone = [each for each in _of(Settings) if each.setting not in _IN_CODE]
    return (*alone, *(each for name, kind in _groups().items() for each in _of(kind, name)))


@cache
def _groups() -> dict[str, type[Group]]:
    """Return the classes of the settings that are groups of settings, by the names of their fields."""
    kinds = [(name, each) for name, hint in get_type_hints(Settings).items() for each in (hint, *get_args(hint))]
    return {name: kind for name, kind in kinds if isinstance(kind, type) and issubclass(kind, Group)}


def _of(options: Any, group: str = "") -> Iterator[Variable]:
    hints = get_type_hints(options)
    for field in fields(options):
        kind = _readable(hints[field.name])
        if kind is not None:
            name = "_".join(part for part in (group, field.name) if part).upper()
            yield Variable(PREFIX + name, group, field.name, kind)


def _readable(hint: Any) -> Any:
    """Return the type by which the text of a variable is read; None where text can't say what a setting takes."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [kind for each in inner if each is not NoneType and (kind := _readable(each)) is not None]
        return Union[tuple(kinds)] if kinds else None  # noqa: UP007  built from values; of an object or a flag, text can say the flag
    if hint in (str, int, float, bool) or origin is Literal:
        return hint
    if isinstance(origin, type) and issubclass(origin, Collection) and not issubclass(origin, Mapping):
        item = _readable(inner[0])
        return None if item is None else Annotated[list[item], BeforeValidator(_split)]  # type: ignore[valid-type]
    return None


def _split(text: Any) -> Any:
    return [part.strip() for part in text.split(",") if part.strip()] if isinstance(text, str) else text


def with_environment(settings: Settings[Any]) -> tuple[Settings[Any], SetupError | None]:
    """Return settings with those of the environment that the code does not give; or as they are, and what is wrong."""
    if refused := [each for each in refused_variables(os.environ) if not is_collected(each)]:
        return settings, SetupError("; ".join(refused))
    values = [
        each
        for each in variables()
        if os.environ.get(each.name, "").strip() and each.setting not in _given(settings, each.group)
    ]
    if not values:
        return settings, None
    try:
        return _apply(settings, _read(values)), None
    except SetupError as error:
        return settings, error


def _given(settings: Settings[Any], group: str) -> Collection[str]:
    holder = getattr(settings, group) if group else settings
    return () if holder is None else holder.given


def _read(wanted: list[Variable]) -> dict[Variable, Any]:
    from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict  # only where there is one to read

    class Reader(BaseSettings):
        model_config = SettingsConfigDict(env_prefix=PREFIX, str_strip_whitespace=True)

    kinds: dict[str, Any] = {each.field: (Annotated[each.kind, NoDecode], ...) for each in wanted}
    try:
        found = create_model("Variables", __base__=Reader, **kinds)()
    except ValidationError as error:
        problems = [
            f"{PREFIX}{str(each['loc'][0]).upper()}={str(each['input'])[:80]!r}: {each['msg']}"
            f"{_ALLOWED.get(each['type'], '')}"
            for each in error.errors(include_url=False)
        ]
        raise SetupError("; ".join(problems)) from None
    return {each: getattr(found, each.field) for each in wanted}


def _apply(settings: Settings[Any], values: Mapping[Variable, Any]) -> Settings[Any]:
    try:
        return _changed(settings, values)
    except SetupError as error:
        for each, value in values.items():
            try:
                _changed(settings, {each: value})
            except SetupError as alone:
                raise SetupError(f"{each.name}: {alone}") from None
        raise SetupError(f"{', '.join(each.name for each in values)}: {error}") from None


def _changed(settings: Settings[Any], values: Mapping[Variable, Any]) -> Settings[Any]:
    changes: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for each, value in values.items():
        (groups.setdefault(each.group, {}) if each.group else changes)[each.setting] = value
    for name, given in groups.items():
        changes[name] = having(getattr(settings, name) or _groups()[name](), **given)
    return replace(settings, **changes)


def unknown_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that look like settings and are none, each with what to do; their values are never shown."""
    known = {*(each.name for each in variables()), *ELSEWHERE, DIRECT_DATABASE, APPLICATION, CALL_TOKEN, DECLARED}
    known |= VARIABLES.keys()  # which are refused
    found = (name for name in environment if name.startswith(PREFIX) and not name.startswith(COMMAND_PREFIX))
    return {name: _advice(name, known) for name in sorted(found) if name not in known}


def _advice(name: str, known: Collection[str]) -> str:
    setting = name.removeprefix(PREFIX).lower()
    elsewhere = next((known for known, each in ELSEWHERE.items() if each == setting), "")
    if elsewhere:
        return f"{name} is no setting; did you mean {elsewhere}?"
    if setting in {each.name for each in fields(Settings)}:
        return f"{name} is not read: give {setting}= in the code"
    close = get_close_matches(name, known, 1, cutoff=0.8)
    return f"{name} is no setting" + (f"; did you mean {close[0]}?" if close else ", and is not read")


_told: set[str] = set()


def warn_of_unknown_variables() -> None:
    for name, advice in unknown_variables().items():
        if name not in _told:
            _told.add(name)
            logger.warning("%s", advice)

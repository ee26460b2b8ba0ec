"""Settings from the environment: `MRTR_` and the name of the setting, `MRTR_LIMITS_` and the name of the limit.

What the code gives counts more. The variables follow from the fields of `Settings` and `Limits`, so a new field has its
variable by itself, if text can say what it takes.
"""

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, ValidationError, create_model

from ..concurrency.shutdown import ENVIRONMENT as SHUTDOWN_SECONDS
from ..crypto.keys import ENVIRONMENT as KEYS
from ..errors import SetupError
from ..given import having
from ..limits import Limits
from ..storage.factory import ENVIRONMENT as DATABASE
from .settings import Settings
from .web_workers import DECLARED

logger = logging.getLogger("mrtr_server")

PREFIX = "MRTR_"

ELSEWHERE = {KEYS: "keys", DATABASE: "database", SHUTDOWN_SECONDS: "shutdown_seconds"}
"""Variables of settings that are read where they are used."""

DIRECT_DATABASE = "MRTR_DATABASE_DIRECT_URL"
APPLICATION = "MRTR_APP"
COMMAND_PREFIX = "MRTR_RUN_"
"""The variables of the options of `mrtr-server run` begin with it."""

CALL_TOKEN = "MRTR_CALL_TOKEN"  # noqa: S105
"""The variable with the token of the commands that call servers."""

_IN_CODE = frozenset({"name", *ELSEWHERE.values()})
_LIMITS = "limits"
_ALLOWED = {"bool_parsing": "; write true or false"}
"""What to write instead, where the message of pydantic does not say so, by the type of its error."""


class Variable(NamedTuple):
    """A variable of the environment.

    Args:
        name: in capitals.
        setting: the field of `Settings`, or of `Limits`.
        of_limits: whether it is one of `Limits`.
        kind: what it takes, as a type.
    """

    name: str
    setting: str
    of_limits: bool
    kind: Any

    @property
    def field(self) -> str:
        """The name of the variable without its prefix, in lower case."""
        return self.name.removeprefix(PREFIX).lower()


def variables() -> list[Variable]:
    """Return the variables that a server reads, besides those in `ELSEWHERE`."""
    return list(_variables().values())


@cache
def _variables() -> dict[str, Variable]:
    found = [*_of(Settings, PREFIX, of_limits=False), *_of(Limits, f"{PREFIX}LIMITS_", of_limits=True)]
    return {each.name: each for each in found}


def _of(options: Any, prefix: str, *, of_limits: bool) -> Iterator[Variable]:
    hints = get_type_hints(options)
    for field in fields(options):
        kind = _readable(hints[field.name])
        if kind is not None and (of_limits or field.name not in _IN_CODE):
            yield Variable(prefix + field.name.upper(), field.name, of_limits, kind)


def _readable(hint: Any) -> Any:
    """Return the type by which the text of a variable is read; None where text can't say what a setting takes."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [kind for each in inner if each is not NoneType and (kind := _readable(each)) is not None]
        return kinds[0] if len(kinds) == 1 else None  # of an object or a flag, text can say the flag
    if hint in (str, int, float, bool) or origin is Literal:
        return hint
    if isinstance(origin, type) and issubclass(origin, Collection) and not issubclass(origin, Mapping):
        item = _readable(inner[0])
        return None if item is None else Annotated[list[item], BeforeValidator(_split)]  # type: ignore[valid-type]
    return None


def _split(text: Any) -> Any:
    return [part.strip() for part in text.split(",") if part.strip()] if isinstance(text, str) else text


def with_environment(settings: Settings[Any]) -> tuple[Settings[Any], SetupError | None]:
    """Return the settings of a server, with those from the environment that its code does not give.

    Args:
        settings: what the code gives.

    Returns:
        The settings, and why the environment can't be used; None if it can. The settings are those of the code then.
    """
    limits = settings.limits or Limits()
    values = [
        each
        for each in _variables().values()
        if os.environ.get(each.name, "").strip() and each.setting not in (limits if each.of_limits else settings).given
    ]
    if not values:
        return settings, None
    try:
        return _apply(settings, _read(values)), None
    except SetupError as error:
        return settings, error


def _read(wanted: list[Variable]) -> dict[Variable, Any]:
    """Return the values of variables. Raises `SetupError`."""
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
    """Return settings with values from the environment. Raises `SetupError`, which names the variable."""
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
    changes = {each.setting: value for each, value in values.items() if not each.of_limits}
    limits = {each.setting: value for each, value in values.items() if each.of_limits}
    if limits:
        changes[_LIMITS] = having(settings.limits or Limits(), **limits)
    return replace(settings, **changes)


def unknown_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that look like settings and are none, each with what to do about it.

    Args:
        environment: where to look. Values are never shown.
    """
    known = {*_variables(), *ELSEWHERE, DIRECT_DATABASE, APPLICATION, CALL_TOKEN, DECLARED}
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
    """Log a warning for each variable that looks like a setting and is none, once in the process."""
    for name, advice in unknown_variables().items():
        if name not in _told:
            _told.add(name)
            logger.warning("%s", advice)

"""The `_meta` that an author adds to entries, results and content (Overview, `_meta`)."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic_core import PydanticSerializationError, from_json, to_json

_LABEL = "[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_META_KEY = re.compile(rf"(?:({_LABEL}(?:\.{_LABEL})*)/)?(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?")
_RESERVED_LABELS = {"modelcontextprotocol", "mcp"}


def meta_problem(meta: Mapping[Any, Any]) -> str:
    """Return what is wrong with a `_meta` of an author's; empty if nothing is (Overview, `_meta`)."""
    for key in meta:
        if not isinstance(key, str):
            return f"the key {key!r} of _meta is no text"
        # ChatGPT reads keys with a second slash, such as openai/toolInvocation/invoking.
        checked = key.removeprefix("openai/") if key.count("/") == 2 else key
        found = _META_KEY.fullmatch(checked)
        if found is None:
            return (
                f"{key!r} can't be a key of _meta: it is a name of letters and digits, with '-', '_' and '.' inside, "
                "and may have a prefix such as 'com.example/'"
            )
        labels = (found[1] or "").lower().split(".")
        # Earlier versions of the protocol reserve the first label, too, where others follow it.
        if _RESERVED_LABELS.intersection(labels[:2] if len(labels) > 1 else ()) or key == "progressToken":
            return f"the key {key!r} of _meta is reserved for the protocol; use a prefix of your own: 'com.example/'"
    try:
        from_json(to_json(meta, by_alias=True), allow_inf_nan=False)
    except PydanticSerializationError as error:
        if "surrogates" not in str(error):  # these are mended when it is written
            return "_meta can't be written as JSON"
    except ValueError:
        return "_meta has NaN or an infinity, which JSON can't hold"
    return ""


def _checked_meta(meta: dict[str, Any]) -> dict[str, Any]:
    if problem := meta_problem(meta):
        raise ValueError(problem)
    return meta


Meta = Annotated[dict[str, Any], AfterValidator(_checked_meta)]

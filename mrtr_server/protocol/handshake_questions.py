"""Questions as requests of the handshake era, in the shape of each of its versions."""

from typing import Any

from ..errors import MissingCapability
from .callers import ClientInfo
from .content import uses_tools
from .handshake_entries import content_of
from .handshake_versions import HandshakeVersion
from .messages import JSON, NamedChoices, Question


def known_capabilities(version: HandshakeVersion, declared: JSON | None) -> JSON:
    """Return what clients of a version can be asked, of what one declares (Lifecycle, Operation)."""
    known = dict(declared or {})
    if not version.enriches and isinstance(sampling := known.get("sampling"), dict):
        known["sampling"] = {"context": {}, **sampling}  # which needs no capability of its own
    return known


def question_params(version: HandshakeVersion, question: Question, client: ClientInfo) -> JSON:
    """Return the parameters of the request that asks a client.

    What the client declares is believed, also if its version does not have it yet: some clients declare what came
    later, and can do it. The version counts where nothing is declared.

    Args:
        version: what the client speaks.
        question: what is asked.
        client: what it declares.

    Raises:
        MissingCapability: clients of this version can't be asked that.
    """
    params = question.params
    if question.method == "sampling/createMessage":
        return params if version.enriches else _plain_sampling(version, params, client)
    if question.method != "elicitation/create":
        return params
    is_declared = client.capabilities is not None  # or it would not have been asked
    if not (version.structures or is_declared):
        raise MissingCapability.in_version(version.name, "a form or a page", "elicitation")
    if params.get("mode") == "url":
        if not (version.enriches or is_declared):
            raise MissingCapability.in_version(version.name, "a page")
        # What an earlier release has asked, and stored, has no id.
        return params if "elicitationId" in params else {**params, "elicitationId": question.page or question.digest}
    schema = params["requestedSchema"]
    if not version.enriches:
        return {**params, "requestedSchema": _plain_form(version, schema, client)}
    if not any(map(_has_names, schema["properties"].values())):
        return params
    fields = {name: _named_field(field) for name, field in schema["properties"].items()}
    return {**params, "requestedSchema": {**schema, "properties": fields}}


def _plain_sampling(version: HandshakeVersion, params: JSON, client: ClientInfo) -> JSON:
    """Return a sampling each of whose messages has one block of content, unless it has tools."""
    if "tools" in params or "toolChoice" in params or any(map(uses_tools, params["messages"])):
        if client.capabilities is None:
            raise MissingCapability.in_version(version.name, "a sampling with tools", "sampling")
        return params
    messages: list[Any] = []
    for message in params["messages"]:
        content = message.get("content")
        each = content if isinstance(content, list) else [content]
        if not version.annotates and any(isinstance(block, dict) and block.get("type") == "audio" for block in each):
            raise MissingCapability.in_version(version.name, "audio in a sampling", "sampling")
        messages += [{"role": message["role"], "content": content_of(version, block)} for block in each]
    return {**params, "messages": messages}


def _named_field(field: JSON) -> JSON:
    """Return a field with its choices as their author wrote them."""
    return _with_names(field) if _has_names(field) else field


def _has_names(field: JSON) -> bool:
    return isinstance(field.get("oneOf"), NamedChoices)


def _plain_form(version: HandshakeVersion, schema: JSON, client: ClientInfo) -> JSON:
    """Return a form as versions have it whose forms have no choice of several.

    Such a field is left out where it may be, unless there is nothing else to ask. A client that declares a mode of
    elicitation has that from a version that has such choices, too.
    """
    fields, required = schema["properties"], schema.get("required", ())
    several = [name for name, field in fields.items() if field["type"] == "array"]
    left_out = {name for name in several if name not in required} if len(several) < len(fields) else set()
    needed = [name for name in several if name not in left_out]
    if needed and not (client.capabilities or {}).get("elicitation"):
        raise MissingCapability.in_version(
            version.name, f"a choice of several, as the field {needed[0]!r} is", "elicitation"
        )
    shown = {name: _plain_field(field) for name, field in fields.items() if name not in left_out}
    return {**schema, "properties": shown}


def _plain_field(field: JSON) -> JSON:
    """Return a field without what earlier versions do not know in it."""
    plain = {name: value for name, value in field.items() if name != "default" or field["type"] == "boolean"}
    return _with_names(plain) if "oneOf" in plain else plain


def _with_names(field: JSON) -> JSON:
    options = field["oneOf"]
    return {
        **{name: value for name, value in field.items() if name != "oneOf"},
        "enum": [option["const"] for option in options],
        "enumNames": [option["title"] for option in options],
    }

"""Questions as requests of the handshake era, in the shape of each of its versions."""

from typing import Any

from ..errors import MissingCapability
from .content import uses_tools
from .handshake_entries import content_of
from .handshake_versions import HandshakeVersion
from .messages import JSON, NamedChoices, Question


def known_capabilities(version: HandshakeVersion, declared: JSON | None) -> JSON:
    """Return what clients of a version can be asked, of what one declares (Lifecycle, Operation)."""
    known = dict(declared or {})
    if not version.structures:
        known.pop("elicitation", None)
    if not version.enriches and known.get("sampling") is not None:
        known["sampling"] = {"context": {}}  # which needs no capability of its own
    return known


def question_params(version: HandshakeVersion, question: Question, elicitation: str) -> JSON:
    """Return the parameters of the request that asks a client.

    Args:
        version: what the client speaks.
        question: what is asked.
        elicitation: names the elicitation, if it is a page.

    Raises:
        MissingCapability: clients of this version can't be asked that.
    """
    params = question.params
    if question.method == "sampling/createMessage":
        return params if version.enriches else _plain_sampling(version, params)
    if question.method != "elicitation/create":
        return params
    if not version.structures:  # whatever the client has declared
        raise MissingCapability({"elicitation": {}})
    if params.get("mode") == "url":
        if not version.enriches:
            raise MissingCapability({"elicitation": {"url": {}}})
        return {**params, "elicitationId": elicitation}
    schema = params["requestedSchema"]
    if version.enriches and not any(map(_has_names, schema["properties"].values())):
        return params
    write = _named_field if version.enriches else _plain_field
    fields = {name: write(field) for name, field in schema["properties"].items()}
    return {**params, "requestedSchema": {**schema, "properties": fields}}


def _plain_sampling(version: HandshakeVersion, params: JSON) -> JSON:
    """Return a sampling without tools, each of whose messages has one block of content."""
    if "tools" in params or "toolChoice" in params or any(map(uses_tools, params["messages"])):
        raise MissingCapability({"sampling": {"tools": {}}})
    messages: list[Any] = []
    for message in params["messages"]:
        content = message.get("content")
        each = content if isinstance(content, list) else [content]
        if not version.annotates and any(isinstance(block, dict) and block.get("type") == "audio" for block in each):
            raise MissingCapability({"sampling": {"audio": {}}})
        messages += [{"role": message["role"], "content": content_of(version, block)} for block in each]
    return {**params, "messages": messages}


def _named_field(field: JSON) -> JSON:
    """Return a field with its choices as their author wrote them."""
    return _with_names(field) if _has_names(field) else field


def _has_names(field: JSON) -> bool:
    return isinstance(field.get("oneOf"), NamedChoices)


def _plain_field(field: JSON) -> JSON:
    """Return a field that is a text, a number, a yes or no, or a choice of one."""
    if field["type"] == "array":
        raise MissingCapability({"elicitation": {"choices": {}}})
    plain = {name: value for name, value in field.items() if name != "default" or field["type"] == "boolean"}
    return _with_names(plain) if "oneOf" in plain else plain


def _with_names(field: JSON) -> JSON:
    options = field["oneOf"]
    return {
        **{name: value for name, value in field.items() if name != "oneOf"},
        "enum": [option["const"] for option in options],
        "enumNames": [option["title"] for option in options],
    }

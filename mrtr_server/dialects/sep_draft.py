"""The drafts of Multi Round-Trip Requests, revisions 1 and 2, for clients that name no version at all.

A result that needs input is an `IncompleteResult`: it has no `resultType`, and is known by its `inputRequests` or
`requestState`.
Answers come bare (revision 2) or wrapped in `result` (revision 1), in `params` or at the top level of the message.
"""

from typing import Any

from ..errors import InvalidParams, UnknownMethod
from ..messages import ASKING_METHODS, JSON, Call, Client, Complete, NeedsInput, Outcome, Principal
from .base import (
    SESSION_HEADER,
    VERSION_HEADER,
    Dialect,
    Envelope,
    check_headers,
    names_version,
    read_answers,
    read_arguments,
    read_progress_token,
    read_target,
    result,
)

_METHODS = ASKING_METHODS | {
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "completion/complete",
}
_EVERYTHING = Client(capabilities=None)
_ABSENT: Any = object()


class SepDraftDialect(Dialect):
    """The wire form of the drafts."""

    name = "sep-draft"

    def claims(self, envelope: Envelope) -> bool:
        """Say whether there is no version anywhere, no session and no handshake."""
        headers = envelope.headers
        if VERSION_HEADER in headers or SESSION_HEADER in headers or envelope.method == "initialize":
            return False
        return not names_version(envelope)

    def read(self, envelope: Envelope, principal: Principal | None, user: Any) -> Call:
        """Give the call in a request. Headers are not required, but must match where they are there."""
        headers = envelope.headers
        check_headers(envelope, self.surface, required=False)
        if envelope.method not in _METHODS:
            raise UnknownMethod(envelope.method)
        params = envelope.params
        asks = envelope.method in ASKING_METHODS
        answers = _either(envelope, "inputResponses", _ABSENT) if asks else _ABSENT
        meta = params.get("_meta")
        return Call(
            method=envelope.method,
            params=params,
            target=read_target(envelope),
            arguments=read_arguments(params) if asks else {},
            answers=None if answers is _ABSENT else {k: _bare(raw) for k, raw in read_answers(answers).items()},
            state=_either(envelope, "requestState") if asks else None,
            client=_EVERYTHING,
            principal=principal,
            user=user,
            progress_token=read_progress_token(meta) if isinstance(meta, dict) else None,
            request_id=envelope.id if envelope.id is not None else 0,
            headers=headers,
        )

    def write(self, call: Call, outcome: Outcome) -> bytes:
        """Give the response that carries an outcome, with nothing added to what the drafts print."""
        if isinstance(outcome, NeedsInput):
            body: JSON = {"requestState": outcome.state}
            if outcome.questions:
                body["inputRequests"] = {
                    key: {"method": question.method, "params": question.params}
                    for key, question in outcome.questions.items()
                }
            return result(call, body)
        assert isinstance(outcome, Complete)  # noqa: S101  read() lets no other method through
        return result(call, outcome.body)


def _either(envelope: Envelope, field: str, absent: Any = None) -> Any:
    """Give a field from `params` or from the top level; one that is in both must be the same."""
    places = [place[field] for place in (envelope.params, envelope.message) if field in place]
    if len(places) == 2 and places[0] != places[1]:
        raise InvalidParams(f"{field} is in params and at the top level of the message, and they differ")
    return places[0] if places else absent


def _bare(raw: JSON) -> JSON:
    wrapped = raw.get("result")
    return wrapped if len(raw) == 1 and isinstance(wrapped, dict) else raw

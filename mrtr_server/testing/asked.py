"""What a server asked, as a test looks at it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from ..protocol.messages import JSON
from .failure import Unexpected

__tracebackhide__ = True  # pytest then shows the test's line instead

Kind = Literal["form", "url", "sample", "roots"]

_KINDS: dict[tuple[str, str | None], Kind] = {
    ("elicitation/create", None): "form",
    ("elicitation/create", "form"): "form",
    ("elicitation/create", "url"): "url",
    ("sampling/createMessage", None): "sample",
    ("roots/list", None): "roots",
}
"""By the method, and the mode of an elicitation."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One thing that the server asked for.

    Args:
        key: its name on the wire.
        method: the request that the client is to fulfil, such as `"elicitation/create"`.
        params: its parameters, as sent.
        id: what its answer goes by, in the handshake era; empty in others.
    """

    key: str
    method: str
    params: JSON = field(default_factory=dict)
    id: str = ""

    @property
    def kind(self) -> Kind:
        """What is asked for: a form (a confirmation is one, too), a page to open, a sampled message, or the roots.

        A kind that the kit does not know fails the test.
        """
        if (kind := self._known) is None:
            raise Unexpected(f"{self.key!r} asks by {self._named}, which this test kit does not know")
        return kind

    @property
    def _known(self) -> Kind | None:
        return _KINDS.get((self.method, self._mode))

    @property
    def _mode(self) -> str | None:
        return self.params.get("mode") if self.method == "elicitation/create" else None

    @property
    def _named(self) -> str:
        return f"{self.method!r} in the mode {self._mode!r}" if self._mode is not None else repr(self.method)

    @property
    def message(self) -> str:
        """What the person reads; of a sampling, the text of its messages; of the roots, nothing."""
        if self.kind != "sample":
            return str(self.params.get("message", ""))
        contents = [message.get("content") for message in self.params.get("messages", ())]
        blocks = [block for content in contents for block in (content if isinstance(content, list) else [content])]
        return "\n".join(block["text"] for block in blocks if block.get("type") == "text")

    @property
    def schema(self) -> JSON:
        """The JSON Schema of a form."""
        return self._of("form", "requestedSchema")  # type: ignore[no-any-return]

    @property
    def url(self) -> str:
        """The page to open."""
        return str(self._of("url", "url"))

    def _of(self, kind: str, name: str) -> Any:
        if self.kind != kind:
            raise Unexpected(f"{self} does not ask for a {kind}")
        return self.params[name]

    def __str__(self) -> str:
        if self._known is None:  # still described, in the message of a test that failed
            return f"{self.key!r} ({self._named})"
        return f"{self.key!r} ({self.kind}): {self.message!r}" if self.message else f"{self.key!r} ({self.kind})"


class Asks(dict[str, Asked]):
    """What was asked, by key; a key that was not asked fails the test with all that were.

    Args:
        asked: what was asked.
        reply: describes itself in the message; left out, the message lists what was asked.
    """

    def __init__(self, asked: Iterable[Asked] = (), reply: object = None) -> None:
        super().__init__((each.key, each) for each in asked)
        self._reply = reply

    def __missing__(self, key: str) -> Asked:
        raise Unexpected(f"{key!r} was not asked. {self._reply or f'The server asked {listed(self.values())}.'}")


def listed(asked: Iterable[Asked]) -> str:
    """Describe what was asked, in one line."""
    return "; ".join(map(str, asked)) or "nothing"

"""MCP Apps: tools have pages, which hosts draw, and which call tools."""

from collections.abc import Sequence
from typing import ClassVar, cast

from typing_extensions import override

from ..methods.middleware import Middleware
from ..protocol.apps import UI, visibility_of
from ..protocol.messages import JSON, Call
from ..protocol.sessions import NO_SESSION
from ..registration.inclusion import Listing
from ..registration.registry import Registry
from .extension import Extension
from .once import OnceForPages
from .once import entry as once_entry
from .questions import QuestionPage


class AppExtension(Extension):
    """The extension MCP Apps.

    `question`: asks what a client can't be asked itself.
    `once`: serves calls of pages that count once.
    """

    id: ClassVar[str] = UI

    def __init__(self, registry: Registry, question: QuestionPage, once: OnceForPages) -> None:
        self._registry = registry
        self._question = question
        self._once = once

    @override
    def settings(self) -> JSON | None:
        if self._registry.asks_by_page:
            return {"elicitation": {}}
        return {} if self._registry.has_pages or self._question.has_page else None

    @property
    @override
    def around(self) -> Sequence[Middleware]:
        once = [self._once.around] if self._registry.has_pages else []
        asking = [self._question.around] if self._question.is_on else []
        return cast(Sequence[Middleware], [*once, *asking])

    @override
    def shapes(self, listing: Listing) -> bool:
        if listing == "tools":  # a client without pages would show its model what is for pages alone
            return self._registry.has_pages or self._question.is_on
        return listing == "resources" and self._question.has_page

    @override
    def listed(self, listing: Listing, entry: JSON, call: Call) -> JSON | None:
        if listing != "tools":
            return entry
        if not self._may_draw(call) and "model" not in visibility_of(entry):
            return None
        return self._question.listed(entry, call.client) if self._question.is_on else entry

    @override
    def added(self, listing: Listing, call: Call) -> list[JSON]:
        once = listing == "tools" and self._registry.has_pages and self._may_draw(call)
        asking = self._question.added(listing, call.client) if self._question.is_on else []
        return [*([once_entry()] if once else []), *asking]

    def _may_draw(self, call: Call) -> bool:
        """Return whether a client draws pages, or nothing is known of it."""
        client = call.client
        return client.capabilities is None or client is NO_SESSION.client or client.extension(self.id) is not None

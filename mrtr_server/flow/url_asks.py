"""Asks for a page to be opened, and for what it reports."""

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar, cast, overload

from pydantic import ValidationError
from typing_extensions import override

from ..crypto.digests import digest
from ..errors import FlowError, InvalidAnswer, SetupError
from ..logs.failures import calls_author
from ..protocol.ask_kinds import CALLBACK, URL
from ..protocol.messages import JSON, Question
from ..protocol.outgoing import fault_of_page
from ..schema.misfits import describe
from .asks import Ask, Text, accepted, written
from .callback_service import NOWHERE, Callback, CallbackLink, Report

T = TypeVar("T")
A = TypeVar("A")

UNFINISHED = "The page that you opened has not reported back yet. Please finish there first"
"""Prefix of the message of an ask that is repeated because its callback has not been called."""


class ElicitUrl(Ask[T]):
    """Ask the person to open a page; for what must not pass through the client (Elicitation, URL Mode).

    Without a callback, an accepted answer says that the person agreed to open the page, not that they are done there.

    Args:
        message: why, in words for the person; for a parameter, also a function as for `Elicit`.
        url: the page, with `https:` or `http:`; likewise. With a callback: a function that makes it from the
            `CallbackLink`, the same page each time; left out, the page is the callback itself.
        callback: what `@app.callback` made; the answer is what it returns once the person is back.
        key: see `Ask`; the callback's name by default, `open_url` without one.

    Raises:
        SetupError: the url is no function though there is a callback, or the other way round; or it is no address of
            a web page.
    """

    default_key = "open_url"
    needs_state = True
    may_be_declined = True

    @overload
    def __init__(self: "ElicitUrl[bool]", message: Text, url: Text, *, key: str | None = None) -> None: ...
    @overload
    def __init__(
        self: "ElicitUrl[A]",
        message: Text,
        url: Callable[[CallbackLink], str] | None = None,
        *,
        callback: Callback[A],
        key: str | None = None,
    ) -> None: ...
    def __init__(
        self, message: Text, url: Any = None, *, callback: Callback[Any] | None = None, key: str | None = None
    ) -> None:
        super().__init__(key)
        if callback is None and not (isinstance(url, str) or callable(url)):
            raise SetupError("ElicitUrl needs the url as a string, or a callback= that the page leads to")
        if isinstance(url, str) and (fault := fault_of_page(url)):
            raise SetupError(f"The url of an ElicitUrl {fault}")
        if callback is not None and not isinstance(callback, Callback):
            raise SetupError(f"callback={callback!r} is not a callback; put @app.callback(...) before the function")
        if callback is not None:
            if url is not None and not callable(url):
                raise SetupError(
                    "With callback=, url= must be a function of the CallbackLink, such as lambda back: "
                    'f"https://example.com/?redirect_uri={back.url}&state={back.state}"'
                )
            self.default_key = callback.name
        self.texts = ("message", "url") if callback is None else ("message",)
        self.types = (bool if callback is None else callback.returns,)
        self.message = message
        self.url = url
        self.callback = callback

    @override
    def filled(self, texts: Mapping[str, Any]) -> Self:
        """Return the same ask with these texts, as `Ask` does.

        Args:
            texts: what the functions in `functions` have made, by attribute.

        Returns:
            A copy. This ask does not change.

        Raises:
            FlowError: the url is not the address of a page.
        """
        if "url" in texts and (fault := fault_of_page(texts["url"])):
            raise FlowError(f"The url that a function made for an ElicitUrl {fault}")
        return super().filled(texts)

    def question(self) -> Question:
        """Return the ask as it goes to the client; with a callback, still without the page's address.

        Raises:
            SetupError: a text is still a function.
            FlowError: the `url=` function failed, or returned something else than the address of a page.
        """
        params = {"mode": "url", "message": written(self.message)}
        if self.callback is None and callable(self.url):
            raise SetupError("url= can be a function only with callback=, or in the annotation of a parameter")
        if self.callback is None:
            return URL.question({**params, "url": self.url})
        # The answer counts while the page stays what it was, but for the way back.
        shape = digest([self.callback.name, self._address(self.callback, NOWHERE)])
        return CALLBACK.question(params, shape=shape)

    def leading(self, question: Question, back: CallbackLink) -> Question:
        """Return the ask's question with the page's address, which leads back by this link.

        Args:
            question: the ask as it goes to the client, still without an address.
            back: the link of the callback for this flow.

        Returns:
            A copy of the question. The one that was passed does not change.

        Raises:
            FlowError: the `url=` function failed, or returned something else than the address of a page.
        """
        assert self.callback is not None  # noqa: S101  nothing leads back without one
        return question.having(url=self._address(self.callback, back))

    @calls_author
    def _address(self, callback: Callback[Any], back: CallbackLink) -> str:
        if self.url is None:
            return back.link
        try:
            address = self.url(back)
        except Exception as error:
            raise FlowError(f"The url= function for the callback {callback.name!r} failed: {error!r}") from error
        if not isinstance(address, str):
            kind = type(address).__name__  # not the address itself: it may have the token in it, or an answer
            raise FlowError(f"The url= function for the callback {callback.name!r} returned a {kind}, not a string")
        if fault := fault_of_page(address):
            raise FlowError(f"The url that the url= function for the callback {callback.name!r} returned {fault}")
        return address

    @override
    def parse(self, raw: JSON) -> T:
        content = accepted(raw)
        if self.callback is None:
            return cast(T, True)
        if not isinstance(raw, Report):  # the client's word is not enough
            raise InvalidAnswer(UNFINISHED)
        try:
            return cast(T, self.callback.stored.load(content, raw.get("exact")))
        except ValidationError as error:  # another version of the callback reported it
            raise FlowError(
                f"What the callback {self.callback.name!r} reported no longer fits its declared type: "
                f"{describe(error)}. Let the type accept what flows in progress have reported"
            ) from None

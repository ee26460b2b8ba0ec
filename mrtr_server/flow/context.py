"""What a handler receives besides its arguments."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from ..errors import FlowError, ToolError
from ..hints import CONTEXT, attributes_of
from ..protocol.apps import AppPage
from ..protocol.callers import ClientInfo, Principal, request_of
from ..protocol.messages import LOG_LEVELS, NOTHING, ComeBack, LogLevel, LogMessage, Outlet, Progress
from ..schema.uri_templates import UriTemplate
from .asks import Ask, Confirm, Elicit, ListRoots, Root
from .events import Emitting, EventType
from .sampling import Sample, Sampled
from .steps import current_step
from .url_asks import Callback, CallbackLink, ElicitUrl
from .waiting_round import WaitingRound
from .waits import Answering, Desk, Person, Ticket, Tickets, Wait, WaitFor, Who, load_about

if TYPE_CHECKING:
    from starlette.requests import Request

T = TypeVar("T")
A = TypeVar("A")
A1 = TypeVar("A1")
A2 = TypeVar("A2")
A3 = TypeVar("A3")
A4 = TypeVar("A4")
P = ParamSpec("P")

Ongoing = Coroutine[Any, Any, T]

_CREDENTIALS = (b"authorization", b"proxy-authorization")

ASKS = ("ask", "confirm", "elicit", "elicit_url", "sample", "list_roots")


class Context:
    """The flow that a handler runs in: declare a parameter of this type to get it.

    An ask that the client has not answered yet ends the round: it never returns, and the handler is run again from the
    top when the answer is there. So whatever must happen once goes into `step`.

    A mistake in how asks and steps are used ends the flow, whatever the handler makes of the exception: the log says
    what was wrong, and where.

    Args:
        round_: the round that the handler runs in.
        outlet: takes progress and log messages.
        can_await: whether the handler can wait for an answer; a plain `def` can't.
    """

    __slots__ = ("_can_await", "_outlet", "_round")

    def __init__(self, round_: WaitingRound, outlet: Outlet, *, can_await: bool) -> None:
        self._round = round_
        self._outlet = outlet
        self._can_await = can_await

    if not TYPE_CHECKING:  # which knows that they are not there
        __getattr__ = attributes_of(CONTEXT)

    # Asks

    @overload  # a type that is no class, such as `Literal["a"]` or `str | None`, is an object to type checkers
    def elicit(
        self,
        message: str,
        schema: type[T],
        *,
        key: str | None = None,
        ui: AppPage | str | None = None,
        through_model: bool = False,
    ) -> Ongoing[T]: ...
    @overload
    def elicit(
        self,
        message: str,
        schema: object,
        *,
        key: str | None = None,
        ui: AppPage | str | None = None,
        through_model: bool = False,
    ) -> Ongoing[Any]: ...
    def elicit(
        self,
        message: str,
        schema: Any,
        *,
        key: str | None = None,
        ui: AppPage | str | None = None,
        through_model: bool = False,
    ) -> Ongoing[Any]:
        """Ask the person to fill in a form (Elicitation, Form Mode).

        Args:
            message: why you ask, in words for the person.
            schema: a pydantic model whose fields are the form's, or the type of one value, such as `str`, `date`, an
                enum or a `Literal`; `Elicited[...]` of these to branch on decline and cancel.
            key: names the ask; the model's name in snake case by default, `value` for one value, then with `_2`, `_3`.
            ui: a page of an app that draws the form where a client can do that; see `Elicit`.
            through_model: whether a model may be told to ask, where nobody else can; see `Elicit`.

        Returns:
            The validated model or value (or the `Elicited`). After a wrong answer, the question is asked again with the
            reason.

        Raises:
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: a step called it, or a dependency after its `yield`.
        """
        return self._one(lambda: Elicit(message, schema, key=key, ui=ui, through_model=through_model))

    def confirm(
        self, message: str, *, key: str | None = None, plain: bool = False, ui: AppPage | str | None = None
    ) -> Ongoing[bool]:
        """Ask the person for a yes (Elicitation, Form Mode). Anything else ends the call; nothing after it runs.

        One yes lets what comes after it run once: see `Confirm`.

        Args:
            message: what will happen, in words for the person.
            key: names the ask; `confirm` by default, then `confirm_2`.
            plain: whether to send a form without fields; see `Confirm`.
            ui: a page of an app that draws it, as for `elicit`.

        Returns:
            True, always.

        Raises:
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: a step called it, or a dependency after its `yield`.
        """
        return self._one(lambda: Confirm(message, key=key, plain=plain, ui=ui))

    @overload
    def elicit_url(self, message: str, url: str, *, key: str | None = None) -> Ongoing[bool]: ...
    @overload
    def elicit_url(
        self,
        message: str,
        url: Callable[[CallbackLink], str] | None = None,
        *,
        callback: Callback[T],
        key: str | None = None,
    ) -> Ongoing[T]: ...
    def elicit_url(
        self, message: str, url: Any = None, *, callback: Any = None, key: str | None = None
    ) -> Ongoing[Any]:
        """Ask the person to open a page, for what must not pass through the client (Elicitation, URL Mode).

        Args:
            message: why, in words for the person.
            url: the page, with `https:` or `http:`, and without a user name or password. With a callback: a function
                that makes it from the `CallbackLink`, the same page each time; left out, the page is the callback
                itself.
            callback: what `@app.callback` made, which is called when the person is back from the page.
            key: names the ask; the callback's name by default, `open_url` without one.

        Returns:
            What the callback returned. Without one True: the person agreed to open the page, and whether they are done
            there is for your own code to check.

        Raises:
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: a step called it, or a dependency after its `yield`.
        """
        return self._one(lambda: ElicitUrl(message, url, callback=callback, key=key))

    def sample(
        self,
        messages: Any,
        *,
        max_tokens: int = 1024,
        system_prompt: str | None = None,
        model_preferences: Mapping[str, Any] | None = None,
        temperature: float | None = None,
        stop_sequences: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        include_context: Literal["none", "thisServer", "allServers"] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Ongoing[Sampled]:
        """Ask the client's model for a message (Sampling, Creating Messages).

        Args:
            messages: the conversation; a string is one message of the user's, an item is a string, a content object, a
                `Message`, or plain JSON with `role` and `content`.
            max_tokens: how long the message may be, in tokens.
            system_prompt: the system prompt of the model, if the client allows it.
            model_preferences: `hints`, and the priorities of cost, speed and intelligence, each from 0 to 1.
            temperature: how freely the model writes, on the scale of the client's model.
            stop_sequences: texts at which the model stops.
            metadata: for the client's provider of models.
            include_context: what the client adds of its servers. `"thisServer"` and `"allServers"` need a client that
                declares `sampling.context`.
            tools: tools that the model may use, as plain JSON. They need a client that declares `sampling.tools`.
            tool_choice: how the model may use them, such as `{"mode": "auto"}`; it needs the same.
            key: names the ask; `sample` by default, then `sample_2`.

        Returns:
            The message. Its `text` joins all text blocks.

        Raises:
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: a step called it, or a dependency after its `yield`.
        """
        return self._one(
            lambda: Sample(
                messages,
                max_tokens=max_tokens,
                system_prompt=system_prompt,
                model_preferences=model_preferences,
                temperature=temperature,
                stop_sequences=stop_sequences,
                metadata=metadata,
                include_context=include_context,
                tools=tools,
                tool_choice=tool_choice,
                key=key,
            )
        )

    def list_roots(self, *, key: str | None = None) -> Ongoing[list[Root]]:
        """Ask for the directories and files that the client works in (Roots).

        Args:
            key: names the ask; `roots` by default, then `roots_2`.

        Returns:
            The roots, in the client's order.

        Raises:
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: a step called it, or a dependency after its `yield`.
        """
        return self._one(lambda: ListRoots(key=key))

    @overload
    def ask(self, first: Ask[A1], second: Ask[A2], /) -> Ongoing[tuple[A1, A2]]: ...
    @overload
    def ask(self, first: Ask[A1], second: Ask[A2], third: Ask[A3], /) -> Ongoing[tuple[A1, A2, A3]]: ...
    @overload
    def ask(
        self, first: Ask[A1], second: Ask[A2], third: Ask[A3], fourth: Ask[A4], /
    ) -> Ongoing[tuple[A1, A2, A3, A4]]: ...
    @overload
    def ask(self, first: Ask[A1], /) -> Ongoing[tuple[A1]]: ...
    @overload
    def ask(self, /, *asks: Ask[Any]) -> Ongoing[tuple[Any, ...]]: ...
    @overload
    def ask(self, /, **asks: Ask[Any]) -> Ongoing[dict[str, Any]]: ...
    def ask(self, /, *asks: Ask[Any], **named: Ask[Any]) -> Ongoing[Any]:
        """Ask several things in one round (Multi Round-Trip Requests).

        Args:
            asks: `Elicit(...)`, `Confirm(...)`, `ElicitUrl(...)`, `Sample(...)`, `ListRoots()`, in any mix.
            named: the same by key; either all asks have a name here, or none.

        Returns:
            The answers in the order of the asks, or by key.

        Raises:
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: a step called it, or a dependency after its `yield`.
            TypeError: something is not an ask, or only some of the asks have a name.
        """
        return self._awaited("an ask", partial(self._several, asks, named))

    def _awaited(self, what: str, work: Callable[[int], Ongoing[Any]]) -> Ongoing[Any]:
        if not self._can_await:
            raise self._round.refuse_plain(what)
        return self._round.awaited(work)

    def _one(self, make: Callable[[], Ask[T]]) -> Ongoing[T]:
        if not self._can_await:
            raise self._round.refuse_plain("an ask")
        return self._round.awaited(partial(self._round.ask_one, make))

    async def _several(self, asks: tuple[Ask[Any], ...], named: dict[str, Ask[Any]], number: int) -> Any:
        self._round.begin(number, "an ask")
        for ask in (*asks, *named.values()):
            if not isinstance(ask, Ask):
                raise TypeError(f"ctx.ask(...) takes asks: Elicit(...), Confirm(...) or the like, and not {ask!r:.80}")
        if not named:
            return tuple(await self._round.ask(lambda: [(None, ask) for ask in asks]))
        if asks:
            raise TypeError("ctx.ask(...) takes asks in order or by name, not both")
        return dict(zip(named, await self._round.ask(lambda: list(named.items())), strict=True))

    # Waits for somebody else

    def wait_for(
        self,
        wait: Wait[A, T],
        about: A,
        *,
        answer_within: float | None = None,
        who: Who | None = None,
        remind_every: float | None = None,
        key: str | None = None,
    ) -> Ongoing[T]:
        """Wait for somebody else's answer. Nothing is held meanwhile but a row of the store.

        The call becomes a task here, so its tool needs `task="optional"` or `"required"`. The client of the call is
        told that it waits, and can't answer. If `about` is another one when the function runs again, the wait is
        withdrawn and a new one begins.

        Args:
            wait: what `app.wait` made.
            about: what is to be decided, of the type that the wait says; whoever may answer sees it.
            answer_within: how long there is time for an answer, in seconds; after that the task fails. Default: as for
                the questions of the tool. The task is kept for at least an hour longer.
            who: narrows who may answer: scopes that they need besides, or one `Person`.
            remind_every: how often those who may answer are notified again, who subscribe to the event
                `wait.requested`, in seconds; at least a minute. Default: once.
            key: names the wait within the flow, in up to 64 bytes; by default the name of the wait, so that a second
                one in a flow needs a key.

        Returns:
            The answer, of the type that the wait says. It is recorded before this returns.

        Raises:
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: a step called it, or a dependency after its `yield`.
        """

        def make() -> Ask[T]:
            asker = self._round.call.principal
            return WaitFor(wait, about, asker, answer_within=answer_within, who=who, key=key, remind_every=remind_every)

        return self._awaited("ctx.wait_for()", partial(self._round.wait_for, make))

    def answer(self, ticket: Ticket[Any, T], value: T) -> Ongoing[None]:
        """Answer what the flow of somebody else waits for, as a step. The first answer counts.

        Args:
            ticket: names the wait.
            value: the answer, of the type that the wait says.

        Returns:
            Nothing, when the answer is recorded.

        Raises:
            AlreadyAnswered: somebody was faster.
            Withdrawn: the flow does not wait any more.
            ToolError: the caller may not answer this, or it is no ticket. The messages of all three are for the model.
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: the value is of another type, or the wait needs a confirmation and this flow had none.
        """
        return self._round.step(self._answering().answer_wait, (str(ticket), value), {}, None, False)

    def pass_on(self, ticket: Ticket[Any, Any], to: Person) -> Ongoing[None]:
        """Hand a wait over to another person, who alone may answer from then on; once. It is a step.

        The scopes that the wait asks for still count, and whoever began the flow still can't answer.

        Args:
            ticket: names the wait.
            to: the other person.

        Returns:
            Nothing, when that is recorded.

        Raises:
            AlreadyAnswered: it was answered.
            Withdrawn: the flow does not wait any more.
            ToolError: the caller may not answer this, it was handed over before, or it is no ticket.
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: `to` is no `Person`.
        """
        return self._round.step(self._answering().pass_on_wait, (str(ticket), to), {}, None, False)

    async def tickets(self, wait: Wait[A, T], *, cursor: str = "", most: int = 50) -> Tickets[A, T]:
        """Return the open waits that the caller may answer, the newest first, page by page.

        Args:
            wait: what `app.wait` made.
            cursor: where the page begins, as the page before said; empty for the first.
            most: how many tickets a page has at most.

        Returns:
            The page.

        Raises:
            InvalidParams: the cursor is of another list, or of nobody.
            StoreUnavailable: they can't be read now.
        """
        return await self._desk.page(wait, self._round.call.caller, cursor, most)

    async def _open_ticket(self, wait: Wait[A, T], ticket: str) -> Ticket[A, T]:
        opening = self._round.step(self._answering().open_ticket, (ticket, wait.name), {}, None, False)
        about, until = await opening
        return Ticket.of(ticket, load_about(wait, about), until)

    def _answering(self) -> Answering:
        if not self._can_await:
            raise self._round.refuse_plain("a step")
        round_ = self._round
        return Answering(self._desk, round_.call.caller, round_.journal.flow, is_confirmed=round_.is_confirmed)

    @property
    def _desk(self) -> Desk:
        assert self._round.desk is not None  # noqa: S101  a server has one
        return self._round.desk

    # Events

    def emit(
        self, event: EventType[Any, T], payload: T, *, to: Principal | None = None, key: str | None = None
    ) -> Ongoing[None]:
        """Notify subscribers that something has happened, as a step: once in the flow.

        Args:
            event: what `app.event` made.
            payload: what happened, of the type that the event says.
            to: the one person who may hear of it. Default: all who may subscribe.
            key: names the step; see `step`.

        Returns:
            Nothing, when the event is stored.

        Raises:
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: the payload is of another type, or too large to be delivered.
        """
        if not self._can_await:
            raise self._round.refuse_plain("a step")
        round_ = self._round
        assert round_.emitter is not None  # noqa: S101  a server has one
        emitting = Emitting(round_.emitter, event, round_.journal.flow)
        return round_.step(emitting.emit, (event.name, payload, to), {}, key, False)

    # Steps

    @overload
    def step(
        self, function: Callable[..., Ongoing[T]], /, *args: Any, key: str, rerun: bool = False, **kwargs: Any
    ) -> Ongoing[T]: ...
    @overload
    def step(self, function: Callable[..., Ongoing[T]], /, *args: Any, rerun: bool, **kwargs: Any) -> Ongoing[T]: ...
    @overload
    def step(
        self, function: Callable[..., T], /, *args: Any, key: str, rerun: bool = False, **kwargs: Any
    ) -> Ongoing[T]: ...
    @overload
    def step(self, function: Callable[..., T], /, *args: Any, rerun: bool, **kwargs: Any) -> Ongoing[T]: ...
    @overload
    def step(self, function: Callable[P, Ongoing[T]], /, *args: P.args, **kwargs: P.kwargs) -> Ongoing[T]: ...
    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Ongoing[T]: ...
    def step(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Ongoing[Any]:
        """Run a function once in the flow, however many rounds it takes. Everything with an effect belongs in one.

        A step that failed is not recorded, and its exception is the handler's. A state that is sent twice runs what
        comes after it twice, unless the tool is `single_use`. A function with a parameter of type `IdempotencyKey` is
        handed the step's key.

        A step that can't be told apart from another one, that was given other arguments when it ran, or whose result is
        not of its declared type, ends the flow with an error that the log explains. One whose declared type could not
        be read again is not run.

        Args:
            function: sync (it runs in a thread) or async; it must not ask or run steps itself.
            *args: its arguments. They must be the same in every round, or the flow ends with an error.
            **kwargs: likewise, by name.
            key: names the step; the function's name by default, then with `_2`, `_3`. A lambda needs one.
            rerun: run the function again when its arguments have changed, since that does no harm.

        Returns:
            What it returned, after a way through its record by its declared type: the same in the round in which it
            ran and in all later ones. Without a declared type, it is plain JSON.

        Raises:
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: a step called it, or a dependency after its `yield`.
            TypeError: it is not a function.
            Exception: whatever the function raised.
        """
        if not self._can_await:
            raise self._round.refuse_plain("a step")
        key, rerun = kwargs.pop("key", None), kwargs.pop("rerun", False)
        return self._round.step(function, args, kwargs, key, rerun)

    def checkpoint(self) -> Ongoing[None]:
        """Offer to continue elsewhere: a server that is about to end, or has too much to do, ends the round here.

        The client then sends the request again at once, and another replica continues with all that was answered and
        all steps that have run. Every step offers the same before it begins. Otherwise nothing happens.

        Raises:
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: a step called it, or a dependency after its `yield`.
        """
        return self._awaited("a checkpoint", self._round.checkpoint)

    def background(self) -> Ongoing[None]:
        """Make the flow a task: what comes before is asked in rounds, what comes after runs in the background.

        The client gets the task in place of the result, and asks for it (Tasks, Task Creation). In a task, and for a
        client or a tool that has no tasks, nothing happens, and the function continues where it is.

        Raises:
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: a step called it, or a dependency after its `yield`.
        """
        return self._awaited("ctx.background()", self._round.continue_in_background)

    # Notes

    def progress(
        self, progress: float | None = None, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        """Send the client how far the call has come, if it wants to know. In a plain `def`, don't await it.

        It never waits for the client: where that reads slowly, newer progress takes the place of older (Progress).

        Args:
            progress: grows with each note; in a unit of your own. One that has not grown is not sent, and logged once.
                Without it, the message is the status of a task (Tasks, Task Status). In the foreground it goes nowhere,
                since clients order notes by their numbers.
            total: what `progress` will be at the end, if that is known.
            message: what is being done, in words for the person, and nothing secret; in a task, its status.

        Returns:
            Something that an `async def` may await; it is done at once.
        """
        if self._round.task is not None and message:
            self._round.task.say(message)
        token = self._round.call.progress_token
        if token is None or progress is None or not self._round.advance(progress):
            return NOTHING
        known = total if total is not None and isfinite(total) else None
        return self._outlet.send(Progress(token, progress, known, message))

    def close_stream(self, retry: float = 1.0) -> Awaitable[None]:
        """Close the client's stream while the function works on (Transports, Sending Messages).

        It is for work that takes longer than a proxy leaves a response open. Clients whose version tells them so come
        back for the result, to any replica. For all others nothing happens. In a plain `def`, don't await it.

        Args:
            retry: when the client is to come back, in seconds.

        Returns:
            Something that an `async def` may await.
        """
        return self._outlet.send(ComeBack(retry))

    def log(self, data: Any, *, level: LogLevel = "info", logger: str | None = None) -> Awaitable[None]:
        """Send a message to the client's log, if it wants messages of that level. In a plain `def`, don't await it.

        It never waits for the client: where that reads too slowly, messages are dropped (Logging).

        Args:
            data: text or plain JSON; nothing secret.
            level: how severe it is.
            logger: names the part of the server that speaks.

        Returns:
            Something that an `async def` may await; it is done at once.

        Raises:
            ValueError: there is no such level. It is raised only where the client wants messages.
        """
        least = self._round.call.log_level
        if least is None or LOG_LEVELS.index(level) < LOG_LEVELS.index(least):
            return NOTHING
        return self._outlet.send(LogMessage(level, data, logger))

    # Who and what

    def upstream_token(self, *scopes: str) -> Ongoing[str]:
        """Return the person's own access token at the provider where they logged in (`MRTRServer(auth=Login(...))`).

        It is refreshed where it ends soon. Where the person has not allowed a scope, the client is told to ask for it,
        and the call comes again (Authorization, Step-Up Authorization Flow). Keep it nowhere: ask for it within the
        step that uses it, so that no step takes or returns it, and show it in no answer, log or error.

        Without a database, a task has the token that the client's latest request brought. Once that has ended, the task
        asks the person to go on, and the answer brings a token; a step can't ask, so call this before it, too.

        Args:
            scopes: what the token must be good for, as the provider calls it.

        Returns:
            The token.

        Raises:
            CallEnded: a plain `def` called it, which can't wait.
            FlowError: nobody logs in at this server.
            InsufficientScope: the person has not allowed a scope. Let it through.
            ToolError: the provider can't be reached; or a task can't have the token: a scope is missing, or its step
                would have to ask.
        """
        if not self._can_await:
            raise self._round.refuse_plain("ctx.upstream_token()")
        return self._upstream_token(scopes)

    async def _upstream_token(self, scopes: Sequence[str]) -> str:
        round_ = self._round
        if round_.upstream is None:
            raise FlowError("ctx.upstream_token() needs a server where people log in: MRTRServer(auth=Login(...))")
        task, asked = "" if round_.task is None else round_.journal.flow, 0
        while (token := await round_.upstream.token(round_.call, scopes, task=task, asked=asked)) is None:
            if current_step.get():
                raise ToolError("This step can't have the person's account now. Start this once more.")
            asked += 1  # the answers of earlier rounds are there already, and what they brought has ended
            await self.confirm(round_.upstream.question, key=f"upstream_token_{asked}")
        return token

    def uri_for(self, uri: str, /, **variables: Any) -> str:
        """Return where clients find a resource of the application, or object, that this handler belongs to.

        Another application may have included it under a prefix, or may do so some day.

        Args:
            uri: the URI or template, as it was registered: `"sales://{year}"`.
            variables: the values of the template, which are percent-encoded.

        Returns:
            The URI, as a client may read it: `sales://reports/2026` with `prefix="reports"`.

        Raises:
            ValueError: a variable of the template has no value, or a value has no variable.
        """
        return self._round.addresses.uri(UriTemplate(uri).expand(variables))

    @property
    def client(self) -> ClientInfo:
        """The client as it describes itself; `ctx.client.supports("sampling")` lets a tool choose another way first."""
        return self._round.call.client

    @property
    def principal(self) -> Principal | None:
        """On whose behalf the call is made; None without authentication."""
        return self._round.call.principal

    @property
    def user(self) -> Any:
        """What the authentication layer made of the credentials (Starlette's `request.user`); None without one.

        In a task, what is kept of it: `identity`, `display_name`, `is_authenticated`, and `issuer` and `client_id` if
        it had them. An identity that is neither text nor an integer is text there.
        """
        return self._round.call.user

    @property
    def scopes(self) -> frozenset[str]:
        """What the credentials are good for (Starlette's `request.auth.scopes`); empty without authentication.

        In rounds those of the round's own request, in a task those of the request that created it.
        """
        return self._round.call.scopes

    @property
    def opened(self) -> Any:
        """What `MRTRServer(lifespan=...)` has yielded: that of the application which registered the handler.

        `Annotated[Resources, Depends(lifespan)]`, with the function itself, fills a parameter with the same.
        """
        return self._round.lifespan()

    @property
    def request(self) -> "Request | None":
        """The HTTP request of this round, as Starlette's `Request`; None over stdio, and in a task.

        Its body has been read: use its `headers`, `url`, `client`, `cookies`, `path_params`, `state` and `app`. Each
        round of a flow may come in a request of its own, to another replica, and a client of the handshake era answers
        in another request than the one that is open. So what a flow is to keep does not belong into it.
        """
        scope = getattr(self._outlet, "scope", None)
        return None if scope is None else request_of(scope)

    @property
    def headers(self) -> Mapping[str, str]:
        """The request's HTTP headers, by lower-case name, without the caller's token.

        The token is for this server, and must not be passed on (Authorization, Access Token Privilege Restriction).
        `user` says whose it is. A tool that has to look at it itself finds it in the headers of `request`.
        """
        return {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in self._round.call.headers.items()
            if name not in _CREDENTIALS
        }

    @property
    def meta(self) -> Mapping[str, Any]:
        """The request's `_meta`, as sent."""
        meta = self._round.call.params.get("_meta")
        return meta if isinstance(meta, dict) else {}

    @property
    def flow(self) -> str:
        """The flow's id: the same in all its rounds, and no other flow's."""
        return self._round.journal.flow

    @property
    def round(self) -> int:
        """Which round of the flow this is, from 1."""
        return self._round.journal.rounds + 1

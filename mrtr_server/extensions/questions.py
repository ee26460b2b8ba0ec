"""Questions of tools for hosts that draw apps and can't elicit: each is asked in one page of ours (MCP Apps).

A call that asks ends with a result that says so, and that the page draws. The page answers through a tool that models
are not shown, and that answer is the retry of the call: sealed, bound and redeemed as any other. A tool for the model
tells it what became of the call; it does so as well for a call that waits for somebody else, of a client without tasks.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic_core import to_json

from ..errors import InvalidParams, InvalidRequestState, RequestError, SetupError, StoreUnavailable, UnknownTarget
from ..limits import LONGEST_KEY, check_length
from ..methods.middleware import Method
from ..protocol.apps import FOR_PAGES, FOR_PAGES_ALONE, MIME_TYPE, UI, draws_pages, page_of
from ..protocol.callers import ClientInfo
from ..protocol.messages import (
    JSON,
    TASKS,
    Call,
    Complete,
    HandedOver,
    NeedsInput,
    Outcome,
    Outlet,
    Task,
    TaskCreated,
)
from ..protocol.sessions import NO_SESSION
from ..registration.handlers import asks, asks_with
from ..registration.inclusion import Listing
from ..registration.pages import end_of_script, script, with_script
from ..registration.registry import Registry
from ..schema.results import failed, said
from ..tasks.task_service import Tasks
from .kept_asks import AskedBy, KeptAsk, KeptAsks
from .once import ONCE

PAGE = "ui://mrtr/question.html"
"""Its address never changes: some hosts take a snapshot of tools and pages, and would not find another one."""

ANSWER, RESULT = "mrtr_answer", "mrtr_result"
OWN = (ANSWER, RESULT)
"""The names of our tools."""

ASK = "mrtr-server/ask"
"""Where `_meta` of a result has the question, for the page."""

_ELICITS: JSON = {"page": {"form": {}, "url": {}}, "model": {"form": {}}}

_DRAWING = ClientInfo(capabilities={"extensions": {UI: {"mimeTypes": [MIME_TYPE]}}})
"""A client that draws apps and can't elicit, and of which nothing else is known."""

_NOTED_METHODS = frozenset({"tools/call", "tools/list", "resources/list"})

_NOT_YOURS = "There is no such question of yours."
_WAITING = (
    "The person has not answered yet. Do not answer for them, and do not call the tool again. Say that you wait, and "
    "end your turn."
)
_EXPIRED = "The question was not answered in time, so nothing has been done. The tool can be called again."
_OVER = "This question was answered already, or can't be answered any more."
_FOR_THE_PAGE = "This tool is for the page of the question alone. The person has to answer there."

_DESCRIPTIONS = {
    ANSWER: "For the page of a question alone: it sends what the person has answered.",
    RESULT: "Say what became of a call that asks the person in an app, or waits for somebody else. It asks nobody.",
}
_TO_SEND = "Send what the person has answered, in the chat, to what a tool needs to know. Never make up an answer."


class QuestionPage:
    """Asks in a page, or by a model, what a client can't be asked itself.

    `mode`: True for clients that draw apps and do not elicit; `"always"` also for those of which nothing is known;
    False for none.
    `count`: counts a request for its caller's rate.
    `tasks`: those of calls that wait for somebody else.
    """

    def __init__(
        self,
        registry: Registry,
        kept: KeptAsks,
        mode: Literal["always"] | bool,
        count: Callable[[Call], Awaitable[None]],
        tasks: Tasks,
    ) -> None:
        self._registry = registry
        self._tasks = tasks
        self._kept = kept
        self._mode = mode
        self._count = count

    # Who is asked so, and by which tools

    def way_of(self, client: ClientInfo) -> AskedBy | None:
        """Return who asks the person in the place of a client; None where the client does, or nobody can."""
        if client is NO_SESSION.client:
            return "page" if self._mode == "always" else None
        if client.capabilities is None or client.supports("elicitation.form"):
            return None
        settings = client.extension(UI)
        if settings is None:
            return "model" if self._registry.asks_through_model else None
        return "page" if self._mode and draws_pages(settings) else None

    @property
    def is_on(self) -> bool:
        """Whether anybody is asked so, or waits for somebody else."""
        return self.has_page or self._registry.asks_through_model or bool(self._registry.waits)

    @property
    def has_page(self) -> bool:
        """Whether anybody is asked in the page."""
        return bool(self._mode and self._registry.tools_ask)

    def _asks(self, way: AskedBy | None, tool: str) -> bool:
        """Return whether a tool may ask, as far as its code shows it, in a way that is not the client's own."""
        found = None if way is None else self._registry.find("tools", tool)
        if found is None or (found.handler.task is not None and found.handler.task.required):
            return False
        if way == "model":
            return asks_with(found.handler, "through_model") and not found.handler.single_use
        return asks(found.handler) if found.asks_in_page is None else found.asks_in_page

    # Lists

    def listed(self, entry: JSON, client: ClientInfo) -> JSON:
        """Return the entry of a tool: one that may ask names the page, and no schema, which no question fits."""
        # Nor does what is said of a call that waits for somebody else, where its client takes no tasks.
        way = self.way_of(client)
        if not self._asks(way, entry["name"]):
            waits = client.extension(TASKS) is None and self._may_wait(entry["name"])
            return {name: value for name, value in entry.items() if name != "outputSchema"} if waits else entry
        meta = dict(entry.get("_meta", {}))
        if way == "page" and page_of(entry) is None:
            meta |= {"ui": {"resourceUri": PAGE, "visibility": ["model"]}, "ui/resourceUri": PAGE}
            meta["openai/outputTemplate"] = PAGE
        again = {**entry, "_meta": meta} if meta else entry
        return {name: value for name, value in again.items() if name != "outputSchema"}

    def added(self, listing: Listing, client: ClientInfo) -> list[JSON]:
        """Return the entries that a list has besides."""
        way = self.way_of(client)
        if way is not None and listing == "tools":
            return [_answering_tool(way, self._registry.asks_through_model), _telling_tool()]
        if listing == "tools" and self._registry.waits and client.extension(TASKS) is None:
            return [_telling_tool()]
        return [_entry_of_page()] if way == "page" and listing == "resources" else []

    # Calls

    def around(self, serve: Method) -> Method:
        """Return what serves calls of tools, and the page, in the place of `serve`."""

        def waiting(call: Call, outlet: Outlet) -> Awaitable[Outcome]:
            may_wait = call.method == "tools/call" and call.task is None and self._may_wait(call.target)
            return self._serve_waiting(call, outlet, serve) if may_wait else serve(call, outlet)

        return self._around(waiting)

    def _around(self, serve: Method) -> Method:
        def served(call: Call, outlet: Outlet) -> Awaitable[Outcome]:
            if call.principal is not None and self._mode:
                if call.client is NO_SESSION.client and call.method in _NOTED_METHODS:
                    return self._serve_as_noted(call, outlet, known)
                if call.method == "initialize" and self.way_of(call.client) == "page":
                    return self._note(call, outlet, serve)
            return known(call, outlet)

        def known(call: Call, outlet: Outlet) -> Awaitable[Outcome]:
            if call.method == "tools/call":
                if call.target in OWN and self._registry.find("tools", call.target) is None:
                    return self._serve_own(call, outlet, serve)
                way = self.way_of(call.client) if call.state is None else None
                if way is not None and self._asks(way, call.target):
                    return self._ask(_able(call, way), outlet, serve)
            elif call.method == "resources/read" and call.target.startswith("ui:") and self.has_page:
                return self._page(call) if call.target == PAGE else self._with_asking(serve(call, outlet))
            return serve(call, outlet)

        return served

    async def _note(self, call: Call, outlet: Outlet, serve: Method) -> Outcome:
        await self._kept.note_drawing(call)
        return await serve(call, outlet)

    async def _serve_as_noted(self, call: Call, outlet: Outlet, serve: Method) -> Outcome:
        """Serve a call of which nothing is known as one of what its principal's client said when it began."""
        if await self._kept.has_drawn(call):
            call = replace(call, client=_DRAWING)
        return await serve(call, outlet)

    async def _page(self, call: Call) -> Outcome:
        await self._count(call)
        content = {"uri": PAGE, "mimeType": MIME_TYPE, "text": self._html, "_meta": _META_OF_PAGE}
        return Complete({"contents": [content]}, 0.0, "private")

    async def _with_asking(self, served: Awaitable[Outcome]) -> Outcome:
        """Return what a page is read as, with a script that draws what its tools ask."""
        outcome = await served
        if not isinstance(outcome, Complete):
            return outcome
        contents = [self._asking(content) for content in outcome.body["contents"]]
        return replace(outcome, body={**outcome.body, "contents": contents})

    def _asking(self, content: JSON) -> JSON:
        text, ours = content.get("text"), f"{end_of_script()}</script>"
        if not isinstance(text, str) or ours not in text:  # a page that has not our script draws nothing by it
            return content
        return {**content, "text": text.replace(ours, f"{ours}<script>{self._asking_script}</script>", 1)}

    @cached_property
    def _html(self) -> str:
        """The page, with its key."""
        return with_script(page().replace('"__PAGE_KEY__"', to_json(self._kept.page_key).decode()), "")

    @cached_property
    def _asking_script(self) -> str:
        """The script by which a page that has a drawing of its own draws what its tools ask, with the page of that."""
        embedded = to_json(self._html).decode().replace("</", "<\\/")  # or it would end the script
        return script(Path(__file__).with_name("asked.js")).replace('"__QUESTION__"', embedded)

    async def _ask(self, call: Call, outlet: Outlet, serve: Method) -> Outcome:
        """Serve a new call, and ask in the page what it asks."""
        open_ = await self._kept.find_open(call)
        if open_ is not None:  # the model repeats the call; a second flow would have a second effect
            return Complete(self._asked(call, open_))
        outcome = await _run(serve, call, outlet)
        if not isinstance(outcome, NeedsInput):
            return outcome
        ask = self._kept.begin(call, outcome)
        await self._kept.keep(call, ask)
        await self._kept.note_open(call, ask)
        return Complete(self._asked(call, ask))

    def _asked(self, call: Call, ask: KeptAsk) -> JSON:
        """Return the result of a call that asks: for the model in words, for the page in `_meta`."""
        messages = "; ".join(each["message"] for each in ask.questions)
        otherwise = "Tell them that nothing was done, and that this needs another client."
        if self._may_be_answered_by_model(ask):
            forms = {each["key"]: each["schema"] for each in ask.questions}
            otherwise = (
                f"Ask the person in the chat, and make up no answer. Then call {ANSWER} with ask={ask.id} and answers: "
                'an object with the fields of each form under its key, or "decline" in place of them. The forms are: '
                + to_json(forms).decode()
            )
        if ask.by == "model":
            return said(
                f"mrtr-ask: {ask.id}\n"
                f"This needs an answer of the person: {messages}\n"
                f"Nothing has been done yet. {otherwise}"
            )
        text = (
            f"mrtr-ask: {ask.id}\n"
            f"The person is being asked, in the app below this call: {messages}\n"
            "Nothing has been decided yet. Do not answer for them, and do not repeat this call. End your turn: a "
            f"message follows when they have answered. If they say that they have, call {RESULT} with ask={ask.id}. "
            f"If they say that they see no such app, or that it can't send their answer: {otherwise}"
        )
        return {**said(text), "_meta": {ASK: self._shown(call, ask)}}

    def _shown(self, call: Call, ask: KeptAsk) -> JSON:
        token = self._kept.token(call, ask)
        shown = {"id": ask.id, "tool": ask.tool, "questions": ask.questions, "token": token}
        return {name: value for name, value in shown.items() if value is not None}

    def _may_be_answered_by_model(self, ask: KeptAsk) -> bool:
        tool = self._registry.find("tools", ask.tool)
        return ask.is_open_to_models and tool is not None and not tool.handler.single_use

    # Calls that wait for somebody else, of clients without tasks

    def _may_wait(self, tool: str) -> bool:
        found = self._registry.find("tools", tool) if self._registry.waits else None
        return found is not None and found.handler.task is not None

    async def _serve_waiting(self, call: Call, outlet: Outlet, serve: Method) -> Outcome:
        """Serve a call; where it waits for somebody else, say so, and the same for the same call until that ends."""
        if call.state is not None:
            return await self._begin_to_wait(call, outlet, serve)
        async with self._kept.in_turn(call):
            if (id := await self._kept.find_wait(call)) is not None:
                with suppress(UnknownTarget):  # it has expired
                    task = await self._tasks.see(replace(call, target=id))
                    if task.outcome is None and task.status != "cancelled":
                        await self._kept.note_wait(call, task)
                        return Complete(_waits(task))
            return await self._begin_to_wait(call, outlet, serve)

    async def _begin_to_wait(self, call: Call, outlet: Outlet, serve: Method) -> Outcome:
        outcome = await serve(call, outlet)
        if not isinstance(outcome, TaskCreated):
            return outcome
        await self._kept.note_wait(call, outcome.task)
        return Complete(_waits(outcome.task))

    async def _tell_of_task(self, call: Call) -> JSON:
        """Return how a call stands that waits for somebody else, or what came of it."""
        try:
            task = await self._tasks.see(replace(call, target=str(call.arguments.get("ask"))))
        except UnknownTarget:
            return failed(_NOT_YOURS)
        if isinstance(task.outcome, Complete):
            return task.outcome.body
        if task.outcome is not None:
            return failed(task.outcome.message)
        return failed("It was cancelled.") if task.status == "cancelled" else _waits(task)

    # Our own tools

    async def _serve_own(self, call: Call, outlet: Outlet, serve: Method) -> Outcome:
        await self._count(call)
        if call.target == RESULT:
            return Complete(await self._tell(call))
        if self._kept.is_of_page(call.arguments.get("page")):
            return Complete(await self._take(call, outlet, serve))
        return Complete(await self._take_from_model(call, outlet, serve))

    async def _tell(self, call: Call) -> JSON:
        """Return what became of a call, for the model."""
        try:
            ask = await self._kept.find(call, call.arguments.get("ask"))
            if ask is None:
                return await self._tell_of_task(call)
        except StoreUnavailable:  # of which the log has a line
            return failed("That can't be looked up now; ask again later.")
        if ask.outcome is not None:
            return ask.outcome
        return said(_EXPIRED if self._kept.has_expired(ask) else _WAITING)

    async def _take(self, call: Call, outlet: Outlet, serve: Method) -> JSON:
        """Accept answers of the page, and run the next round of their call; without answers, say where the call is."""
        id, token, answers = (call.arguments.get(name) for name in ("ask", "token", "answers"))
        ask, kept = self._kept.unseal(call, token), None
        if token is not None and (ask is None or ask.id != id):  # a host may drop it, and nobody may change it
            return _for_page({"said": _NOT_YOURS})
        with suppress(StoreUnavailable):  # the token has what is needed
            kept = await self._kept.find(call, id)
        if answers is None:
            return self._where(call, kept or ask)
        ask = ask or kept
        if ask is None:
            return _for_page({"said": _NOT_YOURS})
        try:
            now = await self._continue(call, ask, kept, _read(answers), outlet, serve)
        except RequestError as error:
            text = _OVER if isinstance(error, InvalidRequestState) else error.message
            return {**failed(text), "structuredContent": {"said": text}}
        return self._where(call, now)

    async def _take_from_model(self, call: Call, outlet: Outlet, serve: Method) -> JSON:
        """Accept answers that a model was told to get, and run the next round of their call."""
        try:
            ask = await self._kept.find(call, call.arguments.get("ask"))
        except StoreUnavailable:  # of which the log has a line
            return failed("The answer can't be taken now; send it again later.")
        if ask is not None and ask.outcome is not None:
            return ask.outcome
        if ask is None or not self._may_be_answered_by_model(ask):
            return failed(_FOR_THE_PAGE if self._mode else _NOT_YOURS)
        given = call.arguments.get("answers")
        if not isinstance(given, dict):
            return failed("answers= takes an object with the fields of each form under its key.")
        answers = {key: _answer(each) for key, each in given.items()}
        try:
            now = await self._continue(call, ask, ask, answers, outlet, serve)
        except InvalidRequestState:
            return failed(_OVER)
        return self._asked(call, now) if now.outcome is None else now.outcome

    async def _continue(
        self, call: Call, ask: KeptAsk, kept: KeptAsk | None, answers: dict[str, JSON], outlet: Outlet, serve: Method
    ) -> KeptAsk:
        """Run the next round of a call, from where its page has it. Return where the call is. Raises `RequestError`.

        `kept`: where it is by what the store has; None if that has nothing.
        """
        again = replace(
            _able(call, ask.by),
            target=ask.tool,
            params={"name": ask.tool, "arguments": ask.arguments},
            arguments=ask.arguments,
            state=ask.state,
            answers=answers,
            trace=call.trace.again(),
        )
        outcome = await _run(serve, again, outlet)
        if isinstance(outcome, NeedsInput):
            if kept is not None and kept.state != ask.state:  # a round of before was repeated, and its outcome is known
                return kept
            now = ask.asking(outcome)
        else:
            assert isinstance(outcome, Complete)  # noqa: S101  nothing else comes of a call without tasks
            now = replace(ask, state="", questions=[], outcome=outcome.body)
        await self._kept.keep(call, now)
        return now

    def _where(self, call: Call, ask: KeptAsk | None) -> JSON:
        if ask is None:
            return _for_page({"said": _NOT_YOURS})
        if ask.outcome is not None:
            return _for_page({"outcome": ask.outcome})
        if self._kept.has_expired(ask):
            return _for_page({"said": _EXPIRED})
        return _for_page({"ask": self._shown(call, ask)})


def check_name(name: str) -> None:
    """Check that a tool of an author has none of our names. Raises `SetupError`."""
    if name in (*OWN, ONCE):
        raise SetupError(f"{name!r} is the name of a tool of this package, for apps; choose another")


def _read(answers: Any) -> dict[str, JSON]:
    """Return the answers of a page, as a client sends them. Raises `InvalidParams`."""
    if not isinstance(answers, dict) or not all(isinstance(each, dict) for each in answers.values()):
        raise InvalidParams("answers must be an object of objects")
    for key in answers:
        check_length(key, LONGEST_KEY, "answers")
    return answers


def _answer(given: Any) -> JSON:
    """Return an answer of a model as a client sends it."""
    if isinstance(given, dict):
        return {"action": "accept", "content": given}
    return {"action": "decline"}


def _able(call: Call, way: AskedBy) -> Call:
    """Return a call whose client can be asked, in rounds, and whose states are redeemed once."""
    client = call.client
    able = ClientInfo(client.info, {**(client.capabilities or {}), "elicitation": _ELICITS[way]})
    # It never leaves this request for another replica, since the host would have to carry it there.
    return replace(call, client=able, can_retry=False, stays_open=False, must_mirror=False, task=None, asked_by=way)


async def _run(serve: Method, call: Call, outlet: Outlet) -> Outcome:
    """Serve a call until it asks or is done: a state without a question is for us, and not for the page."""
    while True:
        outcome = await serve(call, outlet)
        if not isinstance(outcome, HandedOver):
            return outcome
        call = replace(call, state=outcome.state, answers=None, trace=call.trace.again())


def _waits(task: Task) -> JSON:
    """Return what a model is told of a call that goes on without it."""
    if task.questions:
        messages = "; ".join(str(each.params.get("message", "")) for each in task.questions.values())
        return said(f"The person is asked, and this client can't show it: {messages} Another client with tasks can.")
    return said(
        f"mrtr-ask: {task.id}\n"
        f"{task.message or 'The call goes on'}. It is not done yet: it goes on by itself when somebody else has "
        "answered, maybe in days. Do not repeat this call. Tell the person, and end your turn. To learn later what "
        f"came of it, call {RESULT} with ask={task.id}."
    )


def _for_page(structured: JSON) -> JSON:
    """Return a result for the page; its text is for people who read along."""
    text = structured.get("said") or ("The call has ended." if "outcome" in structured else "The person is asked.")
    return {**said(text), "structuredContent": structured}


_META_OF_PAGE: JSON = {
    "ui": {
        "csp": {"connectDomains": [], "resourceDomains": [], "frameDomains": [], "baseUriDomains": []},
        "prefersBorder": True,
    }
}


@cache
def page() -> str:
    """Return the page, with a place for its key."""
    return script(Path(__file__).with_name("question.html"))


def _entry_of_page() -> JSON:
    return {"uri": PAGE, "name": "mrtr_question", "mimeType": MIME_TYPE, "_meta": _META_OF_PAGE}


def _tool(name: str, properties: JSON, required: list[str], meta: JSON, **more: Any) -> JSON:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    tool = {"name": name, "description": _DESCRIPTIONS[name], "inputSchema": schema, "_meta": meta, **more}
    return {member: value for member, value in tool.items() if value}


def _answering_tool(way: AskedBy, is_for_models: bool) -> JSON:
    answers: JSON = {"answers": {"type": "object"}}
    if way == "model":
        return _tool(ANSWER, {"ask": {"type": "string"}, **answers}, ["ask", "answers"], {}, description=_TO_SEND)
    texts: JSON = {name: {"type": "string"} for name in ("ask", "token", "page")}
    if is_for_models:
        meta = {"ui": {"visibility": ["model", "app"]}, **FOR_PAGES}
        return _tool(ANSWER, {**texts, **answers}, ["ask"], meta, description=_TO_SEND)
    return _tool(ANSWER, {**texts, **answers}, ["page"], {"ui": {"visibility": ["app"]}, **FOR_PAGES_ALONE})


def _telling_tool() -> JSON:
    meta = {"ui": {"visibility": ["model", "app"]}}
    ask = {"type": "string", "description": "The id in the first line of the result of the call."}
    return _tool(RESULT, {"ask": ask}, ["ask"], meta, annotations={"readOnlyHint": True})

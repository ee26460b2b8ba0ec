"""Rules 2 and 3 of a flow: which answers count, with a state and without one."""

from itertools import count
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, field_validator

from mrtr_server import (
    Confirm,
    Context,
    Elicit,
    Elicited,
    ElicitUrl,
    InputRequired,
    Inputs,
    ListRoots,
    MRTRServer,
    Refusal,
    Root,
    Roots,
    Sample,
    Sampled,
    State,
)
from mrtr_server.testing import Answer, AsyncClient, accept, cancel, decline, roots, sampled, yes

from ..support.effects import EFFECTS, effect
from ..support.models import Email, Login, Payer

pytestmark = pytest.mark.anyio


class Picky(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def look_up(cls, value: str) -> str:
        return {"ann": "Ann"}[value]


class TestRule2AnswersArePinnedToQuestions:
    """Rule 2. An answer counts for a key only while the question asked now has the digest of the one that was asked:
    of its kind, its message and its schema. An answer that does not fit is asked for again, with the reason before it.
    """

    async def test_an_answer_counts_while_the_question_is_the_same(self, app: MRTRServer) -> None:
        version = {"message": "first?"}

        @app.tool
        async def ask(ctx: Context) -> str:
            login = await ctx.elicit(version["message"], Login)
            await ctx.confirm("sure?")
            return login.name

        flow = AsyncClient(app).flow("ask")
        assert (await flow.start()).needs_input
        assert (await flow.answer(login=accept(name="ann"))).questions == {"confirm": "sure?"}
        version["message"] = "second?"
        assert (await flow.answer(confirm=yes)).questions == {"login": "second?"}
        # The confirmation was asked and answered while the first question stood; it still stands itself.
        assert (await flow.answer(login=accept(name="bob"))).text == "bob"

    async def test_a_changed_question_is_asked_again(self, app: MRTRServer) -> None:
        amount = iter([3, 300, 300])

        @app.tool
        async def pay(ctx: Context) -> str:
            await ctx.confirm(f"Pay {next(amount)}?")
            return effect("paid")

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).questions == {"confirm": "Pay 3?"}
        assert (await flow.answer(confirm=yes)).questions == {"confirm": "Pay 300?"}
        assert EFFECTS == []
        assert (await flow.answer(confirm=yes)).text == "paid"

    @pytest.mark.parametrize(
        ("first", "second", "answer"),
        [
            (Elicit("Who?", Login), ElicitUrl("Who?", "https://example.com"), accept(name="ann")),
            (Elicit("Who?", Login), Elicit("Who pays?", Login), accept(name="ann")),
            (Elicit("Who?", Login), Elicit("Who?", Payer), accept(name="ann")),
        ],
        ids=["kind", "message", "schema"],
    )
    async def test_by_their_kind_message_and_schema(
        self, app: MRTRServer, first: Elicit[Any], second: Elicit[Any] | ElicitUrl[Any], answer: Answer
    ) -> None:
        asks = iter([first, second, second])

        @app.tool
        async def ask(ctx: Context) -> str:
            await ctx.ask(it=next(asks))
            return effect("done")

        flow = AsyncClient(app).flow("ask")
        assert (await flow.start()).needs_input
        assert (await flow.answer(it=answer)).questions == {"it": second.message}
        assert EFFECTS == []
        assert (await flow.answer(it=answer)).text == "done"

    async def test_a_pure_function_can_pin_the_message_by_giving_the_ask(self, app: MRTRServer) -> None:
        amount = iter([3, 300, 300])

        @app.tool
        def pay(inputs: Inputs) -> str | InputRequired:
            sure = Confirm(f"Pay {next(amount)}?")
            return effect("paid") if inputs.get("sure", sure) else InputRequired(sure=sure)

        flow = AsyncClient(app).flow("pay")
        assert (await flow.start()).questions == {"sure": "Pay 3?"}
        assert (await flow.answer(sure=yes)).questions == {"sure": "Pay 300?"}
        assert (await flow.answer(sure=yes)).text == "paid"

    async def test_keys_that_were_not_asked_are_ignored(self, app: MRTRServer) -> None:
        @app.tool
        async def ask(ctx: Context) -> str:
            login = await ctx.elicit("who?", Login)
            email = await ctx.elicit("where?", Email)
            return f"{login.name} {email.address}"

        flow = AsyncClient(app).flow("ask")
        assert (await flow.start()).needs_input
        # The second question has not been asked yet: an answer to it, sent along, does not count.
        both = {"login": accept(name="ann"), "email": accept(address="planted")}
        assert (await flow.send(both)).questions == {"email": "where?"}
        assert (await flow.answer(email=accept(address="true"))).text == "ann true"

    async def test_an_answer_that_does_not_fit_is_asked_for_again_with_the_reason(self, app: MRTRServer) -> None:
        @app.tool
        async def ask(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            return login.name if login else InputRequired(login=Elicit("who?", Login))

        for target in ("ask", "pure"):
            flow = AsyncClient(app).flow(target)
            assert (await flow.start()).needs_input
            assert (await flow.answer(login=accept(nom="ann"))).questions == {"login": "name: Field required — who?"}
            # The answer is forgotten: who asks again without one is told nothing of it.
            assert (await flow.send()).questions == {"login": "who?"}
            # The reason is not part of the question: its answer counts.
            assert (await flow.answer(login=accept(name="ann", more="dropped"))).text == "ann"

    async def test_a_pure_function_may_ask_the_same_again(self, app: MRTRServer) -> None:
        @app.tool
        def guess(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            if login is None or login.name != "ann":
                return InputRequired(login=Elicit("who?", Login))
            return "found"

        flow = AsyncClient(app).flow("guess")
        assert (await flow.start()).needs_input
        assert (await flow.answer(login=accept(name="bob"))).questions == {"login": "who?"}
        assert (await flow.answer(login=accept(name="ann"))).text == "found"

    async def test_kept_answers_are_not_asked_for_again(self, app: MRTRServer) -> None:
        @app.tool
        def all_at_once(inputs: Inputs) -> str | InputRequired:
            login, email = inputs.get("login", Login), inputs.get("email", Email)
            if login is None or email is None:
                return InputRequired(login=Elicit("who?", Login), email=Elicit("where?", Email))
            return f"{login.name} {email.address}"

        flow = AsyncClient(app).flow("all_at_once")
        assert set((await flow.start()).questions) == {"login", "email"}
        assert (await flow.answer(login=accept(name="ann"))).questions == {"email": "where?"}
        assert (await flow.answer(email=accept(address="here"))).text == "ann here"


class TestRule3AnswersWithoutAState:
    """Rule 3. Answers that come without a state count for the questions of that run; not for confirmations and pages,
    and not for a `single_use` tool.
    """

    async def test_count_for_the_questions_asked_in_that_run(self, app: MRTRServer) -> None:
        @app.tool
        async def ask(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        assert (await AsyncClient(app).flow("ask").start(login=accept(name="ann"), other=Answer({}))).text == "ann"

    async def test_are_kept_for_later_rounds(self, app: MRTRServer) -> None:
        @app.tool
        def ask(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            if login is None:
                return InputRequired(login=Elicit("who?", Login))
            email = inputs.get("email", Email)
            if email is None:
                return InputRequired(email=Elicit("where?", Email))
            return f"{login.name} {email.address}"

        flow = AsyncClient(app).flow("ask")
        assert (await flow.start(login=accept(name="ann"))).questions == {"email": "where?"}
        assert (await flow.answer(email=accept(address="here"))).text == "ann here"

    async def test_never_count_for_confirmations_and_pages(self, app: MRTRServer) -> None:
        @app.tool
        async def confirm(ctx: Context) -> str:
            await ctx.confirm("sure?")
            return effect("done")

        @app.tool
        async def page(ctx: Context) -> str:
            await ctx.elicit_url("log in", "https://example.com/login")
            return effect("done")

        @app.tool
        def pure(inputs: Inputs) -> str | InputRequired:
            sure = Confirm("sure?")
            return effect("done") if inputs.get("confirm", sure) else InputRequired(confirm=sure)

        @app.tool
        def pure_page(inputs: Inputs) -> str | InputRequired:
            ask = ElicitUrl("log in", "https://example.com/login")
            return effect("done") if inputs.get("open_url", ask) else InputRequired(open_url=ask)

        for target in ("confirm", "page", "pure", "pure_page"):
            flow = AsyncClient(app).flow(target)
            assert (await flow.start(confirm=yes, open_url=accept())).questions
            assert EFFECTS == []
            assert (await flow.send({"confirm": yes, "open_url": accept()})).text == "done"
            EFFECTS.clear()

    async def test_never_count_for_a_single_use_tool(self, app: MRTRServer) -> None:
        @app.tool(single_use=True)
        async def ask(ctx: Context) -> str:
            return effect((await ctx.elicit("who?", Login)).name)

        flow = AsyncClient(app).flow("ask")
        assert (await flow.start(login=accept(name="mallory"))).questions == {"login": "who?"}
        assert (await flow.answer(login=accept(name="ann"))).text == "ann"
        assert EFFECTS == ["ann"]


class TestAnAnswerThatDoesNotFitTwiceTheSame:
    """A client that can't show what it is asked answers the same for ever: the call ends in words for the model."""

    @staticmethod
    def asking(app: MRTRServer, **options: Any) -> None:
        def pure(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login)
            return login.name if login else InputRequired(login=Elicit("who?", Login))

        async def inline(ctx: Context) -> str:
            return (await ctx.elicit("who?", Login)).name

        async def branching(ctx: Context) -> str:
            return str((await ctx.elicit("who?", Elicited[Login])).content)

        async def beside(ctx: Context) -> str:
            login, _ = await ctx.ask(Elicit("who?", Login), Elicit("where?", Email))
            return login.name

        def declared(login: Annotated[Login, Elicit("who?")]) -> str:
            return login.name

        for each in (pure, inline, branching, beside, declared):
            app.tool(**options)(each)
        app.prompt(inline)
        app.resource("notes://who")(inline)

    ENDS = (
        "This client can't show this form: its answer to 'login' does not fit (name: Field required), and it gave the "
        "same answer twice. Ask the user in the chat, and call again if an argument takes the answer. Otherwise tell "
        "the user that this needs another client."
    )

    @pytest.mark.parametrize("era", ["2026-07-28", "2025-11-25", "2025-06-18", "sep-draft"])
    @pytest.mark.parametrize("tool", ["pure", "inline", "branching", "beside", "declared"])
    async def test_ends_the_call_in_words_for_the_model(self, app: MRTRServer, tool: str, era: Any) -> None:
        self.asking(app)
        flow = AsyncClient(app, era=era).flow(tool)
        await flow.start()
        more = {"email": accept(address="here")} if tool == "beside" else {}
        asked = await flow.answer(login=accept(), **more)
        assert asked.questions == {"login": "name: Field required — who?"}
        ended = await flow.answer(login=accept())
        assert ended.failure == self.ENDS

    async def test_of_prompts_and_resources_in_their_error(self, app: MRTRServer) -> None:
        self.asking(app)
        for flow in (AsyncClient(app).prompt_flow("inline"), AsyncClient(app).resource_flow("notes://who")):
            await flow.start()
            await flow.answer(login=accept())
            error = (await flow.answer(login=accept())).error
            assert (error.code, error.message) == (-32603, self.ENDS)

    async def test_in_a_task(self, app: MRTRServer) -> None:
        self.asking(app, task="required")
        flow = AsyncClient(app, tasks=True).flow("inline")
        await flow.start()
        for _ in range(2):
            (key,) = (await flow.wait()).questions
            ended = await flow.answer({key: accept()})
        assert ended.failure == self.ENDS
        await app._parts.worker.close()

    async def test_others_are_asked_for_again(self, app: MRTRServer) -> None:
        """Somebody tries."""
        self.asking(app)
        flow = AsyncClient(app).flow("inline")
        await flow.start()
        for misfit in (accept(), accept(name=5), accept(), accept(nom="ann"), Answer({}), decline):
            asked = await flow.answer(login=misfit)
        assert asked.failure.startswith("The user declined")

    async def test_of_a_form_that_was_filled_in_may_be_the_persons_own(self, app: MRTRServer) -> None:
        self.asking(app)
        flow = AsyncClient(app).flow("inline")
        await flow.start()
        for _ in range(2):
            ended = await flow.answer(login=accept(name=5))
        assert ended.failure.startswith("This client may be unable to show this form: its answer to 'login'")

    async def test_one_that_is_read_twice_in_a_run_is_one(self, app: MRTRServer) -> None:
        """Also if it comes without a state, where a later look would find it again."""

        @app.tool
        def ask(inputs: Inputs) -> str | InputRequired:
            if inputs.get("login", Login) is None:
                return InputRequired(login=Elicit("who?", Login))
            login = inputs.get("login", Login)
            return login.name if login else InputRequired(login=Elicit("who?", Login))

        @app.tool
        def again(inputs: Inputs) -> str | InputRequired:
            login = inputs.get("login", Login) or inputs.get("login", Login)
            return login.name if login else InputRequired(login=Elicit("who?", Login))

        for tool in ("ask", "again"):
            flow = AsyncClient(app).flow(tool)
            assert (await flow.start(login=accept())).questions == {"login": "name: Field required — who?"}
            assert (await flow.answer(login=accept(name="ann"))).text == "ann"

    async def test_a_confirmation_is_not_for_the_chat(self, app: MRTRServer) -> None:
        @app.tool
        async def pay(ctx: Context) -> str:
            await ctx.confirm("Pay?")
            return "paid"

        flow = AsyncClient(app).flow("pay")
        await flow.start()
        for _ in range(2):
            ended = await flow.answer(confirm=accept())
        assert ended.failure.startswith(
            "This client can't show this confirmation: its answer to 'confirm' does not fit"
        )
        assert "chat" not in ended.failure

    async def test_a_model_that_says_nothing_is_not_asked_for_ever(self, app: MRTRServer) -> None:
        @app.tool
        async def write(ctx: Context) -> str:
            return (await ctx.sample("Hi")).text

        flow = AsyncClient(app).flow("write")
        await flow.start()
        for number in range(2):  # what is beside the answer may differ
            ended = await flow.answer(sample=Answer({"role": "assistant", "_meta": {"number": number}}))
        assert ended.failure.startswith("This client can't write this message: its answer to 'sample' does not fit")

    async def test_nothing_of_the_answers_is_shown(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        self.asking(app)
        flow = AsyncClient(app).flow("inline")
        await flow.start()
        for _ in range(2):
            ended = await flow.answer(login=accept(name=["secret"]))
        assert "secret" not in ended.failure + caplog.text


class TestRule2APureFunctionKeepsWhatItHasRead:
    """Rules 2 and 3, of an answer that a pure function read by its model in this run: it is kept, and not asked for
    again, unless nothing would be left to ask.
    """

    @staticmethod
    def counting(app: MRTRServer, *, lazily: bool = False, **options: Any) -> None:
        """Add `both`: it returns both of its questions until both are answered, with messages that change."""
        runs = count(1)

        @app.tool(name="both", **options)
        def both(inputs: Inputs) -> str | InputRequired:
            number = next(runs)
            login = inputs.get("login", Login)
            email = None if lazily and login is None else inputs.get("email", Email)
            if login is None or email is None:
                name = login.name if login else "you"
                who, where = Elicit(f"who? ({number})", Login), Elicit(f"where is {name}? ({number})", Email)
                return InputRequired(login=who, email=where)
            return f"{login.name} {email.address}"

    @pytest.mark.parametrize("era", ["2026-07-28", "sep-draft"])
    @pytest.mark.parametrize("lazily", [False, True], ids=["reads both", "returns at the first that is missing"])
    async def test_one_of_two_that_comes_without_a_state(self, app: MRTRServer, era: str, lazily: bool) -> None:
        self.counting(app, lazily=lazily)
        flow = AsyncClient(app, era=era).flow("both")
        assert (await flow.start(login=accept(name="ann"))).questions == {"email": "where is ann? (1)"}
        assert (await flow.answer(email=accept(address="here"))).text == "ann here"
        flow = AsyncClient(app, era=era).flow("both")
        assert (await flow.start(email=accept(address="here"))).questions == {"login": "who? (3)"}
        assert (await flow.answer(login=accept(name="ann"))).text == "ann here"

    async def test_messages_that_change(self, app: MRTRServer) -> None:
        self.counting(app)
        flow = AsyncClient(app).flow("both")
        assert (await flow.start()).questions == {"login": "who? (1)", "email": "where is you? (1)"}
        assert (await flow.answer(email=accept(address="here"))).questions == {"login": "who? (2)"}
        assert (await flow.send()).questions == {"login": "who? (3)"}
        assert (await flow.answer(login=accept(name="ann"))).text == "ann here"

    async def test_beside_one_that_does_not_fit(self, app: MRTRServer) -> None:
        self.counting(app)
        flow = AsyncClient(app).flow("both")
        assert (await flow.start(login=accept(nom="ann"), email=accept(address="here"))).questions == {
            "login": "name: Field required — who? (1)"
        }
        assert (await flow.answer(login=accept(nom="ann"))).questions == {"login": "name: Field required — who? (2)"}
        assert (await flow.answer(login=accept(name="ann"))).text == "ann here"

    async def test_in_a_task(self, app: MRTRServer) -> None:
        self.counting(app, task="required")
        flow = AsyncClient(app, tasks=True).flow("both")
        await flow.start()
        assert (await flow.wait()).questions == {"login": "who? (1)", "email": "where is you? (1)"}
        asked = (await flow.answer(login=accept(name="ann"), email=accept(address=5))).questions
        assert list(asked.values()) == ["address: Input should be a valid string — where is ann? (2)"]
        assert (await flow.answer(dict.fromkeys(asked, accept(address="here")))).text == "ann here"
        await app._parts.worker.close()

    async def test_while_the_call_stays_open(self, app: MRTRServer) -> None:
        self.counting(app)
        flow = AsyncClient(app, era="2025-11-25").flow("both")
        assert (await flow.start()).questions == {"login": "who? (1)", "email": "where is you? (1)"}
        again = (await flow.answer(login=accept(name="ann"), email=accept(address=5))).questions
        assert again == {"email": "address: Input should be a valid string — where is ann? (2)"}
        assert (await flow.answer(email=accept(address="here"))).text == "ann here"

    async def test_of_prompts_and_resources(self, app: MRTRServer) -> None:
        runs = count(1)

        def both(inputs: Inputs) -> str | InputRequired:
            login, email = inputs.get("login", Login), inputs.get("email", Email)
            if login is None or email is None:
                number = next(runs)
                return InputRequired(login=Elicit(f"who? {number}", Login), email=Elicit(f"where? {number}", Email))
            return f"{login.name} {email.address}"

        app.prompt(both)
        app.resource("notes://both")(both)
        for flow in (AsyncClient(app).prompt_flow("both"), AsyncClient(app).resource_flow("notes://both")):
            assert list((await flow.start(login=accept(name="ann"))).questions) == ["email"]
            assert (await flow.answer(email=accept(address="here"))).text == "ann here"

    async def test_a_no_that_is_branched_on(self, app: MRTRServer) -> None:
        runs = count(1)

        @app.tool
        def ask(inputs: Inputs) -> str | InputRequired:
            login, email = inputs.get("login", Elicited[Login]), inputs.get("email", Email)
            if login is None or email is None:
                who = Elicit(f"who? {next(runs)}", Elicited[Login])
                return InputRequired(login=who, email=Elicit("where?", Email))
            return f"{login.action} {email.address}"

        for no in (decline, cancel):
            flow = AsyncClient(app).flow("ask")
            assert (await flow.start()).needs_input
            assert (await flow.answer(login=no)).questions == {"email": "where?"}
            assert (await flow.answer(email=accept(address="here"))).text == f"{no.raw['action']} here"

    async def test_samples_and_roots(self, app: MRTRServer) -> None:
        runs = count(1)

        @app.tool
        def ask(inputs: Inputs) -> str | InputRequired:
            said, files, login = inputs.get("said", Sampled), inputs.get("files", Roots), inputs.get("login", Login)
            if said is None or files is None or login is None:
                sample = Sample(f"a haiku, attempt {next(runs)}")
                return InputRequired(said=sample, files=ListRoots(), login=Elicit("who?", Login))
            return f"{said.text} {files.roots[0].uri} {login.name}"

        flow = AsyncClient(app).flow("ask")
        early = {"said": sampled("old pond"), "files": roots("file:///a")}
        assert (await flow.start(**early)).questions == {"login": "who?"}
        assert (await flow.answer(login=accept(name="ann"))).text == "old pond file:///a ann"

    async def test_with_a_state_of_its_own(self, app: MRTRServer) -> None:
        @app.tool
        def ask(inputs: Inputs, state: State[int]) -> str | InputRequired:
            tries = (state.value or 0) + 1
            login, email = inputs.get("login", Login), inputs.get("email", Email)
            if login is None or email is None:
                who, where = Elicit(f"who? {tries}", Login), Elicit(f"where? {tries}", Email)
                return InputRequired(login=who, email=where, state=tries)
            return f"{login.name} {email.address} {tries}"

        flow = AsyncClient(app).flow("ask")
        assert (await flow.start(login=accept(name="ann"))).questions == {"email": "where? 1"}
        assert (await flow.send()).questions == {"email": "where? 2"}
        assert (await flow.answer(email=accept(address="here"))).text == "ann here 3"

    async def test_all_is_asked_again_if_nothing_else_is_left(self, app: MRTRServer) -> None:
        @app.tool
        def agree(inputs: Inputs) -> str | InputRequired:
            one, other = inputs.get("one", Login), inputs.get("other", Login)
            if one is None or other is None or one != other:
                return InputRequired(one=Elicit("who?", Login), other=Elicit("who again?", Login))
            return f"{one.name}"

        flow = AsyncClient(app).flow("agree")
        both = {"one": "who?", "other": "who again?"}
        assert (await flow.start(one=accept(name="ann"), other=accept(name="bob"))).questions == both
        assert (await flow.answer(one=accept(name="ann"))).questions == {"other": "who again?"}
        assert (await flow.answer(other=accept(name="bob"))).questions == both
        assert (await flow.answer(one=accept(name="bob"), other=accept(name="bob"))).text == "bob"

    async def test_not_an_answer_to_another_form(self, app: MRTRServer) -> None:
        @app.tool
        def ask(inputs: Inputs) -> str | InputRequired:
            if inputs.get("who", Login) is None:
                return InputRequired(who=Elicit("who?", Login))
            return InputRequired(who=Elicit("who pays?", Payer), email=Elicit("where?", Email))

        both = {"who": "who pays?", "email": "where?"}
        flow = AsyncClient(app).flow("ask")
        assert (await flow.start()).questions == {"who": "who?"}
        assert (await flow.answer(who=accept(name="ann"))).questions == both
        assert (await AsyncClient(app).flow("ask").start(who=accept(name="ann"))).questions == both

    async def test_the_others_stay_where_a_question_is_put_in_other_words(self, app: MRTRServer) -> None:
        @app.tool
        def ask(inputs: Inputs) -> str | InputRequired:
            login, email = inputs.get("login", Login), inputs.get("email", Email)
            if login is None or email is None or login.name != "ann":
                who = "who?" if login is None else f"{login.name} is unknown, who?"
                return InputRequired(login=Elicit(who, Login), email=Elicit("where?", Email))
            return f"{login.name} {email.address}"

        flow = AsyncClient(app).flow("ask")
        assert (await flow.start()).needs_input
        again = (await flow.answer(login=accept(name="bob"), email=accept(address="here"))).questions
        assert again == {"login": "bob is unknown, who?"}
        assert (await flow.answer(login=accept(name="ann"))).text == "ann here"

    async def test_not_one_that_is_read_by_its_ask(self, app: MRTRServer) -> None:
        runs = count(1)

        @app.tool
        def ask(inputs: Inputs) -> str | InputRequired:
            who = Elicit(f"who? {next(runs)}", Login)
            login, email = inputs.get("login", who), inputs.get("email", Email)
            if login is None or email is None:
                return InputRequired(login=who, email=Elicit("where?", Email))
            return "done"

        flow = AsyncClient(app).flow("ask")
        assert (await flow.start()).needs_input
        assert (await flow.answer(login=accept(name="ann"))).questions == {"login": "who? 2", "email": "where?"}

    async def test_never_a_confirmation_or_a_page(self, app: MRTRServer) -> None:
        runs = count(1)

        @app.tool
        def ask(inputs: Inputs) -> str | InputRequired:
            number = next(runs)
            sure, page = Confirm(f"pay? {number}"), ElicitUrl(f"log in {number}", "https://example.com")
            done = (inputs.get("sure", sure), inputs.get("page", page), inputs.get("login", Login))
            return effect("paid") if all(done) else InputRequired(sure=sure, page=page, login=Elicit("who?", Login))

        flow = AsyncClient(app).flow("ask")
        early = {"sure": yes, "page": accept(), "login": accept(name="ann")}
        assert (await flow.start(**early)).questions == {"sure": "pay? 1", "page": "log in 1"}
        assert (await flow.answer(sure=yes, page=accept())).questions == {"sure": "pay? 2", "page": "log in 2"}
        assert EFFECTS == []

    async def test_never_of_a_single_use_tool(self, app: MRTRServer) -> None:
        self.counting(app, single_use=True)
        flow = AsyncClient(app).flow("both")
        both = {"login": "who? (1)", "email": "where is you? (1)"}
        assert (await flow.start(login=accept(name="mallory"))).questions == both
        asked = (await flow.answer(login=accept(name="ann"))).questions
        assert asked == {"login": "who? (2)", "email": "where is ann? (2)"}


class TestAnswersThatWereNotGiven:
    """What was tried to have an answer count that nobody gave to the question."""

    async def test_a_validator_that_fails_in_its_own_way_is_no_way_out(self, app: MRTRServer) -> None:
        @app.tool
        async def swallowing(ctx: Context) -> str:
            try:
                await ctx.elicit("who?", Picky)
            except Exception:
                effect("swallowed")
            return effect("after")

        assert (await AsyncClient(app).flow("swallowing").start(picky=accept(name="mallory"))).result
        assert EFFECTS == []

    async def test_arguments_that_are_changed_do_not_change_the_binding(self, app: MRTRServer) -> None:
        @app.tool
        async def change(options: dict[str, Any], ctx: Context) -> str:
            options["a"].append(1)
            await ctx.confirm("sure?")
            return "done"

        flow = AsyncClient(app).flow("change", options={"a": []})
        assert (await flow.start()).needs_input
        assert (await flow.answer(confirm=yes)).text == "done"

    async def test_a_planted_yes_does_not_count_whatever_reads_it(self, app: MRTRServer) -> None:
        class Yes(BaseModel):
            confirm: bool

        @app.tool
        def delete(inputs: Inputs) -> str | InputRequired:
            yes = inputs.get("sure", Yes)
            return effect("deleted") if yes and yes.confirm else InputRequired(sure=Confirm("delete?"))

        assert (await AsyncClient(app).flow("delete").start(sure=yes)).questions == {"sure": "delete?"}
        assert EFFECTS == []

    async def test_a_yes_is_read_by_the_ask_itself(self, app: MRTRServer, caplog: pytest.LogCaptureFixture) -> None:
        @app.tool
        def pay(inputs: Inputs) -> str | InputRequired:
            return effect("paid") if inputs.get("sure", Confirm) else InputRequired(sure=Confirm("pay?"))  # type: ignore[type-var]

        assert "reference" in (await AsyncClient(app).flow("pay").start()).failure
        assert "needs the ask itself, Confirm" in caplog.text

    async def test_a_consent_to_a_page_is_not_given_by_a_form(self, app: MRTRServer) -> None:
        page = ElicitUrl("log in", "https://example.com")

        @app.tool
        def go(inputs: Inputs) -> str | InputRequired:
            if inputs.get("k", Login) is None:
                return InputRequired(k=Elicit("who?", Login))
            return effect("gone") if inputs.get("k", page) else InputRequired(k=page)

        flow = AsyncClient(app).flow("go")
        assert (await flow.start()).needs_input
        assert (await flow.answer(k=accept(name="ann"))).questions == {"k": "log in"}


def test_roots_and_samples_read_well() -> None:
    answers = Inputs({"roots": [Root(uri="file:///x")], "said": Sampled(content={"type": "text", "text": "hi"})})
    said = answers.get("said", Sampled)
    assert said is not None
    assert said.text == "hi"


def test_an_ask_in_a_unit_test_gives_its_model_and_a_no_ends_the_function() -> None:
    who = Elicit("who?", Login)
    assert Inputs({"login": Login(name="ann")}).get("login", who) == Login(name="ann")
    with pytest.raises(Refusal):
        Inputs({"login": Elicited("decline")}).get("login", who)


def test_who_branches_gets_an_action_with_the_model_in_a_unit_test_too_and_none_before_the_answer() -> None:
    who = Elicit("who?", Elicited[Login])
    for asked in (who, Elicited[Login]):
        assert Inputs({"login": Login(name="ann")}).get("login", asked) == Elicited("accept", Login(name="ann"))
        assert Inputs({"login": Elicited("decline")}).get("login", asked) == Elicited("decline")
        assert Inputs().get("login", asked) is None

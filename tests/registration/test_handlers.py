"""Handlers: what a function's signature says, and that a decorated function stays the function that it was."""

import asyncio
from collections.abc import Callable
from functools import partial, update_wrapper, wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import pytest

from mrtr_server import (
    Confirm,
    Context,
    Depends,
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
    SetupError,
    State,
)
from mrtr_server.flow.handler import Handler
from mrtr_server.registration.handlers import compile_handler

from ..support.models import GitHubLogin

app = MRTRServer("handlers", keys=[bytes(32)])


@app.tool
def get_weather(location: str, inputs: Inputs) -> str | InputRequired:
    """Current weather in a city."""
    login = inputs.get("github_login", GitHubLogin)
    if login is None:
        return InputRequired(github_login=Elicit("Please provide your GitHub username", GitHubLogin))
    return f"Current weather in {location} for {login.name}: 72°F, partly cloudy"


class TestUnitTests:
    """A decorated function is called directly in a unit test, with the answers that the test chooses."""

    def test_without_answers_it_asks(self) -> None:
        asked = get_weather("Oslo", Inputs())
        assert isinstance(asked, InputRequired)
        assert list(asked.asks) == ["github_login"]
        assert asked.asks["github_login"].question().params["message"] == "Please provide your GitHub username"

    def test_with_answers_it_answers(self) -> None:
        said = get_weather("Oslo", Inputs({"github_login": GitHubLogin(name="octocat")}))
        assert said == "Current weather in Oslo for octocat: 72°F, partly cloudy"

    @pytest.mark.parametrize("action", ["decline", "cancel"])
    def test_a_no_ends_a_function_that_does_not_branch(self, action: Any) -> None:
        with pytest.raises(Refusal) as caught:
            get_weather("Oslo", Inputs({"github_login": Elicited(action)}))
        assert caught.value.action == action

    def test_a_function_that_branches_gets_the_no(self) -> None:
        no: Elicited[GitHubLogin] = Elicited("decline")
        assert Inputs({"login": no}).get("login", Elicited[GitHubLogin]) == no
        assert Inputs({"login": no}).get("login", Elicit("?", Elicited[GitHubLogin])) == no

    def test_a_function_that_branches_gets_an_accepted_answer_in_the_same_form(self) -> None:
        login = GitHubLogin(name="octocat")
        for given in (login, Elicited("accept", login)):
            found = Inputs({"login": given}).get("login", Elicited[GitHubLogin])
            assert found == Elicited("accept", login)
            assert found is not None
            assert found.accepted
        assert Inputs({"login": Elicited("accept", login)}).get("login", GitHubLogin) == login

    def test_every_kind_of_answer_can_be_given(self) -> None:
        sampled = Sampled(content={"type": "text", "text": "haiku"})
        roots = [Root(uri="file:///a")]
        inputs = Inputs(
            {"sure": True, "opened": True, "haiku": sampled, "roots": roots, "all": Roots(roots=tuple(roots))}
        )
        assert inputs.get("sure", Confirm("Sure?")) is True
        assert inputs.get("opened", ElicitUrl("Open", "https://example.com")) is True
        assert inputs.get("haiku", Sampled) == sampled
        assert inputs.get("haiku", Sample("a haiku")) == sampled
        assert inputs.get("roots", ListRoots()) == roots
        assert inputs.get("all", Roots) == Roots(roots=tuple(roots))
        assert inputs.get("nothing", Sampled) is None

    def test_state_is_a_plain_object(self) -> None:
        @app.tool
        def count(inputs: Inputs, state: State[int]) -> str | InputRequired:
            if (state.value or 0) < 2:
                return InputRequired(state=(state.value or 0) + 1)
            return "enough"

        first = count(Inputs(), State())
        assert isinstance(first, InputRequired)
        assert first.state == 1
        assert count(Inputs(), State(2)) == "enough"

    def test_every_decorator_gives_the_function_back(self) -> None:
        def function(it: str = "x") -> str:
            """What it does."""
            return it

        assert app.tool(function) is function
        assert app.tool(name="other")(function) is function
        assert app.prompt(function) is function
        assert app.prompt(name="other")(function) is function
        assert app.resource("plain://x")(function) is function
        assert app.resource("template://{it}")(function) is function
        assert app.completion("it", prompt="function")(function) is function
        assert function("y") == "y"
        assert function.__doc__ == "What it does."

    def test_every_decorator_gives_an_async_function_back(self) -> None:
        @app.tool
        async def shout(it: str) -> str:
            return it.upper()

        assert asyncio.run(shout("hello")) == "HELLO"


def compiled(function: Callable[..., Any]) -> Handler:
    return compile_handler(function, "it", {})


class TestSignature:
    def test_a_class_is_refused_with_what_to_register(self) -> None:
        app = MRTRServer("app")
        for decorator in (app.tool, app.prompt, app.resource("shelf://all")):
            with pytest.raises(SetupError, match=r"GitHubLogin is a class, .* app\.add\(obj\)"):
                decorator(GitHubLogin)

    def test_our_own_types_are_filled_by_us_and_all_else_by_the_client(self) -> None:
        def function(city: str, ctx: Context, days: int = 3, *, inputs: Inputs, state: State[int]) -> str:
            return city

        handler = compiled(function)
        assert (handler.context, handler.inputs, handler.state) == ("ctx", "inputs", "state")
        assert list(handler.parameters) == ["city", "days"]
        assert handler.parameters["city"].annotation is str
        assert handler.parameters["days"].default == 3
        assert handler.returns is str

    def test_none_of_them_is_needed(self) -> None:
        def function() -> None: ...

        handler = compiled(function)
        assert (handler.context, handler.inputs, handler.state) == (None, None, None)
        assert dict(handler.parameters) == {}
        assert handler.returns is type(None)

    def test_a_function_without_annotations_says_nothing(self) -> None:
        def function(it): ...  # type: ignore[no-untyped-def]

        assert compiled(function).parameters["it"].annotation is Parameter.empty
        assert compiled(function).returns is Parameter.empty

    @pytest.mark.parametrize("kind", [Context, Inputs, State, State[int]])
    def test_two_parameters_of_one_of_our_types_are_refused(self, kind: Any) -> None:
        def function(one: Any, other: Any) -> None: ...

        function.__annotations__.update(one=kind, other=kind)
        with pytest.raises(SetupError, match=r"'one' and 'other' both take the (context|inputs|state)"):
            compiled(function)

    def test_a_state_goes_to_json_and_comes_back_as_its_type(self) -> None:
        def typed(state: State[GitHubLogin]) -> None: ...
        def plain(state: State) -> None: ...  # type: ignore[type-arg]

        login = GitHubLogin(name="octocat")
        assert compiled(typed).stored_state.keep(login, "it")[0].json == {"name": "octocat"}
        assert compiled(typed).stored_state.load({"name": "octocat"}) == login
        assert compiled(plain).stored_state.load({"name": "octocat"}) == {"name": "octocat"}

    def test_asks_are_no_results(self) -> None:
        def asking() -> str | InputRequired:
            return ""

        def only_asking() -> InputRequired:
            return InputRequired(sure=Confirm("Sure?"))

        def several() -> GitHubLogin | InputRequired | None: ...

        assert compiled(asking).returns is str
        assert compiled(only_asking).returns is type(None)
        assert compiled(several).returns == GitHubLogin | None

    @pytest.mark.parametrize("name", ["Nowhere", "Nowhere.At.All", "list[Nowhere]", "Nowhere | None"])
    def test_an_annotation_that_can_not_be_resolved_is_refused(self, name: str) -> None:
        def function(it: Any) -> None: ...

        function.__annotations__["it"] = name
        with pytest.raises(
            SetupError, match="it: the annotation 'Nowhere' can't be resolved; define it before the handler"
        ):
            compiled(function)

    @pytest.mark.parametrize("annotation", ["list[", "1 +", "for"])
    def test_an_annotation_that_is_no_expression_is_refused(self, annotation: str) -> None:
        def function(it: Any) -> None: ...

        function.__annotations__["it"] = annotation
        with pytest.raises(SetupError, match="it: the annotations can't be resolved"):
            compiled(function)

    @pytest.mark.parametrize("thing", [5, None, "text", object()])
    def test_what_can_not_be_called_is_no_handler(self, thing: Any) -> None:
        with pytest.raises(SetupError, match="it: "):
            compiled(thing)

    def test_our_own_parameters_too_are_filled_by_name(self) -> None:
        def function(ctx: Context, /, it: str) -> None: ...

        with pytest.raises(SetupError, match="'ctx' takes the context, which is passed by name"):
            compiled(function)


class Plant:
    """A class with every kind of method."""

    async def water(self, litres: int, ctx: Context) -> str:
        return f"{litres}"

    @classmethod
    def grow(cls, litres: int) -> str:
        return f"{litres}"

    @staticmethod
    def wither(litres: int) -> str:
        return f"{litres}"

    async def __call__(self, litres: int) -> str:
        return f"{litres}"


def plain(litres: int, unit: str = "l") -> str:
    return f"{litres}{unit}"


async def on_the_loop(litres: int) -> str:
    return f"{litres}"


def sync_wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def async_wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Decorated:
    """A decorator that is a class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Signed:
    """A decorator that says its signature itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.__signature__ = function, signature(function)

    def __call__(self, **kwargs: Any) -> Any:
        return self.function(**kwargs)


class Silent(Decorated):
    """A decorator that takes anything, and says nothing of what it wraps."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, **kwargs: Any) -> Any:
        return self.function(**kwargs)


def test_a_tool_whose_schema_would_say_nothing_of_its_arguments_is_refused() -> None:
    def everything(**arguments: Any) -> str:
        return str(arguments)

    for function in (everything, Silent(plain)):
        with pytest.raises(SetupError, match=r"^it: its only parameter takes whatever comes.*functools\.wraps"):
            app.tool(name="it")(function)
    MRTRServer("raw", keys=[bytes(32)]).tool(name="it", input_schema={"type": "object"})(everything)


class TestNamesOfOurs:
    """What goes by one of our names without an annotation is refused: a model would answer for the person."""

    @pytest.mark.parametrize(
        ("name", "type_"),
        [
            ("ctx", "Context"),
            ("inputs", "Inputs"),
            ("input_responses", "Inputs"),
            ("state", r"State\[...\]"),
            ("request_state", r"State\[...\]"),
        ],
    )
    @pytest.mark.parametrize("source", ["def tool(title, {}): ...", "async def tool(*, {}=None): ..."])
    def test_it_is_refused_with_the_type_to_write(self, name: str, type_: str, source: str) -> None:
        namespace: dict[str, Any] = {}
        exec(source.format(name), namespace)  # noqa: S102
        with pytest.raises(
            SetupError, match=f"tool: '{name}' without an annotation would be an argument.*; write {name}: {type_}"
        ):
            compile_handler(namespace["tool"], "tool", {})

    @pytest.mark.parametrize("decorate", ["tool", "prompt", "resource"])
    def test_in_prompts_and_resources_too(self, decorate: str) -> None:
        def show(state):  # type: ignore[no-untyped-def]
            return "shown"

        app = MRTRServer("ours", keys=[bytes(32)])
        register = app.resource("map://{state}") if decorate == "resource" else getattr(app, decorate)
        with pytest.raises(SetupError, match="write state: State"):
            register(show)

    def test_where_a_raw_schema_says_what_the_model_fills_too(self) -> None:
        def tool(inputs):  # type: ignore[no-untyped-def]
            return "done"

        with pytest.raises(SetupError, match="write inputs: Inputs"):
            MRTRServer("ours", keys=[bytes(32)]).tool(input_schema={"type": "object"})(tool)

    def test_in_a_dependency_where_no_argument_has_the_name(self) -> None:
        def guard(ctx=None):  # type: ignore[no-untyped-def]
            return ctx is None

        def needs_state(state):  # type: ignore[no-untyped-def]
            return state

        def tool(guarded: Annotated[bool, Depends(guard)]) -> None: ...
        def other(state: str, needed: Annotated[str, Depends(needs_state)]) -> None: ...

        with pytest.raises(
            SetupError, match=r"guard\(\): 'ctx' without an annotation would be an argument.*; write ctx: Context"
        ):
            compile_handler(tool, "tool", {"guard": guard})
        assert set(compile_handler(other, "other", {"needs_state": needs_state}).parameters) == {"state"}

    def test_arguments_may_have_these_names_where_they_have_a_type(self) -> None:
        def tool(state: str, inputs: list[int], input_responses: Any, ctx: object) -> None: ...

        assert list(compile_handler(tool, "tool", {}).parameters) == ["state", "inputs", "input_responses", "ctx"]

    def test_other_names_need_none(self) -> None:
        def tool(context, states, **state):  # type: ignore[no-untyped-def]
            return "done"

        assert list(compile_handler(tool, "tool", {}).parameters) == ["context", "states", "state"]


class TestCallables:
    """Whatever can be called can be a handler, with the signature that Python sees."""

    @pytest.mark.parametrize(
        ("function", "is_async"),
        [
            (plain, False),
            (on_the_loop, True),
            (Plant().water, True),
            (Plant.grow, False),
            (Plant.wither, False),
            (Plant(), True),
            (sync_wrapper(plain), False),
            (sync_wrapper(on_the_loop), True),
            (async_wrapper(plain), True),
            (Decorated(plain), False),
            (Decorated(on_the_loop), True),
            (Decorated(sync_wrapper(plain)), False),
            (Signed(plain), False),
            (partial(plain, unit="m³"), False),
            (partial(on_the_loop), True),
        ],
        ids=[
            "function",
            "async function",
            "method",
            "class method",
            "static method",
            "callable object",
            "wrapped",
            "wrapped async function",
            "wrapped by an async function",
            "in a class",
            "async function in a class",
            "wrapped in a class",
            "in a class with a signature",
            "partial",
            "partial of an async function",
        ],
    )
    def test_its_parameters_are_known_and_whether_to_await_it(
        self, function: Callable[..., Any], is_async: bool
    ) -> None:
        handler = compiled(function)
        assert handler.function is function
        assert handler.parameters["litres"].annotation is int
        assert handler.returns is str
        assert handler.is_async is is_async

"""No pattern of a type lets a client stop the server: what pydantic would give to Python's `re` is refused."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from typing_extensions import TypedDict

from mrtr_server import Context, Elicit, Inputs, MRTRServer, SetupError
from mrtr_server.errors import ArgumentsMisfit
from mrtr_server.schema.arguments import SignatureArguments
from mrtr_server.schema.forms import Form

from ..conftest import Serve
from .test_raw import NESTED, within


def arguments_of(annotation: Any) -> SignatureArguments:
    return SignatureArguments("tool", {"it": Parameter("it", Parameter.KEYWORD_ONLY, annotation=annotation)})


Compiled = Annotated[str, Field(pattern=re.compile(NESTED))]
Plain = Annotated[str, Field(pattern=NESTED)]


class Inner(TypedDict):
    x: Plain


class Choosing(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    x: Plain


class Around(BaseModel):
    """Its choice goes for what has none of its own."""

    model_config = ConfigDict(regex_engine="python-re")
    inner: Inner


class Recursive(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    x: Annotated[str, StringConstraints(pattern=NESTED)] = ""
    more: "list[Recursive]" = []


class Fine(BaseModel):
    x: Plain


class AroundFine(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    fine: Fine


@dataclass
class Holding:
    x: Compiled


@pytest.mark.parametrize(
    "annotation",
    [Compiled, Choosing, list[Choosing], dict[Compiled, int], Around, Recursive, Holding, Compiled | int | None],
)
def test_a_pattern_that_pythons_engine_would_match_is_refused(annotation: Any) -> None:
    with pytest.raises(SetupError) as caught:
        arguments_of(annotation)
    assert str(caught.value).startswith(
        f"tool: the pattern {NESTED!r} is matched by Python's re, with which a client could"
    )
    assert "Pass it as plain text, in a model without regex_engine" in str(caught.value)


@pytest.mark.parametrize("annotation", [Plain, Fine, AroundFine, Inner, list[Plain]])
def test_all_others_are_matched_in_a_time_that_grows_with_the_text(annotation: Any) -> None:
    arguments = arguments_of(annotation)
    for letters in (300, 3_000_000):
        text = "a" * letters
        it: Any = {Fine: {"x": text}, AroundFine: {"fine": {"x": text}}, Inner: {"x": text}}.get(annotation, text)

        def read(it: Any = [it] if annotation == list[Plain] else it) -> None:
            with pytest.raises(ArgumentsMisfit):
                arguments.validate({"it": it})

        within(2, read)


def test_a_validator_of_the_authors_own_may_do_as_it_likes() -> None:
    def checked(text: str) -> str:
        assert len(text) <= 20
        assert re.match("(?=a)a", text)
        return text

    arguments = arguments_of(Annotated[str, AfterValidator(checked)])
    assert arguments.validate({"it": "a"}) == {"it": "a"}


@pytest.mark.parametrize("register", ["tool", "prompt", "resource"])
def test_every_decorator_refuses_it(register: str) -> None:
    app = MRTRServer("patterns", keys=[bytes(32)])
    decorator: Callable[[Any], Any] = app.resource("a://{it}") if register == "resource" else getattr(app, register)

    def function(it: Compiled) -> str:
        return it

    with pytest.raises(SetupError, match="function: the pattern"):
        decorator(function)


def test_a_form_is_refused_likewise() -> None:
    with pytest.raises(SetupError, match=r"Choosing: the pattern .* is matched by Python's re"):
        Form(Choosing)
    with pytest.raises(SetupError, match="which a form can't show"):  # in linear time, it would still not be seen
        Form(Fine)
    app = MRTRServer("patterns", keys=[bytes(32)])
    with pytest.raises(SetupError, match="Choosing: the pattern"):

        @app.tool
        def declared(it: Annotated[Choosing, Elicit("?")]) -> str:
            return ""


def test_a_form_that_is_only_met_inside_is_refused_before_anybody_answers(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    app = MRTRServer("patterns", keys=[bytes(32)])

    @app.tool
    async def inline(ctx: Context) -> str:
        return (await ctx.elicit("?", Choosing)).x

    @app.tool
    def pure(inputs: Inputs) -> str:
        return str(inputs.get("choosing", Choosing))

    wire = serve(app)
    for name in ("inline", "pure"):
        caplog.clear()
        assert "inputRequests" not in str(wire.call(name).message)
        assert "Choosing: the pattern" in caplog.text


class Meta(BaseModel):
    metadata: Compiled = ""
    default: Compiled = ""
    serialization: Compiled = ""


def test_the_name_of_a_field_hides_no_pattern() -> None:
    with pytest.raises(SetupError, match="is matched by Python's re"):
        arguments_of(Meta)

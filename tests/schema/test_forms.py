"""Forms: what a model's fields look like to a client, which fields no form can show, and how an answer is read."""

import json
import logging
import math
from collections.abc import Callable
from datetime import date, datetime, time
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    HttpUrl,
    PositiveFloat,
    PositiveInt,
    RootModel,
    SecretStr,
    WithJsonSchema,
    create_model,
    field_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from mrtr_server import Elicit, Elicited, MRTRServer, SetupError, ToolError
from mrtr_server.errors import InvalidAnswer
from mrtr_server.schema.forms import Form, form

SPECIFICATION = json.loads((Path(__file__).parents[1] / "schemas" / "2026-07-28.json").read_text())
ELICIT_REQUEST = Draft202012Validator({"$ref": "#/$defs/ElicitRequest", "$defs": SPECIFICATION["$defs"]})

KEYWORDS = {
    keyword
    for name in (
        "StringSchema",
        "NumberSchema",
        "BooleanSchema",
        "UntitledSingleSelectEnumSchema",
        "TitledSingleSelectEnumSchema",
        "UntitledMultiSelectEnumSchema",
        "TitledMultiSelectEnumSchema",
    )
    for keyword in SPECIFICATION["$defs"][name]["properties"]
}
"""What a field may have; the schema itself would let anything else through, too."""


class Color(Enum):
    """Colors have a docstring, which is not the field's description."""

    RED = "red"
    BLUE = "blue"


class Size(StrEnum):
    S = "s"
    L = "l"


TITLED: Any = [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]


class Named(StrEnum):
    """Titles that belong to the enum."""

    S = "s"
    L = "l"

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler.resolve_ref_schema(handler(schema)), "enumNames": ["Small", "Large"]}


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Only(Enum):
    ONE = "one"


class Rank(IntEnum):
    FIRST = 1


class Nested(BaseModel):
    x: int


class Itself(BaseModel):
    parent: "Itself | None" = None


def model_of(annotation: Any, default: Any = ...) -> type[BaseModel]:
    return create_model("Answer", field=(annotation, default))


def field_of(annotation: Any, default: Any = ...) -> dict[str, Any]:
    """The schema of the only field of a form, checked against the specification."""
    made = Form(model_of(annotation, default))
    request = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": made.schema}}
    assert list(ELICIT_REQUEST.iter_errors(request)) == []
    field: dict[str, Any] = made.schema["properties"]["field"]
    assert field.keys() <= KEYWORDS
    json.dumps(made.schema, allow_nan=False)
    return field


def required(annotation: Any, default: Any = ...) -> bool:
    return Form(model_of(annotation, default)).schema.get("required") == ["field"]


class TestFields:
    @pytest.mark.parametrize(
        ("annotation", "field"),
        [
            (str, {"type": "string"}),
            (int, {"type": "integer"}),
            (float, {"type": "number"}),
            (bool, {"type": "boolean"}),
            (Annotated[str, Field(min_length=1, max_length=9)], {"type": "string", "minLength": 1, "maxLength": 9}),
            (Annotated[int, Field(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
            (Annotated[float, Field(ge=0.5, le=9)], {"type": "number", "minimum": 0.5, "maximum": 9}),
            (Color, {"type": "string", "enum": ["red", "blue"]}),
            (Size, {"type": "string", "enum": ["s", "l"]}),
            (Only, {"type": "string", "enum": ["one"]}),
            (Literal["on", "off"], {"type": "string", "enum": ["on", "off"]}),
            (Literal["on"], {"type": "string", "enum": ["on"]}),
            (list[Color], {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}}),
            (list[Literal["on", "off"]], {"type": "array", "items": {"type": "string", "enum": ["on", "off"]}}),
            (list[Literal["on"]], {"type": "array", "items": {"type": "string", "enum": ["on"]}}),
            (set[Size], {"type": "array", "items": {"type": "string", "enum": ["s", "l"]}}),
            (
                Annotated[list[Size], Field(min_length=1, max_length=2)],
                {"type": "array", "items": {"type": "string", "enum": ["s", "l"]}, "minItems": 1, "maxItems": 2},
            ),
        ],
    )
    def test_every_kind_of_field_that_the_protocol_has(self, annotation: Any, field: dict[str, Any]) -> None:
        assert field_of(annotation) == field
        assert required(annotation)
        # With `| None` it is the same field, but one that may be left out.
        assert field_of(annotation | None) == field
        assert not required(annotation | None)
        assert field_of(annotation | None, None) == field

    @pytest.mark.parametrize(
        "annotation",
        [
            Annotated[str, Field(json_schema_extra={"oneOf": TITLED})],
            Annotated[Literal["s", "l"], Field(json_schema_extra={"oneOf": TITLED})],
            Annotated[Literal["s", "l"], Field(json_schema_extra={"enumNames": ["Small", "Large"]})],
            Annotated[Literal["s", "l"] | None, Field(json_schema_extra={"enumNames": ["Small", "Large"]})],
            Annotated[Literal["s", "l"], Field(json_schema_extra={"enumNames": ["Small", "Large"]})] | None,
            Annotated[Size, Field(json_schema_extra={"enumNames": ["Small", "Large"]})],
            Annotated[str, WithJsonSchema({"type": "string", "enum": ["s", "l"], "enumNames": ["Small", "Large"]})],
            Named,
        ],
    )
    def test_choices_may_have_titles(self, annotation: Any) -> None:
        """Of the two ways that the protocol has for one choice, forms take the one that stays."""
        assert field_of(annotation) == {"type": "string", "oneOf": TITLED}

    @pytest.mark.parametrize(
        "annotation",
        [
            Annotated[list[Size], Field(json_schema_extra={"items": {"anyOf": TITLED}})],
            list[Annotated[Literal["s", "l"], Field(json_schema_extra={"oneOf": TITLED})]],
            list[Annotated[Literal["s", "l"], Field(json_schema_extra={"enumNames": ["Small", "Large"]})]],
            list[Annotated[Size, Field(json_schema_extra={"enumNames": ["Small", "Large"]})]],
            list[Named],
            set[Named],
        ],
    )
    def test_choices_of_a_list_may_have_titles(self, annotation: Any) -> None:
        assert field_of(annotation) == {"type": "array", "items": {"anyOf": TITLED}}

    def test_a_choice_of_one_may_have_a_title(self) -> None:
        one = Annotated[Literal["s"], Field(json_schema_extra={"enumNames": ["Small"]})]
        assert field_of(one) == {"type": "string", "oneOf": TITLED[:1]}
        assert field_of(list[one]) == {"type": "array", "items": {"anyOf": TITLED[:1]}}

    def test_a_title_is_shown_and_its_value_answered(self) -> None:
        """What an author gets is what the annotation says, and never a title."""
        titled = Form(model_of(Annotated[Literal["s", "l"], Field(json_schema_extra={"oneOf": TITLED})]))
        assert titled.validate({"field": "s"}).model_dump() == {"field": "s"}
        with pytest.raises(InvalidAnswer, match="field: Input should be 's' or 'l'"):
            titled.validate({"field": "Small"})

    def test_choices_of_a_list_need_no_titles_however_they_are_written(self) -> None:
        untitled = {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}
        assert field_of(list[Literal["a"] | Literal["b"]]) == untitled

    @pytest.mark.parametrize(
        ("annotation", "format_"),
        [
            (date, "date"),
            (datetime, "date-time"),
            (HttpUrl, "uri"),
            (Annotated[str, Field(json_schema_extra={"format": "email"})], "email"),
        ],
    )
    def test_formats_that_the_protocol_has_are_kept(self, annotation: Any, format_: str) -> None:
        assert field_of(annotation)["format"] == format_

    @pytest.mark.parametrize(
        "annotation", [UUID, time, Annotated[str, Field(json_schema_extra={"format": "hostname"})]]
    )
    def test_other_formats_are_dropped(self, annotation: Any) -> None:
        assert field_of(annotation) == {"type": "string"}

    @pytest.mark.parametrize(
        "extra",
        [{"examples": ["a"]}, {"deprecated": True}, {"json_schema_extra": {"x-anything": 1}}],
    )
    def test_other_keywords_that_limit_no_answer_are_dropped(self, extra: dict[str, Any]) -> None:
        assert field_of(Annotated[str, Field(**extra)]) == {"type": "string"}

    def test_descriptions_are_kept(self) -> None:
        assert field_of(Annotated[str, Field(description="your name")])["description"] == "your name"
        assert field_of(Annotated[Color, Field(description="a color")])["description"] == "a color"

    def test_titles_are_only_those_that_were_written(self) -> None:
        assert field_of(Annotated[Color, Field(title="Your color")])["title"] == "Your color"
        for annotation in (str, int, Color, list[Color], Literal["on", "off"], str | None):
            assert "title" not in field_of(annotation)
        assert Form(create_model("Named", full_name=(str, ...))).schema == {
            "type": "object",
            "properties": {"full_name": {"type": "string"}},
            "required": ["full_name"],
        }

    @pytest.mark.parametrize(
        ("annotation", "bounds"),
        [
            (Annotated[int, Field(gt=0, lt=10)], {"minimum": 1, "maximum": 9}),
            (Annotated[int, Field(gt=0)] | None, {"minimum": 1}),
            (PositiveInt, {"minimum": 1}),
            (Annotated[PositiveInt, Field(ge=5)], {"minimum": 5}),
            (Annotated[int, Field(gt=5, ge=0)], {"minimum": 6}),
            (Annotated[int, Field(lt=5, le=9)], {"maximum": 4}),
            (Annotated[int, Field(lt=5, le=2)], {"maximum": 2}),
        ],
    )
    def test_exclusive_bounds_become_inclusive_ones_between_integers(
        self, annotation: Any, bounds: dict[str, int]
    ) -> None:
        field = field_of(annotation)
        assert {name: value for name, value in field.items() if name != "type"} == bounds

    @pytest.mark.parametrize(
        ("annotation", "default", "shown"),
        [
            (str, "x", "x"),
            (int, 0, 0),
            (bool, False, False),
            (Color, Color.BLUE, "blue"),
            (list[Color], [Color.BLUE], ["blue"]),
            (int | None, 5, 5),
            (date, date(2026, 7, 28), "2026-07-28"),
        ],
    )
    def test_a_field_with_a_default_shows_it_and_may_be_left_out(
        self, annotation: Any, default: Any, shown: Any
    ) -> None:
        assert field_of(annotation, default)["default"] == shown
        assert not required(annotation, default)

    @pytest.mark.parametrize(
        ("annotation", "default"),
        [(str | None, None), (str, None), (float, math.inf), (float, -math.inf), (float, math.nan)],
    )
    def test_a_default_that_no_field_can_show_is_not_there(self, annotation: Any, default: Any) -> None:
        assert "default" not in field_of(annotation, default)
        assert not required(annotation, default)

    def test_fields_keep_their_order_and_clients_see_aliases(self) -> None:
        class Login(BaseModel):
            model_config = ConfigDict(alias_generator=to_camel)
            user_name: str
            pin_code: int | None
            zip: str = Field(alias="postal-code")

        assert list(Form(Login).schema["properties"]) == ["userName", "pinCode", "postal-code"]
        assert Form(Login).schema["required"] == ["userName", "postal-code"]

    def test_a_model_without_fields_is_a_form_to_agree_to(self) -> None:
        class Terms(BaseModel):
            """Nothing to fill in."""

        assert Form(Terms).schema == {"type": "object", "properties": {}}
        assert Form(Terms).validate({}) == Terms()

    def test_a_form_is_compiled_once(self) -> None:
        assert form(Nested) is form(Nested)


class TestRefusals:
    """What no form can show is refused when the ask is written, with the name of the field."""

    @pytest.mark.parametrize(
        ("annotation", "what"),
        [
            (Nested, "a nested object"),
            (Nested | None, "a nested object"),
            (dict[str, str], "a nested object"),
            (list[Nested], "a list of a nested object"),
            (list[list[Color]], "a list of a nested list"),
            (list[str], "a list of free text"),
            (list[int], "a list of type integer"),
            (list[Rank], "a list of type integer"),
            (list[Color | None], "a list of type anything"),
            (list[Any], "a list of type anything"),
            (Any, "of type anything"),
            (None, "of type null"),
            (Rank, "a choice of values that are not strings"),
            (Literal[1, 2], "a choice of values that are not strings"),
            (Literal[1], "a constant that is not a string"),
            (Literal[True], "a constant that is not a string"),
            (Literal["a", 1], "of type anything"),
            (int | str, "a union"),
            (int | str | None, "a union"),
            (Color | Size, "a union"),
        ],
    )
    def test_fields_of_other_kinds(self, annotation: Any, what: str) -> None:
        with pytest.raises(SetupError) as caught:
            Elicit("?", model_of(annotation))
        assert str(caught.value) == (
            f"Answer.field is {what}; a form can have strings, numbers, booleans, choices of strings, and lists of "
            "such choices"
        )

    @pytest.mark.parametrize(
        ("annotation", "what"),
        [
            (Annotated[str, Field(pattern="^[A-Z]{2}$")], "a pattern"),
            (Annotated[str | None, Field(pattern="^[A-Z]{2}$")], "a pattern"),
            # Between integers an exclusive bound can be said; between fractions there is no next one.
            (Annotated[float, Field(gt=0)], "an exclusive bound (ge= gives an inclusive one)"),
            (PositiveFloat | None, "an exclusive bound (ge= gives an inclusive one)"),
            (Annotated[float, Field(ge=0, lt=1)], "an exclusive bound (le= gives an inclusive one)"),
            (Annotated[int, Field(multiple_of=5)], "a number that it must be a multiple of"),
            (Annotated[str, Field(json_schema_extra={"not": {"const": "x"}})], "a condition"),
            (
                Annotated[list[Size], Field(json_schema_extra={"enumNames": ["Small", "Large"]})],
                "titles, but no choices that they belong to",
            ),
        ],
    )
    def test_what_limits_an_answer_and_can_t_be_shown(self, annotation: Any, what: str) -> None:
        """Or a person would learn of it by failing; what is left out of a form is nobody's to know."""
        with pytest.raises(SetupError) as caught:
            Elicit("?", model_of(annotation))
        assert str(caught.value) == (
            f"Answer.field has {what}, which a form can't show. Describe it in the field's description, and check it "
            "with pydantic's AfterValidator: an answer that it rejects is asked for again, with the reason"
        )

    def test_the_way_out_of_that_works(self) -> None:
        def two_capitals(text: str) -> str:
            if not (len(text) == 2 and text.isupper()):
                raise ValueError("two capital letters, please")
            return text

        checked = Form(model_of(Annotated[str, AfterValidator(two_capitals), Field(description="as in NO")]))
        assert checked.schema["properties"]["field"] == {"type": "string", "description": "as in NO"}
        assert checked.validate({"field": "NO"}).model_dump() == {"field": "NO"}
        with pytest.raises(InvalidAnswer, match="field: Value error, two capital letters, please"):
            checked.validate({"field": "Norway"})

    @pytest.mark.parametrize(
        ("annotation", "what"),
        [
            (Annotated[Literal["s", "l"], Field(json_schema_extra={"enumNames": ["Small"]})], "2 choices and 1 titles"),
            (Annotated[Literal["s", "l"], Field(json_schema_extra={"enumNames": [1, 2]})], "2 choices and 2 titles"),
            (Annotated[Literal["s", "m"], Field(json_schema_extra={"oneOf": TITLED})], "its titles are for"),
            (Annotated[str, Field(json_schema_extra={"enumNames": ["Small"]})], "no choices that they belong to"),
            (
                Annotated[str, Field(json_schema_extra={"oneOf": [*TITLED, {"const": "m"}]})],
                "3 choices and 2 titles; give every choice a title, or none",
            ),
            (Annotated[int, Field(json_schema_extra={"oneOf": [{"const": 1, "title": "One"}]})], "are not strings"),
            (Annotated[Cat | Dog, Field(discriminator="kind")], "is a union"),
        ],
    )
    def test_titles_that_belong_to_no_choice(self, annotation: Any, what: str) -> None:
        with pytest.raises(SetupError, match=rf"^Answer\.field .*{what}"):
            Elicit("?", model_of(annotation))

    def test_fields_without_a_schema(self) -> None:
        with pytest.raises(SetupError, match="Answer can't be a form: "):
            Form(model_of(Callable[[], int]))

    def test_bytes(self) -> None:
        for asked in (model_of(bytes), model_of(bytes | None), bytes):
            with pytest.raises(
                SetupError, match=r"is bytes, which nobody can type; ask for a str, or for a file on a page"
            ):
                Elicit("?", asked)

    def test_a_model_that_holds_itself(self) -> None:
        with pytest.raises(SetupError, match=r"^Itself\.parent is a nested object; "):
            Form(Itself)

    def test_a_model_that_is_no_object(self) -> None:
        with pytest.raises(SetupError, match="can't be a form: it has no fields of its own"):
            Form(RootModel[list[Color]])

    @pytest.mark.parametrize("schema", [dict, list[Nested], Elicited[list[str]], Elicited, Nested(x=1), None, "str"])
    def test_what_is_neither_a_model_nor_one_value(self, schema: Any) -> None:
        with pytest.raises(SetupError, match="can't be a form: "):
            Elicit("?", schema)

    def test_no_server_is_needed_to_find_out(self) -> None:
        # So a module with such an ask does not even import, and no client has to call the tool first.
        app = MRTRServer("forms", keys=[bytes(32)])
        with pytest.raises(SetupError, match=r"^Answer\.field "):

            @app.tool
            def tool(ask: Any = Elicit("?", model_of(Nested))) -> None: ...  # noqa: B008


# Each field with what a person may answer.
ANSWERS: list[tuple[Any, Any, Any]] = [
    (str, "text", "text"),
    (int, 5, 5),
    (int, 5.0, 5),
    (int, 5.0, 5),
    (float, 5, 5.0),
    (bool, True, True),
    (Color, "red", Color.RED),
    (Literal["on", "off"], "on", "on"),
    (list[Color], ["red", "blue"], [Color.RED, Color.BLUE]),
    (list[Color], [], []),
    (set[Size], ["s"], {Size.S}),
    (date, "2026-07-28", date(2026, 7, 28)),
    (str | None, None, None),
    (str | None, "text", "text"),
]


class TestRead:
    class Login(BaseModel):
        name: str
        age: Annotated[int, Field(ge=18)]
        color: Color = Color.RED
        nick: str | None

    @pytest.mark.parametrize(("annotation", "answer", "value"), ANSWERS)
    def test_an_answer_becomes_the_model(self, annotation: Any, answer: Any, value: Any) -> None:
        read = Form(model_of(annotation)).validate({"field": answer})
        assert read.model_dump()["field"] == value
        assert type(read.model_dump()["field"]) is type(value)

    def test_fields_that_the_form_does_not_have_are_dropped(self) -> None:
        class Open(BaseModel):
            model_config = ConfigDict(extra="allow")
            name: str

        class Closed(BaseModel):
            model_config = ConfigDict(extra="forbid")
            name: str

        for model in (Open, Closed):
            read = Form(model).validate({"name": "Ann", "admin": True, "model_config": {}})
            assert read.model_dump() == {"name": "Ann"}

    def test_fields_that_may_be_left_out_can_be(self) -> None:
        assert Form(self.Login).validate({"name": "Ann", "age": 18}) == self.Login(name="Ann", age=18, nick=None)

    def test_fields_with_an_alias_can_be_left_out(self) -> None:
        class Aliased(BaseModel):
            model_config = ConfigDict(alias_generator=to_camel)
            nick_name: str | None
            name: str | None = Field(alias="full-name")

        assert Form(Aliased).schema.get("required") is None
        assert Form(Aliased).validate({}).model_dump() == {"nick_name": None, "name": None}
        assert Form(Aliased).validate({"nickName": "A", "full-name": "Ann"}).model_dump() == {
            "nick_name": "A",
            "name": "Ann",
        }

    @pytest.mark.parametrize("content", [None, [], "name", 5, True])
    def test_an_answer_that_is_no_object_is_as_good_as_empty(self, content: Any) -> None:
        with pytest.raises(InvalidAnswer, match="The form came back empty"):
            Form(self.Login).validate(content)

    def test_the_reason_names_each_field_and_repeats_no_value(self) -> None:
        with pytest.raises(InvalidAnswer) as caught:
            Form(self.Login).validate({"age": 17, "color": "s3cret", "nick": ["s3cret"]})
        assert caught.value.reason == (
            "name: Field required; "
            "age: Input should be greater than or equal to 18; "
            "color: Input should be 'red' or 'blue'; "
            "nick: Input should be a valid string"
        )

    def test_a_long_list_of_mistakes_is_cut_short(self) -> None:
        with pytest.raises(InvalidAnswer) as caught:
            Form(model_of(list[Color])).validate({"field": ["red", "green", "green"]})
        assert caught.value.reason == "field.1: Input should be 'red' or 'blue' (and more may follow)"

    @pytest.mark.parametrize("error", [KeyError("s3cret"), TypeError("s3cret"), ToolError("s3cret")])
    def test_a_validator_that_breaks_is_an_answer_that_can_not_be_used(
        self, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(BaseModel):
            name: str

            @field_validator("name")
            @classmethod
            def look_up(cls, name: str) -> str:
                raise error

        with pytest.raises(InvalidAnswer) as caught:
            Form(Broken).validate({"name": "s3cret"})
        assert caught.value.reason == "The answer can't be used."
        assert caught.value.__suppress_context__
        ((logger, level, message),) = caplog.record_tuples
        assert (logger, level) == ("mrtr_server", logging.ERROR)
        assert message == f"A validator of Broken failed on an answer with {type(error).__name__}"
        assert "s3cret" not in caplog.text

    def test_a_reason_of_the_model_s_own_is_given_as_it_is(self) -> None:
        class Even(BaseModel):
            number: int

            @field_validator("number")
            @classmethod
            def even(cls, number: int) -> int:
                if number % 2:
                    raise ValueError("please choose an even number")
                return number

        with pytest.raises(InvalidAnswer, match=r"^number: Value error, please choose an even number$"):
            Form(Even).validate({"number": 1})

    def test_a_foreign_error_does_not_come_along(self) -> None:
        with pytest.raises(InvalidAnswer) as caught:
            Form(self.Login).validate({})
        assert caught.value.__suppress_context__

    content = st.dictionaries(
        st.sampled_from(["name", "age", "color", "nick", "other"]),
        st.none()
        | st.booleans()
        | st.integers(0, 40)
        | st.text(max_size=3)
        | st.sampled_from(["red", "blue"])
        | st.just([1]),
    )

    @given(content)
    def test_what_the_client_s_form_lets_through_fits(self, content: dict[str, Any]) -> None:
        complete = {"name": "Ann", "age": 30, **content}
        try:
            read = Form(self.Login).validate(complete)
        except InvalidAnswer:
            assert not Draft202012Validator(Form(self.Login).schema).is_valid(complete)
        else:
            assert isinstance(read, self.Login)
            assert (read.name, read.nick) == (complete["name"], complete.get("nick"))
            assert read.age >= 18


def test_a_secret_is_refused_since_a_form_passes_through_the_client() -> None:
    class Credentials(BaseModel):
        password: SecretStr

    with pytest.raises(SetupError, match=r"Credentials\.password is a secret"):
        form(Credentials)

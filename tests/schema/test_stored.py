"""What is stored comes back as it was, is refused by its type before anything runs, or the log says that it changed."""

import json
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum, auto
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasGenerator,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    HttpUrl,
    Json,
    PlainSerializer,
    PrivateAttr,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    computed_field,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from mrtr_server import SetupError
from mrtr_server.schema.stored import Stored, Written, stored_as

from .test_arguments import TYPES, Point

DAY = date(2026, 5, 1)
T = TypeVar("T")


class Id(BaseModel):
    id: str = Field(alias="_id")


class Defaulted(BaseModel):
    id: str = Field("none", alias="_id")


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")
    order_id: str


class ReadOnly(BaseModel):
    model_config = ConfigDict(alias_generator=AliasGenerator(validation_alias=to_camel))
    order_id: str


class Elsewhere(BaseModel):
    a: int = Field(validation_alias=AliasPath("x", 0))
    b: int = Field(validation_alias=AliasChoices("p", "q"), serialization_alias="r")


class Swapped(BaseModel):
    a: int = Field(alias="b")
    b: int = Field(alias="a")


class Keys(BaseModel):
    name: SecretStr
    raw: SecretBytes
    since: Secret[date]
    notes: dict[str, Any] = {}


class Noted(BaseModel):
    key: SecretStr
    notes: dict[str, Any]


class Hidden(BaseModel):
    name: str
    token: str = Field("none", exclude=True)


class Entity(Hidden):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entity) and self.name == other.name

    __hash__ = None  # type: ignore[assignment]


class Bill(BaseModel):
    day: date

    @field_serializer("day")
    def _write(self, day: date) -> str:
        return f"{day:%d.%m.%Y}"


class Short(BaseModel):
    a: int

    @model_serializer
    def _write(self) -> str:
        return f"a{self.a}"


class Area(BaseModel):
    model_config = ConfigDict(extra="forbid")
    side: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def square(self) -> int:
        return self.side**2


class Paid(BaseModel):
    amount: int


class Declined(BaseModel):
    amount: int


class PaidByCard(Paid):
    card: SecretStr


class StrictOrder(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    id: UUID
    tags: frozenset[str]
    pages: tuple[int, ...] = ()


class Grown(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def _grow(cls, n: int) -> int:
        return n + 1


class Private(BaseModel):
    a: int
    _cache: dict[str, int] = PrivateAttr(default_factory=dict)
    _session: Any = PrivateAttr(default_factory=object)


class Total(BaseModel):
    at: Path
    key: SecretStr
    count: int = 0

    @model_validator(mode="after")
    def _add(self) -> "Total":
        self.count += 1
        return self


def private() -> Private:
    value = Private(a=1)
    value._cache["a"] = 1
    return value


class Open(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    a: int


class Node(BaseModel):
    name: str
    below: list["Node"] = []
    secret: SecretStr | None = None


class Box(BaseModel, Generic[T]):
    content: T


class Days(RootModel[list[date]]):
    pass


class Written_(BaseModel):
    days: Json[list[date]]


class Colour(Enum):
    RED = (255, 0, 0)
    BIRTH = DAY
    PLAIN = "plain"


class Size(StrEnum):
    S = "s"


class Level(IntEnum):
    LOW = 1


class Rights(Flag):
    READ = auto()
    WRITE = auto()


@dataclass
class Counted:
    a: int
    b: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.b += self.a


@dataclass
class Made:
    a: int
    at: Path
    factor: InitVar[int]

    def __post_init__(self, factor: int) -> None:
        self.a *= factor


@dataclass(kw_only=True, slots=True, frozen=True)
class Slotted:
    day: date
    raw: bytes = b""


@pydantic_dataclass
class Aliased:
    a: Annotated[int, Field(validation_alias="A")]


class Either(BaseModel):
    size: str | Size
    price: int | Decimal


class Place(TypedDict):
    city: Annotated[str, Field(alias="c")]


class Pair(NamedTuple):
    a: int
    day: date


COMES_BACK: list[tuple[Any, Any]] = [
    (Id, Id(_id="1")),
    (list[Id], [Id(_id="1")]),
    (Defaulted, Defaulted(_id="1")),
    (Camel, Camel(orderId="1")),
    (ReadOnly, ReadOnly(orderId="1")),
    (dict[str, ReadOnly], {"a": ReadOnly(orderId="1")}),
    (Elsewhere, Elsewhere.model_validate({"x": [1], "q": 2})),
    (Swapped, Swapped(a=2, b=1)),
    (Aliased, Aliased(A=1)),  # type: ignore[call-arg]
    (Place, {"city": "Oslo"}),
    (bytes, b"\x89PNG\xff"),
    (bytes, b"text"),
    (list[bytes], [b"\xff", b"a"]),
    (SecretStr, SecretStr("s3cret")),
    (Keys, Keys(name=SecretStr("n"), raw=SecretBytes(b"\xff"), since=Secret(DAY), notes={"a": [1]})),
    (Hidden, Hidden(name="ann", token="t0ken")),
    (Entity, Entity(name="ann", token="t0ken")),
    (Bill, Bill(day=DAY)),
    (Annotated[date, PlainSerializer(lambda day: day.year)], DAY),
    (Short, Short(a=1)),
    (Area, Area(side=2)),
    (Paid | Declined, Declined(amount=1)),
    (list[Paid | Declined], [Declined(amount=1), Paid(amount=1)]),
    (Paid, PaidByCard(amount=1, card=SecretStr("4111"))),
    (SerializeAsAny[Paid], PaidByCard(amount=1, card=SecretStr("4111"))),
    (StrictOrder, StrictOrder(day=DAY, id=UUID(int=1), tags=frozenset("a"), pages=(1,))),
    (Annotated[date, Field(strict=True)], DAY),
    (Grown, Grown(n=1)),
    (Open, Open(a=1, b="c")),
    (Node, Node(name="a", below=[Node(name="b", secret=SecretStr("s"))])),
    (Box[Paid], Box[Paid](content=PaidByCard(amount=1, card=SecretStr("4111")))),
    (Days, Days([DAY])),
    (Written_, Written_(days='["2026-05-01"]')),
    (Colour, Colour.RED),
    (dict[Colour, int], {Colour.RED: 1, Colour.BIRTH: 2}),
    (Size | None, Size.S),
    (Level, Level.LOW),
    (Rights, Rights.READ | Rights.WRITE),
    (Counted, Counted(1)),
    (Made, Made(1, Path("a"), 3)),
    (Total, Total(at=Path("a"), key=SecretStr("k"))),
    (tuple[Total, bytes], (Total(at=Path("a"), key=SecretStr("k")), b"\xff")),
    (Literal[Colour.RED, Colour.PLAIN], Colour.RED),
    (Slotted, Slotted(day=DAY, raw=b"\xff")),
    (Pair, Pair(1, DAY)),
    (date | str, DAY),
    (str | datetime, "2026-05-01T00:00:00"),
    (tuple[int, ...] | list[int], (1, 2)),
    (str | Size, Size.S),
    (list[str | Size], [Size.S, "s"]),
    (int | Level, Level.LOW),
    (float | Decimal, Decimal("1.50")),
    (set[int] | frozenset[int], frozenset({1})),
    (Path | str, Path("a")),
    (str | IPv4Network, IPv4Network("10.0.0.0/8")),
    (Either, Either(size=Size.S, price=Decimal(1))),
    (set[UUID], {UUID(int=1), UUID(int=2)}),
    (frozenset[bytes], frozenset((b"\xff", b"\xfe"))),
    (deque[int], deque([1])),
    (Counter[str], Counter("aab")),
    (defaultdict[str, int], defaultdict(int, a=1)),
    (dict[tuple[int, int], str], {(1, 2): "a"}),
    (dict[int, date], {1: DAY}),
    (Decimal, Decimal("1.10")),
    (float, float("inf")),
    (timedelta, timedelta(days=-1, microseconds=3)),
    (time, time(1, 2, 3, 4)),
    (datetime, datetime(2026, 5, 1, tzinfo=UTC)),
    (Path, Path("a\udcff")),
    (complex, 1 + 2j),
    (IPv4Network, IPv4Network("10.0.0.0/8")),
    (HttpUrl, HttpUrl("https://a.example/b")),
    (Literal["a", 1], 1),
    (None, None),
    (str, "a\udcff"),
    (dict[str, str], {"a\udcff": "b\ud800"}),
    (Any, {"a\udcff": ["b\ud800"]}),
    (Any, b"\xff"),
]


def again(stored: Stored, written: Written) -> Any:
    """Read a value back in another process: from the text of its JSON."""
    return stored.load(*json.loads(json.dumps(written)))


class TestWhatComesBack:
    @given(st.sampled_from(list(TYPES)), st.data())
    def test_plain_values_are_their_own_json(self, annotation: Any, data: st.DataObject) -> None:
        value = TypeAdapter[Any](annotation).validate_python(data.draw(TYPES[annotation]))
        stored = Stored(annotation)
        (written, exact), back = stored.keep(value, "It")
        assert json.loads(json.dumps(written, allow_nan=False)) == written
        assert exact is None
        assert stored.load(written) == back == value
        assert type(stored.load(written)) is type(value)

    @pytest.mark.parametrize(("annotation", "value"), COMES_BACK, ids=lambda value: type(value).__name__)
    def test_a_value_comes_back_as_it_was(self, annotation: Any, value: Any, caplog: pytest.LogCaptureFixture) -> None:
        stored = Stored(annotation)
        written, back = stored.keep(value, f"A {annotation}")
        for came in (back, again(stored, written)):
            assert came == value
            assert type(came) is type(value)
            assert repr(came) == repr(value) or isinstance(value, frozenset | set | datetime)
        assert caplog.records == []

    @pytest.mark.parametrize("value", [[float("nan"), 1], {"a": float("nan")}])
    def test_no_number_is_like_itself_and_comes_back(self, value: Any, caplog: pytest.LogCaptureFixture) -> None:
        annotation = list[float] if isinstance(value, list) else dict[str, float]
        assert str(Stored(annotation).keep(value, "It")[1]) in (str(value), "[nan, 1.0]")
        assert caplog.records == []

    @pytest.mark.parametrize(
        ("annotation", "value", "back"),
        [
            (Any, {"day": DAY, "pair": (1, 2)}, {"day": "2026-05-01", "pair": [1, 2]}),
            (dict[str, Any], {"day": DAY, "of": Id(_id="1")}, {"day": "2026-05-01", "of": {"id": "1"}}),
            (Open, Open(a=1, b=DAY), Open(a=1, b="2026-05-01")),
            (object, Size.S, "s"),
            (str, Size.S, "s"),
            (float, 1, 1.0),
        ],
    )
    def test_what_a_type_leaves_open_is_plain_json(
        self, annotation: Any, value: Any, back: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        written, came = Stored(annotation).keep(value, "It")
        assert (written.exact, came) == (None, back)
        assert caplog.records == []

    def test_open_parts_stay_json_beside_those_that_are_kept_exactly(self) -> None:
        value = Noted(key=SecretStr("k"), notes={"day": DAY})
        assert Stored(Noted).keep(value, "It")[1] == Noted(key=SecretStr("k"), notes={"day": "2026-05-01"})

    def test_private_attributes_come_back_but_for_what_each_object_makes_itself(self) -> None:
        value = private()
        back = Stored(Private).keep(value, "It")[1]
        assert (back.a, back._cache) == (1, {"a": 1})
        assert back._session is not value._session

    def test_a_function_that_returns_none_in_place_of_its_model_gives_none(self) -> None:
        written, back = Stored(Point).keep(None, "It")
        assert back is None
        with pytest.raises(ValidationError):
            TypeAdapter(Point).validate_python(written.json)

    def test_nothing_is_shared_with_what_is_stored(self) -> None:
        stored = Stored(list[list[int]])
        written, back = stored.keep([[1]], "It")
        back[0].append(2)
        stored.load(*written)[0].append(3)
        assert stored.load(*written) == [[1]]


class TestOtherReleases:
    @pytest.mark.parametrize(
        ("annotation", "value"),
        [(each, value) for each, value in COMES_BACK if each in (Id, Camel, Hidden, Paid, SecretStr, date | str)],
        ids=lambda value: type(value).__name__,
    )
    def test_an_earlier_one_reads_what_it_could_write_itself_and_aliases(self, annotation: Any, value: Any) -> None:
        adapter = TypeAdapter[Any](annotation)
        written = Stored(annotation).keep(value, "It")[0]
        expected = adapter.dump_python(value, mode="json", round_trip=True, by_alias=annotation in (Id, Camel))
        assert written.json == expected
        adapter.validate_python(written.json)

    @pytest.mark.parametrize("annotation", [bytes, dict[str, bytes], list[bytes], Slotted, set[bytes]])
    def test_an_earlier_one_takes_nothing_else_for_the_value(self, annotation: Any) -> None:
        value: Any = {
            bytes: b"\xff",
            dict[str, bytes]: {"a": b"\xff"},
            list[bytes]: [b"\xff"],
            Slotted: Slotted(day=DAY, raw=b"\xff"),
            set[bytes]: {b"\xff"},
        }[annotation]
        with pytest.raises(ValidationError):
            TypeAdapter(annotation).validate_python(Stored(annotation).keep(value, "It")[0].json)

    def test_what_an_earlier_one_wrote_is_read_as_it_was_by_that(self) -> None:
        assert Stored(bytes).load("aGVsbG8=") == b"aGVsbG8="
        assert Stored(date | str).load("2026-05-01") == "2026-05-01"
        assert Stored(Hidden).load({"name": "ann"}) == Hidden(name="ann")
        assert Stored(StrictOrder).load({"day": "2026-05-01", "id": str(UUID(int=1)), "tags": ["a"]}).day == DAY

    def test_a_class_that_has_changed_since_is_validated(self) -> None:
        def written(n: int, **more: Any) -> tuple[Stored, Written]:
            model: Any = type("Changed", (BaseModel,), {"__annotations__": {"key": SecretStr, **more}})
            stored = Stored(model)
            return stored, stored.keep(model(key="k", **dict.fromkeys(more, n)), "It")[0]

        before, now = written(1), written(1, count=int)
        with pytest.raises(ValidationError, match="count"):
            now[0].load(*before[1])
        assert before[0].load(*now[1]).key.get_secret_value() == "k"

    def test_fields_that_were_put_in_as_they_were_must_all_be_there(self) -> None:
        stored = Stored(Grown)
        written = stored.keep(Grown(n=1), "It")[0]

        class Grown2(Grown):
            more: int

        Grown2.__qualname__ = "Grown"
        with pytest.raises(ValueError, match="more fields"):
            Stored(Grown2).load(*written)


class Session:
    """As of a database: it has no JSON."""


class Holds(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    session: Session


class MayHold(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    session: Session | None = None


class Lossy(BaseModel):
    """Its validator takes what its serializer writes, and makes something else of it."""

    at: Annotated[Session, BeforeValidator(lambda _: Session()), PlainSerializer(lambda _: "it")]
    model_config = ConfigDict(arbitrary_types_allowed=True)


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        "annotation",
        [
            Session,
            Session | None,
            Holds,
            list[Holds],
            dict[str, Holds],
            tuple[int, Holds],
            Holds | type[int],
            Callable[[], int],
            type[int],
            list["Undefined"],  # type: ignore[name-defined]  # noqa: F821
        ],
        ids=str,
    )
    def test_a_type_whose_values_can_never_be_read(self, annotation: Any) -> None:
        with pytest.raises(SetupError, match=r"JSON has no form of|schema|defined"):
            Stored(annotation).compile()  # which waits where a class is not there yet

    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (MayHold, MayHold()),
            (Holds | None, None),
            (Holds | str, "none"),
            (Lossy, Lossy(at=Session())),
        ],
    )
    def test_a_type_that_has_values_which_can(self, annotation: Any, value: Any) -> None:
        assert type(Stored(annotation).keep(value, "It")[1]) is type(value)

    @pytest.mark.parametrize("value", [object(), Point, lambda: None])
    def test_a_value_that_is_no_json(self, value: Any) -> None:
        with pytest.raises(ValueError, match="serialize"):
            Stored(Any).keep(value, "It")

    def test_a_value_of_another_type_than_declared(self) -> None:
        with pytest.raises(ValueError, match="Expected `int`"):
            Stored(int).keep("five", "It")
        with pytest.raises(ValidationError):
            Stored(Point).load({"x": "not a number"})


class TestTheLog:
    @pytest.mark.parametrize(
        ("annotation", "value", "back"),
        [
            (int, "5", 5),
            (Id, {"_id": "1"}, Id(_id="1")),
            (Point, Paid(amount=1), None),
            (dict[str, Any], {1: "a"}, {"1": "a"}),
            (dict[str, Any], {"key": SecretStr("s3cret")}, {"key": "**********"}),
            (dict[str, Any], {"of": [Hidden(name="a", token="s3cret")]}, {"of": [{"name": "a"}]}),
            (Lossy, Lossy(at=Session()), None),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_a_value_that_changes_is_named_once_and_never_shown(
        self, annotation: Any, value: Any, back: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        what = f"The result, which comes back as {back!r}"
        if annotation is Point:
            with pytest.raises(ValidationError):
                Stored(annotation).keep(value, what)
            return
        for _ in range(2):
            written, came = Stored(annotation).keep(value, what)
            assert back is None or came == back == again(Stored(annotation), written)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert what in caplog.text
        assert "s3cret" not in caplog.text + json.dumps(written)

    @pytest.mark.parametrize("value", [SecretStr("s3cret"), Hidden(name="a", token="s3cret"), [SecretStr("s3cret")]])
    def test_what_plain_json_leaves_out_where_no_type_is_declared(
        self, value: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        what = f"The untyped {type(value)}"
        written, back = Stored(Any).keep(value, what)
        assert "s3cret" not in json.dumps(written) + str(back) + caplog.text
        assert (
            f"{what}, a {type(value).__name__}, comes back as plain JSON, which does not hold all of it" in caplog.text
        )

    def test_what_is_left_open_shows_no_secret_to_whoever_gets_its_json(self) -> None:
        value = {"raw": b"\xff", "key": SecretStr("s3cret"), "of": Hidden(name="a", token="s3cret")}
        for annotation in (Any, dict[str, Any]):
            written, back = Stored(annotation).keep(value, "It")
            assert back == {**value, "of": {"name": "a"}}
            assert "s3cret" not in json.dumps(written.json) + repr(back)

    def test_an_iterator_is_read_once(self, caplog: pytest.LogCaptureFixture) -> None:
        def numbers() -> Iterator[int]:
            yield from (1, 2)

        assert Stored(Any).keep(numbers(), "It")[1] == [1, 2]
        assert caplog.records == []

    def test_marks_of_a_type_need_no_hash(self, caplog: pytest.LogCaptureFixture) -> None:
        stored = stored_as(Annotated[int, {"unit": "s"}])
        assert (stored.keep(5, "It")[1], stored.keep("5", "It")[1]) == (5, 5)
        assert "It, a str, does not come back" in caplog.text

    def test_what_is_returned_where_none_is_declared_is_none(self, caplog: pytest.LogCaptureFixture) -> None:
        assert Stored(None).keep(5, "The result of it") == (Written(None), None)
        assert "The result of it, a int, does not come back" in caplog.text

    @pytest.mark.parametrize("annotation", [Iterable[Id], Iterable[Id] | None, list[Iterable[Id]]])
    @pytest.mark.parametrize("make", [list, iter])
    def test_an_iterable_comes_back_as_a_list(
        self, annotation: Any, make: Callable[[list[Id]], Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        ids = [Id(_id="1"), Id(_id="2")]
        value, expected = ([ids], [ids]) if annotation == list[Iterable[Id]] else (make(ids), ids)
        stored = Stored(annotation)
        written, back = stored.keep(value, "It")
        assert back == again(stored, written) == expected
        assert Stored(Iterable[int]).keep((1, 2), "It")[1] == [1, 2]
        assert caplog.records == []

"""The key ring: what makes one, what it never shows, and that every purpose has keys of its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server import KeyRing, MRTRServer, SetupError

A, B = bytes(range(32)), bytes(range(100, 132))

secrets = st.binary(min_size=32, max_size=32)


def messages(error: BaseException) -> str:
    """Everything that a traceback of this error would print of its texts."""
    texts = []
    current: BaseException | None = error
    while current is not None:
        texts.append(f"{current!r} {current}")
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "\n".join(texts)


class TestParse:
    def test_a_ring_is_keys_of_64_hex_digits_separated_by_commas(self) -> None:
        ring = KeyRing.parse(f"{A.hex()},{B.hex()}")
        assert ring.derive("any") == KeyRing([A, B]).derive("any")

    def test_the_first_key_stays_the_first(self) -> None:
        assert KeyRing.parse(f"{B.hex()},{A.hex()}").derive("any") == KeyRing([B, A]).derive("any")

    def test_upper_case_and_spaces_around_a_key_make_no_difference(self) -> None:
        ring = KeyRing.parse(f"  {A.hex().upper()} ,\n{B.hex()}\n")
        assert ring.derive("any") == KeyRing([A, B]).derive("any")

    @given(st.lists(secrets, min_size=1, max_size=4, unique=True))
    def test_what_is_written_as_hex_is_read_back(self, keys: list[bytes]) -> None:
        assert KeyRing.parse(",".join(key.hex() for key in keys)).derive("x") == KeyRing(keys).derive("x")

    @pytest.mark.parametrize(
        "wrong",
        [
            "",
            ",",
            "secret-passphrase",
            A.hex()[:-1],
            A.hex() + "0",
            A.hex() + ",",
            "," + A.hex(),
            "0x" + A.hex()[2:],
            A.hex()[:32] + " " + A.hex()[33:],
            A.hex()[:-1] + "g",
            A.hex()[:-1] + "１",  # a full-width digit: isdigit() and int() take it
            A.hex() + ";" + B.hex(),
        ],
    )
    def test_anything_else_is_refused(self, wrong: str) -> None:
        with pytest.raises(SetupError, match="64 hex digits"):
            KeyRing.parse(wrong)

    def test_the_error_names_the_position_of_the_wrong_key(self) -> None:
        with pytest.raises(SetupError, match="Key 2 is not 64 hex digits"):
            KeyRing.parse(f"{A.hex()},oops,{B.hex()}")

    def test_the_error_names_the_command_that_makes_a_key(self) -> None:
        with pytest.raises(SetupError, match="mrtr-server keygen"):
            KeyRing.parse("oops")

    @given(st.text("0123456789abcdefghXYZ!", min_size=8, max_size=70).filter(lambda text: len(text) != 64))
    def test_no_error_ever_repeats_the_key(self, almost: str) -> None:
        with pytest.raises(SetupError) as caught:
            KeyRing.parse(almost)
        assert almost not in messages(caught.value)


class TestEnvironment:
    def test_the_ring_is_read_from_mrtr_keys(self) -> None:
        ring = KeyRing.from_environment({"MRTR_KEYS": f"{A.hex()},{B.hex()}"})
        assert ring is not None
        assert ring.derive("any") == KeyRing([A, B]).derive("any")

    @pytest.mark.parametrize("environment", [{}, {"MRTR_KEYS": ""}, {"MRTR_KEYS": " \n"}, {"OTHER": A.hex()}])
    def test_where_it_is_not_set_there_is_none(self, environment: dict[str, str]) -> None:
        assert KeyRing.from_environment(environment) is None

    def test_an_error_names_the_variable_and_not_its_value(self) -> None:
        almost = A.hex()[:-1] + "z"
        with pytest.raises(SetupError, match=r"^MRTR_KEYS: Key 1") as caught:
            KeyRing.from_environment({"MRTR_KEYS": almost})
        assert almost not in messages(caught.value)

    def test_a_server_takes_its_keys_from_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MRTR_KEYS", "not a key")
        with pytest.raises(SetupError, match=r"^MRTR_KEYS: "):
            MRTRServer("any")


class TestRing:
    def test_there_is_at_least_one_key(self) -> None:
        with pytest.raises(SetupError, match="at least one key"):
            KeyRing([])

    @pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
    def test_a_key_is_32_bytes(self, length: int) -> None:
        with pytest.raises(SetupError, match="Key 2 of the ring is not 32 bytes"):
            KeyRing([A, bytes(length)])

    def test_no_key_is_there_twice(self) -> None:
        with pytest.raises(SetupError, match="twice"):
            KeyRing([A, B, A])

    def test_its_length_is_the_number_of_keys(self) -> None:
        assert len(KeyRing([A, B])) == 2

    @given(st.lists(secrets, min_size=1, max_size=3, unique=True))
    def test_its_repr_shows_no_key(self, keys: list[bytes]) -> None:
        ring = KeyRing(keys)
        assert repr(ring) == str(ring) == f"{ring}" == f"KeyRing({len(keys)} keys)"

    def test_a_generated_ring_has_one_key_that_no_other_has(self) -> None:
        made = [KeyRing.generate() for _ in range(50)]
        assert {len(ring) for ring in made} == {1}
        assert len({ring.derive("any")[0] for ring in made}) == 50


class TestDerivation:
    def test_each_secret_gives_an_id_of_4_bytes_and_a_key_of_32(self) -> None:
        derived = KeyRing([A, B]).derive("state")
        assert [(len(key_id), len(key)) for key_id, key in derived] == [(4, 32), (4, 32)]

    def test_every_replica_derives_the_same(self) -> None:
        # Fixed here so that no release changes it by accident: a change would lose every flow that is under way.
        assert [(key_id.hex(), key.hex()) for key_id, key in KeyRing([A]).derive("state")] == [
            ("8eace752", "fcd72ffbb3b93a7521a4d7202b25b6fc38100860821ab2aec7a5a49d6c8210b3"),
        ]

    def test_purposes_have_nothing_in_common_but_the_key_id(self) -> None:
        states, cursors = KeyRing([A, B]).derive("state"), KeyRing([A, B]).derive("cursor")
        assert [key_id for key_id, _ in states] == [key_id for key_id, _ in cursors]
        assert not {key for _, key in states} & {key for _, key in cursors}

    @given(secrets, st.text(max_size=20), st.text(max_size=20))
    def test_neither_the_secret_nor_its_id_shows_in_a_derived_key(self, secret: bytes, one: str, other: str) -> None:
        ((key_id, key),) = KeyRing([secret]).derive(one)
        ((_, other_key),) = KeyRing([secret]).derive(other)
        assert key != secret
        assert not key.startswith(key_id)
        assert (key == other_key) == (one == other)

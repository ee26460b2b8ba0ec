"""List positions: every replica takes them, nobody can change them, and nobody can read how much is hidden."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server import KeyRing, SealedCodec
from mrtr_server.crypto.place_codec import Cursors

A, B = bytes(32), bytes([1] * 32)


@pytest.fixture(scope="module")
def cursors() -> Cursors:
    return Cursors(KeyRing([A]))


@given(listing=st.text(min_size=1, max_size=40), offset=st.integers(0, 10**12 - 1), last=st.text("abc-_1"))
def test_a_cursor_gives_back_the_position_that_it_was_made_for(
    cursors: Cursors, listing: str, offset: int, last: str
) -> None:
    assert cursors.unseal(listing, cursors.seal(listing, offset, last)) == (offset, last)


def test_a_cursor_of_one_list_is_none_of_another(cursors: Cursors) -> None:
    assert cursors.unseal("prompts", cursors.seal("tools", 10)) is None


def test_every_replica_with_the_ring_takes_it(cursors: Cursors) -> None:
    assert Cursors(KeyRing([A])).unseal("tools", cursors.seal("tools", 10)) == (10, "")


def test_a_ring_of_other_keys_does_not_take_it(cursors: Cursors) -> None:
    assert Cursors(KeyRing([B])).unseal("tools", cursors.seal("tools", 10)) is None


def test_the_first_key_seals_and_every_key_opens() -> None:
    old, appended, switched, new = (Cursors(KeyRing(keys)) for keys in ([A], [A, B], [B, A], [B]))
    assert new.unseal("tools", appended.seal("tools", 1)) is None
    assert new.unseal("tools", switched.seal("tools", 2)) == (2, "")
    assert old.unseal("tools", switched.seal("tools", 3)) is None
    assert appended.unseal("tools", switched.seal("tools", 4)) == (4, "")
    assert switched.unseal("tools", old.seal("tools", 5)) == (5, "")


@given(position=st.integers(min_value=0), character=st.sampled_from("ABCXYZabcxyz0189-_.=+/ é"))
def test_a_changed_cursor_says_nothing_else(cursors: Cursors, position: int, character: str) -> None:
    cursor = cursors.seal("tools", 250)
    position %= len(cursor)
    changed = cursor[:position] + character + cursor[position + 1 :]
    assert changed == cursor or cursors.unseal("tools", changed) is None


@pytest.mark.parametrize(
    "garbage",
    ["", ".", "..", "garbage", "0", "eyJhIjoxfQ.c2ln", "\udc80", "é" * 100, "A" * 10_000, None, 0, 250, ["tools"], {}],
)
def test_garbage_is_no_cursor(cursors: Cursors, garbage: Any) -> None:
    assert cursors.unseal("tools", garbage) is None


@pytest.mark.parametrize(("characters", "position"), [(512, (10, "")), (514, None)])
def test_a_cursor_has_at_most_512_characters_or_is_not_looked_at(
    cursors: Cursors, characters: int, position: tuple[int, str] | None
) -> None:
    listing = "x" * (characters * 3 // 4 - 59)
    cursor = cursors.seal(listing, 10)
    assert len(cursor) == characters
    assert cursors.unseal(listing, cursor) == position


def test_a_state_is_no_cursor_even_if_it_says_the_same(cursors: Cursors) -> None:
    assert cursors.unseal("tools", SealedCodec(KeyRing([A])).seal(b'["tools","000000000250"]')) is None


def test_a_cursor_shows_no_position(cursors: Cursors) -> None:
    """It counts the entries that its client may not see, too."""
    made = [cursors.seal("tools", offset) for offset in (1, 250, 99_999)]
    assert len({len(cursor) for cursor in made}) == 1
    assert cursors.seal("tools", 250) != made[1], "or equal positions could be told from others"

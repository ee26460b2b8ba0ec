"""Signed tokens: list positions and links. (The signed codec is held to its contract in `test_sealed_state.py`.)"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server import KeyRing, SignedCodec
from mrtr_server.errors import LinkRefused
from mrtr_server.signing import Cursors, Links

A, B = bytes(32), bytes([1] * 32)


@pytest.fixture(scope="module")
def cursors() -> Cursors:
    return Cursors(KeyRing([A]))


@given(listing=st.text(min_size=1, max_size=40), offset=st.integers(min_value=0, max_value=2**62))
def test_a_cursor_gives_back_the_position_that_it_was_made_for(cursors: Cursors, listing: str, offset: int) -> None:
    assert cursors.read(listing, cursors.make(listing, offset)) == offset


def test_a_cursor_of_one_list_is_none_of_another(cursors: Cursors) -> None:
    assert cursors.read("prompts", cursors.make("tools", 10)) is None


def test_every_replica_with_the_ring_takes_it(cursors: Cursors) -> None:
    assert Cursors(KeyRing([A])).read("tools", cursors.make("tools", 10)) == 10


def test_a_ring_of_other_keys_does_not_take_it(cursors: Cursors) -> None:
    assert Cursors(KeyRing([B])).read("tools", cursors.make("tools", 10)) is None


def test_the_first_key_signs_and_every_key_is_taken() -> None:
    old, appended, switched, new = (Cursors(KeyRing(keys)) for keys in ([A], [A, B], [B, A], [B]))
    assert new.read("tools", appended.make("tools", 1)) is None
    assert new.read("tools", switched.make("tools", 2)) == 2
    assert old.read("tools", switched.make("tools", 3)) is None
    assert appended.read("tools", switched.make("tools", 4)) == 4
    assert switched.read("tools", old.make("tools", 5)) == 5


@given(position=st.integers(min_value=0), character=st.sampled_from("ABCXYZabcxyz0189-_.=+/ é"))
def test_a_changed_cursor_says_nothing_else(cursors: Cursors, position: int, character: str) -> None:
    cursor = cursors.make("tools", 250)
    position %= len(cursor)
    changed = cursor[:position] + character + cursor[position + 1 :]
    # The last character has bits that count for nothing; whatever is taken stands for what was signed.
    assert cursors.read("tools", changed) in (None, 250)
    assert changed == cursor or position == len(cursor) - 1 or cursors.read("tools", changed) is None


@pytest.mark.parametrize(
    "garbage",
    ["", ".", "..", "garbage", "0", "eyJhIjoxfQ.c2ln", "\udc80", "é" * 100, "A" * 10_000, None, 0, 250, ["tools"], {}],
)
def test_garbage_is_no_cursor(cursors: Cursors, garbage: Any) -> None:
    assert cursors.read("tools", garbage) is None


def test_a_state_is_no_cursor_even_if_it_says_the_same(cursors: Cursors) -> None:
    assert cursors.read("tools", SignedCodec(KeyRing([A])).seal(b'["tools",250]')) is None


class TestLinks:
    """What opens them is held to its rules in `test_callbacks.py`; here are the tokens alone."""

    ID = "0" * 32

    def test_a_link_gives_back_what_it_was_made_for(self) -> None:
        links = Links(KeyRing([A]), "calendar")
        made = links.make("google", self.ID, "ann", 1_000)
        opened = links.open("google", made.token)
        assert (opened.id, opened.expires, opened.secret) == (self.ID, 1_000, made.secret)
        assert opened.belongs_to("ann")
        assert not opened.belongs_to("bob")
        assert not opened.belongs_to("")

    def test_nobody_is_an_owner_like_any_other(self) -> None:
        link = Links(KeyRing([A]), "calendar").make("google", self.ID, "", 1_000)
        assert link.belongs_to("")
        assert not link.belongs_to("ann")

    @pytest.mark.parametrize(
        ("ring", "audience", "callback"), [([B], "calendar", "google"), ([A], "mail", "google"), ([A], "calendar", "x")]
    )
    def test_it_opens_for_its_ring_its_server_and_its_callback_alone(
        self, ring: list[bytes], audience: str, callback: str
    ) -> None:
        token = Links(KeyRing([A]), "calendar").make("google", self.ID, "ann", 1_000).token
        with pytest.raises(LinkRefused, match="forged or damaged"):
            Links(KeyRing(ring), audience).open(callback, token)

    def test_what_is_in_it_under_the_key_signs_nothing_else(self) -> None:
        """A token shows a signature of its owner. It must not do for that of a link, nor give away the secret."""
        links = Links(KeyRing([A]), "calendar")
        made = links.make("google", self.ID, "ann", 1_000)
        *signed, owner, signature = made.token.split(".")
        assert made.secret not in (owner, signature)
        assert len(made.secret) == 43
        with pytest.raises(LinkRefused):
            links.open("google", ".".join([*signed, owner, owner]))

    def test_a_rotated_ring_opens_what_the_old_key_signed_with_the_same_secret(self) -> None:
        made = Links(KeyRing([A]), "calendar").make("google", self.ID, "ann", 1_000)
        opened = Links(KeyRing([B, A]), "calendar").open("google", made.token)
        assert opened.secret == made.secret
        assert opened.belongs_to("ann")

    @given(token=st.text(max_size=300))
    def test_garbage_is_no_link(self, token: str) -> None:
        with pytest.raises(LinkRefused):
            Links(KeyRing([A]), "calendar").open("google", token)

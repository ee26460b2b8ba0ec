"""Signed tokens: links. (The signed codec is held to its contract in `crypto/test_codec.py`.)"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrtr_server import KeyRing
from mrtr_server.crypto.signing import Links
from mrtr_server.errors import LinkRefused

A, B = bytes(32), bytes([1] * 32)


class TestLinks:
    """What opens them is held to its rules in `flow/test_callback_service.py`; here are the tokens alone."""

    ID = "0" * 32

    def test_a_link_gives_back_what_it_was_made_for(self) -> None:
        links = Links(KeyRing([A]), "calendar")
        made = links.seal("google", self.ID, "ann", 1_000)
        opened = links.unseal("google", made.token)
        assert (opened.id, opened.expires, opened.secret) == (self.ID, 1_000, made.secret)
        assert opened.belongs_to("ann")
        assert not opened.belongs_to("bob")
        assert not opened.belongs_to("")

    def test_nobody_is_an_owner_like_any_other(self) -> None:
        link = Links(KeyRing([A]), "calendar").seal("google", self.ID, "", 1_000)
        assert link.belongs_to("")
        assert not link.belongs_to("ann")

    @pytest.mark.parametrize(
        ("ring", "audience", "callback"), [([B], "calendar", "google"), ([A], "mail", "google"), ([A], "calendar", "x")]
    )
    def test_it_opens_for_its_ring_its_server_and_its_callback_alone(
        self, ring: list[bytes], audience: str, callback: str
    ) -> None:
        token = Links(KeyRing([A]), "calendar").seal("google", self.ID, "ann", 1_000).token
        with pytest.raises(LinkRefused, match="forged or damaged"):
            Links(KeyRing(ring), audience).unseal(callback, token)

    def test_what_is_in_it_under_the_key_signs_nothing_else(self) -> None:
        """A token shows a signature of its owner. It must not do for that of a link, nor give away the secret."""
        links = Links(KeyRing([A]), "calendar")
        made = links.seal("google", self.ID, "ann", 1_000)
        *signed, owner, signature = made.token.split(".")
        assert made.secret not in (owner, signature)
        assert len(made.secret) == 43
        with pytest.raises(LinkRefused):
            links.unseal("google", ".".join([*signed, owner, owner]))

    def test_a_rotated_ring_opens_what_the_old_key_signed_with_the_same_secret(self) -> None:
        made = Links(KeyRing([A]), "calendar").seal("google", self.ID, "ann", 1_000)
        opened = Links(KeyRing([B, A]), "calendar").unseal("google", made.token)
        assert opened.secret == made.secret
        assert opened.belongs_to("ann")

    @pytest.mark.parametrize(("characters", "refused"), [(512, None), (513, "too large"), (5_000, "too large")])
    def test_a_token_has_at_most_512_characters_or_is_not_looked_at(self, characters: int, refused: str | None) -> None:
        links = Links(KeyRing([A]), "calendar")
        around = len(links.seal("google", "", "ann", 1_000).token)
        made = links.seal("google", "0" * (characters - around), "ann", 1_000)
        assert len(made.token) == characters
        if refused is None:
            assert links.unseal("google", made.token).belongs_to("ann")
        else:
            with pytest.raises(LinkRefused) as error:
                links.unseal("google", made.token)
            assert error.value.reason.startswith(refused)

    @given(token=st.text(max_size=300))
    def test_garbage_is_no_link(self, token: str) -> None:
        with pytest.raises(LinkRefused):
            Links(KeyRing([A]), "calendar").unseal("google", token)

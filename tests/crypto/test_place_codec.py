"""Rows of a store: sealed where others could read them, and readable for nothing but what they are of."""

import pytest

from mrtr_server import KeyRing
from mrtr_server.crypto.keys import LIVE_PAGES
from mrtr_server.crypto.place_codec import RowNames, row_codec
from mrtr_server.errors import InvalidRequestState

RING = KeyRing([bytes(32)])


def test_a_row_of_a_store_that_others_read_is_sealed() -> None:
    codec = row_codec(RING, "row", in_memory=False)
    sealed = codec.seal(b"yours ", b"a secret")
    assert "secret" not in sealed
    assert codec.unseal(b"yours ", sealed, "moved") == b"a secret"
    with pytest.raises(InvalidRequestState) as refused:
        codec.unseal(b"their ", sealed, "moved")
    assert refused.value.reason == "moved"


def test_a_row_in_the_memory_of_the_process_is_kept_as_it_is() -> None:
    codec = row_codec(RING, "row", in_memory=True)
    assert codec.seal(b"yours ", b"a secret") == "a secret"
    assert codec.unseal(b"yours ", "a secret", "moved") == b"a secret"


def test_names_of_rows_stay_as_they_are_stored_with_one_for_each_key() -> None:
    """Rows are found by them, also those that an earlier release has stored."""
    ring = KeyRing([bytes(32), b"1" * 32])
    names = RowNames(ring, LIVE_PAGES).of(["shop", "ann"])
    assert names == ["dd1ed4e43aee3a9c67eede18d37be6c7", "3626e417fad96917a7dd36d9c6bf6255"]

"""Rows of a store: sealed where others could read them, and readable for nothing but what they are of."""

import pytest

from mrtr_server import KeyRing
from mrtr_server.crypto.place_codec import row_codec
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

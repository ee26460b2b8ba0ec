"""What an earlier release sealed, signed or derived is the same in this one: replicas of both serve the same clients.

The tokens here were made before the first public release, under the ring of one key of 32 zero bytes. A change that
makes one of these tests fail loses every flow, link and row that exists.
"""

from mrtr_server import KeyRing, SealedCodec, SignedCodec
from mrtr_server.crypto.place_codec import Cursors, PlaceCodec
from mrtr_server.crypto.signing import Links

RING = KeyRing([bytes(32)])

SEALED = "AfG4Rf9_72WLhO04-PptR70S2KIIhIBcDgODzoAwGFq0e2oG5UDGpEOZD2Kt2qf7rTD0uw"
SIGNED = "cGF5bG9hZA.69tJI6007lgGnubUqFPmBFahSYDz8B-PHlrT3Y_cD68"
CURSOR = "AfG4Rf-9Ul-K4z1rtPaCsMbWp911vYYJpYVhLdoi4P9eka_6gYEUAIsgl4mCkoZVxpNmaTEV23yN-0kolRkPHA"
ROW = "AfG4Rf8f0UycS_teMnna6c5FPwXwlZ8IIG9YaHx6UnXn0NhiTQVhRTiPXLOARbcyazhCSw"
LINK = (
    "00000000000000000000000000000000.1000.nNJj9tJufOzwcykjfGKZI4iFNVVR7jqiZtiba42SUrM."
    "99pZH5UU1ArgQQgm4QRd2FnRGzjrXcYgw-GmlwzRyhM"
)
SECRET = "H-EVN3FCiVzB1fc_tRh9FJ1dK0qfPKX3XPNJ3rCvZuU"


def test_a_ring_derives_the_same_keys() -> None:
    assert RING.derive("state") == [
        (bytes.fromhex("f1b845ff"), bytes.fromhex("ffd4545c12541afdeda581c3d258a9ad15322272ec083e1a0a1d1fdd9561332d")),
    ]


def test_a_sealed_state_opens() -> None:
    assert SealedCodec(RING).unseal(SEALED) == b"payload"


def test_a_signed_state_opens_and_is_spelled_the_same() -> None:
    assert SignedCodec(RING).unseal(SIGNED) == b"payload"
    assert SignedCodec(RING).seal(b"payload") == SIGNED


def test_a_cursor_opens() -> None:
    assert Cursors(RING).unseal("tools", CURSOR) == (250, "")


def test_what_is_sealed_for_a_row_opens() -> None:
    assert PlaceCodec(RING, "row").unseal(b"one ", ROW, "moved") == b"yes"


def test_a_link_opens_and_is_spelled_the_same() -> None:
    links = Links(RING, "calendar")
    link = links.unseal("google", LINK)
    assert (link.id, link.expires, link.secret) == ("0" * 32, 1_000, SECRET)
    assert link.belongs_to("ann")
    assert links.seal("google", "0" * 32, "ann", 1_000).token == LINK

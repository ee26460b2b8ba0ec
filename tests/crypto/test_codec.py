"""Sealed states: the published vectors, the rotation of keys, and that nothing opens but what was sealed."""

import asyncio
import multiprocessing
import os
import random
import string
import subprocess
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from hashlib import shake_128

import pytest
from cryptography.exceptions import InvalidTag
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrtr_server import Codec, KeyRing, Limits, MRTRServer, SealedCodec, SignedCodec
from mrtr_server.crypto.codec import XAES256GCM, pack, unpack
from mrtr_server.crypto.place_codec import PlaceCodec
from mrtr_server.errors import InvalidRequestState
from mrtr_server.testing import AsyncClient

A, B, C = bytes(32), bytes([1] * 32), bytes([2] * 32)

URL_SAFE = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
"""The alphabet, in the order of the values that its characters stand for."""


def refusal(codec: Codec, token: str) -> InvalidRequestState:
    with pytest.raises(InvalidRequestState) as caught:
        codec.unseal(token)
    return caught.value


def decode(token: str) -> bytes:
    return urlsafe_b64decode(token + "=" * (-len(token) % 4))


def encode(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


class TestXAES256GCM:
    """The vectors of https://c2sp.org/XAES-256-GCM."""

    NONCE = b"ABCDEFGHIJKLMNOPQRSTUVWX"

    @pytest.mark.parametrize(
        ("key", "associated", "ciphertext"),
        [
            (bytes([1] * 32), b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
            (bytes([3] * 32), b"c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
        ],
        ids=["msb of L is 0", "msb of L is 1"],
    )
    def test_the_single_vectors_hold(self, key: bytes, associated: bytes, ciphertext: str) -> None:
        aead = XAES256GCM(key)
        assert aead.encrypt(self.NONCE, b"XAES-256-GCM", associated).hex() == ciphertext
        assert aead.decrypt(self.NONCE, bytes.fromhex(ciphertext), associated) == b"XAES-256-GCM"

    def test_the_accumulated_vector_of_ten_thousand_random_messages_holds(self) -> None:
        # The longest that the stream can be: key, nonce, and two strings of 255 bytes with their lengths.
        stream = shake_128().digest(10_000 * (32 + 24 + 2 * 256))
        position = 0

        def take(length: int) -> bytes:
            nonlocal position
            position += length
            return stream[position - length : position]

        ciphertexts = shake_128()
        for _ in range(10_000):
            aead, nonce = XAES256GCM(take(32)), take(24)
            plaintext = take(take(1)[0])
            associated = take(take(1)[0])
            ciphertext = aead.encrypt(nonce, plaintext, associated)
            assert aead.decrypt(nonce, ciphertext, associated) == plaintext
            ciphertexts.update(ciphertext)
        assert ciphertexts.hexdigest(32) == "e6b9edf2df6cec60c8cbd864e2211b597fb69a529160cd040d56c0c210081939"

    def test_every_bit_of_the_nonce_matters(self) -> None:
        aead = XAES256GCM(A)
        ciphertext = aead.encrypt(bytes(24), b"text", b"")
        for bit in range(24 * 8):
            with pytest.raises(InvalidTag):
                aead.decrypt((1 << bit).to_bytes(24, "big"), ciphertext, b"")

    def test_one_instance_serves_any_number_of_messages_in_any_order(self) -> None:
        aead = XAES256GCM(A)
        sealed = [
            (nonce.to_bytes(24, "big"), aead.encrypt(nonce.to_bytes(24, "big"), b"%d" % nonce, b""))
            for nonce in range(50)
        ]
        for nonce, ciphertext in reversed(sealed):
            assert aead.decrypt(nonce, ciphertext, b"") == XAES256GCM(A).decrypt(nonce, ciphertext, b"")


# Hypothesis minds a test that two classes inherit, since examples kept for one are replayed for the other. Here each
# example says all that there is to say.
inherited = settings(suppress_health_check=[HealthCheck.differing_executors])


class CodecContract:
    """What every codec must do. A codec's test class inherits this and says which codec it is."""

    make: type[SealedCodec] | type[SignedCodec]

    @pytest.fixture(scope="class")
    @classmethod
    def codec(cls) -> Codec:
        """A codec with one key."""
        return cls.make(KeyRing([A]))

    @inherited
    @given(payload=st.binary(max_size=1024))
    def test_what_was_sealed_opens(self, codec: Codec, payload: bytes) -> None:
        assert codec.unseal(codec.seal(payload)) == payload

    def test_a_token_is_made_of_characters_that_urls_and_headers_carry(self, codec: Codec) -> None:
        for length in range(100):
            assert set(codec.seal(os.urandom(length))) <= {*URL_SAFE, "."}

    def test_a_token_is_not_much_longer_than_base64_makes_it(self, codec: Codec) -> None:
        # What is checked before a codec is asked: 4/3 of the payload and 2,048 characters.
        for length in (0, 1, 1000, 256 * 1024):
            assert len(codec.seal(bytes(length))) <= length * 4 / 3 + 2048

    @pytest.mark.parametrize("length", [0, 1, 2, 3, 40])
    def test_no_flip_of_a_single_bit_of_the_text_opens(self, codec: Codec, length: int) -> None:
        token = codec.seal(bytes(length))
        for position, character in enumerate(token):
            for bit in range(8):
                flipped = token[:position] + chr(ord(character) ^ (1 << bit)) + token[position + 1 :]
                refusal(codec, flipped)

    @pytest.mark.parametrize("length", [0, 1, 2, 3])
    def test_nothing_but_the_canonical_spelling_opens(self, codec: Codec, length: int) -> None:
        tried = 0
        for _ in range(50):
            token = codec.seal(os.urandom(length))
            for spelling in other_spellings(token):
                refusal(codec, spelling)
                tried += 1
        assert tried > 50 * 30

    @pytest.mark.parametrize(
        "garbage",
        ["", ".", "..", "A", "AAAA", "A" * 60, "A" * 59 + ".", "\x00", "💥", "\udc80", "null", "{}", "AQ" * 40],
    )
    def test_garbage_does_not_open(self, codec: Codec, garbage: str) -> None:
        refusal(codec, garbage)

    @inherited
    @given(garbage=st.text(max_size=200))
    def test_no_text_does_anything_but_be_refused(self, codec: Codec, garbage: str) -> None:
        refusal(codec, garbage)

    def test_the_client_sees_one_message_for_every_failure_and_the_log_sees_which(self, codec: Codec) -> None:
        token = codec.seal(b"payload")
        flipped = ("B" if token[-12] == "A" else "A").join((token[:-12], token[-11:]))
        refused = [refusal(codec, wrong) for wrong in ("=" * 1000, "?", flipped, token + "=")]
        assert {(error.message, str(error), error.data) for error in refused} == {
            ("requestState is not valid for this request; send the request again without it",) * 2 + (None,)
        }
        assert len({error.reason for error in refused}) > 1
        assert all(error.reason and error.reason not in error.message for error in refused)

    def test_no_failure_drags_the_payload_or_a_foreign_error_along(self, codec: Codec) -> None:
        token = codec.seal(b"payload")
        for wrong in ("?", "é", token[:-1], token[::-1], token + "="):
            error = refusal(codec, wrong)
            assert error.__suppress_context__ or error.__context__ is None

    def test_rotation_in_three_phases_loses_no_flow(self) -> None:
        make = self.make
        old, new = KeyRing([A]), KeyRing([B])
        appended, switched = KeyRing([A, B]), KeyRing([B, A])
        # 1. The new key is appended, replica by replica: all still seal with the old one.
        for writer in (old, appended):
            for reader in (old, appended):
                assert make(reader).unseal(make(writer).seal(b"1")) == b"1"
        # 2. The new key goes first: replicas of either phase open what the others sealed.
        for writer in (appended, switched):
            for reader in (appended, switched):
                assert make(reader).unseal(make(writer).seal(b"2")) == b"2"
        # 3. The old key goes, when all that it sealed has expired.
        for writer in (switched, new):
            for reader in (switched, new):
                assert make(reader).unseal(make(writer).seal(b"3")) == b"3"
        refusal(make(new), make(old).seal(b"0"))

    def test_a_ring_of_other_keys_opens_nothing(self) -> None:
        make = self.make
        refusal(make(KeyRing([B, C])), make(KeyRing([A])).seal(b"payload"))

    def test_what_was_sealed_for_one_purpose_does_not_open_for_another(self) -> None:
        make = self.make
        ring = KeyRing([A, B])
        one, other = make(ring, purpose="one"), make(ring, purpose="other")
        refusal(other, one.seal(b"payload"))
        refusal(one, other.seal(b"payload"))
        refusal(make(ring), one.seal(b"payload"))

    def test_any_number_of_threads_may_seal_and_open(self, codec: Codec) -> None:
        def work(number: int) -> bool:
            payload = b"%d" % number * (number % 60)
            return codec.unseal(codec.seal(payload)) == payload

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(8) as threads:
                assert all(threads.map(work, range(4000), chunksize=20))
        finally:
            sys.setswitchinterval(interval)


def other_spellings(token: str) -> Iterator[str]:
    """Texts other than the token that some reader of Base64 takes for the same bytes."""
    yield from (token + "=" * count for count in (1, 2, 3, 4))
    if "-" in token or "_" in token:
        yield token.translate(str.maketrans("-_", "+/"))
    for blank in (" ", "\n", "\r\n", "\t", "\x00", "\x0b", "\u00a0", "\u200b", "\ufeff"):
        yield from (token + blank, blank + token, token[:7] + blank + token[7:])
    for stray in ("!", "=", "+", "/", "%", "é", "💥"):
        yield from (stray + token, token[:8] + stray + token[8:], token + stray)
    yield token.translate({ord(c): ord(c) + 0xFEE0 for c in string.ascii_letters + string.digits})  # full width
    yield token[:-1] + chr(ord(token[-1]) + 0xFEE0)
    # The bits of the last character that no byte needs.
    unused = {0: 0, 2: 4, 3: 2}[len(token.rpartition(".")[2]) % 4]
    last = URL_SAFE.index(token[-1])
    yield from (token[:-1] + URL_SAFE[last ^ bits] for bits in range(1, 1 << unused))


class TestSealedCodec(CodecContract):
    make = SealedCodec

    def test_a_token_shows_nothing_of_the_payload(self, codec: Codec) -> None:
        payload = b"a secret that is long enough not to turn up by chance"
        token = codec.seal(payload)
        assert payload not in decode(token)
        assert encode(payload)[4:-4] not in token

    def test_a_token_is_version_key_id_nonce_ciphertext_and_tag(self, codec: Codec) -> None:
        ((key_id, key),) = KeyRing([A]).derive("state")
        raw = decode(codec.seal(b"payload"))
        assert raw[:1] == b"\x01"
        assert raw[1:5] == key_id
        assert XAES256GCM(key).decrypt(raw[5:29], raw[29:], raw[:5]) == b"payload"

    def test_no_payload_is_sealed_to_the_same_token_twice(self, codec: Codec) -> None:
        assert len({decode(codec.seal(b"payload"))[5:29] for _ in range(1000)}) == 1000

    def test_a_derived_key_seals_256_tokens_at_most(self) -> None:
        codecs = [SealedCodec(KeyRing([A]), purpose) for purpose in ("state", "row")]
        with ThreadPoolExecutor(8) as threads:
            sealed = list(threads.map(lambda number: codecs[number % 2].seal(b""), range(10_000)))
        nonces = [decode(token)[5:29] for token in sealed]
        assert len(set(nonces)) == 10_000
        assert 40 <= len(first := Counter(nonce[:12] for nonce in nonces)) < 10_000
        assert max(first.values()) <= 256
        assert len({nonce[12:] for nonce in nonces}) == 10_000

    def test_a_forked_process_derives_a_key_of_its_own(self) -> None:
        program = (
            "import os; from mrtr_server import KeyRing, SealedCodec; codec = SealedCodec(KeyRing([bytes(32)]))\n"
            "codec.seal(b''); child = os.fork(); child and os.waitpid(child, 0); print(codec.seal(b''), flush=True)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        parent, child = (decode(token)[5:17] for token in done.stdout.split())
        assert parent != child

    @pytest.mark.parametrize("length", range(4))
    def test_a_token_is_packed_into_the_bytes_that_it_stands_for(self, codec: Codec, length: int) -> None:
        token = codec.seal(b"x" * length)
        assert pack(token.encode()) == decode(token)
        assert unpack(decode(token)) == token.encode()

    @pytest.mark.parametrize("tokens", [False, True])
    @given(st.binary() | st.text(URL_SAFE + "=").map(str.encode))
    def test_whatever_is_packed_comes_back(self, tokens: bool, kept: bytes) -> None:
        for value in (kept, b"\1" + kept, b"\2" + kept):
            assert unpack(pack(value, tokens=tokens)) == value

    def test_nothing_is_compressed(self, codec: Codec) -> None:
        # A secret beside what a client chooses would show in the length otherwise.
        assert len(codec.seal(bytes(500))) == len(codec.seal(os.urandom(500)))

    @pytest.mark.parametrize("length", [0, 1, 33])
    def test_no_flip_of_a_single_bit_opens(self, codec: Codec, length: int) -> None:
        raw = decode(codec.seal(bytes(length)))
        for bit in range(len(raw) * 8):
            flipped = int.from_bytes(raw, "big") ^ (1 << bit)
            refusal(codec, encode(flipped.to_bytes(len(raw), "big")))

    def test_the_log_tells_the_failures_apart(self, codec: Codec) -> None:
        raw = decode(token := codec.seal(b"1"))
        unused_bit_set = token[:-1] + chr(ord(token[-1]) + 1)
        assert decode(unused_bit_set) == raw
        for wrong, reason in (
            ("not Base64!", "not Base64"),
            ("é", "not Base64"),
            (encode(raw[:44]), "too short"),
            (unused_bit_set, "not Base64"),
            (token + "==", "not canonical Base64"),
            (encode(b"\xfb\xef\xbe" * 16).replace("-", "+"), "not canonical Base64"),
            (encode(b"\xff" * 48).replace("_", "/"), "not canonical Base64"),
            (encode(b"\x02" + raw[1:]), "unknown token version"),
            (
                encode(raw[:1] + b"nope" + raw[5:]),
                "sealed under a key that is not in the ring. Give every replica all keys of the ring",
            ),
            (encode(raw[:-1] + bytes([raw[-1] ^ 1])), "forged or damaged"),
        ):
            assert refusal(codec, wrong).reason == reason

    def test_the_key_id_selects_the_key_and_is_authenticated(self) -> None:
        ring = KeyRing([A, B])
        codec = SealedCodec(ring)
        (first, _), (second, _) = ring.derive("state")
        raw = decode(codec.seal(b"payload"))
        assert raw[1:5] == first
        assert refusal(codec, encode(raw[:1] + second + raw[5:])).reason == "forged or damaged"

    def test_none_of_a_million_mutated_tokens_opens(self) -> None:
        workers = min(4, os.cpu_count() or 1)
        share = 20_000
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
            results = list(pool.map(open_mutations, range(1_000_000 // share), [share] * (1_000_000 // share)))
        assert [token for opened, _ in results for token in opened] == []
        assert sum(tried for _, tried in results) == 1_000_000


def open_mutations(seed: int, count: int) -> tuple[list[str], int]:
    """Try that many mutated tokens; return those that opened, and how many were tried."""
    chance = random.Random(seed)
    codec = SealedCodec(KeyRing([A, B]))
    sealed = [codec.seal(chance.randbytes(chance.choice((0, 1, 2, 10, 60, 200)))) for _ in range(100)]
    genuine = frozenset(sealed)
    assert all(codec.unseal(token) is not None for token in sealed)
    opened, tried = [], 0
    while tried < count:
        mutated = chance.choice(MUTATIONS)(chance, chance.choice(sealed), chance.choice(sealed))
        if mutated in genuine:
            continue
        tried += 1
        try:
            codec.unseal(mutated)
        except InvalidRequestState:
            continue
        opened.append(mutated)
    return opened, tried


def change_characters(chance: random.Random, token: str, _: str) -> str:
    characters = list(token)
    for _turn in range(chance.choice((1, 1, 2, 5))):
        characters[int(chance.random() * len(token))] = URL_SAFE[int(chance.random() * 64)]
    return "".join(characters)


def change_bytes(chance: random.Random, token: str, _: str) -> str:
    raw = bytearray(decode(token))
    for _turn in range(chance.choice((1, 1, 2, 5))):
        raw[int(chance.random() * len(raw))] = int(chance.random() * 256)
    return encode(bytes(raw))


def truncate(chance: random.Random, token: str, _: str) -> str:
    start, end = sorted(int(chance.random() * (len(token) + 1)) for _ in range(2))
    return chance.choice((token[:end], token[start:], token[start:end], token[:start] + token[end:]))


def splice_text(chance: random.Random, token: str, other: str) -> str:
    return token[: int(chance.random() * len(token))] + other[int(chance.random() * len(other)) :]


def splice_at_a_seam(chance: random.Random, token: str, other: str) -> str:
    """Take the header, nonce, ciphertext or tag from another token."""
    one, two = decode(token), decode(other)
    start, end = chance.choice(((0, 5), (5, 29), (5, 17), (17, 29), (29, -16), (-16, None), (0, 29), (5, -16)))
    return encode(one[:start] + two[start:end] + (b"" if end is None else one[end:]))


def swap(chance: random.Random, token: str, _: str) -> str:
    characters = list(token)
    one, two = int(chance.random() * len(token)), int(chance.random() * len(token))
    characters[one], characters[two] = characters[two], characters[one]
    return "".join(characters)


def insert(chance: random.Random, token: str, _: str) -> str:
    position = int(chance.random() * (len(token) + 1))
    return token[:position] + chance.choice(("=", "A", "_", "\n", "==", "AAAA", chr(0x100))) + token[position:]


def extend(chance: random.Random, token: str, _: str) -> str:
    return encode(decode(token) + chance.randbytes(chance.choice((1, 2, 3, 16))))


MUTATIONS: tuple[Callable[[random.Random, str, str], str], ...] = (
    change_characters,
    change_bytes,
    truncate,
    splice_text,
    splice_at_a_seam,
    swap,
    insert,
    extend,
)


class TestSignedCodec(CodecContract):
    """For debugging: the client can read such a state, and not change it."""

    make = SignedCodec

    def test_the_client_can_read_the_state(self, codec: Codec) -> None:
        readable = codec.seal(b"the whole state").partition(".")[0]
        assert decode(readable) == b"the whole state"

    def test_the_client_can_not_change_it(self, codec: Codec) -> None:
        payload, _, signature = codec.seal(b"user=eve").partition(".")
        assert refusal(codec, f"{encode(b'user=root')}.{signature}").reason == "forged or damaged"
        assert refusal(codec, payload).reason == "forged or damaged"
        assert refusal(codec, f"{payload}.").reason == "forged or damaged"

    def test_a_sealed_state_is_not_a_signed_one_and_the_other_way_round(self, codec: Codec) -> None:
        sealed = SealedCodec(KeyRing([A]), purpose="signed-state")
        refusal(codec, sealed.seal(b"payload"))
        refusal(sealed, codec.seal(b"payload"))


class WatchedCodec(SealedCodec):
    """Remembers the length of each token that it was asked to open."""

    def __init__(self) -> None:
        super().__init__(KeyRing([A]))
        self.lengths: list[int] = []

    def unseal(self, token: str) -> bytes:
        self.lengths.append(len(token))
        return super().unseal(token)


def test_a_state_over_the_limit_never_reaches_the_codec(caplog: pytest.LogCaptureFixture) -> None:
    codec = WatchedCodec()
    limits = Limits(state_bytes=3000)
    app = MRTRServer("sizes", keys=[A], codec=codec, limits=limits)
    app.tool(name="tool")(lambda: "done")
    longest = 3000 * 4 // 3 + 2048
    messages = set()
    for length in (longest, longest + 1, 100 * longest):
        flow = AsyncClient(app).flow("tool")
        flow.state = "A" * length
        messages.add(asyncio.run(flow.send()).error.message)
    assert messages == {InvalidRequestState.MESSAGE}
    assert codec.lengths == [longest]
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == [
        "unknown token version",
        "too large",
    ]


class TestPlaceCodec:
    """What is sealed for one place opens there alone, whoever moves it."""

    def test_what_was_sealed_opens_in_its_place(self) -> None:
        bound = PlaceCodec(KeyRing([bytes(32)]), "row")
        for payload in (b"", b"yes", bytes(range(256))):
            sealed = bound.seal(b"one ", payload)
            assert bound.unseal(b"one ", sealed, "moved") == payload
            assert bound.unseal(b"one ", sealed.encode(), "moved") == payload

    @pytest.mark.parametrize("place", [b"two ", b"One ", b"one  ", b"one yes!"])
    def test_what_was_sealed_opens_in_no_other_place(self, place: bytes) -> None:
        bound = PlaceCodec(KeyRing([bytes(32)]), "row")
        with pytest.raises(InvalidRequestState) as refused:
            bound.unseal(place, bound.seal(b"one ", b"yes"), "moved")
        assert refused.value.reason == "moved"

    @pytest.mark.parametrize("sealed", [b"\xff\xfe", b"", "garbage", "\udc80"])
    def test_garbage_is_refused_as_ever(self, sealed: str | bytes) -> None:
        with pytest.raises(InvalidRequestState):
            PlaceCodec(KeyRing([bytes(32)]), "row").unseal(b"one ", sealed, "moved")

    def test_a_purpose_does_not_open_anothers(self) -> None:
        ring = KeyRing([bytes(32)])
        with pytest.raises(InvalidRequestState):
            PlaceCodec(ring, "row").unseal(b"one ", SealedCodec(ring, "list").seal(b"one yes"), "moved")

"""The key ring: a list of secrets, and for each purpose a key derived from each secret."""

import hmac
import os
import secrets
from collections.abc import Iterable, Mapping
from hashlib import sha256

from ..errors import SetupError

KEY_BYTES = 32

KEY_ID_BYTES = 4

ENVIRONMENT = "MRTR_KEYS"


def _expand(secret: bytes, info: bytes) -> bytes:
    """HKDF-Expand to one block (RFC 5869, section 2.3). The secrets are uniform, so there is nothing to extract."""
    return hmac.digest(secret, info + b"\x01", sha256)


class KeyRing:
    """The secrets that seal what leaves the server and must come back unchanged.

    The first key seals; every key unseals. To rotate keys without losing a flow: append the new key on every replica,
    then move it to the front, then remove the old key when everything that it sealed has expired.

    Args:
        keys: secrets of 32 bytes each, the sealing one first. Store them as you store a database password: whoever has
            one can read and make states for every user.

    Raises:
        SetupError: there is no key, a key is not 32 bytes long, or a key is there twice.
    """

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = tuple(keys)
        if not self._keys:
            raise SetupError("A key ring needs at least one key; `mrtr-server keygen` makes one")
        for position, key in enumerate(self._keys, 1):
            if len(key) != KEY_BYTES:
                raise SetupError(f"Key {position} of the ring is not {KEY_BYTES} bytes; `mrtr-server keygen` makes one")
        if len({self._key_id(key) for key in self._keys}) != len(self._keys):
            raise SetupError("The key ring holds a key twice, or two keys that share an id; make a new one")

    @classmethod
    def parse(cls, text: str) -> "KeyRing":
        """Return the ring that a text describes.

        Args:
            text: keys of 64 hex digits each, separated by commas, the sealing one first.

        Returns:
            The ring.

        Raises:
            SetupError: the text is anything else. The message never repeats it.
        """
        keys = []
        for position, part in enumerate(text.split(","), 1):
            digits = part.strip()
            if len(digits) != 2 * KEY_BYTES or not all(c in "0123456789abcdefABCDEF" for c in digits):
                raise SetupError(
                    f"Key {position} is not {2 * KEY_BYTES} hex digits; `mrtr-server keygen` makes one, "
                    "and several are separated by commas"
                )
            keys.append(bytes.fromhex(digits))
        return cls(keys)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "KeyRing | None":
        """Return the ring in the environment variable `MRTR_KEYS`.

        Args:
            environment: where to look it up.

        Returns:
            The ring; None if the variable is not set.

        Raises:
            SetupError: it is set to something that is not a ring.
        """
        text = environment.get(ENVIRONMENT, "").strip()
        if not text:
            return None
        try:
            return cls.parse(text)
        except SetupError as error:
            raise SetupError(f"{ENVIRONMENT}: {error}") from None

    @classmethod
    def generate(cls) -> "KeyRing":
        """Return a ring of one new random key."""
        return cls([secrets.token_bytes(KEY_BYTES)])

    def derive(self, purpose: str) -> list[tuple[bytes, bytes]]:
        """Derive the keys for one purpose.

        Args:
            purpose: what the keys are for. Keys for different purposes are independent of each other.

        Returns:
            (key id of 4 bytes, key of 32 bytes) for each secret, in the order of the ring.
        """
        info = b"mrtr_server/" + purpose.encode()
        return [(self._key_id(key), _expand(key, info)) for key in self._keys]

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"KeyRing({len(self._keys)} keys)"

    @staticmethod
    def _key_id(key: bytes) -> bytes:
        return _expand(key, b"mrtr_server key id")[:KEY_ID_BYTES]


# The purposes of what is sealed in a store. Each has derived keys of its own.


TASK = "task"

TASK_PIECES = "pieces of a task"

EVENT = "event of a log"

SUBSCRIPTION = "subscription to events"

OUTCOME = "outcome"

REPORT = "callback report"

LIVE_OUTCOME = "live outcome"

LIVE_ANSWER = "live answer"

LIVE_EVENT = "live event in the store"

LIVE_SESSION = "live session state"

LIVE_PAGES = "live required pages"

LOGIN = "login row"

LOGIN_TOKENS = "login upstream tokens"

"""The cookies of a login. Each belongs to this host alone, and no page's script reads it."""

import re
from collections.abc import Mapping

from starlette.responses import Response

TRANSACTION = "mrtr-login-"

QUESTION = "mrtr-question-"

REMEMBERED = "mrtr-consents"

MOST_AT_ONCE = 4
"""Questions, or transactions: a browser sends all of them with each request, and web servers refuse long headers."""

MOST_DROPPED = 8  # at a time: whatever somebody has set there, a response stays short

_OURS = re.compile(r"[A-Za-z0-9_-]{1,100}")

LONGEST = 3900  # characters of a value; browsers keep 4,096 with the name


class Cookies:
    """Names and sets cookies for an issuer. On loopback without TLS, browsers take none with the prefix."""

    def __init__(self, issuer: str) -> None:
        self._secure = issuer.startswith("https://")
        self._prefix = "__Host-" if self._secure else ""

    def set(self, response: Response, name: str, value: str, seconds: int) -> None:
        response.set_cookie(
            self._prefix + name, value, max_age=seconds, path="/", secure=self._secure, httponly=True, samesite="lax"
        )

    def drop(self, response: Response, name: str) -> None:
        self.set(response, name, "", 0)

    def get(self, given: Mapping[str, str], name: str) -> str:
        return given.get(self._prefix + name, "")

    def add(self, response: Response, kind: str, name: str, value: str, seconds: int, given: Mapping[str, str]) -> None:
        """Set one of a kind of which a browser has several, and drop the oldest, which browsers send first."""
        begins = self._prefix + kind
        present = [each for each in given if each.startswith(begins) and _OURS.fullmatch(each)]
        for each in present[: 1 - MOST_AT_ONCE][:MOST_DROPPED]:
            self.drop(response, each.removeprefix(self._prefix))
        self.set(response, kind + name, value, seconds)

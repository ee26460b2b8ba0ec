"""The cookies of a login. Each belongs to this host alone, and no page's script reads it."""

from collections.abc import Mapping

from starlette.responses import Response

TRANSACTION = "mrtr-login-"

QUESTION = "mrtr-question"

REMEMBERED = "mrtr-consents"

MOST_TRANSACTIONS = 4
"""At a time: a browser sends all of them with each request, and web servers refuse headers that are too long."""

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

    def transactions(self, given: Mapping[str, str]) -> list[str]:
        """Return the names of the logins that are under way in a browser: the oldest first, as browsers send them."""
        begins = self._prefix + TRANSACTION
        return [name.removeprefix(self._prefix) for name in given if name.startswith(begins)]

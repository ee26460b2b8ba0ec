"""The bearer token of a request (Authorization, Token Requirements)."""

import re

from starlette.authentication import AuthenticationError
from starlette.requests import HTTPConnection

LONGEST_TOKEN = 16 * 1024
"""How long a token may be, in characters. Tokens that list a user's groups have a few thousand."""

_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
"""What a bearer token is made of (RFC 6750, section 2.1)."""


def read_token(connection: HTTPConnection) -> bytes | None:
    """Return the bearer token in the `Authorization` header of a request.

    Args:
        connection: the request.

    Returns:
        The token; None if there is no such header.

    Raises:
        AuthenticationError: there is no bearer token in the header, or it can't be one. The message never has it.
    """
    found: bytes | None = None
    for name, value in connection.scope["headers"]:
        if name == b"authorization":
            if found is not None:
                raise AuthenticationError("there are two Authorization headers")
            found = value
    if found is None:
        return None
    scheme, _, token = found.partition(b" ")
    if scheme.lower() != b"bearer":
        raise AuthenticationError("the Authorization header is not a bearer token")
    token = token.strip()
    if len(token) > LONGEST_TOKEN:
        raise AuthenticationError(f"the token is longer than {LONGEST_TOKEN} characters")
    if _TOKEN.fullmatch(token) is None:
        raise AuthenticationError("the token has characters that no bearer token has")
    return token

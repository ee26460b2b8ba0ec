"""What a command calls: a URL, an application of this machine, or a command on standard input and output."""

import logging
import os
import re
import shlex
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..deployment.environment import CALL_TOKEN
from ..errors import SetupError
from .options import find

_APP = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class Target(NamedTuple):
    """A server, and what it is called where it asks: by the person, never by itself."""

    server: Any  # what `Client` takes
    label: str


def find_target(named: str, *, is_command: bool, app_dir: str) -> Target:
    """Return the server that an argument names. An application is imported. Raises `SetupError`."""
    from ..client import Command  # a server over stdio starts without httpx

    if is_command:
        try:
            words = shlex.split(named, posix=os.name == "posix")
        except ValueError as error:
            raise SetupError(f"{named!r} is no command: {error}") from None
        environment = {name: value for name, value in os.environ.items() if name != CALL_TOKEN}
        return Target(Command(words, environment), named)
    if "://" not in named and _APP.fullmatch(named):
        # That its keys end with it, and the like, is no news of a server that lives for a call.
        logging.basicConfig(format="%(levelname)s:     %(message)s", level=logging.ERROR)
        return Target(find(named, app_dir), named)
    if "://" not in named:
        raise SetupError(
            f"{named!r} is no URL, such as http://127.0.0.1:8000/mcp, and no application, such as weather:app. "
            "With --stdio, it is a command"
        )
    return Target(named, _host_of(named))


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:  # which the client says
        return ""

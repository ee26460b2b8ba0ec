"""The sandbox of pages of apps: a document at another origin, under the policy of the page that is drawn in it.

The other origin is the second name of this machine, `localhost` beside `127.0.0.1`. So nothing in it is of the origin
that has the endpoint and the token of the page (MCP Apps, Sandbox Proxy).
"""

from collections.abc import Iterable, Mapping
from importlib.resources import files
from urllib.parse import parse_qs

from pydantic_core import from_json

from ..addresses import is_loopback_host
from ..registration.page_options import CSP_MEMBERS, ORIGIN

FILE = "sandbox.html"

_LONGEST_QUERY = 16 * 1024  # bytes

_OTHER_NAMES = {"127.0.0.1": "localhost", "localhost": "127.0.0.1"}  # a policy can't name `[::1]`

_NONE, _INLINE = "'none'", "'unsafe-inline'"


def origin_of_sandbox(scheme: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the other origin of what a browser asks for; empty where it has none, as on another machine."""
    hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
    name, colon, port = hosts[0].partition(":") if len(hosts) == 1 and is_loopback_host(hosts[0]) else ("", "", "")
    return f"{scheme}://{_OTHER_NAMES[name]}{colon}{port}" if name in _OTHER_NAMES else ""


def document() -> bytes:
    return files(__package__).joinpath("page_files", FILE).read_bytes()


def policy_for(query: bytes, embedding: str) -> bytes | None:
    """Return the policy of a page by the `csp` in a query; None if that is not what a page may ask for.

    A page gets what it lists and nothing else, not even of the sandbox's own origin (MCP Apps, Content Security Policy
    Enforcement). `embedding` is the origin that shows it.
    """
    if len(query) > _LONGEST_QUERY:
        return None
    try:
        given = from_json(parse_qs(query.decode("ascii"), strict_parsing=True)["csp"][0])
    except (ValueError, KeyError):
        return None
    if not isinstance(given, dict) or not all(map(_is_list_of_origins, given.values())):
        return None
    return "; ".join(_directives(given, embedding)).encode()


def _is_list_of_origins(given: object) -> bool:
    return isinstance(given, list) and all(isinstance(each, str) and ORIGIN.fullmatch(each) for each in given)


def _directives(asked: Mapping[str, list[str]], embedding: str) -> list[str]:
    connect, resources, frames, bases = (" ".join(asked.get(name, ())) for name in CSP_MEMBERS.values())
    return [
        f"default-src {_NONE}",
        f"script-src {_INLINE} {resources}",
        f"style-src {_INLINE} {resources}",
        f"img-src data: {resources}",
        f"media-src data: {resources}",
        f"font-src {resources or _NONE}",
        f"connect-src {connect or _NONE}",
        f"frame-src {frames or _NONE}",
        f"object-src {_NONE}",
        f"form-action {_NONE}",
        f"base-uri {bases or _NONE}",
        f"frame-ancestors {embedding}",
        "sandbox allow-scripts",  # in no origin at all, also where somebody opens its address by hand
    ]

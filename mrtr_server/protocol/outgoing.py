"""What authors let out, in forms that clients take: addresses (RFC 3986), Base64, MIME types and `_meta`."""

import re
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema
from pydantic_core import PydanticSerializationError, from_json, to_json

from ..errors import SetupError
from ..well_formed import well_formed

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?=.)", re.DOTALL)
_WEB = ("http:", "https:")
_NO_HOST = re.compile(r"[%<>^|\"`{}]")
"""No host may have them (URL Standard, forbidden host code points): clients fail to read it, or go elsewhere."""
_SCRIPTS = ("javascript:", "vbscript:")


def fault_of_page(url: str) -> str:
    """Return what is wrong with the address of a web page, as the end of a sentence; empty if nothing is."""
    # The sentence never has the address, which may hold a token.
    if not url.lower().startswith(_WEB):
        return "must be absolute, with http: or https:, such as https://example.com/page"
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        return (
            "has a space, a control character, a backslash or a letter that is not ASCII; percent-encode its parts "
            "with urllib.parse.quote"
        )
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, or half of an IPv6 address
        return "can't be read as an address"
    if not has_host:
        return "has no host; write it whole, such as https://example.com/page"
    if "@" in parts.netloc:
        return "has a user name or a password, which everybody sees who sees the address; leave them out"
    if _NO_HOST.search(parts.netloc):
        return "has a character in its host that no host has, such as %"
    return ""


def fault_of_icon(src: str) -> str:
    """Return what is wrong with the address of an icon, as `fault_of_page` does (Icons, Security Considerations)."""
    if src[:11].lower() == "data:image/":
        return ""
    fault = fault_of_page(src)
    return f"is neither a data: URI of an image nor a page: it {fault}" if fault else ""


def fault_of_uri(uri: str) -> str:
    """Return what is wrong with the URI of a resource, as `fault_of_page` does (Resources, Common URI Schemes)."""
    # Letters that are not ASCII, and spaces, are allowed except on the web: clients percent-encode them.
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return "is not a URI: it has no scheme, such as file: or docs:, or nothing after it"
    if not well_formed(uri).isprintable():  # halves of characters are shown, or refused, as in all other texts
        return "has a control character; percent-encode its parts with urllib.parse.quote"
    name = scheme[0].lower()
    if name in _SCRIPTS:
        return f"has the scheme {name}, which runs as a script where a person opens it"
    return fault_of_page(uri) if name in _WEB else ""


def _base64(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode("ascii")
    if not isinstance(value, str):
        return value
    text = "".join(value.split())  # encoders of mails break lines
    try:
        a2b_base64(text, strict_mode=True)
    except ValueError:
        is_whole = False
    else:
        is_whole = len(text) % 4 == 0 and not text.endswith("===")  # Python before 3.13 takes more padding
    if not is_whole:
        raise ValueError("it is not Base64: pass bytes, or Base64 with its padding and without a prefix")
    return text


Base64 = Annotated[
    bytes | str, BeforeValidator(_base64), WithJsonSchema({"type": "string", "contentEncoding": "base64"})
]
"""Bytes, or text that is already Base64; kept as Base64 text."""


def without_url(given: Any, name: str) -> Any:
    """Return the fields of an object with a data URL taken apart (RFC 2397)."""
    url = given.get(name) if isinstance(given, Mapping) else None
    if not isinstance(url, str) or url[:5].lower() != "data:":
        return given
    head, comma, data = url[5:].partition(",")
    kind, *parameters = head.split(";")
    if not comma:
        raise ValueError("the data URL has no comma")
    is_base64 = bool(parameters) and parameters[-1].strip().lower() == "base64"
    apart = {**given, name: unquote(data) if is_base64 else unquote_to_bytes(data)}
    if kind and given.get("mime_type", given.get("mimeType")) is None:
        apart = {each: value for each, value in apart.items() if each != "mimeType"} | {"mime_type": kind.strip()}
    return apart


_MIME_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+( *;[ -~]*)?", re.ASCII)


def is_mime_type(text: str) -> bool:
    """Return whether a text has the form of a MIME type (RFC 6838)."""
    return _MIME_TYPE.fullmatch(text) is not None


def _mime_type(text: str) -> str:
    if not is_mime_type(text):
        raise ValueError('it is no MIME type, such as "image/png"')
    return text


MimeType = Annotated[str, AfterValidator(_mime_type)]


def of_kinds(kinds: str, example: str) -> AfterValidator:
    """Return a check that a MIME type is of some kinds."""

    def check(text: str) -> str:
        if not re.match(f"({kinds})/", text, re.IGNORECASE):
            raise ValueError(f'it is another kind of data; give its type, such as "{example}"')
        return text

    return AfterValidator(check)


_LABEL = "[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_META_KEY = re.compile(rf"(?:({_LABEL}(?:\.{_LABEL})*)/)?(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?")
_RESERVED_LABELS = {"modelcontextprotocol", "mcp"}


def meta_problem(meta: Mapping[Any, Any]) -> str:
    """Return what is wrong with a `_meta` of an author's; empty if nothing is (Overview, `_meta`)."""
    for key in meta:
        if not isinstance(key, str):
            return f"the key {key!r} of _meta is no text"
        # ChatGPT reads keys with a second slash, such as openai/toolInvocation/invoking.
        checked = key.removeprefix("openai/") if key.count("/") == 2 else key
        found = _META_KEY.fullmatch(checked)
        if found is None:
            return (
                f"{key!r} can't be a key of _meta: it is a name of letters and digits, with '-', '_' and '.' inside, "
                "and may have a prefix such as 'com.example/'"
            )
        labels = (found[1] or "").lower().split(".")
        # Earlier versions of the protocol reserve the first label, too, where others follow it.
        if _RESERVED_LABELS.intersection(labels[:2] if len(labels) > 1 else ()) or key == "progressToken":
            return f"the key {key!r} of _meta is reserved for the protocol; use a prefix of your own: 'com.example/'"
    problem = json_problem(meta)
    return f"_meta {problem}" if problem else ""


def json_problem(value: Mapping[Any, Any]) -> str:
    """Return why JSON can't hold what an author gave; empty if it can."""
    try:
        from_json(to_json(value, by_alias=True), allow_inf_nan=False)
    except PydanticSerializationError as error:
        if "surrogates" not in str(error):  # these are mended when it is written
            return "can't be written as JSON"
    except ValueError:
        return "has NaN or an infinity, which JSON can't hold"
    return ""


_LONGEST_ID = 128


def check_extensions(extensions: Mapping[Any, Any]) -> None:
    """Check the extensions that an author declares: ids and settings (Extensions, Identifiers). Raises `SetupError`."""
    for id, settings in extensions.items():
        found = _META_KEY.fullmatch(id) if isinstance(id, str) and len(id) <= _LONGEST_ID else None
        if found is None or found[1] is None or id.endswith("/"):
            raise SetupError(
                f"extensions=: {id!r} can't be the id of an extension; it has a prefix, as in 'com.example/orders'"
            )
        if not isinstance(settings, Mapping):
            raise SetupError(f"extensions=: the settings of {id!r} are a dictionary; for none, write {{}}")
        if problem := json_problem(settings):
            raise SetupError(f"extensions=: what {id!r} is set to {problem}")


def _checked_meta(meta: dict[str, Any]) -> dict[str, Any]:
    if problem := meta_problem(meta):
        raise ValueError(problem)
    return meta


Meta = Annotated[dict[str, Any], AfterValidator(_checked_meta)]

"""URIs of resources, and their templates: `weather://{city}`, `file:///{+path}`, `books:{shelf}{?limit}` (RFC 6570)."""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote, unquote_plus

from ..errors import SetupError

_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(rf"(\+?)({_NAME})")
_QUERY = re.compile(rf"([?&])({_NAME}(?:,{_NAME})*)")
_FORMS = "use {name} or {+name}, and at the end {?name} or {&name} for the query"

_RESERVED = ":/?#[]@!$&'()*+,;="
_USUAL = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]*")
_BEGINNING = re.compile(r"^(?i:https?://[^/?#]*|[a-z][a-z0-9+.-]*:)")
_NO_PATH = re.compile(r"^https?://[^/?#]+(?![^?#])")
_ENCODED = re.compile("%([0-9A-Fa-f]{2})?")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def normal(uri: str) -> str:
    """Return a URI as all equivalent ones are written (RFC 3986, 6.2.2), for comparison."""
    # A reserved character, such as a slash, and its encoded form stay two. The case of the scheme does not count, nor
    # that of a web address's host, whose empty path is a slash.
    return _NO_PATH.sub(r"\g<0>/", _part(uri, begins=True))


def _part(text: str, *, begins: bool) -> str:
    """Return a part of a URI as in all equivalent ones; the beginning is in lower case where case does not count."""
    return _BEGINNING.sub(lambda found: found[0].lower(), _octets(text)) if begins else _octets(text)


def _octets(text: str) -> str:
    if _USUAL.fullmatch(text):
        return text
    return _ENCODED.sub(_normal_octet, quote(text, safe=f"{_RESERVED}%", errors="surrogatepass"))


def _normal_octet(found: re.Match[str]) -> str:
    if found[1] is None:  # a percent sign that begins nothing
        return "%25"
    character = chr(int(found[1], 16))
    return character if character in _UNRESERVED else found[0].upper()


class Match(NamedTuple):
    """The values in a URI by name, percent-decoded; and the URI with the template's text around them."""

    # A value can hold anything, slashes and `..` included: check it before you open a file by it.

    values: dict[str, str]
    uri: str


class UriTemplate:
    """A template that a URI can be matched against. Raises `SetupError`.

    `{name}` matches up to the next slash, and `{+name}` everything. A value ends where the text that follows its
    expression first comes. At the end, `{?a,b}` stands for a query, and `{&c}` for more of one: in any order, each
    may be absent, others are passed over, and of a name that comes twice, the first counts.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        self._path, self._mark, of_query = _split_query(template)
        path = self._path
        self._of_path: list[str] = []
        self._texts: list[str] = []
        pattern, normal_pattern, end = "", "", 0
        expressions = list(_EXPRESSION.finditer(path))
        for expression, following in zip(expressions, [*expressions[1:], None], strict=False):
            variable = _VARIABLE.fullmatch(expression[1])
            if variable is None:
                raise SetupError(f"{template!r}: {{{expression[1]}}} is not supported; {_FORMS}")
            reserved, name = variable.groups()
            self._of_path.append(name)
            text, end = path[end : expression.start()], expression.end()
            self._texts.append(text)
            if following is not None and following.start() == end:
                raise SetupError(f"{template!r}: nothing marks the end of {name!r}; put some text after it")
            after = "" if following is None else path[end : following.start()]
            pattern += re.escape(text) + self._value(reserved, after)
            normal_pattern += re.escape(_part(text, begins=not normal_pattern)) + self._value(reserved, _octets(after))
        if {"{", "}"} & set(_EXPRESSION.sub("", path)):
            raise SetupError(f"{template!r} has an unmatched brace")
        self._texts.append(path[end:])
        query = rf"(?:{re.escape(self._mark)}([^#]*))?" if self._mark else ""
        self._pattern = re.compile(pattern + re.escape(path[end:]) + query, re.DOTALL)
        normal_pattern += re.escape(_part(path[end:], begins=not normal_pattern))
        self._normal_pattern = re.compile(normal_pattern + query, re.DOTALL)
        self.names = [*self._of_path, *of_query]
        self._of_query = frozenset(of_query)
        if twice := {name for name in self.names if self.names.count(name) > 1}:
            raise SetupError(f"{template!r} has the variable {min(twice)!r} twice")

    def filled(self, value: str) -> str:
        """Return the template with the same value for each expression."""
        return _EXPRESSION.sub(value, self.template)

    def expand(self, values: Mapping[str, object]) -> str:
        """Return the URI with these values, percent-encoded as each expression needs it (RFC 6570)."""
        # `ValueError` says which values are missing, empty or unknown; those of a query may be left out.
        missing = [name for name in self._of_path if str(values.get(name, "")) == ""]
        unknown = [name for name in values if name not in self.names]
        if missing or unknown:
            wrong = f"needs a value of {', '.join(missing)}" if missing else f"has no variable {', '.join(unknown)}"
            raise ValueError(f"{self.template!r} {wrong}")

        def value(expression: re.Match[str]) -> str:
            reserved = expression[1].startswith("+")
            return quote(str(values[expression[1].lstrip("+")]), safe=_RESERVED if reserved else "")

        uri = _EXPRESSION.sub(value, self._path)
        query = "&".join(
            f"{name}={quote(str(values[name]), safe='')}"
            for name in self.names
            if name in values and name in self._of_query
        )
        return f"{uri}{self._mark}{query}" if query else uri

    def _value(self, reserved: str, after: str) -> str:
        """Return the pattern of a value, which ends where the text after it, or a query, begins."""
        stops = f"{'' if reserved else '/?#'}{self._mark}"
        character = f"[^{stops}]" if stops else "."
        # No way back into a value: matching takes no longer than the URI is, whatever a client sends.
        return f"((?:(?!{re.escape(after)}){character})++)" if after else f"({character}+)"

    def match(self, uri: str) -> Match | None:
        """Return the values in a URI; None if neither it nor an equivalent one matches."""
        if found := self._pattern.fullmatch(uri):
            return Match(self._read(found), uri)
        if found := self._normal_pattern.fullmatch(_part(uri, begins=True)):
            parts = [part for each in zip(self._texts, found.groups(), strict=False) for part in each]
            query = found[found.re.groups] if self._mark else None
            path = [*parts[: 2 * len(self._of_path)], self._texts[-1]]
            return Match(self._read(found), "".join(path if query is None else [*path, self._mark, query]))
        return None

    def _read(self, found: re.Match[str]) -> dict[str, str]:
        values = {name: unquote(value) for name, value in zip(self._of_path, found.groups(), strict=False)}
        if self._mark:
            for pair in (found[found.re.groups] or "").split("&"):
                name, _, value = pair.partition("=")
                if name in self._of_query:
                    values.setdefault(name, unquote_plus(value))
        return values


def _split_query(template: str) -> tuple[str, str, list[str]]:
    begin = next((each for each in _EXPRESSION.finditer(template) if each[1][:1] in ("?", "&")), None)
    if begin is None:
        return template, "", []
    path, query = template[: begin.start()], template[begin.start() :]
    if _EXPRESSION.sub("", query):
        raise SetupError(f"{template!r}: nothing can follow {begin[0]}, since a query ends a URI")
    names: list[str] = []
    mark = "&" if "?" in _EXPRESSION.sub("", path) else "?"
    for position, expression in enumerate(_EXPRESSION.findall(query)):
        found = _QUERY.fullmatch(expression)
        if found is None:
            raise SetupError(f"{template!r}: {{{expression}}} is not supported; {_FORMS}")
        if found[1] != ("&" if position else mark):
            right = f"{{{'&' if position else mark}{found[2]}}}"
            raise SetupError(f"{template!r}: write {right} in place of {{{expression}}}: a query begins with ? once")
        names += found[2].split(",")
    return path, mark, names

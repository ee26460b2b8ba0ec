"""URI templates of resources: `weather://{city}`, and `file:///{+path}` for values with slashes (RFC 6570)."""

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from ..errors import SetupError

_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_RESERVED = ":/?#[]@!$&'()*+,;="
"""What a reserved expression leaves as it is."""
_VARIABLE = re.compile(r"(\+?)([A-Za-z_][A-Za-z0-9_]*)")


class UriTemplate:
    """A template that a URI can be matched against.

    Args:
        template: simple expressions `{name}`, which match up to the next slash, and reserved ones `{+name}`, which
            match everything. A value ends where the text that follows its expression first comes.

    Raises:
        SetupError: an expression is of another kind, a name is there twice, or nothing parts two expressions.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        self.names: list[str] = []
        pattern, end = "", 0
        expressions = list(_EXPRESSION.finditer(template))
        for expression, following in zip(expressions, [*expressions[1:], None], strict=False):
            variable = _VARIABLE.fullmatch(expression[1])
            if variable is None:
                raise SetupError(f"{template!r}: {{{expression[1]}}} is not supported; use {{name}} or {{+name}}")
            reserved, name = variable.groups()
            if name in self.names:
                raise SetupError(f"{template!r} has the variable {name!r} twice")
            self.names.append(name)
            pattern += re.escape(template[end : expression.start()])
            end = expression.end()
            character = "." if reserved else "[^/?#]"
            if following is None:
                pattern += f"(?P<{name}>{character}+)"
                continue
            if following.start() == end:
                raise SetupError(f"{template!r}: nothing marks the end of {name!r}; put some text after it")
            # No way back into a value: matching takes no longer than the URI is, whatever a client sends.
            pattern += f"(?P<{name}>(?:(?!{re.escape(template[end : following.start()])}){character})++)"
        if {"{", "}"} & set(_EXPRESSION.sub("", template)):
            raise SetupError(f"{template!r} has an unmatched brace")
        self._pattern = re.compile(pattern + re.escape(template[end:]), re.DOTALL)

    def expand(self, values: Mapping[str, object]) -> str:
        """Return the URI with these values, percent-encoded as the expression of each needs it (RFC 6570).

        Args:
            values: by name; what is no text is written as `str` does it.

        Raises:
            ValueError: a value is missing or empty, or has no expression.
        """
        missing = [name for name in self.names if str(values.get(name, "")) == ""]
        unknown = [name for name in values if name not in self.names]
        if missing or unknown:
            wrong = f"needs a value of {', '.join(missing)}" if missing else f"has no variable {', '.join(unknown)}"
            raise ValueError(f"{self.template!r} {wrong}")

        def value(expression: re.Match[str]) -> str:
            reserved = expression[1].startswith("+")
            return quote(str(values[expression[1].lstrip("+")]), safe=_RESERVED if reserved else "")

        return _EXPRESSION.sub(value, self.template)

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the values in a URI, percent-decoded, by name; None if the URI does not match.

        A decoded value can hold anything, slashes and `..` included: check it before you open a file by it.
        """
        found = self._pattern.fullmatch(uri)
        return None if found is None else {name: unquote(value) for name, value in found.groupdict().items()}

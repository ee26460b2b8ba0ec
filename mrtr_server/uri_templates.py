"""URI templates of resources: `weather://{city}`, and `file:///{+path}` for values with slashes (RFC 6570)."""

import re
from urllib.parse import unquote

from .errors import SetupError

_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_VARIABLE = re.compile(r"(\+?)([A-Za-z_][A-Za-z0-9_]*)")


class UriTemplate:
    """A template that a URI can be matched against.

    Parameters:
        template: simple expressions `{name}`, which match up to the next slash, and reserved ones `{+name}`, which
            match everything.

    Raises:
        SetupError: an expression is of another kind, or a name is there twice.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        self.names: list[str] = []
        pattern, end = "", 0
        for expression in _EXPRESSION.finditer(template):
            variable = _VARIABLE.fullmatch(expression[1])
            if variable is None:
                raise SetupError(f"{template!r}: {{{expression[1]}}} is not supported; use {{name}} or {{+name}}")
            reserved, name = variable.groups()
            if name in self.names:
                raise SetupError(f"{template!r} has {name!r} twice")
            self.names.append(name)
            pattern += re.escape(template[end : expression.start()])
            pattern += f"(?P<{name}>.+)" if reserved else f"(?P<{name}>[^/?#]+)"
            end = expression.end()
        rest = template[end:]
        if "{" in rest or "}" in rest:
            raise SetupError(f"{template!r} has a brace without its other half")
        self._pattern = re.compile(pattern + re.escape(rest), re.DOTALL)

    def match(self, uri: str) -> dict[str, str] | None:
        """Give the values in a URI, percent-decoded, or None if it does not fit.

        A decoded value can hold anything, slashes and `..` included: check it before you open a file by it.
        """
        found = self._pattern.fullmatch(uri)
        return None if found is None else {name: unquote(value) for name, value in found.groupdict().items()}

"""The YAML of front matter as JSON has it: by the core schema of YAML 1.2, where a date and `no` are texts."""

import re
from typing import Any

import yaml


class _Core(yaml.SafeLoader):
    """Reads the core schema, and no field twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in found:
                what = f"the field {key!r} is no text, or there twice"
                raise yaml.constructor.ConstructorError(None, None, what, key_node.start_mark)
            found[key] = self.construct_object(value_node, deep=True)
        return found


_Core.yaml_implicit_resolvers = {}
for _tag, _pattern, _begins in (
    ("null", r"~|null|Null|NULL|", [*"~nN", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", [*"-+0123456789"]),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", [*"-+0123456789."]),
):
    _Core.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _begins)
_Core.add_constructor("tag:yaml.org,2002:map", _Core.construct_mapping)
_Core.add_constructor("tag:yaml.org,2002:int", lambda _, node: _integer(str(node.value)))


def _integer(text: str) -> int:
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def read_yaml(text: str) -> Any:
    """Return what YAML holds, of values that JSON has. Raises `ValueError`."""
    try:
        return yaml.load(text, Loader=_Core)  # noqa: S506  a safe loader
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None

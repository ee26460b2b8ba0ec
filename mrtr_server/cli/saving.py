"""Images, sounds and other bytes of results, saved to files of a folder."""

import mimetypes
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..errors import BadReply, SetupError

_MOST_FILES = 100  # of one result; the size of a reply is bounded before
_LONGEST_STEM = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}")


class Bytes(NamedTuple):
    """What can be saved of a block."""

    data: bytes
    kind: str  # as the server says, such as `image/png`
    name: str  # what the server calls it; maybe empty


def bytes_of(block: Mapping[str, Any]) -> Bytes | None:
    """Return the bytes of a block of content, or of a part of a resource; None if it has none. Raises `BadReply`."""
    inner = block.get("resource")
    part = inner if isinstance(inner, dict) else block
    data = part.get("blob") if "blob" in part else part.get("data")
    if not isinstance(data, str):
        return None
    try:
        found = b64decode(data, validate=True)
    except ValueError:
        raise BadReply("The server sent bytes that are not in Base64") from None
    return Bytes(found, str(part.get("mimeType", "")), str(part.get("uri") or part.get("name") or ""))


class Saver:
    """Writes files into a folder. None that is there is overwritten, and no name of a server leads out of it."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder = folder
        self._stem = stem
        self._left = _MOST_FILES

    def save(self, found: Bytes) -> Path:
        """Write a file; return its path. Raises `BadReply` if there are too many, and `SetupError`."""
        if not self._left:
            raise BadReply(f"The result has more than {_MOST_FILES} files")
        self._left -= 1
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._paths(found):
                try:
                    with path.open("xb") as file:  # a link that is there is not followed either
                        file.write(found.data)
                except FileExistsError:
                    continue
                return path
        except OSError as error:
            raise SetupError(f"--save {self._folder}: {error.strerror or error}") from None
        raise SetupError(f"--save {self._folder}: it has too many files of that name")

    def _paths(self, found: Bytes) -> Iterator[Path]:
        """Yield names, each with a number, so that no system has another meaning for one."""
        last = _last_part(found.name)
        stem = _UNSAFE.sub("-", last.rpartition(".")[0] or last).strip("-") or _UNSAFE.sub("-", self._stem).strip("-")
        suffix = mimetypes.guess_extension(found.kind.partition(";")[0].strip()) or ""
        if not suffix and (typed := _SUFFIX.search(last, max(last.rfind("."), 0))):
            suffix = typed[0]
        for number in range(1, 10_000):
            yield self._folder / f"{stem[:_LONGEST_STEM] or 'content'}-{number}{suffix or '.bin'}"


def _last_part(name: str) -> str:
    try:
        parts = urlsplit(name)
    except ValueError:
        return ""
    return (parts.path.rstrip("/") or parts.netloc).rpartition("/")[2]

"""Agent Skills: folders of instructions for agents, which a server has as resources (Skills, Resource Mapping)."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from pydantic_core import to_json

from ..errors import FlowError, SetupError, lacking
from ..protocol.content import ResourceContents
from ..protocol.messages import JSON

SKILL = "SKILL.md"
MOST_FILES = 512
MOST_BYTES = 16 * 1024 * 1024
"""What hosts load of one skill (Skills, Limits)."""

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LONGEST_NAME = 64
_LONGEST = {"description": 1024, "compatibility": 500}  # characters
_NAMES = "1 to 64 of a-z, 0-9 and '-', which neither begins nor ends it, nor comes twice in a row"
_FRONT = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_LEFT_OUT = ("__pycache__",)  # besides what begins with a dot


@dataclass(frozen=True)
class SkillFile:
    path: str  # within its skill, with slashes
    content: bytes = field(repr=False)

    @property
    def is_instructions(self) -> bool:
        return self.path.rpartition("/")[2] == SKILL

    @cached_property
    def text(self) -> str | None:
        """The file as text; None if it is none."""
        try:
            return self.content.decode()
        except UnicodeDecodeError:
            return None

    @cached_property
    def mime_type(self) -> str:
        if self.path.endswith(".md"):
            return "text/markdown"
        return guess_type(self.path)[0] or ("application/octet-stream" if self.text is None else "text/plain")

    @cached_property
    def digest(self) -> str:
        """What hosts hold its content against (Skills, Integrity and Verification)."""
        return f"sha256:{sha256(self.content).hexdigest()}"

    def read(self) -> ResourceContents:
        """Return what a read of it returns."""
        held: Any = {"blob": self.content} if self.text is None else {"text": self.text}
        return ResourceContents(mime_type=self.mime_type, **held)

    def listed(self, root: str) -> JSON:
        """Return it as an entry of a skill has it (Skills, Resources)."""
        return {"uri": f"{root}/{quoted(self.path)}", "digest": self.digest, "size": len(self.content)}


class Skill(NamedTuple):
    """A skill, beside the resource that is its `SKILL.md`."""

    front_matter: JSON
    files: tuple[SkillFile, ...] | None  # all of them; None if it is made when it is read
    front: str = ""  # what goes before what the function of one returns
    lists_asks: bool = False  # whether a section says at its end which tools ask

    def entry(self, uri: str, section: str) -> JSON:
        """Return its entry in a list; `uri` is that of its `SKILL.md` (Skills, Skill Entries)."""
        root = root_of(uri)
        files: Any = "dynamic" if self.files is None else [each.listed(root) for each in self.served(section)]
        return {"uri": uri, "frontmatter": self.front_matter, "resources": files}

    def children(self, uri: str, section: str) -> Iterator[tuple[str, SkillFile | None]]:
        """Return the URIs of its files."""
        root = root_of(uri)
        if self.files is None:
            yield uri, None
        for each in self.served(section):
            yield f"{root}/{quoted(each.path)}", each

    def served(self, section: str) -> list[SkillFile]:
        """Return its files as they are served: each `SKILL.md`, a nested one, too, with the section if it has that."""
        if not self.lists_asks or not section:
            return list(self.files or ())
        return [_ending_with(section, each) if each.is_instructions else each for each in self.files or ()]

    def written(self, result: Any, section: str) -> Any:
        """Return what a read returns, of what its function has. Raises `FlowError`."""
        if self.files is not None:
            return self.served(section)[0].read()
        if not isinstance(result, str):
            raise FlowError(f"The skill {self.front_matter['name']!r} is a {type(result).__name__}; return its text")
        made = SkillFile(SKILL, f"{self.front}\n{result}".encode())
        return (_ending_with(section, made) if self.lists_asks and section else made).text


def _ending_with(section: str, file: SkillFile) -> SkillFile:
    line = b"" if file.content.endswith(b"\n") else b"\n"
    return SkillFile(file.path, b"%b%b\n%b" % (file.content, line, section.encode()))


def root_of(uri: str) -> str:
    return uri.removesuffix(f"/{SKILL}")


def quoted(path: str) -> str:
    return quote(path, safe="/-._~")


def made_skill(path: str, front_matter: Mapping[str, Any]) -> Skill:
    """Return a skill whose text a function makes. Raises `SetupError`."""
    front = _checked(dict(front_matter), path.rpartition("/")[2], f"@app.skill({path!r})")
    # JSON is YAML, too, and needs no library.
    lines = [f"{name}: {to_json(value).decode()}" for name, value in front.items()]
    return Skill(front, None, "\n".join(["---", *lines, "---", ""]))


def read_skills(folder: Path) -> list[tuple[str, Skill]]:
    """Return the skills in a folder, nested ones, too, each with its path. Raises `SetupError`."""
    found = sorted(path.parent for path in _files(folder) if path.name == SKILL)
    if not found:
        raise SetupError(f"app.skills: there is no {SKILL} in {str(folder)!r}")
    return [(_path(each, folder), _read_skill(each, folder)) for each in found]


def _path(skill: Path, folder: Path) -> str:
    parts = skill.relative_to(folder).parts or (skill.resolve().name,)
    return quoted("/".join(parts))


def _read_skill(skill: Path, folder: Path) -> Skill:
    where = f"The skill {str(skill)!r}"
    paths = sorted(_files(skill), key=lambda path: (path.name != SKILL or path.parent != skill, path))
    if len(paths) > MOST_FILES:
        raise SetupError(f"{where} has {len(paths):,} files; hosts load at most {MOST_FILES} of one")
    inside = folder.resolve()
    for path in paths:
        if not path.resolve().is_relative_to(inside):
            raise SetupError(f"{where}: {path.relative_to(skill).as_posix()!r} is a link out of {str(folder)!r}")
    try:
        if (size := sum(path.stat().st_size for path in paths)) > MOST_BYTES:
            raise SetupError(f"{where} has {size:,} bytes; hosts load at most {MOST_BYTES:,} of one")
        files = tuple(SkillFile(path.relative_to(skill).as_posix(), path.read_bytes()) for path in paths)
    except OSError as error:
        raise SetupError(f"{where} can't be read: {error}") from None
    name = (skill if skill != folder else skill.resolve()).name
    return Skill(_checked(_front_matter(files[0], where), name, where), files)


def _files(folder: Path) -> Iterator[Path]:
    """Return the files below a folder that are served. Raises `SetupError` if there is no such folder."""
    if not folder.is_dir():
        raise SetupError(f"app.skills: {str(folder)!r} is no folder")
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if any(each.startswith(".") or each in _LEFT_OUT for each in parts):
            continue
        if path.is_dir() and path.is_symlink():
            raise SetupError(f"app.skills: {str(path)!r} is a link to a folder; put the folder itself there")
        if path.is_file():
            yield path


def _front_matter(file: SkillFile, where: str) -> JSON:
    found = _FRONT.match((file.text or "").removeprefix("\ufeff"))
    if found is None:
        raise SetupError(f"{where}: {SKILL} has to begin with front matter, as UTF-8: a line ---, YAML, a line ---")
    try:
        from .yaml_front import read_yaml  # with a library that only skills need

        front = read_yaml(found[1])
    except ImportError as error:
        raise lacking("app.skills", "skills", error) from error
    except ValueError as error:
        raise SetupError(f"{where}: the front matter of {SKILL} is no YAML: {error}") from None
    if not isinstance(front, dict) or not all(isinstance(key, str) for key in front):
        raise SetupError(f"{where}: the front matter of {SKILL} has to be fields, such as `name: refunds`")
    return front


def _checked(front: JSON, name: str, where: str) -> JSON:
    """Return front matter that fits (Agent Skills, Frontmatter). Raises `SetupError`."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise SetupError(f"{where}: {name!r} can't name a skill: {_NAMES}")
    if front.get("name") != name:
        raise SetupError(f"{where}: its name: is {front.get('name')!r}; a folder is named as its skill is, {name!r}")
    if not front.get("description"):
        raise SetupError(f"{where}: it has no description:, by which a model chooses it")
    for member, most in _LONGEST.items():
        value = front.get(member, "-")
        if not isinstance(value, str) or not 0 < len(value) <= most:
            raise SetupError(f"{where}: its {member}: has to be a text of 1 to {most:,} characters")
    for member in ("license", "allowed-tools"):
        if not isinstance(front.get(member, ""), str):
            raise SetupError(f"{where}: its {member}: has to be a text")
    metadata = front.get("metadata", {})
    if not isinstance(metadata, dict) or not all(isinstance(each, str) for each in (*metadata, *metadata.values())):
        raise SetupError(f"{where}: its metadata: has to be texts by their names; write numbers and dates in quotes")
    return front

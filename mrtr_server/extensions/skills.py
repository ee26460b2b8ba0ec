"""Agent Skills: lists those that are served, and the folders of their files."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from typing_extensions import override

from ..crypto.place_codec import Cursors, named_in_cursor
from ..errors import InvalidParams
from ..flow.authorization import Authorizer
from ..limits import LONGEST_NAME, check_length
from ..protocol.messages import JSON, Call, Complete, Outcome, Outlet
from ..registration.records import Resource
from ..registration.registry import Registry
from ..registration.skills import SKILL, root_of
from .extension import Extension

SKILLS = "io.modelcontextprotocol/skills"
_DIRECTORY = "inode/directory"


class SkillExtension(Extension):
    """The extension Skills. `ttl` and `scope` are those of all lists."""

    id: ClassVar[str] = SKILLS

    def __init__(
        self,
        registry: Registry,
        authorizer: Authorizer,
        cursors: Cursors,
        page_size: int,
        ttl: float,
        scope: Literal["public", "private"],
    ) -> None:
        self.methods = {"skills/list": self._list, "skills/get": self._get, "resources/directory/read": self._read}
        self._registry = registry
        self._authorizer = authorizer
        self._cursors = cursors
        self._page_size = page_size
        self._ttl = ttl
        self._scope: Literal["public", "private"] = scope

    @override
    def settings(self) -> JSON | None:
        return {"directoryRead": True} if self._registry.has_skills else None

    async def _list(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `skills/list` (Skills, Listing Skills). Raises `RequestError`."""
        shown = await self._shown(call, self._registry.skills())
        skills = {uri: each.skill for uri, each in shown if each.skill is not None}
        page, more = self._page(call, "skills", list(skills))
        section = self._registry.asking_section
        entries = [skills[uri].entry(uri, section) for uri in page]
        return Complete({"skills": entries, **more}, self._ttl, self._scope_now)

    async def _get(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `skills/get` (Skills, Getting a Skill). Raises `RequestError`."""
        uri = _uri_in(call)
        for _, each in await self._shown(call, [skill for skill in self._registry.skills() if skill[0] == uri]):
            if each.skill is not None:
                entry = each.skill.entry(uri, self._registry.asking_section)
                return Complete({"skill": entry}, self._ttl, self._scope_now)
        raise InvalidParams(f"No skill is served at {uri}")

    async def _read(self, call: Call, outlet: Outlet) -> Outcome:
        """Serve `resources/directory/read` (Skills, Reading Directories). Raises `RequestError`."""
        uri, found = _uri_in(call), dict[str, JSON]()
        inside = f"{uri}/"
        skills = [each for each in self._registry.skills() if _overlap(inside, f"{root_of(each[0])}/")]
        section = self._registry.asking_section
        files = [file for each in await self._shown(call, skills) for file in _files(*each, section)]
        for file in files:
            if file["uri"].startswith(inside):
                name, slash, _ = file["uri"].removeprefix(inside).partition("/")
                child = f"{uri}/{name}"
                found.setdefault(child, {"uri": child, "name": name, "mimeType": _DIRECTORY} if slash else file)
        if not found:
            raise InvalidParams(f"{uri} is not a directory resource")
        page, more = self._page(call, f"directory {named_in_cursor(uri)}", list(found))
        return Complete({"resources": [found[each] for each in page], **more}, None, self._scope_now)

    async def _shown(self, call: Call, skills: list[tuple[str, Resource]]) -> list[tuple[str, Resource]]:
        """Return those of some skills that exist for a caller, by the URIs of their `SKILL.md`."""
        shown = await self._authorizer.shown(call.caller, call.method, [(each.authorize, key) for key, each in skills])
        return [each for each, may in zip(skills, shown, strict=True) if may]

    @property
    def _scope_now(self) -> Literal["public", "private"]:
        shared = not self._authorizer.guards(None) and not self._registry.is_guarded("resources")
        return self._scope if shared else "private"

    def _page(self, call: Call, listing: str, uris: list[str]) -> tuple[list[str], JSON]:
        """Return a page of a list, and the cursor of the next one, if any (Pagination)."""
        cursor, start = call.params.get("cursor"), 0
        if cursor or not isinstance(cursor, str | None):
            last = self._cursors.unseal_place(listing, cursor)
            if last is None:
                raise InvalidParams("The cursor does not belong to this list; start again without a cursor")
            # Where that entry is gone, the list begins anew: rather one page again than an entry never.
            start = next((at for at, uri in enumerate(uris, 1) if named_in_cursor(uri) == last), 0)
        page = uris[start : start + self._page_size]
        has_more = start + len(page) < len(uris)
        return page, {"nextCursor": self._cursors.seal_place(listing, named_in_cursor(page[-1]))} if has_more else {}


def _uri_in(call: Call) -> str:
    uri: Any = call.params.get("uri")
    if not isinstance(uri, str):
        raise InvalidParams(f"{call.method} needs the uri of a skill or a directory, as a text")
    check_length(uri, LONGEST_NAME, "uri")
    return uri


def _overlap(one: str, other: str) -> bool:
    """Return whether one of two folders is the other, or within it."""
    return one.startswith(other) or other.startswith(one)


def _files(uri: str, record: Resource, section: str) -> Iterator[JSON]:
    """Return the files of a skill as a list of resources has them."""
    assert record.skill is not None  # noqa: S101  it is one
    for at, file in record.skill.children(uri, section):
        if file is None or file.path == SKILL:
            yield record.entry
        else:
            name = file.path.rpartition("/")[2]
            yield {"uri": at, "name": name, "mimeType": file.mime_type, "size": len(file.content)}

"""Lists come page by page, have each entry once, and show nobody what they may not see."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from mrtr_server import Caller, KeyRing, MRTRServer, Principal
from mrtr_server.crypto.place_codec import Cursors
from mrtr_server.errors import InvalidParams, OverBudget
from mrtr_server.flow.authorization import Authorizer
from mrtr_server.limits import LONGEST_NAME
from mrtr_server.methods.discovery import ListRequests
from mrtr_server.protocol.messages import Call, Complete

from ..support.methods import Notes, body

pytestmark = pytest.mark.anyio

RING = KeyRing([bytes(32)])
ANN = Principal("ann")
FIELDS = {"tools": "name", "prompts": "name", "resources": "uri", "resource_templates": "uriTemplate"}


def _shapes_nothing(_: object) -> tuple[()]:
    """Lists are the same for all."""
    return ()


@dataclass
class Served:
    """The lists of an application, three entries a page."""

    app: MRTRServer
    lists: ListRequests = field(init=False)

    def __post_init__(self) -> None:
        parts = self.app._parts
        authorizer = Authorizer(parts.settings.authorize, parts.threads)
        self.lists = ListRequests(
            self.app.registry, authorizer, Cursors(RING), _shapes_nothing, page_size=3, ttl=60.0, scope="public"
        )

    async def page(self, listing: str = "tools", cursor: Any = None, who: Principal | None = None) -> Complete:
        """Return one page."""
        params = {} if cursor is None else {"cursor": cursor}
        outcome = await getattr(self.lists, listing)(Call(f"{listing}/list", params, principal=who), Notes())
        assert isinstance(outcome, Complete)
        return outcome

    async def pages(self, listing: str = "tools", who: Principal | None = None) -> list[list[str]]:
        """Follow the cursors to the end; return the names of each page."""
        found, cursor = [], None
        while True:
            page = body(await self.page(listing, cursor, who))
            (entries,) = (value for name, value in page.items() if name != "nextCursor")
            found.append([entry[FIELDS[listing]] for entry in entries])
            if (cursor := page.get("nextCursor")) is None:
                return found


def fill(app: MRTRServer, count: int, **options: Any) -> None:
    """Register so many of each kind."""

    def nothing() -> str:
        return ""

    def named(name: str) -> str:
        return name

    for number in range(count):
        app.tool(name=f"t{number}", **options)(nothing)
        app.prompt(name=f"p{number}", **options)(nothing)
        app.resource(f"r://{number}", **options)(nothing)
        app.resource(f"r://{number}/{{name}}", **options)(named)


@pytest.mark.parametrize("listing", FIELDS)
@pytest.mark.parametrize(("count", "lengths"), [(0, [0]), (1, [1]), (3, [3]), (4, [3, 1]), (6, [3, 3]), (7, [3, 3, 1])])
async def test_each_entry_is_on_one_page_and_the_last_page_names_no_other(
    app: MRTRServer, listing: str, count: int, lengths: list[int]
) -> None:
    fill(app, count)
    pages = await Served(app).pages(listing)
    assert [len(page) for page in pages] == lengths
    assert len({name for page in pages for name in page}) == count


async def test_what_is_hidden_takes_no_place_on_a_page() -> None:
    def may(caller: Caller, name: str) -> bool:
        return caller.principal == ANN or int(name[1:]) % 2 == 0

    app = MRTRServer("hidden", keys=RING, authorize=may)
    fill(app, 12)
    served = Served(app)
    assert await served.pages() == [["t0", "t2", "t4"], ["t6", "t8", "t10"]]
    assert [len(page) for page in await served.pages(who=ANN)] == [3, 3, 3, 3]


@pytest.mark.parametrize("listing", FIELDS)
async def test_a_list_may_be_shared_unless_it_depends_on_who_asks(app: MRTRServer, listing: str) -> None:
    fill(app, 1)
    page = await Served(app).page(listing)
    assert (page.ttl, page.scope) == (60.0, "public")
    fill(guarded := MRTRServer("guarded", keys=RING), 1, authorize=lambda caller, name: True)
    page = await Served(guarded).page(listing)
    assert (page.ttl, page.scope) == (60.0, "private")


class TestACursor:
    async def test_is_of_one_list(self, app: MRTRServer) -> None:
        fill(app, 4)
        served = Served(app)
        cursor = body(await served.page("tools"))["nextCursor"]
        with pytest.raises(InvalidParams, match="does not belong to this list"):
            await served.page("prompts", cursor)

    @pytest.mark.parametrize("cursor", ["forged", 3, 0, True, False, [], {}])
    async def test_that_is_none_is_refused(self, app: MRTRServer, cursor: Any) -> None:
        with pytest.raises(InvalidParams, match="start again without a cursor"):
            await Served(app).page(cursor=cursor)

    async def test_that_is_empty_is_none(self, app: MRTRServer) -> None:
        fill(app, 1)
        assert await Served(app).page(cursor="") == await Served(app).page()

    @pytest.mark.parametrize("guarded", [False, True])
    @pytest.mark.parametrize("listing", FIELDS)
    async def test_goes_on_behind_what_was_seen_whatever_goes_or_comes(self, listing: str, guarded: bool) -> None:
        app = MRTRServer("changing", keys=RING, authorize=(lambda caller, name: True) if guarded else None)
        fill(app, 7)
        served, kind = Served(app), "resources" if listing == "resource_templates" else listing
        first = body(await served.page(listing))

        def named(page: Any) -> list[str]:
            return [entry[FIELDS[listing]] for entry in next(iter(page.values()))]

        seen, following = named(first), named(body(await served.page(listing, first["nextCursor"])))
        assert len({*seen, *following}) == 6
        for gone in (seen[:1], seen[2:], seen):  # an earlier one, the last one, all of them
            app.disable(**{kind: gone})
            second = body(await served.page(listing, first["nextCursor"]))
            entries = next(iter(second.values()))
            assert [entry[FIELDS[listing]][-1 if "{" not in entry[FIELDS[listing]] else 4] for entry in entries] == [
                "3",
                "4",
                "5",
            ]
            app.enable(**{kind: gone})

    @pytest.mark.parametrize("left", [(0, 1, 3, 4, 5, 6), (3, 4, 5, 6), (0, 2, 3, 4, 5, 6)])
    async def test_of_entries_that_are_gone_leaves_out_no_other(self, app: MRTRServer, left: tuple[int, ...]) -> None:
        """As on a replica with other code."""
        fill(app, 7)
        page = body(await Served(app).page())
        other, got = Served(MRTRServer("other", keys=RING)), []
        for number in left:
            other.app.tool(name=f"t{number}")(lambda: "")
        while "nextCursor" in page:
            page = body(await other.page(cursor=page["nextCursor"]))
            got += [tool["name"] for tool in page["tools"]]
        assert set(got) >= {"t3", "t4", "t5", "t6"}
        assert len(got) <= 7

    async def test_that_is_too_long_is_refused_before_it_is_read(self, app: MRTRServer) -> None:
        with pytest.raises(OverBudget):
            await Served(app).page(cursor="x" * (LONGEST_NAME + 1))

    async def test_behind_the_end_leads_to_an_empty_page(self, app: MRTRServer) -> None:
        """As where tools were removed since it was issued."""
        fill(app, 1)
        assert body(await Served(app).page(cursor=Cursors(RING).seal("tools", 9))) == {"tools": []}

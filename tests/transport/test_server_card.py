"""The card of a server, and the catalog with it: for anybody, by the official schema, and nothing of what is inside."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from mrtr_server import BearerTokens, MRTRServer, ServerInfo, SetupError
from mrtr_server.protocol.content import Icon
from mrtr_server.testing import AsyncClient

from ..support.direct import Headers, exchange
from ..support.wire import Reply

pytestmark = pytest.mark.anyio

SCHEMA = json.loads((Path(__file__).parents[1] / "schemas" / "server-card.json").read_text())
CATALOG = "/.well-known/ai-catalog.json"


def weather(**settings: Any) -> MRTRServer:
    about: dict[str, Any] = {"name": "com.example/weather", "version": "1.2.0", "description": "Forecasts"}
    info = ServerInfo(**{**about, **settings.pop("info", {})})
    return MRTRServer("weather", **{"keys": [bytes(32)], "base_url": "https://example.com", "info": info, **settings})


async def get(app: Any, path: str, headers: Headers = (), method: str = "GET") -> Reply:
    return await exchange(app, b"", [(b"host", b"example.com"), *headers], method=method, path=path)


class TestTheCard:
    async def test_fits_the_official_schema_and_says_what_clients_see(self) -> None:
        more = {"title": "The weather", "website_url": "https://example.com/w", "icons": [Icon(src="https://x.com/i")]}
        app = weather(info=more, path="/tools/mcp", base_url="https://example.com/site/")
        reply = await get(app, "/tools/mcp/server-card")
        assert reply.headers["content-type"] == "application/mcp-server-card+json"
        card = json.loads(reply.body)
        schema = {"$ref": "#/$defs/ServerCard", "$defs": SCHEMA["$defs"]}
        Draft202012Validator(schema).validate(card)
        (remote,) = card.pop("remotes")
        assert remote["url"] == "https://example.com/site/tools/mcp"
        assert {"2026-07-28", "2025-11-25"} <= set(remote["supportedProtocolVersions"])
        async with AsyncClient(app) as client:
            seen = (await client.request("server/discover")).result
        assert set(remote["supportedProtocolVersions"]) >= set(seen["supportedVersions"])
        del card["$schema"]
        assert card == seen["_meta"]["io.modelcontextprotocol/serverInfo"]

    async def test_is_in_a_catalog_at_its_address(self) -> None:
        reply = await get(weather(), CATALOG)
        assert reply.headers["content-type"] == "application/ai-catalog+json"
        assert json.loads(reply.body) == {
            "specVersion": "1.0",
            "entries": [
                {
                    "identifier": "urn:air:example.com:mcp:weather",
                    "type": "application/mcp-server-card+json",
                    "url": "https://example.com/mcp/server-card",
                }
            ],
        }

    @pytest.mark.parametrize("path", ["/mcp/server-card", CATALOG])
    async def test_is_for_anybody_and_kept_for_an_hour(self, path: str) -> None:
        app = weather(auth=BearerTokens({"t": "ann"}), allowed_hosts=["example.com"])
        reply = await get(app, path, [(b"origin", b"https://elsewhere.example")])
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, "*")
        assert reply.headers["cache-control"] == "public, max-age=3600"
        assert b"ann" not in reply.body
        head = await get(app, path, method="HEAD")
        assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(reply.body)))
        for tag in (reply.headers["etag"], f'"x", W/{reply.headers["etag"]}'):
            again = await get(app, path, [(b"if-none-match", tag.encode())])
            assert (again.status, again.body, again.headers["etag"]) == (304, b"", reply.headers["etag"])
        assert (await get(app, path, [(b"if-none-match", b'"other"')])).status == 200
        asked = await get(app, path, method="OPTIONS")
        assert (asked.status, asked.headers["access-control-allow-methods"]) == (204, "GET")
        assert (await get(app, path, method="POST")).status == 405

    async def test_below_a_mount_has_a_catalog_to_put_at_the_root(self) -> None:
        app = weather(base_url="https://example.com/weather")
        site = Starlette(routes=[Route(CATALOG, app.ai_catalog), Mount("/weather", app)])
        (entry,) = json.loads((await get(site, CATALOG)).body)["entries"]
        assert entry["url"] == "https://example.com/weather/mcp/server-card"
        card = await get(site, "/weather/mcp/server-card")
        assert json.loads(card.body)["remotes"][0]["url"] == "https://example.com/weather/mcp"
        assert json.loads((await get(site, f"/weather{CATALOG}")).body)["entries"] == [entry]


class TestWithout:
    @pytest.mark.parametrize("settings", [{"base_url": None}, {"info": {"name": None}}])
    async def test_an_address_or_a_name_there_is_none(self, settings: dict[str, Any]) -> None:
        app = weather(**settings)
        for path in ("/mcp/server-card", CATALOG):
            assert (await get(app, path)).status == 404
        with pytest.raises(SetupError, match=r"a catalog needs info=ServerInfo\(name=\.\.\.\) and base_url="):
            _ = app.ai_catalog

    def test_an_address_check_says_so(self) -> None:
        found = weather(base_url=None, dialects=["2026-07-28"]).check()
        assert [(each.level, each.about) for each in found if each.about == "info"] == [("advice", "info")]

    @pytest.mark.parametrize(
        ("info", "message"),
        [
            ({"name": "weather"}, "write a domain in reverse, a slash and a name"),
            ({"name": "com.example/a/b"}, "write a domain in reverse"),
            ({"name": f"com.example/{'x' * 200}"}, "write a domain in reverse"),
            ({"name": 5}, "name= takes text; it got 5"),
            ({"description": None}, "which needs a description= of 1 to 100 characters"),
            ({"description": "x" * 101}, "which needs a description= of 1 to 100 characters"),
            ({"title": "x" * 101}, "which needs a title= of 1 to 100 characters"),
        ],
    )
    def test_what_fits_no_card_is_refused(self, info: dict[str, Any], message: str) -> None:
        with pytest.raises(SetupError, match=message):
            weather(info=info)

"""examples/resource_server.py: the challenge leads to the issuer, and a tool asks for the scopes that it needs."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mrtr_server.testing import Client, yes

from ..support.authorization_server import AuthorizationServer, Tenant
from ..support.serving import TIMEOUT, in_process

AUDIENCE = "http://127.0.0.1:8000/mcp"


@pytest.fixture(scope="module")
def served(
    authorization_server: AuthorizationServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Tenant, str]]:
    issuer = authorization_server.tenant()
    environment = {"ISSUER": issuer.url, "AUDIENCE": AUDIENCE}
    log: Path = tmp_path_factory.mktemp("example") / "log"
    with in_process("examples.resource_server:app", log=log, environment=environment) as server:
        assert server.port, server.text
        yield issuer, f"http://127.0.0.1:{server.port}"


def test_the_challenge_leads_to_the_issuer(served: tuple[Tenant, str]) -> None:
    issuer, url = served
    with httpx.Client(trust_env=False, timeout=TIMEOUT) as client:
        challenged = client.post(f"{url}/mcp", json={})
        assert challenged.status_code == 401
        where = challenged.headers["www-authenticate"].partition('resource_metadata="')[2].rstrip('"')
        metadata = client.get(where).json()
    assert (metadata["authorization_servers"], metadata["resource"]) == ([issuer.url], AUDIENCE)
    assert metadata["scopes_supported"] == ["notes:read"]


def test_a_tool_asks_for_the_scopes_that_it_needs(served: tuple[Tenant, str]) -> None:
    issuer, url = served
    reader = Client(f"{url}/mcp", token=issuer.mint(AUDIENCE, scope="notes:read"))
    refused = reader.request("tools/call", {"name": "write", "arguments": {"text": "x"}})
    assert (refused.status, 'scope="notes:read notes:write"' in refused.headers["www-authenticate"]) == (403, True)
    writer = Client(f"{url}/mcp", token=issuer.mint(AUDIENCE, scope="notes:write"))
    assert writer.call("write", text="buy milk", answers={"confirm": yes}).text == "Written down for alice"
    assert "buy milk" in reader.call("read").text


def test_what_is_for_administrators_is_not_there_for_others(served: tuple[Tenant, str]) -> None:
    issuer, url = served
    names = {}
    for scope in ("notes:read", "notes:read notes:admin"):
        client = Client(f"{url}/mcp", token=issuer.mint(AUDIENCE, scope=scope))
        names[scope] = [tool["name"] for tool in client.request("tools/list", {}).result["tools"]]
    assert names == {"notes:read": ["read", "write"], "notes:read notes:admin": ["read", "write", "count"]}

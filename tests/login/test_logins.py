"""A login from the first page to the last call, and what each step takes and gives."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from mrtr_server import KeyRing, Metrics, SetupError

from ..support.serving import free_ports
from .conftest import Stage, make
from .people import REDIRECT, back


def said(response: httpx.Response) -> Any:
    """Return what a tool returned."""
    assert response.status_code == 200, response.text
    result = response.json()["result"]
    return result.get("structuredContent", result["content"][0]["text"])


def test_a_person_logs_in_at_the_provider_and_a_client_calls_in_their_name(stage: Stage) -> None:
    client = stage.client(stage.usual)
    tokens = client.tokens(stage.browser())
    assert tokens["token_type"] == "Bearer"
    assert 0 < tokens["expires_in"] <= 600
    assert len(tokens["access_token"]) <= 2048
    assert said(client.call(tokens)) == ["583231", stage.provider.url, "", "octocat"]


def test_a_client_without_a_token_finds_its_way_in(stage: Stage) -> None:
    base = stage.usual
    challenge = httpx.post(f"{base}/mcp", trust_env=False)
    assert challenge.status_code == 401
    about = f"{base}/.well-known/oauth-protected-resource/mcp"
    assert about in challenge.headers["www-authenticate"]
    found = httpx.get(about, trust_env=False).json()
    assert found["resource"] == f"{base}/mcp"
    assert found["authorization_servers"] == [base]
    for place in ("oauth-authorization-server", "openid-configuration"):
        metadata = httpx.get(f"{base}/.well-known/{place}", trust_env=False).json()
        assert metadata["issuer"] == base
        assert metadata["code_challenge_methods_supported"] == ["S256"]
        assert metadata["authorization_response_iss_parameter_supported"] is True
        assert metadata["client_id_metadata_document_supported"] is True
        assert metadata["scopes_supported"] == ["notes:write"]


def test_refresh_tokens_rotate(stage: Stage) -> None:
    client = stage.client(stage.usual)
    first = client.tokens(stage.browser())
    second = client.refresh(first).json()
    third = client.refresh(second).json()
    assert len({each["refresh_token"] for each in (first, second, third)}) == 3
    assert said(client.call(third))[0] == "583231"


def test_a_lost_reply_to_a_refresh_is_given_again_to_the_same_client(stage: Stage) -> None:
    client = stage.client(stage.usual)
    first = client.tokens(stage.browser())
    assert client.refresh(first).json() == client.refresh(first).json()


def test_the_codes_way_back_has_the_state_and_the_issuer(stage: Stage) -> None:
    base = stage.usual
    response = stage.browser().log_in(stage.client(base).page())
    assert response.headers["location"].startswith(f"{REDIRECT}?")
    assert (back(response)["state"], back(response)["iss"]) == ("of-client", base)


def test_a_person_who_says_no_is_not_sent_to_the_provider(stage: Stage) -> None:
    base = stage.usual
    browser = stage.browser()
    response = browser.answer(browser.open(stage.client(base).page()), "no")
    assert back(response) == {
        "error": "access_denied",
        "error_description": "The person did not allow it",
        "state": "of-client",
        "iss": base,
    }


def test_a_person_is_asked_for_a_scope_that_a_tool_needs(stage: Stage) -> None:
    client, browser = stage.client(stage.usual), stage.browser()
    tokens = client.tokens(browser)
    refused = client.call(tokens, "write")
    assert refused.status_code == 403
    assert 'scope="notes:write"' in refused.headers["www-authenticate"]
    tokens = client.tokens(browser, scope="notes:write")
    assert tokens["scope"] == "notes:write"
    assert said(client.call(tokens, "write")) == "written"


def test_a_refresh_can_ask_for_fewer_scopes_and_never_for_more(stage: Stage) -> None:
    client = stage.client(stage.usual)
    tokens = client.tokens(stage.browser(), scope="notes:write user:email")
    assert client.refresh(tokens, scope="admin").json()["error"] == "invalid_scope"
    fewer = client.refresh(tokens, scope="user:email").json()
    assert fewer["scope"] == "user:email"
    assert client.call(fewer, "write").status_code == 403
    assert client.refresh(fewer).json()["scope"] == "notes:write user:email"


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
def test_a_client_with_a_secret_has_to_send_it(stage: Stage, method: str) -> None:
    client = stage.client(stage.usual, token_endpoint_auth_method=method)
    code = back(stage.browser().log_in(client.page()))["code"]
    assert client.redeem(code).json()["error"] == "invalid_client"
    assert client.redeem(code, client_secret="wrong").json()["error"] == "invalid_client"
    secret = client.registered["client_secret"]
    if method == "client_secret_post":
        answer = client.redeem(code, client_secret=secret)
    else:
        form = {"grant_type": "authorization_code", "code": code, "code_verifier": client.verifier}
        answer = client.http.post(f"{client.base}/token", data=form, auth=(client.id, secret))
    assert answer.status_code == 200, answer.text


def test_replicas_on_one_database_redeem_a_code_and_a_refresh_token_once(stage: Stage, database: str) -> None:
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    replicas = [make(stage.provider.login(), store=database, base_url=address) for _ in range(3)]
    stage.front([urlsplit(stage.serve(each)).port or 0 for each in replicas], port)
    client = stage.client(address)
    code = client.came(stage.browser())["code"]
    answers = together(lambda: client.redeem(code))
    assert sorted(each.status_code for each in answers) == [200, 400, 400, 400, 400, 400]
    tokens = client.tokens(stage.browser())
    again = together(lambda: client.refresh(tokens))
    assert {each.status_code for each in again} == {200}
    assert len({each.json()["refresh_token"] for each in again}) == 1, "the recorded reply, for a repeated request"
    newer = client.refresh(again[0].json()).json()
    assert client.refresh(tokens).json()["error"] == "invalid_grant"
    assert client.refresh(newer).json()["error"] == "invalid_grant", "a token that came again ends its family"


def together(send: Callable[[], httpx.Response]) -> list[httpx.Response]:
    """Send six requests at once."""
    with ThreadPoolExecutor(6) as threads:
        return [each.result() for each in [threads.submit(send) for _ in range(6)]]


def test_a_revoked_login_is_not_refreshed(stage: Stage) -> None:
    client = stage.client(stage.usual)
    tokens = client.tokens(stage.browser())
    assert client.post("/revoke", token=tokens["refresh_token"]).status_code == 200
    assert client.refresh(tokens).json()["error"] == "invalid_grant"
    assert said(client.call(tokens))[0] == "583231"  # until the access token ends


def test_allow_admits_the_members_of_organisations(stage: Stage) -> None:
    client = stage.client(stage.serve(allow=["my-org"], upstream=("read:user", "read:org")))
    browser = stage.browser()
    assert back(browser.log_in(client.page()))["error"] == "access_denied"
    stage.provider.set(orgs={"my-org": ["octocat"]})
    tokens = client.tokens(browser)
    tokens = client.refresh(tokens).json()
    stage.provider.set(orgs={})
    assert client.refresh(tokens).json()["error"] == "invalid_grant"


def test_allow_may_be_a_function_of_the_persons_claims(stage: Stage) -> None:
    asked = []

    async def allow(claims: Any) -> bool:
        asked.append((claims["iss"], claims["sub"]))
        return len(asked) < 3

    client = stage.client(stage.serve(allow=allow))
    tokens = client.refresh(client.tokens(stage.browser())).json()
    assert client.refresh(tokens).json()["error"] == "invalid_grant"
    assert set(asked) == {(stage.provider.url, "583231")}


def test_a_provider_that_is_away_ends_no_login(stage: Stage) -> None:
    client = stage.client(stage.serve(allow=["my-org"], upstream=("read:user", "read:org")))
    stage.provider.set(orgs={"my-org": ["octocat"]}, expires=300)
    tokens = client.tokens(stage.browser())
    stage.provider.set(away=True)
    refused = client.refresh(tokens)
    assert (refused.status_code, refused.json()["error"]) == (503, "temporarily_unavailable")
    assert int(refused.headers["retry-after"]) > 0
    stage.provider.set(away=False)
    assert client.refresh(tokens).status_code == 200


def test_keys_rotate_and_a_gauge_says_which_are_in_use(stage: Stage) -> None:
    before, after = bytes([1] * 32), bytes([2] * 32)
    address = "http://127.0.0.1:7071"
    first = stage.serve(make(stage.provider.login(), keys=[before], base_url=address))
    both = {"keys": [after, before], "base_url": address, "metrics": Metrics("/metrics")}
    then = stage.serve(make(stage.provider.login(), **both))
    id = httpx.post(f"{first}/register", json={"redirect_uris": [REDIRECT]}, trust_env=False).json()["client_id"]
    asked = {"client_id": id, "response_type": "code", "code_challenge": "x" * 43, "code_challenge_method": "S256"}
    page = httpx.get(
        f"{then}/authorize", params=asked, headers={"host": address.removeprefix("http://")}, trust_env=False
    )
    assert page.status_code == 200
    shown = httpx.get(f"{then}/metrics", trust_env=False).text
    used = [line for line in shown.splitlines() if line.startswith("mrtr_server_login_key_used_seconds{")]
    assert len(used) == 1
    assert f'mrtr_key_id="{KeyRing([before]).derive("x")[0][0].hex()}"' in used[0]


def test_a_server_with_an_address_that_is_not_encrypted_is_refused(stage: Stage) -> None:
    with pytest.raises(SetupError, match="must be an https address"):
        make(stage.provider.login(), base_url="http://tools.example.com")


def test_below_a_mount_clients_find_the_metadata_where_they_look(stage: Stage) -> None:
    address = "http://127.0.0.1:7072"
    app = make(stage.provider.login(), base_url=f"{address}/notes")
    routes = [Mount("/.well-known/oauth-authorization-server", app), Mount("/notes", app)]
    base = stage.serve(Starlette(routes=routes))
    for path in (
        "/.well-known/oauth-authorization-server/notes",
        "/notes/.well-known/oauth-authorization-server",
        "/notes/.well-known/openid-configuration",
    ):
        found = httpx.get(f"{base}{path}", trust_env=False).json()
        assert found["issuer"] == f"{address}/notes"
        assert found["token_endpoint"] == f"{address}/notes/token"
    about = httpx.get(f"{base}/notes/.well-known/oauth-protected-resource", trust_env=False).json()
    assert about["authorization_servers"] == [f"{address}/notes"]

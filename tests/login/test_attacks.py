"""Known attacks on authorization servers, and on proxies in front of providers: none gets in."""

import json
import secrets
import socket
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.responses import JSONResponse, RedirectResponse, Response

from mrtr_server import Limits
from mrtr_server.crypto.digests import challenge_of
from mrtr_server.errors import OAuthError
from mrtr_server.login.documents import Documents

from ..support import github
from ..support.serving import free_ports, in_thread
from .conftest import KEY, Stage, make
from .people import REDIRECT, Client, action_of, back, question_of

# Codes that were stolen, or come again


def test_a_stolen_code_is_of_no_use_to_another_client(stage: Stage) -> None:
    base = stage.usual
    client, thief = stage.client(base), stage.client(base)
    code = back(stage.browser().log_in(client.page()))["code"]
    thief.verifier = client.verifier
    assert thief.redeem(code).json()["error"] == "invalid_grant"
    assert client.redeem(code).status_code == 200


def test_a_stolen_code_without_its_verifier_opens_nothing_and_is_not_used_up(stage: Stage) -> None:
    client = stage.client(stage.usual)
    code = back(stage.browser().log_in(client.page()))["code"]
    for verifier in (None, "", secrets.token_urlsafe(48), challenge_of(client.verifier)):
        assert client.redeem(code, code_verifier=verifier).json()["error"] == "invalid_grant"
    assert client.redeem(code).status_code == 200


def test_a_code_that_comes_twice_ends_its_login(stage: Stage) -> None:
    client = stage.client(stage.usual)
    code = back(stage.browser().log_in(client.page()))["code"]
    tokens = client.redeem(code).json()
    assert client.redeem(code).json()["error"] == "invalid_grant"
    assert client.refresh(tokens).json()["error"] == "invalid_grant"


def test_a_code_counts_for_a_minute_and_for_its_redirect_alone(stage: Stage) -> None:
    now = time.time()
    stage.clock = lambda: now
    client = stage.client(stage.serve())
    code = back(stage.browser().log_in(client.page()))["code"]
    assert client.redeem(code, redirect_uri="http://127.0.0.1:7777/other").json()["error"] == "invalid_grant"
    now += 61
    assert client.redeem(code).json()["error"] == "invalid_grant"


def test_a_refresh_token_that_comes_again_later_ends_its_login(stage: Stage) -> None:
    now = time.time()
    stage.clock = lambda: now
    client = stage.client(stage.serve())
    first = client.tokens(stage.browser())
    second = client.refresh(first).json()
    now += 61
    assert client.refresh(first).json()["error"] == "invalid_grant"
    assert client.refresh(second).json()["error"] == "invalid_grant"


def test_a_refresh_token_is_known_as_used_long_after_its_redemption_is_forgotten(stage: Stage) -> None:
    now = time.time()
    stage.clock = lambda: now
    client = stage.client(stage.serve())
    first = client.tokens(stage.browser())
    second = client.refresh(first).json()
    now += 24 * 3600
    assert client.refresh(first).json()["error"] == "invalid_grant"
    assert client.refresh(second).json()["error"] == "invalid_grant"


def test_a_reply_is_not_given_again_once_its_tokens_were_used(stage: Stage) -> None:
    client = stage.client(stage.usual)
    first = client.tokens(stage.browser())
    third = client.refresh(client.refresh(first).json()).json()
    assert client.refresh(first).json()["error"] == "invalid_grant"
    assert client.refresh(third).json()["error"] == "invalid_grant"


def test_a_refresh_token_of_one_client_is_of_no_use_to_another(stage: Stage) -> None:
    base = stage.usual
    client, thief = stage.client(base), stage.client(base)
    tokens = client.tokens(stage.browser())
    assert thief.refresh(tokens).json()["error"] == "invalid_grant"
    assert thief.post("/revoke", token=tokens["refresh_token"]).status_code == 200
    assert client.refresh(tokens).status_code == 200


# A victim's browser


def test_a_login_ends_in_the_browser_that_began_it_alone(stage: Stage) -> None:
    client, attacker, victim = stage.client(stage.usual), stage.browser(), stage.browser()
    leaving = attacker.answer(attacker.open(client.page()))
    coming_back = attacker.open(leaving.headers["location"]).headers["location"]
    refused = victim.open(coming_back)
    assert (refused.status_code, "location" in refused.headers) == (400, False)
    assert "code" in back(attacker.open(coming_back))


def test_a_way_back_from_the_provider_counts_once(stage: Stage) -> None:
    client, browser = stage.client(stage.usual), stage.browser()
    leaving = browser.answer(browser.open(client.page()))
    cookies = dict(browser.http.cookies)
    coming_back = browser.open(leaving.headers["location"]).headers["location"]
    assert "code" in back(browser.open(coming_back))
    assert browser.open(coming_back).status_code == 400  # the cookie is gone
    again = stage.browser()
    again.http.cookies.update(cookies)
    assert again.open(coming_back).status_code == 400


def test_the_provider_sees_a_state_that_says_nothing(stage: Stage) -> None:
    client, browser = stage.client(stage.usual), stage.browser()
    location = browser.answer(browser.open(client.page())).headers["location"]
    state = dict(parse_qsl(urlsplit(location).query))["state"]
    assert len(state) == 16
    assert location.startswith(f"{stage.provider.url}/")


def test_a_response_of_another_issuer_is_refused(stage: Stage) -> None:
    client, browser = stage.client(stage.usual), stage.browser()
    leaving = browser.answer(browser.open(client.page()))
    coming_back = browser.open(leaving.headers["location"]).headers["location"]
    refused = browser.open(f"{coming_back}&{urlencode({'iss': 'https://evil.example.com'})}")
    assert (refused.status_code, "location" in refused.headers) == (400, False)


# The question


def test_nothing_is_sent_to_the_provider_and_no_login_begins_before_the_yes(stage: Stage) -> None:
    browser = stage.browser()
    page = browser.open(stage.client(stage.usual).page())
    assert page.status_code == 200
    assert [name for name in browser.http.cookies if "login" in name] == []


def test_a_question_is_answered_by_the_browser_that_was_asked_alone(stage: Stage) -> None:
    client, attacker, victim = stage.client(stage.usual), stage.browser(), stage.browser()
    page = attacker.open(client.page())
    assert victim.answer(page).status_code == 403  # by a form of the attacker's, in the victim's browser
    victim.open(client.page())  # who was asked something else
    assert victim.answer(page).status_code == 403


@pytest.mark.parametrize("origin", ["https://evil.example.com", "null", "http://127.0.0.1:1"])
def test_an_answer_from_another_site_is_refused(stage: Stage, origin: str) -> None:
    browser = stage.browser()
    page = browser.open(stage.client(stage.usual).page())
    assert browser.answer(page, origin=origin).status_code == 403


def test_an_answer_is_no_link_and_a_changed_question_is_none(stage: Stage) -> None:
    browser = stage.browser()
    page = browser.open(stage.client(stage.usual).page())
    question, action = question_of(page), action_of(page)
    assert browser.open(f"{action}?{urlencode({'question': question, 'answer': 'yes'})}").status_code == 405
    changed = question[:-2] + ("A" if question[-2] != "A" else "B") + question[-1]
    assert browser.http.post(action, data={"question": changed, "answer": "yes"}).status_code == 403


def test_the_page_shows_what_a_client_calls_itself_as_text(stage: Stage) -> None:
    name = "<img src=x onerror=alert(1)>\u202egnp.exe\x00"
    page = stage.browser().open(stage.client(stage.usual, client_name=name).page())
    assert "<img" not in page.text
    assert "\u202e" not in page.text
    assert "&lt;img src=x onerror=alert(1)&gt;" in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "form-action" not in policy


def test_a_remembered_yes_counts_for_no_link_and_for_no_other_scope_or_client(stage: Stage, tmp_path: Path) -> None:
    base, redirect = stage.serve(remember_consent=True), "https://client.example.com/back"
    client, browser = stage.client(base, redirect=redirect), stage.browser()
    browser.answer(browser.open(client.page()))
    by_itself = {"sec-fetch-site": "none"}
    assert browser.open(client.page(), **by_itself).status_code == 303
    for site in ("cross-site", "same-site", "same-origin"):
        assert browser.open(client.page(), **{"sec-fetch-site": site}).status_code == 200
    assert browser.open(client.page()).status_code == 200
    assert browser.open(client.page(scope="notes:write"), **by_itself).status_code == 200
    assert browser.open(stage.client(base, redirect=redirect).page(), **by_itself).status_code == 200
    assert stage.browser().open(client.page(), **by_itself).status_code == 200


def test_few_answers_are_remembered_of_which_the_oldest_are_forgotten(stage: Stage) -> None:
    base, browser = stage.serve(remember_consent=True), stage.browser()
    clients = [stage.client(base, redirect=f"https://client.example.com/{number}") for number in range(9)]
    for client in clients:
        browser.answer(browser.open(client.page()))
    found = [browser.open(client.page(), **{"sec-fetch-site": "none"}).status_code for client in clients]
    assert found == [200] + [303] * 8


def test_nothing_is_remembered_by_default_nor_for_redirects_to_this_computer(stage: Stage) -> None:
    for base, redirect in (
        (stage.usual, "https://client.example.com/"),
        (stage.serve(remember_consent=True), REDIRECT),
        (stage.serve(remember_consent=True, allow_redirects=["com.example.app"]), "com.example.app:/back"),
    ):
        client, browser = stage.client(base, redirect=redirect), stage.browser()
        browser.answer(browser.open(client.page()))
        assert browser.open(client.page(), **{"sec-fetch-site": "none"}).status_code == 200


# Redirects


@pytest.mark.parametrize(
    "uri",
    [
        "http://client.example.com/back",
        "https://user@client.example.com/",
        "https://client.example.com@evil.example.com/",
        "https://client.example.com\\@evil.example.com/",
        "https://client.example.com/#fragment",
        "https://client%2eexample.com/",
        "https://ćlient.example.com/",
        "https:///back",
        "https://client.example.com:0/",
        "https://client.example.com:99999/",
        "https://-/",
        "https://client.example.com/a b",
        "https://client.example.com/\r\nset-cookie:a=b",
        "//client.example.com/",
        "/back",
        "javascript:alert(1)",
        "data:text/html,hello",
        "vbscript:x",
        "file:///etc/passwd",
        "cursor://back",
        "http://127.0.0.1.evil.example.com/",
        "http://2130706433.example.com/",
        "http://localhost.evil.example.com/",
        "",
        "x" * 2000,
        7,
        None,
    ],
)
def test_no_client_registers_an_address_that_leads_astray(stage: Stage, uri: Any) -> None:
    answer = httpx.post(f"{stage.usual}/register", json={"redirect_uris": [uri]}, trust_env=False)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_redirect_uri")


@pytest.mark.parametrize(
    ("registered", "asked", "may"),
    [
        ("https://client.example.com/back", "https://client.example.com/back", True),
        ("https://client.example.com/back", "https://client.example.com/back/", False),
        ("https://client.example.com/back", "https://client.example.com/back?x=1", False),
        ("https://client.example.com/back", "https://client.example.com/%62ack", False),
        ("https://client.example.com/back", "https://client.example.com/x/../back", False),
        ("https://client.example.com/back", "https://CLIENT.example.com/back", False),
        ("https://client.example.com/back", "https://client.example.com:444/back", False),
        ("https://client.example.com/back", "https://evil.example.com/back", False),
        ("https://client.example.com/back", "https://client.example.com.evil.example.com/back", False),
        ("http://127.0.0.1/back", "http://127.0.0.1:5123/back", True),
        ("http://127.0.0.1:1/back", "http://127.0.0.1:5123/back", True),
        ("http://[::1]/back", "http://[::1]:5123/back", True),
        ("http://localhost/back", "http://localhost:5123/back", True),
        ("http://127.0.0.1/back", "http://localhost:5123/back", False),
        ("http://127.0.0.1/back", "http://127.0.0.1:5123/other", False),
        ("http://127.0.0.1/back", "http://127.0.0.1:5123@evil.example.com/back", False),
        ("http://127.0.0.1/back", "https://127.0.0.1/back", False),
        # Browsers read a backslash as a slash, so this one is of the host before it.
        ("http://127.0.0.1/back", "http://evil.example.com\\@127.0.0.1/back", False),
        ("http://127.0.0.1/back", "http://anybody@127.0.0.1/back", False),
        ("http://127.0.0.1/back", "http://127.0.0.1/back#here", False),
        ("http://127.0.0.1/back", "http://127.0.0.1:99999/back", False),
        ("http://127.0.0.1/back", "http://[", False),
        ("com.example.app:/back", "com.example.app:/back", True),
        ("com.example.app:/back", "com.example.app:/back2", False),
    ],
)
def test_a_browser_goes_to_registered_addresses_alone(stage: Stage, registered: str, asked: str, may: bool) -> None:
    client = stage.client(stage.usual, redirect=registered)
    response = stage.browser().open(client.page(redirect_uri=asked))
    assert response.status_code == (200 if may else 400)
    assert "location" not in response.headers


def test_this_server_redirects_to_no_address_of_anybodys_with_an_error(stage: Stage) -> None:
    base = stage.usual
    elsewhere = stage.client(base, redirect="https://evil.example.com/").page(scope='"')
    refused = stage.browser().open(elsewhere)
    assert (refused.status_code, "location" in refused.headers) == (400, False)
    assert "https://evil.example.com/?error=invalid_scope" in refused.text  # by a link, which a person may follow
    here = back(stage.browser().open(stage.client(base).page(scope='"')))
    assert (here["error"], here["state"], here["iss"]) == ("invalid_scope", "of-client", base)


# Downgrades


@pytest.mark.parametrize(
    "changes",
    [
        {"code_challenge": None},
        {"code_challenge_method": None},
        {"code_challenge_method": "plain"},
        {"code_challenge": "short"},
        {"code_challenge": "=" * 43},
    ],
)
def test_there_is_no_login_without_pkce(stage: Stage, changes: Any) -> None:
    refused = back(stage.browser().open(stage.client(stage.usual).page(**changes)))
    assert refused["error"] == "invalid_request"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_type": "code token"}, "unsupported_response_type"),
        ({"response_mode": "fragment"}, "invalid_request"),
        ({"resource": "https://other.example.com/mcp"}, "invalid_target"),
        ({"request": "e30."}, "request_not_supported"),
        ({"prompt": "none"}, "interaction_required"),
        ({"state": "x" * 2000}, "invalid_request"),
    ],
)
def test_what_is_not_served_is_refused_by_name(stage: Stage, changes: Any, error: str) -> None:
    assert back(stage.browser().open(stage.client(stage.usual).page(**changes)))["error"] == error


def test_no_password_and_no_other_resource_at_the_token_endpoint(stage: Stage) -> None:
    client = stage.client(stage.usual)
    tokens = client.tokens(stage.browser())
    for kind in ("password", "client_credentials", "implicit", "", "urn:ietf:params:oauth:grant-type:jwt-bearer"):
        answer = client.post(grant_type=kind, username="a", password="b")
        assert answer.json()["error"] == "unsupported_grant_type"
    assert client.refresh(tokens, resource="https://other.example.com/mcp").json()["error"] == "invalid_target"
    assert client.refresh(tokens, resource=f"{client.base.upper().replace('HTTP', 'http')}/mcp").status_code == 200


def test_a_parameter_that_occurs_twice_is_refused(stage: Stage) -> None:
    client = stage.client(stage.usual)
    assert stage.browser().open(f"{client.page()}&redirect_uri=https://evil.example.com/").status_code == 400
    body = f"grant_type=refresh_token&client_id={client.id}&client_id={client.id}"
    answer = client.http.post(
        f"{client.base}/token", content=body, headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert answer.json()["error"] == "invalid_request"


# What is sealed


def test_no_sealed_thing_stands_for_another(stage: Stage) -> None:
    client, browser = stage.client(stage.usual), stage.browser()
    page = browser.open(client.page())
    question = question_of(page)
    leaving = browser.answer(page)
    transaction = next(value for name, value in browser.http.cookies.items() if name.startswith("mrtr-login-"))
    code = back(browser.go(leaving))["code"]
    tokens = client.redeem(code).json()
    kinds = {
        "registration": client.id,
        "question": question,
        "transaction": transaction,
        "code": code,
        "access": tokens["access_token"],
        "refresh": tokens["refresh_token"],
    }
    for kind, token in kinds.items():
        if kind != "access":
            assert client.call({"token_type": "Bearer", "access_token": token}).status_code == 401, kind
        if kind != "code":
            assert client.redeem(token).json()["error"] == "invalid_grant", kind
        if kind != "refresh":
            assert client.refresh({"refresh_token": token}).json()["error"] == "invalid_grant", kind
        if kind != "registration":
            assert browser.open(client.page(client_id=token)).status_code == 400, kind
        if kind != "question":
            answer = browser.http.post(action_of(page), data={"question": token, "answer": "yes"})
            assert answer.status_code == 403, kind
        if kind != "transaction":
            other = stage.browser()
            other.http.cookies.set("mrtr-login-abc", token)
            assert other.open(f"{client.base}/login/callback?code=x&state=abc").status_code == 400, kind


def test_nothing_of_one_server_counts_at_another_with_the_same_keys(stage: Stage) -> None:
    here, there = stage.client(stage.usual), stage.client(stage.serve())
    tokens = here.tokens(stage.browser())
    assert there.call(tokens).status_code == 401
    assert (
        there.post(client_id=there.id, grant_type="refresh_token", refresh_token=tokens["refresh_token"]).json()[
            "error"
        ]
        == "invalid_grant"
    )
    assert stage.browser().open(there.page(client_id=here.id)).status_code == 400


def test_a_forged_registration_or_token_is_refused(stage: Stage) -> None:
    client = stage.client(stage.usual)
    tokens = client.tokens(stage.browser())
    for token in (client.id, tokens["access_token"]):
        raw = bytearray(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        raw[-1] ^= 1
        forged = urlsafe_b64encode(bytes(raw)).rstrip(b"=").decode()
        assert stage.browser().open(client.page(client_id=forged)).status_code == 400
        assert client.call({"token_type": "Bearer", "access_token": forged}).status_code == 401
    assert stage.browser().open(client.page(client_id="A" * 3000)).status_code == 400


def test_a_scheme_that_is_allowed_no_more_takes_nobody_back(stage: Stage) -> None:
    port = free_ports(1)[0]
    with ExitStack() as former:
        former.enter_context(in_thread(make(stage.provider.login(allow_redirects=["com.example.app"])), port=port))
        client = stage.client(f"http://127.0.0.1:{port}", redirect="com.example.app:/back")
        assert stage.browser().open(client.page()).status_code == 200
    stage.serve(port=port)
    assert stage.browser().open(client.page()).status_code == 400


# The documents of clients


KIND = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


def cimd(stage: Stage, folder: Path, **document: Any) -> tuple[Client, dict[str, Any], str]:
    """Return a client whose id is the address of its document, all documents, and its path."""
    address, served, fetcher = stage.documents(folder)
    id = f"{address}/client.json"
    served["/client.json"] = {"client_id": id, "client_name": "Documented", "redirect_uris": [REDIRECT], **document}
    return stage.client(stage.serve(fetcher=fetcher), id=id), served, address


def test_a_client_is_known_by_the_document_at_its_id(stage: Stage, tmp_path: Path) -> None:
    client, _, _ = cimd(stage, tmp_path)
    page = stage.browser().open(client.page())
    assert "127.0.0.1" in page.text
    tokens = client.tokens(stage.browser())
    assert client.refresh(tokens).status_code == 200


def test_a_client_with_a_key_has_to_sign_with_it_and_a_document_that_changes_opens_nothing(
    stage: Stage, tmp_path: Path
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    client, served, _ = cimd(
        stage, tmp_path, token_endpoint_auth_method="private_key_jwt", jwks={"keys": [{**public, "alg": "ES256"}]}
    )

    def signed(signer: Any = key, **changes: Any) -> dict[str, str]:
        now = int(time.time())
        claims = {"iss": client.id, "sub": client.id, "aud": client.base, "exp": now + 60, "jti": secrets.token_hex(8)}
        assertion = jwt.encode({**claims, **changes}, signer, "ES256")
        return {"client_assertion_type": KIND, "client_assertion": assertion}

    code = back(stage.browser().log_in(client.page()))["code"]
    assert client.redeem(code).json()["error"] == "invalid_grant"
    other = ec.generate_private_key(ec.SECP256R1())
    for wrong in (
        signed(other),
        signed(aud="https://other.example.com"),
        signed(sub="https://other.example.com/c"),
        signed(exp=int(time.time()) + 3600),
        signed(exp=int(time.time()) - 3600),
        signed(exp=str(int(time.time()) + 3600)),
        signed(jti=7),
    ):
        assert client.redeem(code, **wrong).json()["error"] == "invalid_client"
    right = signed()
    tokens = client.redeem(code, **right).json()
    assert "access_token" in tokens
    client.post("/revoke", token=tokens["refresh_token"])  # by somebody who has a token, and not the key
    tokens = client.refresh(tokens, **signed()).json()
    assert "access_token" in tokens
    assert client.refresh(tokens, **right).json()["error"] == "invalid_client"  # an assertion counts once
    # An attacker who takes the host over can't turn the client into one without a key.
    served["/client.json"]["token_endpoint_auth_method"] = "none"
    assert client.refresh(tokens).json()["error"] == "invalid_grant"


def test_a_document_that_can_not_be_had_signs_no_client_out(stage: Stage, tmp_path: Path) -> None:
    client, served, _ = cimd(stage, tmp_path)
    served["/client.json"] = Response(status_code=502)
    away = client.redeem("any", client_assertion="x", client_assertion_type=KIND)
    assert (away.status_code, away.json()["error"]) == (503, "temporarily_unavailable")
    assert stage.browser().open(client.page()).status_code == 503


@pytest.mark.anyio
async def test_strangers_push_no_document_out_that_is_in_use(stage: Stage, tmp_path: Path) -> None:
    now = 0.0
    address, served, fetcher = stage.documents(tmp_path)
    documents, id = Documents(fetcher, lambda: now), f"{address}/client.json"
    served["/client.json"] = JSONResponse({"client_id": id}, headers={"cache-control": "max-age=3600"})
    await documents.find(id)
    for minute in range(120):
        now = minute * 60.0
        for number in range(10):
            with pytest.raises(OAuthError):
                await documents.find(f"{address}/{minute}-{number}.json")
        assert (await documents.find(id))["client_id"] == id
    await documents.close()


@pytest.mark.anyio
async def test_keys_of_a_client_that_do_not_do_are_fetched_again_once_a_minute(stage: Stage, tmp_path: Path) -> None:
    now = 0.0
    address, served, fetcher = stage.documents(tmp_path)
    documents, named = Documents(fetcher, lambda: now), {"jwks_uri": f"{address}/keys.json"}
    served["/keys.json"] = {"keys": [1]}
    assert await documents.keys(named) == {"keys": [1]}
    served["/keys.json"] = {"keys": [2]}
    assert await documents.keys(named, anew=True) == {"keys": [1]}
    now = 61.0
    assert await documents.keys(named) == {"keys": [1]}
    assert await documents.keys(named, anew=True) == {"keys": [2]}
    await documents.close()


@pytest.mark.parametrize(
    "document",
    [
        {"client_id": "https://other.example.com/client.json"},
        {"client_id": None},
        {"redirect_uris": []},
        {"redirect_uris": ["http://evil.example.com/"]},
        {"redirect_uris": "https://evil.example.com/"},
        {"token_endpoint_auth_method": "client_secret_basic"},
        {"client_secret": "x"},
        {"padding": "x" * 6000},
        {"client_name": 7},
    ],
)
def test_a_document_that_does_not_fit_is_refused(stage: Stage, tmp_path: Path, document: Any) -> None:
    client, _, _ = cimd(stage, tmp_path, **document)
    assert stage.browser().open(client.page()).status_code == 400


@pytest.mark.parametrize(
    "id",
    [
        "https://[",
        "https://client.example.com:no/client.json",
        "https://",
        "https://\u0430\u0440\u0440\u04cf\u0435.com/client.json",  # in Cyrillic letters, which look like a known name
        "https://CLIENT.example.com/client.json",
    ],
)
def test_what_is_no_address_is_the_id_of_no_client(stage: Stage, id: str) -> None:
    assert stage.browser().open(stage.client(stage.usual).page(client_id=id)).status_code == 400


def test_a_document_is_fetched_by_no_redirect_and_seldom(stage: Stage, tmp_path: Path) -> None:
    client, served, address = cimd(stage, tmp_path)
    asked: list[str] = []
    document = served["/client.json"]

    class Counted(JSONResponse):
        async def __call__(self, *arguments: Any) -> None:
            asked.append("")
            await super().__call__(*arguments)

    served["/client.json"] = Counted(document)
    served["/moved.json"] = RedirectResponse(f"{address}/client.json")
    for _ in range(3):
        assert stage.browser().open(client.page()).status_code == 200
    assert len(asked) == 1
    assert stage.browser().open(client.page(client_id=f"{address}/moved.json")).status_code == 400
    found = [stage.browser().open(client.page(client_id=f"{address}/{n}.json")).status_code for n in range(12)]
    assert found == [400] * 8 + [503] * 4  # ten in a minute, with the two before
    assert len(asked) == 1
    late = stage.browser().open(client.page(client_id=f"{address}/late.json"))
    assert (late.status_code, "too many" in late.text) == (503, True)
    assert stage.browser().open(client.page()).status_code == 200


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("", 300),
        ("max-age=120", 120),
        ('public, MAX-AGE="900"', 900),
        ("max-age=86400", 3600),
        ("max-age=5", 60),
        ("max-age=no", 300),
        ("max-age=" + "9" * 5000, 3600),
        ("no-store, max-age=600", 60),
    ],
)
@pytest.mark.anyio
async def test_a_document_counts_for_as_long_as_its_server_says(
    stage: Stage, tmp_path: Path, said: str, seconds: float
) -> None:
    now = 0.0
    address, served, fetcher = stage.documents(tmp_path)
    id = f"{address}/client.json"
    documents = Documents(fetcher, lambda: now)

    async def found(name: str) -> str:
        served["/client.json"] = JSONResponse({"client_id": id, "client_name": name}, headers={"cache-control": said})
        return str((await documents.find(id))["client_name"])

    assert await found("before") == "before"
    now = seconds - 1
    assert await found("after") == "before"
    now = seconds + 1
    assert await found("after") == "after"
    await documents.close()


@pytest.mark.parametrize(
    "id",
    [
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/client.json",
        "https://[::1]/client.json",
        "https://[::ffff:127.0.0.1]/client.json",
        "https://localhost/client.json",
        "https://2130706433/client.json",
        "https://user@127.0.0.1/client.json",
        "https://127.0.0.1/client.json#x",
        "https://client.example.com",
        "https://client.example.com/",
        "https://client.example.com/a/../b",
        "https://client.example.com/./b",
        "http://client.example.com/client.json",
        "https://" + "x" * 3000,
    ],
)
def test_no_client_makes_this_server_look_around_in_its_network(stage: Stage, id: str) -> None:
    client = stage.client(stage.usual, id=id)
    assert stage.browser().open(client.page()).status_code == 400


# Cookies


def test_cookies_belong_to_the_host_alone(stage: Stage) -> None:
    app = make(stage.provider.login(), base_url="https://tools.example.com")
    base = stage.serve(app)
    host = {"host": "tools.example.com"}
    browser, told = stage.browser(), {"redirect_uris": [REDIRECT], "token_endpoint_auth_method": "none"}
    id = httpx.post(f"{base}/register", json=told, trust_env=False).json()["client_id"]
    asked = {"client_id": id, "redirect_uri": REDIRECT, "response_type": "code", "code_challenge": "x" * 43}
    page = browser.open(f"{base}/authorize?{urlencode({**asked, 'code_challenge_method': 'S256'})}", **host)
    assert action_of(page) == "https://tools.example.com/login/consent"
    cookie = page.headers["set-cookie"]
    secret = cookie.partition("=")[2].partition(";")[0]
    assert cookie.startswith("__Host-mrtr-question-")
    leaving = browser.http.post(
        f"{base}/login/consent",
        data={"question": question_of(page), "answer": "yes"},
        headers={**host, "cookie": f"{cookie.partition('=')[0]}={secret}"},
    )
    for each in (cookie, leaving.headers.get_list("set-cookie")[0]):
        assert {"HttpOnly", "Secure", "SameSite=lax", "Path=/", "Max-Age=600"} <= set(each.split("; "))
        assert "domain" not in each.lower()
    assert leaving.headers.get_list("set-cookie")[0].startswith("__Host-mrtr-login-")
    assert browser.open(f"{base}/authorize", host="evil.example.com").status_code == 403


def test_a_browser_may_be_asked_several_things_at_a_time(stage: Stage) -> None:
    first, second, browser = stage.client(stage.usual), stage.client(stage.usual), stage.browser()
    pages = [browser.open(each.page()) for each in (first, second)]
    for client, page in zip((first, second), pages, strict=True):
        assert client.redeem(back(browser.go(browser.answer(page)))["code"]).status_code == 200
        assert browser.answer(page).status_code == 403  # a question is answered once
    for _ in range(10):
        page = browser.open(first.page())
    assert len([name for name in browser.http.cookies if name.startswith("mrtr-question-")]) == 4
    assert "location" in browser.answer(page).headers


def test_whatever_a_browser_sends_as_cookies_the_page_is_short(stage: Stage) -> None:
    client = stage.client(stage.usual)
    cookies = "; ".join([*(f"mrtr-question-x{number}=1" for number in range(500)), "mrtr-question-[0=1"])
    page = stage.browser().open(client.page(), cookie=cookies)
    assert page.status_code == 200
    assert len(page.headers.get_list("set-cookie")) <= 10


def test_a_yes_counts_once_whatever_a_browser_keeps(stage: Stage) -> None:
    client, browser = stage.client(stage.usual), stage.browser()
    page = browser.open(client.page())
    kept = dict(browser.http.cookies)
    assert "location" in browser.answer(page).headers
    browser.http.cookies.update(kept)
    again = browser.answer(page)
    assert (again.status_code, "answered already" in again.text) == (403, True)


def test_strangers_fill_no_more_than_a_share_of_the_store(stage: Stage, tmp_path: Path) -> None:
    limits, store = Limits(stored_states=40, caller_share=0.2), f"sqlite:///{tmp_path}/logins.db"
    client = stage.client(stage.serve(make(stage.provider.login(), store=store, limits=limits)))
    tokens = client.tokens(stage.browser())
    answered = [(browser := stage.browser()).answer(browser.open(client.page())).status_code for _ in range(10)]
    assert 503 in answered, "each is noted for ten minutes"
    assert client.refresh(tokens).status_code == 200, "of somebody who has logged in"


def test_a_body_that_does_not_come_is_no_failure_of_ours(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    port = int(stage.usual.rpartition(":")[2])
    for path in ("/register", "/token", "/login/consent"):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: 9\r\n"
            connection.sendall(f"{head}content-type: application/x-www-form-urlencoded\r\n\r\n{{".encode())
    assert stage.browser().open(stage.client(stage.usual).page()).status_code == 200
    assert "Traceback" not in caplog.text


def test_a_person_has_ten_minutes_for_each_part_of_a_login(stage: Stage) -> None:
    now = time.time()
    stage.clock = lambda: now
    client, browser = stage.client(stage.serve()), stage.browser()
    page = browser.open(client.page())
    now += 601
    assert "took too long" in browser.answer(page).text
    leaving = browser.answer(browser.open(client.page()))
    now += 601
    assert "took too long" in browser.go(leaving).text


def test_a_browser_has_few_logins_under_way(stage: Stage) -> None:
    client, browser = stage.client(stage.usual), stage.browser()
    begun: list[str] = []
    for _ in range(10):
        browser.answer(browser.open(client.page()))
        begun += [name for name in browser.http.cookies if name.startswith("mrtr-login-") and name not in begun]
    assert len(begun) == 10
    assert [name for name in begun if name in browser.http.cookies] == begun[-4:]


# What is told


def test_no_token_code_or_secret_is_in_the_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    client = stage.client(stage.serve(), token_endpoint_auth_method="client_secret_post")
    secret = client.registered["client_secret"]
    code = back(stage.browser().log_in(client.page()))["code"]
    client.redeem(code, client_secret="wrong-secret")
    tokens = client.redeem(code, client_secret=secret).json()
    client.redeem(code, client_secret=secret)
    client.refresh(tokens, client_secret=secret)
    client.call({"token_type": "Bearer", "access_token": tokens["access_token"][:-1] + "x"})
    text = caplog.text + json.dumps([record.getMessage() for record in caplog.records])
    own = (secret, "wrong-secret", code, tokens["access_token"][:40], tokens["refresh_token"], KEY.hex())
    for each in (*own, *github.TOKENS):
        assert each not in text

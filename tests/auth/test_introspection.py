"""`IntrospectionAuth`: what the issuer says of an opaque token, how long that is known, and how often it is asked."""

import asyncio
import json
import socket
import time
from typing import Any

import pytest

from mrtr_server import IntrospectionAuth, MRTRServer, SetupError
from mrtr_server.auth import oauth
from mrtr_server.errors import IssuerUnavailable

from ..support.authorization_server import RESOURCE_SERVER, Tenant
from .callers import AUDIENCE, get, make, send

pytestmark = pytest.mark.anyio


def backend(issuer: Tenant, **more: Any) -> IntrospectionAuth:
    client_id, client_secret = RESOURCE_SERVER
    given = {"client_id": client_id, "client_secret": client_secret, "audience": AUDIENCE, **more}
    return IntrospectionAuth(issuer.url, **given)


@pytest.fixture
def app(issuer: Tenant) -> MRTRServer:
    return make(backend(issuer))


async def test_an_active_token_says_who_calls_with_which_scopes(app: MRTRServer, issuer: Tenant) -> None:
    token = issuer.mint(AUDIENCE, opaque=True, scope="read")
    assert json.loads((await send(app, token)).text) == ["alice", issuer.url, "c", ["read"]]


async def test_an_issuer_that_says_nothing_of_itself_is_the_one_that_was_asked(app: MRTRServer, issuer: Tenant) -> None:
    token = issuer.mint(AUDIENCE, opaque=True, claims={"iss": None, "exp": None})
    assert json.loads((await send(app, token)).text)[:2] == ["alice", issuer.url]


async def test_null_is_nothing_said(app: MRTRServer, issuer: Tenant) -> None:
    nulls = dict.fromkeys(["iss", "exp", "nbf", "client_id", "scope", "token_type", "cnf"])
    said = {"active": True, "sub": "alice", "aud": AUDIENCE, **nulls}
    token = issuer.mint(AUDIENCE, opaque=True, claims={"reply": {"content": json.dumps(said)}})
    assert json.loads((await send(app, token)).text) == ["alice", issuer.url, "", []]


async def test_a_token_may_hold_for_longer_than_any_clock_shows(app: MRTRServer, issuer: Tenant) -> None:
    assert (await send(app, issuer.mint(AUDIENCE, opaque=True, claims={"exp": 10**400}))).status == 200


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"active": False}, "not active"),
        ({"active": "true"}, "not active"),
        ({"aud": "https://other.example.com"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": [{"a": 1}]}, "another audience"),
        ({"aud": 5}, "another audience"),
        ({"iss": "https://evil.example.com"}, "another issuer"),
        ({"exp": 1}, "has expired"),
        ({"exp": "then"}, "is not a valid time"),
        ({"exp": -(10**400)}, "has expired"),
        ({"nbf": 10**400}, "not valid yet"),
        ({"nbf": 99999999999}, "not valid yet"),
        ({"sub": None}, "no 'sub'"),
        ({"sub": 5}, "no 'sub'"),
        ({"sub": "\ud800"}, "that can't be written"),
        ({"iss": "\ud800"}, "another issuer"),
        ({"client_id": "a\udc00"}, "that can't be written"),
        ({"scope": "read \ud800"}, "that can't be written"),
        ({"more": [{"\ud800": 1}]}, "that can't be written"),
    ],
)
async def test_a_token_that_does_not_hold_gets_the_one_error_and_a_line_that_says_why(
    app: MRTRServer, issuer: Tenant, claims: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = issuer.mint(AUDIENCE, opaque=True, claims=claims)
    reply = await send(app, token)
    assert (reply.status, reply.body) == (401, b'{"error":"Authentication is required"}')
    assert reason in caplog.text
    assert token not in caplog.text


async def test_a_signed_token_is_one_like_any_other(app: MRTRServer, issuer: Tenant) -> None:
    assert (await send(app, issuer.mint(AUDIENCE))).status == 401, "the issuer does not know it"


class TestAsking:
    async def test_is_once_for_all_who_bring_the_token_at_the_same_time(self, app: MRTRServer, issuer: Tenant) -> None:
        token = issuer.mint(AUDIENCE, opaque=True)
        replies = await asyncio.gather(*(send(app, token) for _ in range(8)))
        assert [reply.status for reply in replies] == [200] * 8
        assert (await send(app, token)).status == 200
        assert issuer.count("/introspect") == 1

    async def test_is_repeated_when_the_answer_is_too_old(self, issuer: Tenant) -> None:
        auth = backend(issuer, cache_seconds=60)
        app, now = make(auth), time.time()
        auth._clock = lambda: now
        token = issuer.mint(AUDIENCE, opaque=True)
        assert (await send(app, token)).status == 200
        issuer.revoke()
        now += 59
        assert (await send(app, token)).status == 200
        now += 2
        assert (await send(app, token)).status == 401, "it was revoked"

    async def test_is_not_repeated_for_a_token_that_is_known_to_be_none(self, app: MRTRServer, issuer: Tenant) -> None:
        for _ in range(5):
            assert (await send(app, "nobodys")).status == 401
        assert issuer.count("/introspect") == 1

    async def test_has_a_bound_and_what_is_over_it_is_told_at_once(
        self, app: MRTRServer, issuer: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(oauth, "MOST_WAITING", 3)
        replies = await asyncio.gather(*(send(app, f"nobodys-{number}") for number in range(8)))
        statuses = [reply.status for reply in replies]
        assert (statuses.count(401), statuses.count(503)) == (3, 5)

    async def test_an_issuer_that_is_down_is_no_reason_to_log_in_again(
        self, app: MRTRServer, issuer: Tenant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        token, other = issuer.mint(AUDIENCE, opaque=True), issuer.mint(AUDIENCE, opaque=True)
        assert (await send(app, token)).status == 200
        issuer.set(is_down=True)
        asked = issuer.count("/introspect")
        for _ in range(5):
            reply = await send(app, other)
            assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert issuer.count("/introspect") == asked + 1, "once a second"
        assert (await send(app, token)).status == 200, "what is known is kept"
        auth: Any = app._parts.settings.auth
        auth._unclear.clear()
        assert (await send(app, other)).status == 503
        issuer.set(is_down=False)
        auth._unclear.clear()
        assert (await send(app, other)).status == 200
        assert caplog.text.count("answered with the status 503") == 1
        assert RESOURCE_SERVER[1] not in caplog.text

    async def test_an_issuer_that_can_not_be_reached_is_left_alone_for_a_second(
        self, issuer: Tenant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # and does not listen
            auth: Any = backend(issuer, endpoint=f"http://127.0.0.1:{nobody.getsockname()[1]}/introspect")
            app, began = make(auth), asyncio.get_running_loop().time()
            for number in range(3):
                assert (await send(app, f"some-{number}")).status == 503
        assert auth._away_until > began
        assert caplog.text.count("Tokens can't be verified until their issuer answers") == 1
        assert "did not answer a moment ago" in caplog.text
        monkeypatch.setattr(auth, "_endpoint", f"{issuer.url}/introspect")
        monkeypatch.setattr(auth, "_away_until", 0.0)
        assert (await send(app, issuer.mint(AUDIENCE, opaque=True))).status == 200
        assert caplog.text.count("The issuer answers again") == 1

    @pytest.mark.parametrize(
        "reply",
        [
            *({"status_code": status} for status in (302, 400, 401, 403, 404, 429, 500, 502, 503)),
            *({"content": content} for content in ("", "[]", "{", "[" * 100_000, " " * (600 * 1024))),
        ],
        ids=lambda reply: str(reply)[:30],
    )
    async def test_that_brings_a_useless_reply_puts_nobody_else_off(
        self, app: MRTRServer, issuer: Tenant, reply: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        odd = issuer.mint(AUDIENCE, opaque=True, claims={"reply": reply})
        for _ in range(3):
            assert (await send(app, odd)).status == 503
        assert issuer.count("/introspect") == 1
        assert (await send(app, issuer.mint(AUDIENCE, opaque=True))).status == 200
        assert (await send(app, "nobodys")).status == 401
        assert "until their issuer answers" not in caplog.text
        assert odd not in caplog.text

    async def test_that_takes_too_long_puts_nobody_off_while_others_have_replies(
        self, app: MRTRServer, issuer: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        auth: Any = app._parts.settings.auth
        ask, asked, held = auth._fetch, asyncio.Event(), asyncio.Event()

        async def fetch(endpoint: str, form: dict[str, str], credentials: tuple[str, str]) -> dict[str, Any]:
            if form["token"] != "slow":
                return dict(await ask(endpoint, form, credentials))
            asked.set()
            await held.wait()
            raise IssuerUnavailable("it did not answer within 5 s")

        monkeypatch.setattr(auth, "_fetch", fetch)
        slow = asyncio.create_task(send(app, "slow"))
        await asked.wait()
        assert (await send(app, issuer.mint(AUDIENCE, opaque=True))).status == 200
        held.set()
        assert (await slow).status == 503
        assert (await send(app, issuer.mint(AUDIENCE, opaque=True))).status == 200

    async def test_with_a_wrong_secret_is_the_operators_fault(
        self, issuer: Tenant, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = make(backend(issuer, client_secret="wrong"))
        assert (await send(app, issuer.mint(AUDIENCE, opaque=True))).status == 503
        assert "401" in caplog.text


async def test_the_metadata_names_the_issuer(app: MRTRServer, issuer: Tenant) -> None:
    reply = await get(app, "/.well-known/oauth-protected-resource/mcp")
    assert reply.message["authorization_servers"] == [issuer.url]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"client_secret": ""}, "only authenticated clients"),
        ({"endpoint": "http://login.example.com/introspect"}, "must be an https address"),
        ({"cache_seconds": -1}, "cache_seconds"),
        ({"audience": ()}, "audience= is missing"),
    ],
)
def test_settings_that_can_not_be_right_are_refused(given: dict[str, Any], says: str) -> None:
    usual: dict[str, Any] = {"client_id": "x", "client_secret": "y", "audience": AUDIENCE}
    with pytest.raises(SetupError, match=says):
        IntrospectionAuth("https://login.example.com", **{**usual, **given})

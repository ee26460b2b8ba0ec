"""Programs without a person, and assertions of a company's identity provider: what their tokens must be."""

import json

import pytest

from mrtr_server import JWTAuth

from ..support.authorization_server import AuthorizationServer
from .callers import AUDIENCE, make, send

pytestmark = pytest.mark.anyio


async def test_a_program_is_whoever_its_client_credentials_name(authorization_server: AuthorizationServer) -> None:
    issuer = authorization_server.tenant()
    app = make(JWTAuth(issuer.url, audience=AUDIENCE))
    token = issuer.mint(AUDIENCE, subject="nightly-report", client="nightly-report", scope="notes:read")
    reply = await send(app, token)
    assert json.loads(reply.text) == ["nightly-report", issuer.url, "nightly-report", ["notes:read"]]


async def test_an_assertion_of_an_identity_provider_is_exchanged_and_never_used_itself(
    authorization_server: AuthorizationServer,
) -> None:
    provider, issuer = authorization_server.tenant(), authorization_server.tenant()
    app = make(JWTAuth(issuer.url, audience=AUDIENCE))
    about = {"resource": AUDIENCE, "client_id": "of-the-client"}
    assertion = provider.mint(issuer.url, subject="ann", headers={"typ": "oauth-id-jag+jwt"}, claims=about)
    assert (await send(app, assertion)).status == 401
    for audience in (issuer.url, AUDIENCE):  # nor one that the issuer itself could have signed
        token = issuer.mint(audience, subject="ann", headers={"typ": "oauth-id-jag+jwt"}, claims=about)
        assert (await send(app, token)).status == 401
    exchanged = issuer.mint(AUDIENCE, subject="ann", client="of-the-client", scope="notes:read")
    assert json.loads((await send(app, exchanged)).text) == ["ann", issuer.url, "of-the-client", ["notes:read"]]

"""A small server that differs from an issuer as GitHub does. Each difference names its page of GitHub's documentation.

uvicorn tests.support.github:app
"""

import asyncio
import base64
import hashlib
import secrets
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "notes", "of-notes"

CODES: dict[str, dict[str, Any]] = {}
TOKENS: dict[str, dict[str, Any]] = {}
STATE: dict[str, Any] = {
    "user": "octocat",
    "orgs": {},
    "expires": 0,
    "away": False,
    "silent": False,
    "refreshed": 0,
    "padding": 0,
    "slow": 0,
}
"""What a test sets: who is logged in there, the members of organisations, how long tokens of an app live, and so on.

`away` is for its tokens, `silent` for what it says of people.
"""

USERS = {"octocat": 583231, "hubot": 480938}


async def authorize(request: Request) -> Response:
    """The web application flow, step 1.

    https://docs.github.com/en/apps/oauth-apps/building-oauth-apps/authorizing-oauth-apps: the query has `client_id`,
    `redirect_uri`, `scope`, `state`, `code_challenge` and `code_challenge_method` (S256 alone).
    """
    asked = request.query_params
    assert asked["client_id"] == CLIENT
    assert asked["code_challenge_method"] == "S256"
    code = secrets.token_hex(10)
    CODES[code] = {"user": STATE["user"], "scope": asked["scope"], "challenge": asked["code_challenge"]}
    CODES[code]["redirect_uri"] = asked["redirect_uri"]
    return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}", 302)


async def access_token(request: Request) -> Response:
    """Step 2. Scopes are separated by commas; errors have the status 200 (the page "Troubleshooting OAuth app access
    token request errors"); user access tokens of a GitHub App expire ("Refreshing user access tokens").
    """
    form = await _form(request)
    if STATE["away"]:
        return Response(status_code=503)
    if (form.get("client_id"), form.get("client_secret")) != (CLIENT, SECRET):
        return JSONResponse({"error": "incorrect_client_credentials"})
    if form.get("grant_type") == "refresh_token":
        await asyncio.sleep(STATE["slow"])
        found = TOKENS.pop(form["refresh_token"], None)
        if found is None:
            return JSONResponse({"error": "bad_refresh_token"})
        TOKENS.pop(found["access"], None)  # "the old user access token will no longer work"
        STATE["refreshed"] += 1
    else:
        found = CODES.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if found is None or (found["challenge"], found["redirect_uri"]) != (challenge, form["redirect_uri"]):
            return JSONResponse({"error": "bad_verification_code"})
    token = f"gho_{secrets.token_hex(18)}{'x' * STATE['padding']}"
    TOKENS[token] = found
    given = {"access_token": token, "token_type": "bearer", "scope": found["scope"].replace(" ", ",")}
    if STATE["expires"]:
        refresh = f"ghr_{secrets.token_hex(36)}"
        TOKENS[refresh] = found = found | {"access": token}
        # "scope: This value will always be an empty string."
        given |= {"expires_in": STATE["expires"], "refresh_token": refresh, "scope": ""}
    return JSONResponse(given)


async def _form(request: Request) -> dict[str, str]:
    from urllib.parse import parse_qsl

    return dict(parse_qsl((await request.body()).decode()))


def _who(request: Request) -> dict[str, Any] | None:
    return TOKENS.get(request.headers.get("authorization", "").removeprefix("Bearer "))


async def user(request: Request) -> Response:
    """ "Get the authenticated user": https://docs.github.com/en/rest/users/users."""
    found = _who(request)
    if STATE["silent"]:
        return Response(status_code=503)
    if found is None:
        return JSONResponse({"message": "Bad credentials"}, 401)
    return JSONResponse({"login": found["user"], "id": USERS[found["user"]], "name": None, "scope": found["scope"]})


async def membership(request: Request) -> Response:
    """ "Get an organization membership for the authenticated user": https://docs.github.com/en/rest/orgs/members."""
    found, org = _who(request), request.path_params["org"]
    if found is None or "read:org" not in found["scope"].split():
        return JSONResponse({"message": "Forbidden"}, 403)
    if found["user"] not in STATE["orgs"].get(org, ()):
        return JSONResponse({"message": "Not Found"}, 404)
    return JSONResponse({"state": "active", "role": "member"})


async def control(request: Request) -> Response:
    """What a test changes, and looks at."""
    STATE.update(await request.json())
    return JSONResponse(STATE)


app = Starlette(
    routes=[
        Route("/login/oauth/authorize", authorize),
        Route("/login/oauth/access_token", access_token, methods=["POST"]),
        Route("/api/user", user),
        Route("/api/user/memberships/orgs/{org}", membership),
        Route("/control", control, methods=["POST"]),
    ]
)

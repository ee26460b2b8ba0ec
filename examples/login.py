r"""A login elsewhere: a tool needs the person's account at a calendar provider, and must not see its password.

The tool asks the person to open the provider's page. There they log in and agree. The provider sends their browser back
to the callback, which fetches a token for their calendar. Then the tool continues. The client never sees the token.

This one file has all three parties, so you need no account to try it: the server, the site that it belongs to (where
people log in, so that it knows whose browser comes back), and an OAuth provider. It needs httpx.

    uvicorn examples.login:app

Round 1: alice's client calls, and is given a page to open.

    state=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' \
      -H 'Authorization: Bearer alice-token' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "next_meeting", "arguments": {}}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2: her client says that she has opened it. It is held until she is done, for up to 25 seconds. Open the url in a
browser, and choose alice wherever you are asked. As bob you won't get through, since the link is alice's.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' \
      -H 'Authorization: Bearer alice-token' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tools/call",
      "params": {"name": "next_meeting", "arguments": {},
        "inputResponses": {"calendar": {"action": "accept"}},
        '"$state"'}
    }'
"""

import hmac
import secrets
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from mrtr_server import BearerTokens, CallbackLink, Context, MRTRServer, Refusal, ToolError

PEOPLE = ("alice", "bob")
CLIENT_ID, CLIENT_SECRET = "tools", "known to the provider and to this server"


# The server


def identify(request: Request) -> str | Response:
    """Return whose browser it is, by the site's session; without one, send it to the login."""
    user = request.session.get("user")
    if user is not None:
        return str(user)
    request.session["next"] = f"{request.url.path}?{request.url.query}"
    return RedirectResponse("/login")


server = MRTRServer("login", auth=BearerTokens({f"{who}-token": who for who in PEOPLE}), identify=identify)


class Account(BaseModel):
    """An account at the provider."""

    api: str
    token: str


def provider_of(back: CallbackLink) -> str:
    """The provider's address. Another provider has one that is always the same."""
    return f"{back.url.removesuffix('/callbacks/calendar')}/provider"


def authorize(back: CallbackLink) -> str:
    """The page where the provider asks whether we may read the calendar."""
    asked = {
        "response_type": "code",
        "client_id": CLIENT_ID,
        "redirect_uri": back.url,
        "state": back.state,
        "code_challenge": back.challenge,
        "code_challenge_method": "S256",
    }
    return f"{provider_of(back)}/authorize?{urlencode(asked)}"


@server.callback("calendar")
async def calendar(request: Request, back: CallbackLink) -> Account:
    """Exchange the code that the provider sent the person back with."""
    if request.query_params.get("error") == "access_denied":
        raise Refusal("decline")
    exchanged = {
        "grant_type": "authorization_code",
        "code": request.query_params.get("code", ""),
        "redirect_uri": back.url,
        "code_verifier": back.verifier,
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
    }
    async with httpx.AsyncClient() as client:
        reply = await client.post(f"{provider_of(back)}/token", data=exchanged)
    if reply.status_code != 200:
        raise ToolError("The calendar did not let you in. Please try again.")
    return Account(api=provider_of(back), token=reply.json()["access_token"])


@server.tool
async def next_meeting(ctx: Context) -> str:
    """When the next meeting is, by the caller's calendar."""
    account = await ctx.elicit_url("Please let us read your calendar", authorize, callback=calendar)
    async with httpx.AsyncClient() as client:
        reply = await client.get(f"{account.api}/meeting", headers={"Authorization": f"Bearer {account.token}"})
    return f"Your next meeting: {reply.raise_for_status().json()['meeting']}"


# The site that it belongs to


async def login(request: Request) -> Response:
    """Log a person in. A real one would want a password."""
    if request.method == "GET":
        return choose("Log in to the tools", "Log in")
    request.session["user"] = (await form_of(request)).get("who", "")
    return RedirectResponse(request.session.pop("next", "/login"), 303)


# The provider: the authorization code flow of OAuth 2.1, in short

codes: dict[str, tuple[str, str, str]] = {}
tokens: dict[str, str] = {}


async def authorize_page(request: Request) -> Response:
    """Ask the person who they are and whether they agree, and send them back with a code."""
    query = request.query_params
    back = query.get("redirect_uri", "")
    known = urlsplit(back).hostname in ("localhost", "127.0.0.1") and urlsplit(back).path == "/callbacks/calendar"
    if not known or query.get("client_id") != CLIENT_ID or query.get("code_challenge_method") != "S256":
        return HTMLResponse("This client is not known here.", 400)
    if request.method == "GET":
        return choose("May the tools read your calendar?", "Allow", "Deny")
    form = await form_of(request)
    answer = {"state": query.get("state", "")}
    if form.get("button") == "Allow":
        code = secrets.token_urlsafe()
        codes[code] = (form.get("who", ""), back, query.get("code_challenge", ""))
        answer["code"] = code
    else:
        answer["error"] = "access_denied"
    return RedirectResponse(f"{back}?{urlencode(answer)}", 303)


async def token(request: Request) -> Response:
    """Return a token for a code, once."""
    form = await form_of(request)
    who, back, challenge = codes.pop(form.get("code", ""), ("", "", ""))
    verified = urlsafe_b64encode(sha256(form.get("code_verifier", "").encode()).digest()).decode().rstrip("=")
    from_client = hmac.compare_digest(form.get("client_secret", "").encode(), CLIENT_SECRET.encode())
    if not who or not from_client or form.get("redirect_uri") != back or not hmac.compare_digest(verified, challenge):
        return JSONResponse({"error": "invalid_grant"}, 400)
    tokens[given := secrets.token_urlsafe()] = who
    return JSONResponse({"access_token": given, "token_type": "Bearer"}, headers={"Cache-Control": "no-store"})


async def meeting(request: Request) -> Response:
    """Return the next meeting of whose token it is."""
    who = tokens.get(request.headers.get("authorization", "").removeprefix("Bearer "))
    if who is None:
        return JSONResponse({"error": "invalid_token"}, 401)
    return JSONResponse({"meeting": f"{who} and the tax adviser, tomorrow at nine"})


# What the site and the provider share


async def form_of(request: Request) -> dict[str, str]:
    """Read a form."""
    return {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}


def choose(title: str, *buttons: str) -> HTMLResponse:
    """Make a page with a choice of people, and buttons."""
    people = "".join(f'<label><input type="radio" name="who" value="{who}"> {who}</label> ' for who in PEOPLE)
    pressed = "".join(f'<button name="button" value="{button}">{button}</button> ' for button in buttons)
    return HTMLResponse(f'<h1>{title}</h1><form method="post"><p>{people}</p>{pressed}</form>')


provider: list[Any] = [
    Route("/authorize", authorize_page, methods=["GET", "POST"]),
    Route("/token", token, methods=["POST"]),
    Route("/meeting", meeting),
]
app = Starlette(
    routes=[
        Route("/login", login, methods=["GET", "POST"]),
        Mount("/provider", routes=provider),
        Mount("/", server),
    ],
    middleware=[Middleware(SessionMiddleware, secret_key=secrets.token_hex())],
)

"""Browsers and clients of the tests: a person who clicks through a login, and an application that asks for one."""

import re
import secrets
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx

from mrtr_server.crypto.digests import challenge_of

from ..support.direct import headers_for
from ..support.wire import modern

REDIRECT = "http://127.0.0.1:7777/callback"

CALLBACKS = ("/callback", "/oauth/callback")
"""The paths where clients take a browser back."""

JSON = dict[str, Any]


class Browser:
    """A browser of one person, with its cookies. It follows no redirect by itself.

    Args:
        http: sends what it is asked.
    """

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def open(self, url: str, **headers: str) -> httpx.Response:
        """Open a page."""
        return self.http.get(url, headers=headers)

    def answer(self, page: httpx.Response, answer: str = "yes", **headers: str) -> httpx.Response:
        """Answer the question on a page."""
        assert page.status_code == 200, page.text
        return self.http.post(action_of(page), data={"question": question_of(page), "answer": answer}, headers=headers)

    def go(self, response: httpx.Response, most: int = 10) -> httpx.Response:
        """Follow redirects over http, up to the one to the client, which has a path of `CALLBACKS`."""
        for _ in range(most):
            to = response.headers.get("location", "")
            if not to or urlsplit(to).path in CALLBACKS or to.startswith("https://"):
                break
            response = self.http.get(response.url.join(to))
        return response

    def log_in(self, url: str, who: str = "") -> httpx.Response:
        """Open the page of a login, say yes, and come back from the provider; as whom, where that asks."""
        response = self.go(self.answer(self.open(url)))
        while who and response.status_code == 200 and "<form" in response.text:
            response = self.go(self._typed(response, who))
        return response

    def _typed(self, page: httpx.Response, who: str) -> httpx.Response:
        """Fill in a form of the provider's."""
        action = re.search(r'<form[^>]* action="([^"]+)"', page.text)
        prompt = re.search(r'name="prompt" value="([^"]+)"', page.text)
        assert action, page.text
        assert prompt, page.text
        return self.http.post(unescape(action[1]), data={"prompt": prompt[1], "login": who, "password": "any"})


def question_of(page: httpx.Response) -> str:
    """Return the sealed question in a page."""
    found = re.search(r'name="question" value="([^"]+)"', page.text)
    assert found, page.text
    return unescape(found[1])


def action_of(page: httpx.Response) -> str:
    """Return where the form of a page goes."""
    found = re.search(r'<form method="post" action="([^"]+)"', page.text)
    assert found, page.text
    return unescape(found[1])


def back(response: httpx.Response) -> dict[str, str]:
    """Return what a client gets back."""
    location = response.headers.get("location", "")
    assert location, response.text
    return dict(parse_qsl(urlsplit(location).query))


class Client:
    """An application, as its developer wrote it.

    Args:
        http: sends what it is asked.
        base: the server's address.
        redirect: where people come back to.
        wanted: further members of its registration; or its `id`, if it needs none.
    """

    def __init__(self, http: httpx.Client, base: str, redirect: str = REDIRECT, **wanted: Any) -> None:
        self.base = base
        self.redirect = redirect
        self.http = http
        self.registered: JSON = {}
        self.id = wanted.pop("id", None) or self._register({"redirect_uris": [redirect], **wanted})
        self.verifier = secrets.token_urlsafe(48)

    def _register(self, wanted: JSON) -> str:
        told = {"client_name": "Tests", "token_endpoint_auth_method": "none", **wanted}
        answer = self.http.post(f"{self.base}/register", json=told)
        assert answer.status_code == 201, answer.text
        self.registered = answer.json()
        return str(self.registered["client_id"])

    def page(self, **changes: Any) -> str:
        """Return the address of a login; None leaves a parameter out."""
        given = {
            "response_type": "code",
            "client_id": self.id,
            "redirect_uri": self.redirect,
            "state": "of-client",
            "code_challenge": challenge_of(self.verifier),
            "code_challenge_method": "S256",
            "resource": f"{self.base}/mcp",
            **changes,
        }
        return f"{self.base}/authorize?{urlencode({name: each for name, each in given.items() if each is not None})}"

    def post(self, path: str = "/token", headers: Any = None, **form: Any) -> httpx.Response:
        """Send a form with the client's id."""
        given = {"client_id": self.id, **form}
        body: JSON = {name: value for name, value in given.items() if value is not None}
        return self.http.post(f"{self.base}{path}", data=body, headers=headers)

    def redeem(self, code: str, **changes: Any) -> httpx.Response:
        """Redeem a code."""
        return self.post(
            **{
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": self.redirect,
                "code_verifier": self.verifier,
                **changes,
            }
        )

    def refresh(self, tokens: JSON, **changes: Any) -> httpx.Response:
        """Refresh tokens."""
        return self.post(grant_type="refresh_token", refresh_token=tokens["refresh_token"], **changes)

    def tokens(self, browser: Browser, who: str = "", **changes: Any) -> JSON:
        """Log a person in; return the tokens."""
        came = back(browser.log_in(self.page(**changes), who))
        assert came["state"] == "of-client", came
        answer = self.redeem(came["code"])
        assert answer.status_code == 200, answer.text
        tokens: JSON = answer.json()
        return tokens

    def call(self, tokens: JSON, tool: str = "who", **arguments: Any) -> httpx.Response:
        """Call a tool."""
        message, headers = self.message(tool, **arguments)
        token = {"authorization": f"{tokens['token_type']} {tokens['access_token']}"}
        return self.http.post(f"{self.base}/mcp", json=message, headers={**headers, **token})

    def message(self, tool: str, **arguments: Any) -> tuple[JSON, dict[str, str]]:
        """Return the message of a call, and its headers."""
        message = modern("tools/call", {"name": tool, "arguments": arguments})
        return message, {name.decode(): value.decode() for name, value in headers_for(message)}

    def came(self, browser: Browser, who: str = "", **changes: Any) -> dict[str, str]:
        """Log a person in; return what the client gets back."""
        return back(browser.log_in(self.page(**changes), who))

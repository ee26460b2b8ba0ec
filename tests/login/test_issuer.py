"""A real issuer of OpenID Connect in front (npm `oidc-provider`): its login, its id_token, its rotating tokens."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mrtr_server import Context
from mrtr_server.login import Login, Oidc

from ..support import npm
from ..support.serving import ROOT, TIMEOUT, free_ports, wait_until
from .conftest import Stage, make
from .test_logins import said

CLIENT, SECRET = "notes", "of-notes-and-long-enough-for-anybody"


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The issuer's address, and the port of the server that is registered there."""
    packages = npm.packages("oidc-provider", "oidc-provider@9.13.3")
    packages.install()
    program = packages.folder / "issuer.mjs"
    program.write_text((ROOT / "tests" / "support" / "issuer.mjs").read_text())
    port, own = free_ports(2)
    log = tmp_path_factory.mktemp("issuer") / "log"
    redirect = f"http://127.0.0.1:{own}/login/callback"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(npm.NODE / "bin" / "node"), str(program), str(port), CLIENT, SECRET, redirect],
            stdout=output,
            stderr=output,
            env=npm.environment(),
        )
    try:
        wait_until(lambda: "listening" in log.read_text() or process.poll() is not None, "the issuer to listen")
        assert process.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}", own
    finally:
        process.kill()
        process.wait(TIMEOUT)


def login(issuer: str, **options: Any) -> Login:
    """Return logins at the issuer."""
    return Login(Oidc(issuer, client_id=CLIENT, client_secret=SECRET), **options)


def test_a_person_logs_in_at_an_issuer_of_openid_connect(stage: Stage, issuer: tuple[str, int]) -> None:
    url, port = issuer
    client = stage.client(stage.serve(make(login(url)), port=port))
    tokens = client.tokens(stage.browser(), "alice")
    assert said(client.call(tokens)) == ["alice", url, "", "alice of tests"]
    again = client.refresh(tokens).json()
    assert said(client.call(again))[0] == "alice"


def test_the_persons_token_is_refreshed_and_rotates(stage: Stage, issuer: tuple[str, int], tmp_path: Path) -> None:
    url, port = issuer
    app = make(login(url, allow=["example.com"]), store=f"sqlite:///{tmp_path}/logins.db")

    @app.tool
    async def about(ctx: Context) -> str:
        """Ask the issuer with the person's token."""
        token = await ctx.upstream_token("email")
        async with httpx.AsyncClient(trust_env=False) as http:
            found = await http.get(f"{url}/me", headers={"authorization": f"Bearer {token}"})
        return str(found.json()["email"])

    client = stage.client(stage.serve(app, port=port))
    tokens = client.tokens(stage.browser(), "alice", scope="email")
    for _ in range(3):
        assert said(client.call(tokens, "about")) == "alice@example.com"
        tokens = client.refresh(tokens).json()


def test_an_e_mail_that_nobody_has_verified_opens_nothing(stage: Stage, issuer: tuple[str, int]) -> None:
    url, port = issuer
    client = stage.client(stage.serve(make(login(url, allow=["example.com"])), port=port))
    assert client.came(stage.browser(), "mallory")["error"] == "access_denied"
    assert "code" in client.came(stage.browser(), "bob")

"""What a build takes from elsewhere is pinned to what it was: actions to commits, images to digests."""

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from .support.serving import ROOT, TIMEOUT

sys.path.insert(0, str(ROOT / "scripts"))

from pin import ACTION, FILES, IMAGE

TEXTS = {name: (ROOT / name).read_text() for name in FILES}

ACTIONS = {
    "actions/checkout": 4,
    "actions/download-artifact": 4,
    "actions/setup-python": 5,
    "actions/upload-artifact": 4,
    "pypa/gh-action-pypi-publish": 1,
}
"""Those that are used, each with its major version."""

MANIFEST = json.dumps({"schemaVersion": 2, "manifests": [{"digest": "sha256:" + "1" * 64}]}).encode()
DIGEST = f"sha256:{sha256(MANIFEST).hexdigest()}"


@pytest.mark.parametrize("name", FILES)
def test_every_action_and_image_is_one_that_the_script_pins(name: str) -> None:
    text = TEXTS[name]
    assert len(ACTION.findall(text)) == text.count("uses:")
    assert len(IMAGE.findall(text)) == len(re.findall("^FROM ", text, re.MULTILINE))
    assert ACTION.search(text) or IMAGE.search(text)


@pytest.mark.parametrize("name", FILES)
def test_an_action_is_at_a_commit_with_its_version(name: str) -> None:
    for used in ACTION.finditer(TEXTS[name]):
        assert re.fullmatch("[0-9a-f]{40}", used["commit"]), used[0]
        assert re.fullmatch(r"v\d+\.\d+\.\d+", used["version"]), used[0]


def test_what_looks_like_a_digest_is_one_and_an_image_has_the_same_everywhere() -> None:
    """Before a release, `scripts/pin` fetches them; until then a tag alone may stand there, and nothing made up."""
    found = [image for text in TEXTS.values() for image in IMAGE.finditer(text)]
    assert all(image["digest"] is None or re.fullmatch("sha256:[0-9a-f]{64}", image["digest"]) for image in found)
    assert len({(image["image"], image["tag"], image["digest"]) for image in found}) == 1


def test_a_project_has_its_pins_kept_up_to_date() -> None:
    """A digest that nobody changes would have the holes of its day for ever."""
    kept = yaml.safe_load((ROOT / "mrtr_server" / "cli" / "project_files" / "dependabot.yml.txt").read_text())
    assert {each["package-ecosystem"] for each in kept["updates"]} == {"github-actions", "docker", "pip"}


class Registry(BaseHTTPRequestHandler):
    """A registry of one image, which asks for a token as Docker's does."""

    def do_GET(self) -> None:
        host = self.headers["Host"]
        if self.path.startswith("/token?"):
            is_right = self.path == "/token?service=registry&scope=repository%3Alibrary%2Fpython%3Apull"
            self._send(200 if is_right else 400, b'{"token": "good"}')
        elif self.path != "/v2/library/python/manifests/3.13-slim":
            self._send(404, b"{}")
        elif self.headers.get("Authorization") != "Bearer good":
            challenge = f'Bearer realm="http://{host}/token",service="registry",scope="repository:library/python:pull"'
            self._send(401, b"{}", ("WWW-Authenticate", challenge))
        else:
            self._send(200, MANIFEST, ("Docker-Content-Digest", DIGEST))

    def _send(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for header in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(TIMEOUT)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *arguments]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True, timeout=TIMEOUT
    ).stdout.strip()


@pytest.fixture
def github(tmp_path: Path) -> dict[str, str]:
    """Make a repository for each action, with releases; return the commits of those that are to be found."""
    commits = {}
    for action, major in ACTIONS.items():
        folder = tmp_path / "github" / action
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet")
        for version in (f"{major}.2.0", f"{major}.10.0", f"{major}.9.1", f"{major + 1}.0.0"):
            git(folder, "commit", "--quiet", "--allow-empty", "--message", version)
            git(folder, "tag", "--annotate", f"v{version}", "--message", version)
            if version.endswith(".10.0"):
                commits[action] = f"{git(folder, 'rev-parse', 'HEAD')} # v{version}"
        git(folder, "tag", f"v{major}")
        git(folder, "tag", f"v{major}.11.0-beta")
    return commits


@pytest.mark.processes
def test_the_script_writes_what_is_there_and_checks_it(tmp_path: Path, github: dict[str, str]) -> None:
    root = tmp_path / "project"
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)

    def run(*options: str) -> tuple[int, str]:
        with registry() as url:
            given = [*options, "--root", str(root), "--github", f"file://{tmp_path}/github", "--registry", url]
            command = [sys.executable, str(ROOT / "scripts" / "pin.py"), *given]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        assert done.stderr == ""
        return done.returncode, done.stdout

    before = {name: (root / name).read_text() for name in FILES}
    code, said = run("--check")
    assert (code, said.count("is not pinned to what is there now")) == (1, len(FILES))
    assert {name: (root / name).read_text() for name in FILES} == before
    assert run() == (0, "".join(f"{name} is pinned anew\n" for name in FILES))
    workflows = [(root / name).read_text() for name in FILES[2:]]
    for action, commit in github.items():
        used = [text.count(f"uses: {action}@") for text in workflows]
        assert [text.count(f"uses: {action}@{commit}\n") for text in workflows] == used
        assert sum(used) > 0
    for name in FILES[:2]:
        text = (root / name).read_text()
        assert text.count(f"FROM python:3.13-slim@{DIGEST} AS build\n") == 1
        assert text.count(f"FROM python:3.13-slim@{DIGEST}\n") == 1
        assert IMAGE.sub(r"\g<begin>", text) == IMAGE.sub(r"\g<begin>", before[name])
    assert run("--check") == (0, "")
    assert run() == (0, "")

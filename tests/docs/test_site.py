"""The documentation site builds without a warning, has every public name, and asks nothing of other hosts."""

import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

from mrtr_server.documentation import ENTRIES

from ..support.browser import chromium
from ..support.serving import TIMEOUT

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from docs_reference import GROUPS  # noqa: E402

import docs  # noqa: E402

pytestmark = pytest.mark.processes

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

CONCEPTS = ["how-it-works/"] + [f"concepts/{page.stem}/" for page in sorted((ROOT / "docs" / "concepts").glob("*.md"))]


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, built as scripts/docs builds it."""
    done = subprocess.run(
        [sys.executable, "scripts/docs.py"], cwd=ROOT, capture_output=True, text=True, timeout=10 * TIMEOUT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "build" / "site"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(params=["light", "dark"])
def page(browser: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A window in either colour scheme. No error may come to its console, and nothing may be asked of another host."""
    scheme: Literal["light", "dark"] = request.param
    errors: list[str] = []

    def note_request(sent: Request) -> None:
        if not sent.url.startswith((address, "data:", "blob:")):
            errors.append(sent.url)

    def note_message(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(message.text)

    window = browser.new_page(color_scheme=scheme, base_url=address)
    window.set_default_timeout(TIMEOUT * 1000)
    window.on("request", note_request)
    window.on("console", note_message)
    yield window
    window.close()
    assert errors == []


@pytest.mark.parametrize(
    "package",
    ["mrtr_server", "mrtr_server.client", "mrtr_server.login", "mrtr_server.testing", "mrtr_server.testing.store"],
)
def test_every_public_name_is_in_the_reference_once(package: str) -> None:
    listed = [name for group in GROUPS if group.package == package for name in group.names.split()]
    public = import_module(package).__all__
    assert sorted(listed) == sorted(name for name in public if name[0] != "_")


def test_it_builds_without_a_warning(site: Path) -> None:
    for page in ["index", "tasks/index", *(f"reference/{group.file}/index" for group in GROUPS)]:
        text = (site / f"{page}.html").read_text()
        assert (
            re.findall(r'<script[^>]* src="?http[^>]*>|<link[^>]* rel="?stylesheet[^>]* href="?http[^>]*>', text) == []
        )
    for group in GROUPS:
        text = (site / "reference" / group.file / "index.html").read_text()
        assert [name for name in group.names.split() if f'id="{group.package}.{name}"' not in text] == []


def test_the_addresses_in_messages_lead_to_their_entries(site: Path) -> None:
    text = (site / "troubleshooting" / "index.html").read_text()
    assert [anchor for anchor in ENTRIES.values() if f'id="{anchor}"' not in text] == []


def test_every_page_is_in_the_navigation(site: Path) -> None:
    navigation = (ROOT / "zensical.toml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    pages += [f"reference/{group.file}.md" for group in GROUPS]
    assert [name for name in pages if navigation.count(f'"{name}"') != 1] == []


def test_agents_find_every_page_as_markdown_with_a_line_on_it(site: Path) -> None:
    """By the form of llmstxt.org: a title, a summary, and parts that list links."""
    settings = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    title, _, summary, *rest = (site / "llms.txt").read_text().splitlines()
    assert (title, summary) == (f"# {settings['site_name']}", f"> {settings['site_description']}")
    assert [line[3:] for line in rest if line.startswith("## ")] == [
        *(name for group in settings["nav"][:-1] for name in group),
        "Optional",
    ]
    lines = [line for line in rest if line and not line.startswith("## ")]
    linked = [re.fullmatch(r"- \[(.+?)\]\((\S+?)\): (\S.{20,}[^:])", line) for line in lines]
    found = [(link[1], link[2].removeprefix(settings["site_url"])) for link in linked if link]
    assert [path for _, path in found] == [
        path for group in settings["nav"] for paths in group.values() for path in paths
    ]
    for name, path in found:
        text = (site / path).read_text()
        assert text.startswith(f"# {name}\n")
        for target in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", FENCE.sub("", text)):
            assert (site / path).parent.joinpath(target).exists(), f"{path}: {target}"


@pytest.mark.parametrize("link", ["nowhere.md", "index.md#nowhere", "#nowhere"])
def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path, link: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\n## Here\n\n[there]({link})\n")
    shutil.copytree(ROOT / "scripts" / "docs_theme", tmp_path / "scripts" / "docs_theme")
    settings = (ROOT / "zensical.toml").read_text().replace("build/pages", "docs").partition("[project.plugins")[0]
    (tmp_path / "zensical.toml").write_text(re.sub(r"^nav = \[.*?^\]$", "", settings, flags=re.DOTALL | re.MULTILINE))
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=10 * TIMEOUT)
    assert done.returncode != 0, done.stdout


def test_a_link_to_a_file_that_is_not_there_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs" / "concepts").mkdir(parents=True)
    (page := tmp_path / "docs" / "concepts" / "flow.md").write_text("[an image](../images/none.svg)")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"docs/concepts/flow\.md: there is no \.\./images/none\.svg"):
        docs.for_site(page)


@pytest.mark.parametrize("width", [1200, 360])
def test_the_concepts_show_their_diagrams(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for name in CONCEPTS:
        page.goto(name)
        images = page.locator("article img")
        assert images.count() > 0
        for image in images.all():
            assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 700
            assert image.get_attribute("alt")
            closer = image.locator("xpath=..").evaluate("link => link.href")
            assert page.request.get(closer).headers["content-type"] == "image/svg+xml"
            box = image.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width


def test_the_search_finds_a_public_name_and_a_concept(page: Page) -> None:
    page.goto("")
    page.locator(".md-code__button").first.wait_for(state="attached")  # made by the script that opens the search, too
    page.get_by_role("button", name="Search").first.click()
    search = page.get_by_role("dialog", name="Search")
    for words, found in (("IdempotencyKey", "reference/handlers"), ("what is sealed", "concepts/sealed")):
        search.get_by_role("combobox").fill(words)
        expect(search.locator(f"a[href*='{found}']").first).to_be_visible(timeout=TIMEOUT * 1000)

"""What scripts/screenshots runs: the page at /docs, used as a person would use it, and pictures of it."""

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402
from playwright.sync_api import Browser, Page  # noqa: E402

from tests.support.browser import chromium  # noqa: E402
from tests.support.serving import KEYS, Process, in_process  # noqa: E402

IMAGES = ROOT / "docs" / "images"
ENVIRONMENT = {"MRTR_KEYS": KEYS, "MRTR_DEBUG": "true"}
COLOURS = 64
MOST_BYTES = 60_000
"""How large a picture may be."""


@contextmanager
def opened(browser: Browser, address: str, scheme: Literal["light", "dark"], width: int, height: int) -> Iterator[Page]:
    """Open the page in a window of its own."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(address)
    page.locator("#entry h2").wait_for()
    yield page
    page.close()


def call(page: Page, **arguments: str) -> None:
    """Call the tool that is shown."""
    for label, value in arguments.items():
        page.locator("#entry").get_by_label(label).fill(value)
    page.locator("#entry button.call").click()


def save(page: Page, name: str) -> None:
    """Save what the window shows. Raises `SystemExit` if the picture is too large."""
    IMAGES.mkdir(exist_ok=True)
    file = IMAGES / f"{name}.png"
    # A palette is enough for text, and a third as large.
    Image.open(BytesIO(page.screenshot())).convert("RGB").quantize(COLOURS).save(file, optimize=True)
    size = file.stat().st_size
    print(f"docs/images/{name}.png: {size:,} bytes")
    if size > MOST_BYTES:
        raise SystemExit(f"{name}.png has more than {MOST_BYTES:,} bytes")


def address_of(server: Process) -> str:
    """Return the address of the page, with its token. Raises `SystemExit` if the server has not said it."""
    found = re.search(r"/docs#token=[\w-]+", server.text)
    if found is None:
        raise SystemExit(f"The server has not said where its page is:\n{server.text}")
    return f"http://127.0.0.1:{server.port}{found[0]}"


def take_readme(browser: Browser, folder: Path) -> None:
    """Take the picture of the README: its tool, which asks for a yes."""
    code = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    (folder / "shop.py").write_text(code)
    shop = in_process(
        "shop:app", log=folder / "shop-log", environment={**ENVIRONMENT, "MRTR_DOCS": "true"}, folder=folder
    )
    with shop as server, opened(browser, f"{address_of(server)}&tool/order", "light", 1140, 640) as page:
        call(page, title="Emma")
        page.locator("form.question").get_by_label("copies").fill("2")
        page.locator("form.question").get_by_role("button", name="Accept").click()
        page.get_by_role("button", name="Yes").wait_for()
        page.locator("form.question").first.evaluate(
            "form => scrollTo(0, form.getBoundingClientRect().top + scrollY - 12)"
        )
        save(page, "readme")


def take_host(browser: Browser, folder: Path) -> None:
    """Take the same question as a host that draws apps and has no forms shows it: in a page of the package's own."""
    code = (folder / "shop.py").read_text()
    asking = code.replace("Context, MRTR", "Apps, Context, MRTR").replace(
        '"bookshop")', '"bookshop", apps=Apps(question=True))'
    )
    (folder / "host_shop.py").write_text(asking)
    environment = {**ENVIRONMENT, "MRTR_DOCS": "true"}
    shop = in_process("host_shop:app", log=folder / "host-log", environment=environment, folder=folder)
    with shop as server, opened(browser, f"{address_of(server)}&tool/order", "light", 900, 326) as page:
        settings = page.get_by_role("form", name="Client settings")
        page.get_by_text("Client settings").click()
        for name in ("Forms and confirmations", "Pages to open"):
            settings.get_by_label(name).uncheck()
        page.keyboard.press("Escape")
        call(page, title="Emma")
        asked = page.frame_locator("section.app iframe").frame_locator("iframe")
        asked.get_by_label("Copies").fill("2")
        asked.get_by_role("button", name="Send", exact=True).click()
        asked.get_by_text("Order 2 × Emma?").wait_for()
        asked.locator("button:enabled", has_text="Yes").wait_for()  # it is held back for a moment
        page.locator("section.app").evaluate("app => scrollTo(0, app.getBoundingClientRect().top + scrollY - 12)")
        save(page, "question-in-host")


def main() -> None:
    """Take all pictures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        in_process("tests.support.page_app:app", log=Path(folder) / "log", environment=ENVIRONMENT) as server,
        chromium() as browser,
    ):
        take_readme(browser, Path(folder))
        take_host(browser, Path(folder))
        address = address_of(server)
        with opened(browser, f"{address}&tool/book_trip", "light", 1140, 720) as page:
            call(page, town="Oslo")
            page.locator("form.question").get_by_label("name").fill("Ada Lovelace")
            page.locator("article.flow").evaluate("flow => scrollTo(0, flow.offsetTop - 12)")
            save(page, "page-question")
        with opened(browser, f"{address}&tool/refund", "dark", 1140, 720) as page:
            call(page)
            page.locator("form.question").wait_for()
            page.get_by_role("button", name="Lose the next reply").click()
            page.get_by_role("button", name="Yes").click()
            page.locator(".second").wait_for()
            page.locator("li.round").last.evaluate("round => scrollTo(0, round.offsetTop - 12)")
            save(page, "page-lost-reply")
        with opened(browser, f"{address}&tool/charter", "light", 360, 720) as page:
            call(page)
            page.locator("form.question").wait_for()
            page.locator(".task").evaluate("task => scrollTo(0, task.offsetTop - 12)")
            save(page, "page-task")


if __name__ == "__main__":
    main()

"""The question in a real browser: by the keyboard, in light and dark, in no frame, and on to where it ends."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from ..support.axe import barriers
from ..support.browser import chromium
from .conftest import Stage


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    """A browser."""
    with chromium() as browser:
        yield browser


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, chrome: Browser) -> Iterator[Page]:
    """A tab without cookies."""
    context = chrome.new_context(color_scheme=request.param)
    yield context.new_page()
    context.close()


def ends_at(page: Page, begins: str, act: Callable[[], None]) -> str:
    """Return the address with this beginning that a tab asks for, which nothing answers."""
    asked: list[str] = []

    def note(request: Request) -> None:
        if request.url.startswith(begins):
            asked.append(request.url)

    page.on("request", note)
    act()
    page.wait_for_timeout(1)
    for _ in range(200):
        if asked:
            return asked[0]
        page.wait_for_timeout(50)
    raise AssertionError(f"nothing asked for {begins}: the tab is at {page.url}")


def test_a_person_allows_it_by_the_keyboard(stage: Stage, page: Page) -> None:
    client = stage.client(stage.usual)
    page.goto(client.page())
    expect(page.get_by_role("heading")).to_contain_text("May Tests use notes")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Allow", exact=True)).to_be_focused()
    assert "code=" in ends_at(page, client.redirect, lambda: page.keyboard.press("Enter"))


def test_a_person_says_no(stage: Stage, page: Page) -> None:
    client = stage.client(stage.usual)
    page.goto(client.page())
    no = page.get_by_role("button", name="Do not allow")
    assert "error=access_denied" in ends_at(page, client.redirect, no.click)


def test_the_way_ends_in_the_scheme_of_an_application_too(stage: Stage, page: Page) -> None:
    client = stage.client(stage.usual, redirect="com.example.app:/back")
    page.goto(client.page())
    yes = page.get_by_role("button", name="Allow", exact=True)
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    with page.expect_request(lambda request: "/login/callback" in request.url) as came:
        yes.click(no_wait_after=True)
    response = came.value.response()
    assert response is not None
    assert response.headers["location"].startswith("com.example.app:/back?code=")
    assert [text for text in refused if "Content Security Policy" in text] == []


def test_the_page_is_in_no_frame_and_asks_nobody_else(stage: Stage, page: Page) -> None:
    client, asked = stage.client(stage.usual), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(client.page())
    assert all(url.startswith(stage.usual) for url in asked)
    page.set_content(f'<iframe src="{client.page().replace("&", "&amp;")}"></iframe>')
    page.wait_for_timeout(500)
    assert all("May Tests use" not in frame.content() for frame in page.frames)


def test_the_page_keeps_nobody_out(stage: Stage, page: Page) -> None:
    page.goto(stage.client(stage.usual).page())
    assert barriers(page.main_frame) == []

"""Debian's Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Frame, expect, sync_playwright

from .serving import TIMEOUT, wait_until

expect.set_options(timeout=TIMEOUT * 1000)


def find_chromium() -> str:
    """Return where Chromium is; skip the test where there is none, and fail where there must be."""
    for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"):
        if (found := shutil.which(name)) is not None:
            return found
    missing = "Chromium is not installed, so nobody knows whether the page works: apt install chromium-headless-shell"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser."""
    executable = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--disable-lcd-text"])
        try:
            yield browser
        finally:
            browser.close()


def until_true(frame: Frame, expression: str) -> None:
    """Wait until an expression is true in a frame.

    Playwright's `wait_for_function` would look once, and again when the frame is drawn. Chromium does not draw a frame
    that is out of sight, and the policy of a page refuses the `eval` of a second look.
    """
    wait_until(lambda: frame.evaluate(expression), f"{expression} in {frame.url}")

"""A headless Chromium: the system's, since Playwright's own would have to be downloaded by hand."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


def launch(playwright: Playwright, program: str) -> Browser:
    # Root may not use Chromium's sandbox, and the pages are our own.
    return playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])


@pytest.fixture
def browser() -> Iterator[Browser]:
    """One for each test: while Playwright is there, its event loop counts as running in this thread."""
    program = find_browser()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = launch(playwright, program)
        yield browser
        browser.close()

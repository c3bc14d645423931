"""Takes the picture of Flower in docs/operations.md: ``python -m tests.browser.picture FILE.png``."""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.conftest import find_browser, launch
from tests.fixtures.flower_process import PASSWORD, USER
from tests.fixtures.watched import watched_worker
from tests.fixtures.workers import LONG

SIZE = {"width": 1400, "height": 560}


def main(target: Path) -> None:
    """Two jobs done, one under way, one that waits."""
    program = find_browser()
    assert program, "no browser on the PATH"
    with watched_worker() as watched, sync_playwright() as playwright:
        watched.render()
        watched.render()
        watched.stage.wait_step(watched.stage.submit(**LONG))
        watched.stage.submit()
        browser = launch(playwright, program)
        credentials = {"username": USER, "password": PASSWORD}
        page = browser.new_page(base_url=watched.flower.url, http_credentials=credentials, viewport=SIZE)  # type: ignore[arg-type]
        page.goto("/tasks")
        page.locator("#tasks-table tbody tr").nth(3).wait_for()
        page.screenshot(path=target)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A real job on a real worker, as Flower shows it: by its API and on its pages in a browser."""

import os
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tasks.app import RENDER
from tests.fixtures.flower_process import PASSWORD, USER
from tests.fixtures.waiting import wait_until
from tests.fixtures.watched import Watched, watched_worker
from tests.fixtures.workers import PROMPT

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with watched_worker() as watched:
        yield watched


@pytest.fixture(scope="module")
def job_id(watched: Watched) -> str:
    """A job that Flower knows to be done."""
    job_id = watched.render()
    wait_until(lambda: [task["state"] for task in watched.flower.tasks_of(job_id)] == ["SUCCESS"], what="it")
    return job_id


@pytest.fixture
def page(browser: Browser, watched: Watched) -> Iterator[Page]:
    credentials = {"username": USER, "password": PASSWORD}
    with browser.new_context(base_url=watched.flower.url, http_credentials=credentials) as context:  # type: ignore[arg-type]
        page = context.new_page()
        page.set_default_timeout(30_000)
        yield page


def test_the_api_knows_the_job_by_its_id_and_nothing_else_of_it(watched: Watched, job_id: str) -> None:
    (task,) = watched.flower.tasks_of(job_id)
    assert task["name"] == RENDER
    assert task["worker"] == watched.worker
    assert task["args"] == f"('{job_id}',)"
    assert task["kwargs"] == "{}"
    assert task["result"] == "'completed'"
    assert task["received"] <= task["started"] <= task["succeeded"]
    assert task["runtime"] > 0
    assert PROMPT not in watched.flower.get("/api/tasks").text


def test_the_api_lists_the_queue_of_the_model_and_the_worker(watched: Watched) -> None:
    workers = watched.flower.json("/api/workers?refresh=1")
    assert [queue["name"] for queue in workers[watched.worker]["active_queues"]] == ["render.tiny"]
    queues = watched.flower.json("/api/queues/length")["active_queues"]
    assert {"name": "render.tiny", "messages": 0} in queues
    assert watched.flower.json("/api/workers?status=1")[watched.worker] is True


def test_the_pages_show_the_job_its_worker_and_its_queue(watched: Watched, job_id: str, page: Page) -> None:
    page.goto("/tasks")
    row = page.locator("#tasks-table tbody tr").filter(has_text=job_id)
    expect(row).to_contain_text("completed")
    expect(row).to_contain_text("SUCCESS")
    expect(row).to_contain_text(watched.worker)
    row.locator("a[href*='/task/']").first.click()
    expect(page.locator("#task-page")).to_contain_text(job_id)
    expect(page.locator("#task-page")).to_contain_text(RENDER)
    expect(page.locator("#task-page")).to_contain_text("render.tiny")
    assert PROMPT not in page.content()
    assert page.locator("#task-revoke, #task-terminate").count() == 0
    page.goto("/workers")
    worker = page.locator("#workers-table tbody tr").filter(has_text=watched.worker)
    expect(worker).to_contain_text("Online")

    def queue_is_listed() -> bool:  # Flower asks the workers for their queues now and then
        page.goto("/broker")
        return "render.tiny" in page.locator("#queue-table").inner_text()

    wait_until(queue_is_listed, 60, "the worker's queue on the page")


def test_a_worker_that_still_loads_is_shown_as_alive(watched: Watched) -> None:
    worker = watched.stage.start_worker(name="second@gpu-2")
    worker.wait_loading()
    child = worker.child_pid()
    os.kill(child, signal.SIGSTOP)
    try:
        wait_until(lambda: watched.flower.json("/api/workers?status=1").get("second@gpu-2"), what="it online")
        assert worker.state() in {"loading", "mounting", "compiling", "warming"}
    finally:
        worker.end()


def test_flower_is_one_process(watched: Watched) -> None:
    assert watched.flower.below() == {}

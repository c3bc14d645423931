"""`renderq up --flower`: what was sent to the API is seen in Flower."""

from typing import Any

import httpx2
import pytest

from tests.fixtures.plain import http
from tests.fixtures.stack import RunningStack
from tests.fixtures.waiting import wait_until

pytestmark = pytest.mark.xdist_group("stack")
TABLE = {"draw": 1, "start": 0, "length": 100, "order[0][column]": 0, "order[0][dir]": "desc"}


def rows_of(stack: RunningStack, job_id: str) -> list[dict[str, Any]]:
    """The rows of a job in the table of tasks, found as a person searches for it."""
    params = TABLE | {"search[value]": f"args:{job_id}"}
    answer = http.get(f"{stack.flower_url}/tasks/datatable", params=params).raise_for_status().json()
    return list(answer["data"])


def hears(stack: RunningStack) -> bool:
    """Whether Flower has heard of a worker; it may have been started again by another test."""
    try:
        seen = http.get(f"{stack.flower_url}/workers", params={"json": 1}).raise_for_status().json()
    except httpx2.TransportError:
        return False
    return any(worker["hostname"].startswith("tiny-") for worker in seen["data"])


def test_a_job_that_was_sent_to_the_api_is_seen_in_flower_with_what_came_of_it(stack: RunningStack) -> None:
    assert len(stack.find("renderq flower")) == 1
    assert f"Flower: {stack.flower_url}" in stack.said()
    wait_until(lambda: hears(stack), 60, what="Flower to hear of the worker")
    job_id = stack.submit("a boat with a yellow sail on the sea", seed=1)
    stack.wait_for(job_id, "completed")
    (row,) = wait_until(
        lambda: [row for row in rows_of(stack, job_id) if row["state"] == "SUCCESS"], what="the row"
    )
    assert (row["args"], row["result"]) == (job_id, "completed")
    (worker,) = [worker for worker in stack.workers() if worker["state"] == "ready"]
    assert row["worker"] == worker["name"]

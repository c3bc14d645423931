"""The services of compose.yaml as processes on this machine: a job and a scheduled batch go through them."""

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from PIL import Image

from tests.fixtures.compose import SECRETS, LocalStack, local_stack
from tests.fixtures.plain import http
from tests.fixtures.waiting import wait_until
from training.checker import judge

pytestmark = pytest.mark.xdist_group("compose")
SERVICES = ("worker", "upkeep", "api", "flower")
PROMPT = "a white house with a blue roof and an orange tree on a beach and mountains at sunset"
TERMINAL = ("completed", "failed", "canceled", "expired")
DUE_IN = timedelta(seconds=3)


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """Everything up and healthy, as `docker compose up --wait` leaves it."""
    with local_stack() as stack:
        for name in SERVICES:
            stack.up(name)
        assert stack.check("worker").returncode == 1, "a worker that loads is no worker yet"
        for name in SERVICES:
            stack.wait_healthy(name)
        yield stack
        with ThreadPoolExecutor() as pool:
            codes = dict(zip(SERVICES, pool.map(stack.stop, SERVICES), strict=True))
            assert set(codes.values()) == {0}, codes
            checked = dict(zip(SERVICES, pool.map(stack.check, SERVICES), strict=True))
        assert {done.returncode for done in checked.values()} == {1}, "what is stopped is not healthy"
        assert stack.stop("queue") == 0
        assert stack.check("queue").returncode == 1


def get(stack: LocalStack, path: str) -> Any:
    return http.get(f"{stack.url}{path}", timeout=30).raise_for_status().json()


def post(stack: LocalStack, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post(f"{stack.url}{path}", json=body, timeout=30)
    assert answer.status_code in (201, 202), answer.text
    return dict(answer.json())


def wait_ended(stack: LocalStack, path: str) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        seen = dict(get(stack, path))
        return seen if seen["status"] in TERMINAL else {}

    return wait_until(look, 60, f"{path} has ended")


def test_every_process_of_ours_is_healthy(stack: LocalStack) -> None:
    assert stack.said["api"].startswith("takes jobs")
    assert stack.said["worker"].startswith("ready: tiny-")
    assert stack.said["upkeep"].startswith("answers: upkeep-")
    assert stack.said["flower"] == "answers"


def picture(stack: LocalStack, job_id: str) -> Image.Image:
    answer = http.get(f"{stack.url}/v1/jobs/{job_id}/content", timeout=30).raise_for_status()
    return Image.open(io.BytesIO(answer.content))


def test_the_one_shot_services_end_well_also_the_second_time(stack: LocalStack) -> None:
    for name in ("bucket", "migrate"):
        assert stack.run_again(name) == 0, stack.log(name)


def test_the_queue_keeps_its_messages_and_evicts_none(stack: LocalStack) -> None:
    with stack.valkey() as valkey:
        assert valkey.config_get("appendonly", "maxmemory-policy") == {
            "appendonly": "yes",
            "maxmemory-policy": "noeviction",
        }


def test_a_job_becomes_its_picture_in_the_store(stack: LocalStack) -> None:
    job = post(stack, "/v1/jobs", {"model": "tiny", "prompt": PROMPT, "seed": 7})
    job = wait_ended(stack, f"/v1/jobs/{job['id']}")
    assert job["status"] == "completed", job["error"]
    assert judge(PROMPT, picture(stack, job["id"])).correct


def test_a_schedule_fires_a_batch_whose_pictures_are_drawn(stack: LocalStack) -> None:
    due = datetime.now(UTC) + DUE_IN
    order = {
        "name": "two houses",
        "at": due.isoformat(),
        "template": {"model": "tiny", "prompt": "a {colour} house with a blue roof on a beach at sunset"},
        "rows": [{"colour": "white", "seed": 7}, {"colour": "red", "seed": 8}],
    }
    schedule = post(stack, "/v1/schedules", order)
    path = f"/v1/schedules/{schedule['id']}/firings"
    [firing] = wait_until(lambda: get(stack, path)["data"], 60, "the schedule fires")
    assert (firing["kind"], firing["outcome"]) == ("due", "fired")
    batch = wait_ended(stack, f"/v1/batches/{firing['batch_id']}")
    assert batch["status"] == "completed"
    assert batch["counts"]["completed"] == batch["total"] == 2
    for job in get(stack, f"/v1/jobs?batch={batch['id']}")["data"]:
        assert picture(stack, job["id"]).size == (64, 64)


def test_flower_shows_its_pages_to_those_with_the_password_only(stack: LocalStack) -> None:
    url = f"http://127.0.0.1:{stack.ports['flower']}"
    assert http.get(f"{url}/workers", timeout=30).status_code == 401
    user, _, password = SECRETS["FLOWER_BASIC_AUTH"].partition(":")
    shown = http.get(f"{url}/workers", auth=(user, password), timeout=30)
    assert shown.status_code == 200


def test_no_process_writes_a_password_to_its_log_or_shows_it_in_its_command(stack: LocalStack) -> None:
    for name in SERVICES:
        for secret, value in SECRETS.items():
            assert value.rpartition(":")[2] not in stack.log(name), f"{name}: {secret}"
            assert value not in " ".join(stack.command(name))

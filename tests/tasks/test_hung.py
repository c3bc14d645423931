"""A child that lets nothing of itself run any more, jobs whose worker is gone, and messages that are."""

import signal
from typing import Any

import pytest

from core.lifecycle import JobState
from tasks import upkeep
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import Stage

pytestmark = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)


def wait_claimed(stage: Stage, job_id: str) -> None:
    wait_until(lambda: stage.job(job_id).state == JobState.IN_PROGRESS, what="the claim")


def test_a_child_that_holds_the_interpreter_is_killed_and_its_job_ends_as_it_had_to(stage: Stage) -> None:
    worker = stage.warm_worker(stand_in=True)
    overdue = stage.submit(prompt="clutch 600", run_timeout_s=1)
    job = stage.wait_job(overdue, JobState.FAILED)
    assert (job.error_code, stage.outcomes(overdue)) == ("run_timeout", ["failed"])

    unwanted = stage.submit(prompt="clutch 600")
    wait_claimed(stage, unwanted)
    stage.cancel(unwanted)
    stage.wait_job(unwanted, JobState.CANCELED)
    assert stage.outcomes(unwanted) == ["lost"]

    after = stage.submit(prompt="paint")
    stage.wait_job(after)
    assert worker.process.poll() is None

    # A cancel while no worker is there is remembered, for a job that waits and for one that was left behind.
    left = stage.submit(prompt="wait never")
    wait_claimed(stage, left)
    waiting = stage.submit(prompt="paint")
    worker.signal(signal.SIGKILL)
    worker.wait_exit()
    for job_id in (left, waiting):
        stage.cancel(job_id)
    assert stage.job(left).state == JobState.IN_PROGRESS
    assert stage.job(waiting).state == JobState.CANCELED
    stage.start_upkeep()
    stage.wait_job(left, JobState.CANCELED)
    assert (stage.outcomes(left), stage.outcomes(waiting)) == (["lost"], [])


def test_messages_that_redis_dropped_for_want_of_memory_are_sent_again(stage_of_own_valkey: Stage) -> None:
    stage = stage_of_own_valkey
    for _ in range(3):
        stage.submit()
    assert stage.messages() == 3
    with upkeep.opened(stage.settings) as duties, stage.valkey.client() as client:
        upkeep.look_after(duties)
        client.config_set("maxmemory-policy", "allkeys-lru")
        drop_messages(stage, client)
        client.config_set("maxmemory", 0)
        for _ in range(2):
            upkeep.look_after(duties)
    assert stage.messages() == 3


def drop_messages(stage: Stage, client: Any) -> None:
    """Fill the server until it has dropped the queue to make room."""
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
    for number in range(2000):
        client.set(f"filler-{number}", "x" * 2000)
        if number % 20 == 0 and not client.exists("render.tiny", *client.keys("render.tiny*")):
            return
    raise AssertionError(f"nothing was dropped: {stage.messages()} messages")

from typing import Any

import pytest
from sqlalchemy import select, update

from core import store
from core.clock import now
from core.ids import new_id
from core.lifecycle import JobState
from core.tables import Attempt, Job
from tasks import predecessor
from tests.core.test_batch_races import waiting
from tests.fixtures.workers import Stage


def held_by(stage: Stage, worker_id: str, **fields: Any) -> str:
    """A job that a worker claimed and holds."""
    job_id = stage.submit(send=False, **fields)
    with stage.database.transaction() as session:
        assert store.claim(session, job_id, worker_id, 60) is not None
    return job_id


def settle(stage: Stage, worker_id: str) -> None:
    predecessor.settle(stage.database, stage.settings, worker_id)


def test_the_job_of_a_dead_child_is_queued_and_sent_before_its_lease_ends(stage: Stage) -> None:
    worker_id = new_id()
    job_id = held_by(stage, worker_id)
    settle(stage, worker_id)
    assert stage.job(job_id).state == JobState.QUEUED
    assert stage.outcomes(job_id) == ["lost"]
    assert stage.messages() == 1


def test_the_job_of_another_worker_is_left_alone(stage: Stage) -> None:
    job_id = held_by(stage, new_id())
    settle(stage, new_id())
    assert stage.job(job_id).state == JobState.IN_PROGRESS


def test_a_job_that_was_to_be_cancelled_is_canceled(stage: Stage) -> None:
    worker_id = new_id()
    job_id = held_by(stage, worker_id)
    stage.cancel(job_id)
    settle(stage, worker_id)
    assert stage.job(job_id).state == JobState.CANCELED
    assert stage.messages() == 0


def test_a_job_that_had_to_be_killed_for_its_time_is_failed(stage: Stage) -> None:
    worker_id = new_id()
    job_id = held_by(stage, worker_id, run_timeout_s=5)
    with stage.database.transaction() as session:
        session.execute(update(Attempt).where(Attempt.job_id == job_id).values(started_at=now(-10)))
    settle(stage, worker_id)
    job = stage.job(job_id)
    assert (job.state, job.error_code) == (JobState.FAILED, "run_timeout")


def test_a_job_that_lost_its_child_within_its_time_is_tried_again(stage: Stage) -> None:
    worker_id = new_id()
    job_id = held_by(stage, worker_id, run_timeout_s=3600)
    settle(stage, worker_id)
    assert stage.job(job_id).state == JobState.QUEUED


def test_a_job_that_kills_every_child_is_parked(stage: Stage) -> None:
    worker_id = new_id()
    job_id = held_by(stage, worker_id, max_attempts=2)
    settle(stage, worker_id)
    with stage.database.transaction() as session:
        assert store.claim(session, job_id, worker_id, 60) is not None
    settle(stage, worker_id)
    job = stage.job(job_id)
    assert (job.state, job.error_code) == (JobState.FAILED, "worker_lost")
    assert stage.outcomes(job_id) == ["lost", "lost"]


def test_what_a_stopped_worker_left_goes_back_uncounted(stage: Stage) -> None:
    worker_id = new_id()
    job_id = held_by(stage, worker_id)
    predecessor.hand_back(stage.database, stage.settings, worker_id)
    job = stage.job(job_id)
    assert (job.state, job.counted_attempts) == (JobState.QUEUED, 0)
    assert stage.messages() == 1


def test_a_job_ends_with_the_words_that_its_child_left(stage: Stage) -> None:
    worker_id = new_id()
    job_id = held_by(stage, worker_id)
    words = ("out_of_memory", "on rank 1: OutOfMemory: not enough")
    predecessor.settle(stage.database, stage.settings, worker_id, words)
    with stage.database.reading() as session:
        (attempt,) = store.get_attempts(session, job_id)
    assert (attempt.outcome, attempt.error_code, attempt.error_message) == ("retried", *words)
    assert stage.job(job_id).state == JobState.QUEUED
    assert stage.messages() == 1

    with stage.database.transaction() as session:
        assert store.claim(session, job_id, worker_id, 60) is not None
    predecessor.settle(stage.database, stage.settings, worker_id, words)
    job = stage.job(job_id)
    assert (job.state, job.error_code) == (JobState.FAILED, "out_of_memory"), "safer is tried once"


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_job_of_a_dead_pass_does_not_wait_for_a_row_that_another_holds(stage: Stage) -> None:
    worker_id = new_id()
    first, second = sorted(held_by(stage, worker_id) for _ in range(2))
    with stage.database.transaction() as session:
        session.execute(select(Job.id).where(Job.id == second).with_for_update())
        beside = waiting(stage.database, lambda: settle(stage, worker_id))
        assert stage.job(first).state == JobState.QUEUED
        assert stage.messages() == 1
    beside.result()
    assert stage.job(second).state == JobState.QUEUED
    assert stage.messages() == 2

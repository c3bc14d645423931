"""A worker that is told to stop in each phase of its work; `test_lifecycle` has loading and a long rest."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from sqlalchemy import text

from core.lifecycle import JobState
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import Stage, WorkerProcess

sqlite_only = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)


def wait_draining(worker: WorkerProcess) -> None:
    wait_until(lambda: worker.state() == "draining", what="draining")


@contextmanager
def no_artifacts(stage: Stage) -> Iterator[None]:
    """A file stands where the folder of artifacts belongs, so a worker that saves tries again and again."""
    folder = stage.folder / "artifacts"
    kept = folder.rename(stage.folder / "kept") if folder.exists() else None
    folder.touch()
    try:
        yield
    finally:
        folder.unlink()
        if kept:
            kept.rename(folder)


def wait_saving(worker: WorkerProcess) -> None:
    wait_until(lambda: "The artifact store failed" in worker.text(), what="a try to save")


@contextmanager
def held_row(stage: Stage, job_id: str) -> Iterator[None]:
    """Somebody else's transaction holds the job's row, so that it cannot be completed."""
    with stage.database.transaction() as session:
        session.execute(text("UPDATE jobs SET metadata = metadata WHERE id = :id"), {"id": job_id})
        yield


@sqlite_only
def test_an_idle_worker_ends_at_once_and_takes_nothing_more_though_redis_hangs(
    stage_of_own_valkey: Stage,
) -> None:
    stage = stage_of_own_valkey
    worker = stage.warm_worker(stand_in=True, leave_s=2)
    stage.valkey.freeze()
    try:
        worker.signal(signal.SIGTERM)
        assert worker.wait_exit(timeout_s=20) == 0
        assert worker.state() == "gone"
    finally:
        stage.valkey.thaw()


def test_a_short_rest_is_finished_and_the_next_job_stays_for_another(stage: Stage) -> None:
    worker = stage.warm_worker(stand_in=True)
    job_id = stage.submit(prompt="steps 60")
    stage.wait_step(job_id)
    worker.signal(signal.SIGTERM)
    wait_draining(worker)
    waiting = stage.submit(prompt="paint")
    assert stage.job(job_id).state == JobState.IN_PROGRESS
    assert worker.wait_exit() == 0
    assert (stage.outcomes(job_id), stage.outcomes(waiting)) == (["completed"], [])
    assert stage.messages() == 1
    assert worker.state() == "gone"


@sqlite_only
def test_a_worker_that_is_told_to_stop_while_it_saves_completes_its_job(stage: Stage) -> None:
    worker = stage.warm_worker(stand_in=True)
    with no_artifacts(stage):
        job_id = stage.submit(prompt="paint")
        wait_saving(worker)
        worker.signal(signal.SIGTERM)
        wait_draining(worker)
    assert worker.wait_exit() == 0
    assert stage.job(job_id).state == JobState.COMPLETED
    assert stage.outcomes(job_id) == ["completed"]


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_worker_that_is_hurried_while_it_commits_completes_its_job_or_hands_it_back(stage: Stage) -> None:
    worker = stage.warm_worker(stand_in=True)
    with ExitStack() as row:
        with no_artifacts(stage):
            job_id = stage.submit(prompt="paint")
            wait_saving(worker)
            row.enter_context(held_row(stage, job_id))
        wait_until(lambda: list(stage.artifacts.list(f"jobs/{job_id}/")), what="the file")
        worker.signal(signal.SIGTERM)
        wait_draining(worker)
        worker.signal(signal.SIGTERM)
        wait_until(lambda: "worker.job_interrupted" in worker.text(), what="the child was told")
    assert worker.wait_exit() == 0
    job = stage.job(job_id)
    assert (job.state, stage.outcomes(job_id)) in (
        (JobState.COMPLETED, ["completed"]),
        (JobState.QUEUED, ["handed_back"]),
    )
    assert job.counted_attempts == (job.state == JobState.COMPLETED)
    assert stage.messages() == (job.state == JobState.QUEUED)

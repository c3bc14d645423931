"""The life of a worker process, from a cold start to each of its ends."""

import os
import signal
from functools import partial

import pytest

from core.lifecycle import JobState
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import LONG, MEDIUM, Stage, WorkerProcess

# Of the database these need a worker's row only, which the others write on both kinds.
on_sqlite = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)


@on_sqlite
def test_a_model_that_cannot_be_loaded_ends_the_worker_with_70_and_touches_no_job(stage: Stage) -> None:
    job_id = stage.submit()
    worker = stage.start_worker(source=str(stage.folder / "no-such-model"))
    assert worker.wait_exit() == 70
    row = worker.row()
    assert row is not None
    assert (row.state, row.ready_at) == ("failed", None)
    assert row.error
    said = [line for line in worker.text().splitlines() if line.startswith("renderq worker:")]
    assert said == [f"renderq worker: tiny could not be made ready: {row.error}"]
    assert worker.text().count('"name": "import", "state": "started"') == 1, "it is not tried in a loop"
    assert stage.job(job_id).state == JobState.QUEUED
    assert stage.outcomes(job_id) == []
    assert stage.messages() == 1


@on_postgresql
def test_a_stopped_worker_hands_its_job_back_uncounted_and_the_next_one_does_it(stage: Stage) -> None:
    # Cold: the job waits in Redis, where a warm worker could take it.
    first = stage.submit(num_inference_steps=8, cache="off")
    worker = stage.start_worker(drain_s=0.3)
    worker.wait_loading()
    assert stage.messages() == 1
    worker.wait_state("ready")
    stage.wait_job(first)

    # Stopped in the middle of a job whose rest takes longer than it may.
    job_id = stage.submit(**MEDIUM)
    stage.wait_step(job_id)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.state() in ("draining", "gone"), what="draining")
    assert worker.wait_exit() == 0
    assert worker.state() == "gone"
    job = stage.job(job_id)
    assert (job.state, job.attempt, job.counted_attempts) == (JobState.QUEUED, 1, 0)
    assert stage.outcomes(job_id) == ["handed_back"]
    # Twice when the time was over between the sending and the note of it; the claim lets one through.
    assert stage.messages() in (1, 2)

    second = stage.warm_worker()
    stage.wait_job(job_id)
    assert stage.outcomes(job_id) == ["handed_back", "completed"]

    # Signals to the whole group, as a terminal or a service manager sends them: the child is not hit.
    last = stage.submit(**LONG)
    step = stage.wait_step(last).progress_step or 0
    os.killpg(second.pid, signal.SIGTERM)
    wait_until(lambda: second.state() == "draining", what="draining")
    stage.wait_step(last, step + 10)
    os.killpg(second.pid, signal.SIGINT)
    assert second.wait_exit(timeout_s=20) == 0
    assert stage.outcomes(last) == ["handed_back"]


@on_sqlite
def test_a_worker_that_is_stopped_while_it_loads_ends_at_once(stage: Stage) -> None:
    worker = stage.start_worker()
    worker.wait_state("loading")
    wait_until(lambda: worker.row().child_pid, what="the child")  # type: ignore[union-attr]
    worker.signal(signal.SIGTERM)
    assert worker.wait_exit(timeout_s=15) == 0
    assert worker.state() == "gone"


@on_sqlite
def test_a_worker_whose_children_die_while_they_load_gives_up(stage: Stage) -> None:
    worker = stage.start_worker()
    wait_until(stage.pings, what="Celery's loop")
    for _ in range(3):
        pid = worker.kill_child()
        wait_until(partial(has_other_child, worker, pid), what="a new child")
    assert worker.wait_exit() == 70
    row = worker.row()
    assert row is not None
    assert row.state == "failed"
    assert "killed 3 times" in (row.error or "")


def has_other_child(worker: WorkerProcess, pid: int) -> bool:
    row = worker.row()
    return row is not None and row.child_pid not in (pid, None)

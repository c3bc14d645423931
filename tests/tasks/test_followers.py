"""A worker of two ranks: what becomes of its jobs and its processes when one of them dies."""

import os
import signal

import pytest

from core import store
from core.lifecycle import JobState
from tests.fixtures.processes import command_line, is_gone, listens_on
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import LONG, MEDIUM, Stage, WorkerProcess

LOOPBACK = "0100007F"  # 127.0.0.1, as the kernel writes it
SHORT = {"num_inference_steps": 8, "seed": 11}


def follower(worker: WorkerProcess, after: int = 0) -> int:
    """The follower of the worker's present child, which came after another one."""

    def found() -> int:
        row = worker.wait_state("ready")
        steps = [step for step in row.preparation if step["name"] == "followers" and step["state"] == "done"]
        pids = [pid for step in steps for pid in step["detail"]["pids"] if pid != after]
        return pids[0] if pids else 0

    pid = wait_until(found, 120, "a follower")
    assert "pipeline.follower 1" in command_line(pid)
    return pid


def ends(stage: Stage, job_id: str) -> list[tuple[str | None, str | None]]:
    with stage.database.reading() as session:
        return [(attempt.outcome, attempt.error_code) for attempt in store.get_attempts(session, job_id)]


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_follower_dies_and_the_worker_recovers(stage: Stage) -> None:
    worker = stage.warm_worker(flags={"context_parallel": 2})
    first = follower(worker)
    row = worker.row()
    assert row is not None
    assert row.policy["options"]["context_parallel"]["value"] == 2
    assert listens_on(first) | listens_on(worker.child_pid()) == {LOOPBACK}

    canceled = stage.submit(**LONG)
    stage.wait_step(canceled)
    stage.cancel(canceled)
    stage.wait_job(canceled, JobState.CANCELED)
    stage.wait_job(stage.submit(**SHORT))
    assert follower(worker) == first, "both ranks left the job at the same step"

    job_id = stage.submit(**MEDIUM)
    stage.wait_step(job_id)
    os.kill(first, signal.SIGKILL)
    job = stage.wait_job(job_id, timeout_s=180)
    assert ends(stage, job_id) == [("retried", "follower_lost"), ("completed", None)]
    assert job.counted_attempts == 2

    second = follower(worker, after=first)
    worker.kill_child()
    wait_until(lambda: is_gone(second), what="the end of a follower whose leader was killed")
    third = follower(worker, after=second)
    worker.signal(signal.SIGTERM)
    assert worker.wait_exit() == 0
    assert is_gone(third)

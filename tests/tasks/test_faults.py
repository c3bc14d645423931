"""Faults known from other systems, each on a worker whose engine does what the prompt says."""

import os
import signal
from typing import Any

import pytest
from sqlalchemy import delete, update

from core.clock import now
from core.lifecycle import JobState
from core.tables import Job, Worker
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import Stage, WorkerProcess, on_quick_stage

on_sqlite, on_both = on_quick_stage("sqlite"), on_quick_stage("sqlite", "postgresql")


def render(stage: Stage, prompt: str = "paint", **fields: Any) -> Job:
    job = stage.wait_job(stage.submit(prompt=prompt, **fields))
    assert stage.outcomes(job.id)[-1] == "completed"
    return job


def wait_started(stage: Stage, job_id: str) -> None:
    wait_until(lambda: stage.job(job_id).state == JobState.IN_PROGRESS, what="a running job")


@on_both
def test_a_hung_job_that_is_cancelled_is_killed_and_the_worker_takes_the_next(
    quick_stage: Stage, worker: WorkerProcess
) -> None:
    child = worker.child_pid()
    hung = quick_stage.submit(prompt="sleep 600")
    waiting = quick_stage.submit(prompt="paint")
    wait_started(quick_stage, hung)
    quick_stage.cancel(hung)
    quick_stage.wait_job(hung, JobState.CANCELED)
    quick_stage.wait_job(waiting)
    assert quick_stage.outcomes(hung) == ["lost"]
    assert quick_stage.outcomes(waiting) == ["completed"]
    assert worker.child_pid() != child
    assert worker.process.poll() is None


@on_both
def test_a_hung_job_whose_time_is_over_is_killed_and_fails_with_that_reason(
    quick_stage: Stage, worker: WorkerProcess
) -> None:
    child = worker.child_pid()
    hung = quick_stage.submit(prompt="sleep 600", run_timeout_s=1)
    job = quick_stage.wait_job(hung, JobState.FAILED)
    assert (job.error_code, quick_stage.outcomes(hung)) == ("run_timeout", ["failed"])
    render(quick_stage)
    assert worker.child_pid() != child


@on_sqlite
def test_a_memory_error_in_a_job_does_not_block_the_pool(quick_stage: Stage, worker: WorkerProcess) -> None:
    child = worker.child_pid()
    greedy = quick_stage.submit(prompt="refuse memory")
    job = quick_stage.wait_job(greedy, JobState.FAILED)
    assert job.error_code == "out_of_memory"
    assert quick_stage.outcomes(greedy) == ["retried", "failed"]
    render(quick_stage)
    assert worker.child_pid() == child


@on_both
@pytest.mark.parametrize("prompt", ["die", "refuse all memory"])
def test_a_job_that_kills_its_worker_is_parked_and_others_run_between(
    quick_stage: Stage, worker: WorkerProcess, prompt: str
) -> None:
    poison = quick_stage.submit(prompt=prompt)
    others = []
    for attempt in range(1, 4):
        wait_until(lambda n=attempt: len(quick_stage.outcomes(poison)) >= n, what=f"attempt {attempt}")
        others.append(quick_stage.submit(prompt="paint"))
    job = quick_stage.wait_job(poison, JobState.FAILED)
    assert job.error_code == "worker_lost"
    assert quick_stage.outcomes(poison) == ["lost", "lost", "lost"]
    for other in others:
        quick_stage.wait_job(other)
        assert quick_stage.outcomes(other) == ["completed"]
    assert worker.process.poll() is None


@on_both
def test_cancelling_a_job_that_waits_leaves_the_running_one_alone(
    quick_stage: Stage, worker: WorkerProcess
) -> None:
    running = quick_stage.submit(prompt="steps 30")
    wait_started(quick_stage, running)
    waiting = quick_stage.submit(prompt="paint")
    quick_stage.cancel(waiting)
    quick_stage.wait_job(running)
    assert quick_stage.outcomes(running) == ["completed"]
    assert (quick_stage.job(waiting).state, quick_stage.outcomes(waiting)) == (JobState.CANCELED, [])


@on_both
def test_jobs_after_a_cancelled_one_are_done_by_the_same_child(
    quick_stage: Stage, worker: WorkerProcess
) -> None:
    child = worker.child_pid()
    canceled = quick_stage.submit(prompt="wait never")
    quick_stage.wait_step(canceled)
    quick_stage.cancel(canceled)
    assert quick_stage.wait_job(canceled, JobState.CANCELED).stopped_at_step
    for _ in range(3):
        render(quick_stage, "steps 3")
    assert worker.child_pid() == child


@on_sqlite
def test_a_second_worker_disturbs_nobodys_running_job_and_is_none_too_many(
    quick_stage: Stage, worker: WorkerProcess
) -> None:
    running = quick_stage.submit(prompt="wait second-is-there")
    wait_started(quick_stage, running)
    owner = quick_stage.job(running).owner
    # The same name, as after a restart in a container: the rows are told apart by the id of each boot.
    name = worker.wait_state("ready").name
    second = quick_stage.warm_worker(stand_in=True, name=name)
    first, other = worker.row(), second.row()
    assert first is not None
    assert other is not None
    assert (first.name, first.id == other.id) == (other.name, False)
    assert (quick_stage.job(running).state, quick_stage.job(running).owner) == (JobState.IN_PROGRESS, owner)

    # The second one is killed in the middle of a job: neither its row nor its job is taken for another's.
    orphan = quick_stage.submit(prompt="wait orphan-may-go")
    wait_until(lambda: quick_stage.job(orphan).owner == other.id, what="the second worker has it")
    second.signal(signal.SIGKILL)
    second.wait_exit()
    third = quick_stage.warm_worker(stand_in=True, name=name)
    assert quick_stage.job(orphan).owner == other.id
    with quick_stage.database.transaction() as session:
        session.execute(update(Job).where(Job.id == orphan).values(lease_until=now()))
    (quick_stage.folder / "orphan-may-go").touch()
    quick_stage.wait_job(orphan)
    assert quick_stage.outcomes(orphan) == ["lost", "completed"]
    third.signal(signal.SIGTERM)
    assert third.wait_exit() == 0
    assert third.state() == "gone"
    (quick_stage.folder / "second-is-there").touch()
    quick_stage.wait_job(running)
    assert quick_stage.outcomes(running) == ["completed"]


@on_sqlite
def test_a_delayed_try_is_sent_once_when_its_time_has_come(quick_stage: Stage, worker: WorkerProcess) -> None:
    delayed = quick_stage.submit(prompt="refuse storage")
    wait_until(lambda: quick_stage.outcomes(delayed) == ["retried"], what="the pause")
    plan = painted(quick_stage)
    with quick_stage.database.transaction() as session:
        session.execute(update(Job).where(Job.id == delayed).values(run_after=now(4.0), plan=plan))
    assert quick_stage.messages() == 0
    quick_stage.wait_job(delayed)
    assert quick_stage.outcomes(delayed) == ["retried", "completed"]
    assert received(worker, delayed) == 2


@on_sqlite
def test_a_job_longer_than_the_visibility_timeout_is_delivered_once(
    quick_stage: Stage, worker: WorkerProcess
) -> None:
    long = quick_stage.submit(prompt="steps 150")
    quick_stage.wait_job(long)
    render(quick_stage)  # behind a message that came again
    assert quick_stage.outcomes(long) == ["completed"]
    assert received(worker, long) == 1


def painted(stage: Stage) -> dict[str, Any]:
    return stage.job(stage.submit(prompt="paint", send=False)).plan


def received(worker: WorkerProcess, job_id: str) -> int:
    """How often a message of the job came to the worker, whether it was claimed or not."""
    lines = [line for line in worker.text().splitlines() if job_id in line]
    return sum('"job.started"' in line or '"job.not_claimed"' in line for line in lines)


@on_sqlite
def test_a_stop_signal_to_the_child_alone_does_not_stop_its_job(
    quick_stage: Stage, worker: WorkerProcess
) -> None:
    child = worker.child_pid()
    job_id = quick_stage.submit(prompt="wait signalled")
    quick_stage.wait_step(job_id)
    os.kill(child, signal.SIGTERM)
    (quick_stage.folder / "signalled").touch()
    quick_stage.wait_job(job_id)
    os.kill(child, signal.SIGTERM)
    render(quick_stage)
    assert quick_stage.outcomes(job_id) == ["completed"]
    assert worker.child_pid() == child


@on_sqlite
def test_a_redis_that_drops_messages_is_told_of_at_each_connection(
    quick_stage: Stage, worker: WorkerProcess
) -> None:
    with quick_stage.valkey.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.execute_command("CLIENT", "KILL", "TYPE", "normal")
    wait_until(lambda: '"redis.evicts"' in worker.text(), what="the worker tells")
    with quick_stage.valkey.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
    render(quick_stage)


@on_sqlite
@pytest.mark.parametrize(
    ("refuse", "allow"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    ],
)
def test_a_worker_stays_warm_while_redis_refuses_writes(
    quick_stage: Stage, worker: WorkerProcess, refuse: tuple[str, ...], allow: tuple[str, ...]
) -> None:
    """As it does when its memory or its disk is full, or when it has become a replica."""
    child = worker.child_pid()
    job_id = quick_stage.submit(prompt="paint")
    with quick_stage.valkey.client() as client:
        client.execute_command(*refuse)
        waiting = quick_stage.submit(prompt="paint", send=False)
        client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        wait_until(lambda: worker.state() == "disconnected", what="the worker tells")
        client.execute_command(*allow)
    for one in (job_id, waiting):
        quick_stage.wait_job(one)
    assert worker.wait_state("ready")
    assert worker.child_pid() == child


@on_both
def test_a_worker_whose_row_was_removed_is_there_again(quick_stage: Stage, worker: WorkerProcess) -> None:
    """As after a backup was put back that is older than the worker."""
    child = worker.child_pid()
    with quick_stage.database.transaction() as session:
        session.execute(delete(Worker).where(Worker.pid == worker.pid))
    worker.wait_state("ready")
    assert worker.child_pid() == child
    render(quick_stage)

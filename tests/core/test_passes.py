"""Jobs that share a pass are claimed together, and each as if it were alone."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from core import batches, passes, store, workers
from core.db import Database
from core.eta import estimate_end
from core.lifecycle import JobState, Outcome, WorkerState
from core.tables import Attempt, Job, Worker
from tests.core.jobs import OTHER_WORKER, WORKER, claim, events_after, start, submit
from tests.core.test_eta import HEARD_S, measured, ready_worker, seconds_left


def mates(session: Session, leader: Job, *jobs: Job) -> list[str]:
    return [job.id for job in passes.claim_mates(session, leader, [job.id for job in jobs], WORKER, 30)]


def test_mates_are_leased_and_have_an_attempt_of_their_own_that_names_the_leader(session: Session) -> None:
    leader, jobs = start(session), [submit(session) for _ in range(2)]
    assert mates(session, leader, *jobs) == [job.id for job in jobs]
    for job in (leader, *jobs):
        now = store.get_job(session, job.id)
        assert (now.state, now.attempt, now.owner) == (JobState.IN_PROGRESS, 1, WORKER)
        (attempt,) = store.get_attempts(session, job.id)
        assert attempt.pass_of == leader.id
        assert [event.type for event in events_after(session, job.id)] == ["job.queued", "job.started"]
        assert passes.led(session, job.id) == (leader.id, JobState.IN_PROGRESS)


def test_a_job_without_mates_leads_nothing(session: Session) -> None:
    leader, taken = start(session), start(session)
    assert mates(session, leader, taken) == []
    assert passes.led(session, leader.id) is None
    assert passes.led(session, "no-such-job") is None


def test_the_latest_attempt_says_in_whose_pass_a_job_was(session: Session) -> None:
    leader, job = start(session), submit(session)
    mates(session, leader, job)
    assert store.hand_back(session, job.id, 1, WORKER, "pass_failed", "It broke.") is Outcome.HANDED_BACK
    (attempt,) = store.get_attempts(session, job.id)
    assert (attempt.error_code, attempt.error_message) == ("pass_failed", "It broke.")
    assert store.get_job(session, job.id).counted_attempts == 0
    claim(session, job.id, OTHER_WORKER)
    assert passes.led(session, job.id) is None


def test_none_is_taken_along_that_could_not_be_claimed_now(session: Session) -> None:
    leader = start(session)
    tried = start(session)
    store.hand_back(session, tried.id, 1, WORKER)
    late = submit(session, queue_timeout_s=-1)
    not_yet = submit(session)
    session.execute(
        update(Job).where(Job.id == not_yet.id).values(run_after=not_yet.created_at + timedelta(9))
    )
    gone = submit(session)
    store.request_cancel(session, gone.id)
    assert mates(session, leader, tried, late, not_yet, gone) == []


def test_held_rows_of_a_batch_wait_for_nobody(session: Session) -> None:
    from tests.core.test_batches import make

    batch = make(session, 3)
    leader = start(session)
    rows = batches.batch_jobs(session, batch.id)
    assert passes.waiting_jobs(session, "tiny", 10) == []
    assert mates(session, leader, *rows) == []
    batches.release(session, batch.id, {"tiny": 2})
    assert len(passes.waiting_jobs(session, "tiny", 10)) == 2
    assert len(mates(session, leader, *rows)) == 2


def test_those_that_wait_come_in_the_order_of_the_queue(session: Session) -> None:
    low, normal, high, other = (
        submit(session, priority=6),
        submit(session),
        submit(session, priority=0),
        submit(session, model="another"),
    )
    tried = start(session, priority=6)
    store.hand_back(session, tried.id, 1, WORKER)
    found = [job.id for job in passes.waiting_jobs(session, "tiny", 10)]
    assert found == [high.id, tried.id, normal.id, low.id]
    assert other.id not in found
    assert len(passes.waiting_jobs(session, "tiny", 2)) == 2


def test_two_workers_never_take_the_same_job_along(committed_database: Database) -> None:
    with committed_database.transaction() as session:
        leaders = [start(session) for _ in range(4)]
        ids = [submit(session).id for _ in range(6)]
    ready = Barrier(4)

    def take(number: int) -> list[str]:
        ready.wait(30)
        order = ids if number % 2 else ids[::-1]
        with committed_database.transaction() as session:
            found = passes.claim_mates(session, leaders[number], order, f"worker-{number}", 30)
            return [job.id for job in found]

    with ThreadPoolExecutor(4) as threads:
        taken = [job_id for found in threads.map(take, range(4)) for job_id in found]
    assert sorted(taken) == sorted(ids)
    with committed_database.reading() as session:
        assert all(len(store.get_attempts(session, job_id)) == 1 for job_id in ids)


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_job_that_somebody_is_just_moving_is_not_waited_for(committed_database: Database) -> None:
    with committed_database.transaction() as session:
        leader, moving, free = start(session), submit(session), submit(session)

    def take() -> list[str]:
        with committed_database.transaction() as session:
            found = passes.claim_mates(session, leader, [moving.id, free.id], WORKER, 30)
            return [job.id for job in found]

    with ThreadPoolExecutor(1) as thread, committed_database.transaction() as session:
        store.request_cancel(session, moving.id)
        assert thread.submit(take).result(timeout=20) == [free.id]


def test_the_places_of_the_workers_that_are_ready_are_counted(session: Session) -> None:
    ready_worker(session, WORKER)
    ready_worker(session, OTHER_WORKER)
    assert workers.count_places(session, "tiny", within_s=HEARD_S) == 2
    session.execute(
        update(Worker).where(Worker.id == WORKER).values(policy={"options": {"microbatch": {"value": 4}}})
    )
    assert workers.count_places(session, "tiny", within_s=HEARD_S) == 5
    assert workers.count_idle(session, "tiny", WORKER, within_s=HEARD_S) == 1
    workers.update_worker(session, OTHER_WORKER, current_job_id=start(session).id)
    assert workers.count_idle(session, "tiny", WORKER, within_s=HEARD_S) == 0
    workers.update_worker(session, OTHER_WORKER, current_job_id=None, state=WorkerState.DRAINING)
    assert workers.count_idle(session, "tiny", WORKER, within_s=HEARD_S) == 0


def test_a_job_of_a_shared_pass_counts_with_its_part_of_the_time(session: Session) -> None:
    ready_worker(session)
    batch = measured(session, 20.0)
    (job, *_) = batches.batch_jobs(session, batch.id)
    for _ in range(3):
        mate = start(session)
        session.execute(update(Attempt).where(Attempt.job_id == mate.id).values(pass_of=job.id))
    session.execute(update(Attempt).where(Attempt.job_id == job.id).values(pass_of=job.id))
    assert estimate_end(session, batch, HEARD_S) is not None
    assert seconds_left(session, batch) == pytest.approx(9 * 20 / 4, abs=2)

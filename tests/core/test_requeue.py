"""A failed or expired job is ordered again as a new one; a parked one has used up its attempts."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core import batches, store
from core.clock import now
from core.db import Database
from core.errors import Conflict, NotFound
from core.lifecycle import BatchState, JobState
from core.queries import find_successor
from core.requeue import requeue
from core.tables import Job
from tests.core.jobs import WORKER, events_after, job_in, start, submit
from tests.core.test_batches import jobs_of, make, run

SAME = ("caller", "model", "priority", "request", "plan", "metadata_", "max_attempts", "run_timeout_s")


def fields(job: Job) -> dict[str, object]:
    return {name: getattr(job, name) for name in SAME}


def ended(session: Session, state: JobState, **given: object) -> Job:
    """Make a failed job, or one that no worker took within ten minutes."""
    if state is JobState.FAILED:
        return job_in(session, state, **given)
    job = submit(session, queue_timeout_s=600, **given)
    assert store.expire(session, datetime.now(UTC) + timedelta(hours=1)) == 1
    return store.get_job(session, job.id)


def lose(session: Session, *, times: int, max_attempts: int = 3) -> Job:
    """Make a job that lost its worker so many times."""
    job = submit(session, max_attempts=max_attempts)
    for _ in range(times):
        assert store.claim(session, job.id, WORKER, -1) is not None
        store.rescue(session)
    return store.get_job(session, job.id)


# --- requeue --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.EXPIRED])
def test_a_job_without_a_result_is_ordered_again_as_a_new_one(session: Session, state: JobState) -> None:
    old = ended(session, state, priority=6, run_timeout_s=9.0, metadata={"sku": "A-1"}, plan={"seed": 42})
    new, earlier = requeue(session, old.id)
    assert not earlier
    assert new.id != old.id
    assert new.requeued_from == old.id
    assert find_successor(session, old.id) == new.id
    assert fields(new) == fields(old)
    assert (new.state, new.attempt, new.published_at) == (JobState.QUEUED, 0, None)
    assert store.get_job(session, old.id).state is state
    assert [event.type for event in events_after(session, new.id)] == ["job.queued"]
    assert store.claim(session, new.id, WORKER, 30) is not None


def test_the_start_deadline_of_a_requeued_job_counts_anew(session: Session) -> None:
    old = start(session, queue_timeout_s=600)
    an_hour_ago = {"created_at": now(-3600), "queue_deadline_at": now(-3000)}
    session.execute(update(Job).where(Job.id == old.id).values(an_hour_ago))
    assert store.fail(session, old.id, 1, WORKER, "broken", "It broke.", retryable=False)
    new, _ = requeue(session, old.id)
    assert new.queue_deadline_at is not None
    ahead_s = (new.queue_deadline_at - session.scalars(select(now())).one()).total_seconds()
    assert ahead_s == pytest.approx(600, abs=30)


@pytest.mark.parametrize(
    "state", [JobState.QUEUED, JobState.IN_PROGRESS, JobState.COMPLETED, JobState.CANCELED]
)
def test_only_a_failed_or_expired_job_is_requeued(session: Session, state: JobState) -> None:
    job = job_in(session, state)
    with pytest.raises(Conflict, match=f"is {state}"):
        requeue(session, job.id)
    assert find_successor(session, job.id) is None


def test_a_second_call_gives_the_job_of_the_first(session: Session) -> None:
    old = job_in(session, JobState.FAILED)
    new, _ = requeue(session, old.id)
    run(session, new, fails=True)
    again, earlier = requeue(session, old.id)
    assert (again.id, again.state, earlier) == (new.id, JobState.FAILED, True)


def test_a_requeued_job_that_failed_too_can_be_requeued_itself(session: Session) -> None:
    first = job_in(session, JobState.FAILED)
    second, _ = requeue(session, first.id)
    run(session, second, fails=True)
    third, earlier = requeue(session, second.id)
    assert (third.requeued_from, earlier) == (second.id, False)


def test_ten_calls_at_once_make_one_job(committed_database: Database) -> None:
    with committed_database.transaction() as session:
        old = job_in(session, JobState.FAILED).id
    made: list[tuple[str, bool]] = []
    ready = threading.Barrier(10)

    def call() -> None:
        ready.wait()
        with committed_database.transaction() as session:
            job, earlier = requeue(session, old)
        made.append((job.id, earlier))

    threads = [threading.Thread(target=call) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job_id for job_id, _ in made}) == 1
    assert sorted(earlier for _, earlier in made) == [False] + [True] * 9


def test_the_database_lets_one_job_repeat_another(session: Session) -> None:
    old = job_in(session, JobState.FAILED)
    requeue(session, old.id)
    with pytest.raises(IntegrityError), session.begin_nested():
        session.execute(
            insert(Job).values(id="j-2", state=JobState.QUEUED, requeued_from=old.id, **fields(old))
        )


@pytest.mark.parametrize("caller", ["somebody-else", None])
def test_a_job_that_is_not_the_callers_is_not_requeued(session: Session, caller: str | None) -> None:
    job_id = job_in(session, JobState.FAILED, caller="ann").id if caller else "no-such-job"
    with pytest.raises(NotFound):
        requeue(session, job_id, caller)


# --- rows of a batch ------------------------------------------------------------------------------------


def failed_row(session: Session) -> Job:
    """Make a batch of two rows, both ended, the second one failed."""
    batch = make(session, 2)
    first, second = batches.release(session, batch.id, {"tiny": 9})
    run(session, first)
    run(session, second, fails=True)
    batches.close_finished(session)
    return store.get_job(session, second.id)


def test_a_requeued_row_belongs_to_its_batch_again_which_runs_for_it(session: Session) -> None:
    old = failed_row(session)
    assert old.batch_id is not None
    new, _ = requeue(session, old.id)
    assert (new.batch_id, new.batch_row, new.held) == (old.batch_id, 2, True)
    batch = batches.get_batch(session, old.batch_id)
    assert (batch.state, batch.finished_at, batch.retries) == (BatchState.RUNNING, None, 1)
    assert [job.id for job in jobs_of(session, batch)][1] == new.id
    counts = batches.count_jobs(session, [batch.id])[batch.id]
    assert {state: n for state, n in counts.items() if n} == {JobState.COMPLETED: 1, JobState.QUEUED: 1}
    (sent,) = batches.release(session, batch.id, {"tiny": 9})
    run(session, sent)
    assert [ended.state for ended in batches.close_finished(session)] == [BatchState.COMPLETED]


def test_a_row_that_its_batch_ordered_again_is_not_ordered_a_third_time(session: Session) -> None:
    old = failed_row(session)
    assert old.batch_id is not None
    batch, _ = batches.retry_failed(session, old.batch_id)
    new, earlier = requeue(session, old.id)
    assert (earlier, new.requeued_from, new.batch_row) == (True, old.id, 2)
    assert len(jobs_of(session, batch)) == 2


def test_only_that_row_of_the_batch_is_ordered_again(session: Session) -> None:
    batch = make(session, 2)
    first, second = batches.release(session, batch.id, {"tiny": 9})
    run(session, first, fails=True)
    run(session, second, fails=True)
    requeue(session, second.id)
    assert [job.state for job in jobs_of(session, batch)] == [JobState.FAILED, JobState.QUEUED]


def test_a_row_of_a_cancelled_batch_is_not_ordered_again(session: Session) -> None:
    batch = make(session, 2)
    (row,) = batches.release(session, batch.id, {"tiny": 1})
    run(session, row, fails=True)
    batches.cancel(session, batch.id)
    with pytest.raises(Conflict, match="was cancelled"):
        requeue(session, row.id)
    assert find_successor(session, row.id) is None
    assert not store.get_job(session, row.id).superseded


# --- parked ---------------------------------------------------------------------------------------------


def test_a_job_that_lost_its_worker_once_too_often_is_parked(session: Session) -> None:
    assert (lose(session, times=2).state, lose(session, times=2).parked) == (JobState.QUEUED, False)
    job = lose(session, times=3)
    assert (job.state, job.parked, job.error_retryable) == (JobState.FAILED, True, True)


@pytest.mark.parametrize(("retryable", "parked"), [(True, True), (False, False)])
def test_a_last_attempt_parks_the_job_when_another_might_do(
    session: Session, retryable: bool, parked: bool
) -> None:
    job = lose(session, times=2)
    assert store.claim(session, job.id, WORKER, 30) is not None
    assert store.fail(session, job.id, 3, WORKER, "broken", "It broke.", retryable=retryable)
    assert store.get_job(session, job.id).parked is parked


def test_a_job_with_attempts_left_is_not_parked(session: Session) -> None:
    job = start(session)
    assert store.fail(session, job.id, 1, WORKER, "out_of_memory", "No room.", retryable=True)
    assert not store.get_job(session, job.id).parked


def test_parked_jobs_are_listed_alone(session: Session) -> None:
    parked, failed, queued = lose(session, times=3), job_in(session, JobState.FAILED), submit(session)

    def ids(*, parked: bool | None, status: JobState | None = None) -> list[str]:
        return [job.id for job in store.list_jobs(session, status=status, parked=parked).rows]

    assert ids(parked=True) == ids(parked=True, status=JobState.FAILED) == [parked.id]
    assert ids(parked=False, status=JobState.FAILED) == [failed.id]
    assert set(ids(parked=False)) == {failed.id, queued.id}
    assert ids(parked=True, status=JobState.QUEUED) == []


def test_a_parked_job_is_ordered_again_with_all_its_attempts(session: Session) -> None:
    new, _ = requeue(session, lose(session, times=3).id)
    assert (new.parked, new.attempt, new.counted_attempts, new.max_attempts) == (False, 0, 0, 3)

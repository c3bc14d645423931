"""Cancelling, rescuing and expiring."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
from sqlalchemy.orm import Session

from core import store
from core.db import Database
from core.errors import AlreadyFinished, NotFound
from core.lifecycle import TERMINAL, JobState, Outcome
from tests.core.jobs import OTHER_WORKER, WORKER, claim, events_after, job_in, picture, start, submit


def events(session: Session, job_id: str) -> list[str]:
    return [event.type for event in events_after(session, job_id)]


# --- cancel ---


def test_a_queued_job_is_canceled_at_once(session: Session) -> None:
    job = store.request_cancel(session, submit(session).id)
    assert job.state is JobState.CANCELED
    assert job.finished_at is not None
    assert job.cancel_requested_at is not None
    assert events(session, job.id) == ["job.queued", "job.canceled"]


def test_a_running_job_is_only_told(session: Session) -> None:
    job = store.request_cancel(session, start(session).id)
    assert job.state is JobState.IN_PROGRESS
    assert job.cancel_requested_at is not None
    assert events(session, job.id)[-1] == "job.cancel_requested"


def test_a_wish_is_told_once(session: Session) -> None:
    job = start(session)
    first = store.request_cancel(session, job.id).cancel_requested_at
    assert store.request_cancel(session, job.id).cancel_requested_at == first
    assert events(session, job.id).count("job.cancel_requested") == 1


def test_a_stopped_job_is_canceled_and_says_where(session: Session) -> None:
    job = start(session)
    store.request_cancel(session, job.id)
    assert store.stopped(session, job.id, 1, WORKER, 9)
    stopped = store.get_job(session, job.id)
    assert (stopped.state, stopped.stopped_at_step) == (JobState.CANCELED, 9)
    assert store.get_attempts(session, job.id)[0].outcome is Outcome.STOPPED
    assert events(session, job.id)[-1] == "job.canceled"


def test_a_wish_after_the_last_step_is_too_late(session: Session) -> None:
    job = start(session)
    store.request_cancel(session, job.id)
    assert store.complete(session, job.id, 1, WORKER, [picture(job.id)])
    assert store.get_job(session, job.id).state is JobState.COMPLETED


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_finished_job_cannot_be_canceled(session: Session, state: JobState) -> None:
    job = job_in(session, state)
    with pytest.raises(AlreadyFinished, match=f"already finished: it is {state}") as caught:
        store.request_cancel(session, job.id)
    assert (caught.value.code, caught.value.status) == ("already_finished", 409)


def test_nobody_cancels_the_job_of_another_caller(session: Session) -> None:
    job = submit(session, caller="ann")
    with pytest.raises(NotFound):
        store.request_cancel(session, job.id, "bob")
    assert store.get_job(session, job.id).state is JobState.QUEUED
    assert store.request_cancel(session, job.id, "ann").state is JobState.CANCELED


def test_a_job_that_should_stop_is_not_tried_again(session: Session) -> None:
    retried, handed_back, lost = (start(session, lease_s=-1).id for _ in range(3))
    for job_id in (retried, handed_back, lost):
        store.request_cancel(session, job_id)
    assert store.retry(session, retried, 1, WORKER, "hiccup", "Again.", 5) is Outcome.STOPPED
    assert store.hand_back(session, handed_back, 1, WORKER) is Outcome.STOPPED
    assert [job.id for job in store.rescue(session)] == [lost]
    for job_id in (retried, handed_back, lost):
        assert store.get_job(session, job_id).state is JobState.CANCELED


def test_a_cancel_and_a_claim_at_once_both_count(committed_database: Database) -> None:
    with committed_database.transaction() as session:
        jobs = [submit(session).id for _ in range(8)]
    ready = Barrier(2)

    def cancel(job_id: str) -> None:
        ready.wait(30)
        with committed_database.transaction() as session:
            store.request_cancel(session, job_id)

    def take(job_id: str) -> bool:
        ready.wait(30)
        with committed_database.transaction() as session:
            return store.claim(session, job_id, WORKER, 30) is not None

    with ThreadPoolExecutor(2) as threads:
        for job_id in jobs:
            cancelling, taking = threads.submit(cancel, job_id), threads.submit(take, job_id)
            cancelling.result(30)
            with committed_database.reading() as session:
                job = store.get_job(session, job_id)
            assert job.cancel_requested_at is not None
            assert job.state is (JobState.IN_PROGRESS if taking.result(30) else JobState.CANCELED)


# --- rescue ---


def test_a_job_whose_lease_ran_out_is_queued_again(session: Session) -> None:
    job = submit(session)
    store.mark_published(session, job.id)
    claim(session, job.id, lease_s=-1)
    (rescued,) = store.rescue(session)
    assert (rescued.id, rescued.state, rescued.owner, rescued.published_at) == (
        job.id,
        JobState.QUEUED,
        None,
        None,
    )
    (attempt,) = store.get_attempts(session, job.id)
    assert (attempt.outcome, attempt.error_code) == (Outcome.LOST, "worker_lost")
    last = events_after(session, job.id)[-1]
    assert (last.type, last.payload["reason"]) == ("job.requeued", "lost")


def test_a_job_within_its_lease_is_left_alone(session: Session) -> None:
    start(session, lease_s=30)
    assert store.rescue(session) == []


def test_a_heartbeat_in_time_keeps_the_job(session: Session) -> None:
    job = start(session, lease_s=-1)
    assert store.heartbeat(session, job.id, 1, WORKER, 30)
    assert store.rescue(session) == []


def test_a_job_that_loses_its_worker_on_every_attempt_is_parked(session: Session) -> None:
    job = submit(session, max_attempts=3)
    for _ in range(3):
        claim(session, job.id, lease_s=-1)
        (rescued,) = store.rescue(session)
    assert rescued.state is JobState.FAILED
    assert (rescued.error_code, rescued.attempt) == ("worker_lost", 3)
    assert rescued.error_message is not None
    assert WORKER in rescued.error_message
    assert events(session, job.id).count("job.requeued") == 2


def test_the_oldest_lease_is_rescued_first(session: Session) -> None:
    newer, older = start(session, lease_s=-1), start(session, lease_s=-60)
    assert [job.id for job in store.rescue(session, limit=1)] == [older.id]
    assert [job.id for job in store.rescue(session, limit=1)] == [newer.id]


def test_a_rescue_can_look_from_a_given_time(session: Session) -> None:
    job = start(session, lease_s=30)
    assert [found.id for found in store.rescue(session, datetime.now(UTC) + timedelta(seconds=90))] == [
        job.id
    ]


def test_two_rescues_at_once_move_each_job_once(committed_database: Database) -> None:
    with committed_database.transaction() as session:
        jobs = {start(session, lease_s=-1).id for _ in range(20)}
    ready = Barrier(2)

    def rescue_at_once(_: int) -> list[str]:
        ready.wait(30)
        with committed_database.transaction() as session:
            return [job.id for job in store.rescue(session)]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(rescue_at_once, range(2))
    assert set(first).isdisjoint(second)
    assert set(first) | set(second) <= jobs
    with committed_database.transaction() as session:
        rest = [job.id for job in store.rescue(session)]
        assert set(first) | set(second) | set(rest) == jobs
        assert all(len(events_after(session, job_id)) == 3 for job_id in jobs)


def test_a_rescue_and_a_completion_at_once_leave_one_of_both(committed_database: Database) -> None:
    """A worker that was silent for long finishes while upkeep looks: the job is completed or tried again."""
    with committed_database.transaction() as session:
        jobs = [start(session, lease_s=-1).id for _ in range(12)]
    ready = Barrier(2)

    def rescue_in_turn() -> set[str]:
        found: set[str] = set()
        for _ in jobs:
            ready.wait(30)
            with committed_database.transaction() as session:
                found |= {job.id for job in store.rescue(session, limit=1)}
        return found

    def complete_in_turn() -> set[str]:
        won = set()
        for job_id in jobs:
            ready.wait(30)
            with committed_database.transaction() as session:
                if store.complete(session, job_id, 1, WORKER, [picture(job_id)]):
                    won.add(job_id)
        return won

    with ThreadPoolExecutor(2) as threads:
        rescuing, completing = threads.submit(rescue_in_turn), threads.submit(complete_in_turn)
        rescued, completed = rescuing.result(60), completing.result(60)
    assert rescued.isdisjoint(completed)
    assert rescued | completed == set(jobs)
    with committed_database.transaction() as session:
        assert store.rescue(session, datetime.now(UTC) + timedelta(days=1)) == []
        for job_id in jobs:
            job = store.get_job(session, job_id)
            assert job.state is (JobState.COMPLETED if job_id in completed else JobState.QUEUED)
            assert len(job.artifacts) == (job_id in completed)
            assert [attempt.outcome for attempt in store.get_attempts(session, job_id)] == [
                Outcome.COMPLETED if job_id in completed else Outcome.LOST
            ]


# --- expire ---


def test_a_job_that_nobody_took_in_time_expires(session: Session) -> None:
    late, early = submit(session, queue_timeout_s=-1), submit(session, queue_timeout_s=60)
    assert store.expire(session) == 1
    expired = store.get_job(session, late.id)
    assert expired.state is JobState.EXPIRED
    assert expired.finished_at is not None
    assert events(session, late.id) == ["job.queued", "job.expired"]
    assert store.get_job(session, early.id).state is JobState.QUEUED


def test_a_running_job_does_not_expire(session: Session) -> None:
    start(session, queue_timeout_s=30)
    assert store.expire(session, datetime.now(UTC) + timedelta(minutes=5)) == 0


def test_another_worker_completes_what_the_first_lost(session: Session) -> None:
    job = start(session, lease_s=-1)
    store.rescue(session)
    claim(session, job.id, OTHER_WORKER)
    assert store.complete(session, job.id, 2, OTHER_WORKER, [picture(job.id, 2)])
    done = store.get_job(session, job.id)
    assert [made.key for made in done.artifacts] == [f"jobs/{job.id}/2/0.png"]
    assert not store.complete(session, job.id, 1, WORKER, [picture(job.id, 1)])
    outcomes = [attempt.outcome for attempt in store.get_attempts(session, job.id)]
    assert outcomes == [Outcome.LOST, Outcome.COMPLETED]

"""The moves of a running job: who may make them, and what each leaves behind."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from core import moves, store
from core.db import Database
from core.lifecycle import TERMINAL, JobState, Outcome
from core.tables import Job
from tests.core.jobs import OTHER_WORKER, WORKER, claim, events_after, job_in, picture, start, submit

Leave = Callable[[Session, str, int, str], bool]

WAYS_TO_LEAVE: dict[str, Leave] = {
    "complete": lambda s, j, a, w: store.complete(s, j, a, w, [picture(j, a)], {"total": 1.0}, {}),
    "fail": lambda s, j, a, w: store.fail(s, j, a, w, "broken", "It broke.", retryable=True),
    "retry": lambda s, j, a, w: store.retry(s, j, a, w, "hiccup", "Again.", 0),
    "hand_back": store.hand_back,
    "stopped": lambda s, j, a, w: store.stopped(s, j, a, w, 3),
}

leaving = pytest.mark.parametrize("leave", WAYS_TO_LEAVE.values(), ids=WAYS_TO_LEAVE)


def events(session: Session, job_id: str) -> list[str]:
    return [event.type for event in events_after(session, job_id)]


# --- claim ---


def test_a_claim_starts_the_first_attempt(session: Session) -> None:
    job = start(session)
    assert (job.state, job.attempt, job.owner, job.worker_id) == (JobState.IN_PROGRESS, 1, WORKER, WORKER)
    assert job.started_at is not None
    (attempt,) = store.get_attempts(session, job.id)
    assert (attempt.number, attempt.worker_id, attempt.outcome) == (1, WORKER, None)
    assert events(session, job.id) == ["job.queued", "job.started"]


def test_a_lease_is_counted_from_the_database_clock(session: Session) -> None:
    job = start(session, lease_s=40)
    assert job.lease_until is not None
    assert job.started_at is not None
    assert abs(job.lease_until - job.started_at - timedelta(seconds=40)) < timedelta(seconds=1)


@pytest.mark.parametrize("state", [state for state in JobState if state is not JobState.QUEUED])
def test_only_a_queued_job_can_be_claimed(session: Session, state: JobState) -> None:
    job = job_in(session, state)
    assert store.claim(session, job.id, OTHER_WORKER, 30) is None
    assert store.get_job(session, job.id).state is state


def test_an_unknown_job_cannot_be_claimed(session: Session) -> None:
    assert store.claim(session, "no-such-job", WORKER, 30) is None


def test_a_job_cannot_be_claimed_before_its_time(session: Session) -> None:
    job = start(session)
    store.retry(session, job.id, 1, WORKER, "hiccup", "Again.", 60)
    assert store.claim(session, job.id, WORKER, 30) is None
    session.execute(update(Job).values(run_after=datetime.now(UTC) - timedelta(seconds=1)))
    assert claim(session, job.id).attempt == 2


def test_a_job_cannot_be_claimed_after_its_start_deadline(session: Session) -> None:
    job = submit(session, queue_timeout_s=-1)
    assert store.claim(session, job.id, WORKER, 30) is None


def test_the_start_deadline_ends_with_the_first_start(session: Session) -> None:
    job = start(session, queue_timeout_s=30)
    session.execute(update(Job).values(queue_deadline_at=datetime.now(UTC) - timedelta(seconds=1)))
    store.hand_back(session, job.id, 1, WORKER)
    assert store.expire(session) == 0
    assert claim(session, job.id).attempt == 2


def test_ten_workers_at_once_claim_a_job_once(committed_database: Database) -> None:
    with committed_database.transaction() as session:
        job_id = submit(session).id
    ready = Barrier(10)

    def claim_at_once(number: int) -> bool:
        ready.wait(30)
        with committed_database.transaction() as session:
            return store.claim(session, job_id, f"worker-{number}", 30) is not None

    with ThreadPoolExecutor(10) as threads:
        assert sum(threads.map(claim_at_once, range(10))) == 1
    with committed_database.reading() as session:
        assert len(store.get_attempts(session, job_id)) == 1
        assert store.get_job(session, job_id).attempt == 1


# --- heartbeat ---


def test_a_heartbeat_extends_the_lease_and_notes_the_progress(session: Session) -> None:
    job = start(session, lease_s=1)
    before = job.lease_until
    beat = store.heartbeat(session, job.id, 1, WORKER, 60, 5, 24)
    assert beat is not None
    assert before is not None
    assert beat.lease_until > before + timedelta(seconds=50)
    assert not beat.cancel_requested
    kept = store.get_job(session, job.id)
    assert (kept.progress_step, kept.progress_steps) == (5, 24)


def test_a_heartbeat_without_progress_keeps_the_progress(session: Session) -> None:
    job = start(session)
    store.heartbeat(session, job.id, 1, WORKER, 30, 5, 24)
    store.heartbeat(session, job.id, 1, WORKER, 30)
    assert store.get_job(session, job.id).progress_step == 5


def test_a_heartbeat_tells_of_the_wish_to_cancel(session: Session) -> None:
    job = start(session)
    store.request_cancel(session, job.id)
    beat = store.heartbeat(session, job.id, 1, WORKER, 30)
    assert beat is not None
    assert beat.cancel_requested


@pytest.mark.parametrize(("attempt", "worker"), [(1, OTHER_WORKER), (2, WORKER), (0, WORKER)])
def test_a_heartbeat_of_another_attempt_finds_the_lease_lost(
    session: Session, attempt: int, worker: str
) -> None:
    job = start(session)
    assert store.heartbeat(session, job.id, attempt, worker, 30, 1, 2) is None
    assert store.get_job(session, job.id).progress_step is None


# --- leaving ---


def test_a_completed_job_shows_its_files_and_figures(session: Session) -> None:
    job = start(session)
    files = [picture(job.id, 1, 0), picture(job.id, 1, 1)]
    assert store.complete(session, job.id, 1, WORKER, files, {"total": 12.5}, {"cached_steps": 3})
    done = store.get_job(session, job.id)
    assert done.state is JobState.COMPLETED
    assert done.finished_at is not None
    assert (done.owner, done.lease_until, done.worker_id) == (None, None, WORKER)
    assert (done.timings_ms, done.acceleration) == ({"total": 12.5}, {"cached_steps": 3})
    assert [(made.index, made.key, made.seed) for made in done.artifacts] == [
        (0, f"jobs/{job.id}/1/0.png", 7),
        (1, f"jobs/{job.id}/1/1.png", 8),
    ]
    assert [attempt.outcome for attempt in store.get_attempts(session, job.id)] == [Outcome.COMPLETED]
    assert events(session, job.id)[-1] == "job.completed"


@pytest.mark.parametrize("beats", [0, 1])
def test_a_completed_job_has_done_all_its_steps(session: Session, beats: int) -> None:
    job = start(session)
    for _ in range(beats):
        store.heartbeat(session, job.id, 1, WORKER, 30, 11, 24)
    store.complete(session, job.id, 1, WORKER, [], {}, {"steps": 24})
    done = store.get_job(session, job.id)
    assert (done.progress_step, done.progress_steps) == (24, 24)


def test_a_failed_job_says_why(session: Session) -> None:
    job = start(session)
    store.heartbeat(session, job.id, 1, WORKER, 30, 4, 24)
    assert store.fail(session, job.id, 1, WORKER, "broken", "It broke.", retryable=False)
    failed = store.get_job(session, job.id)
    assert (failed.error_code, failed.error_message, failed.error_retryable) == ("broken", "It broke.", False)
    (attempt,) = store.get_attempts(session, job.id)
    assert (attempt.outcome, attempt.error_code, attempt.step) == (Outcome.FAILED, "broken", 4)
    assert events(session, job.id)[-1] == "job.failed"


def test_an_error_text_that_a_database_cannot_hold_still_ends_the_job(session: Session) -> None:
    job = start(session)
    assert store.fail(session, job.id, 1, WORKER, "broken", "a\0b \ud800 " + "x" * 5000, retryable=False)
    kept = store.get_job(session, job.id).error_message
    assert kept is not None
    assert kept.startswith("ab ? xxx")
    assert len(kept) == moves.MAX_MESSAGE


def test_a_retried_job_is_queued_again_unsent_and_without_progress(session: Session) -> None:
    job = submit(session)
    store.mark_published(session, job.id)
    claim(session, job.id)
    store.heartbeat(session, job.id, 1, WORKER, 30, 4, 24)
    assert store.retry(session, job.id, 1, WORKER, "hiccup", "Again.", 20)
    again = store.get_job(session, job.id)
    assert again.state is JobState.QUEUED
    assert (again.owner, again.lease_until, again.published_at) == (None, None, None)
    assert (again.progress_step, again.error_code, again.attempt) == (None, None, 1)
    assert again.run_after is not None
    assert abs(again.run_after - again.queued_at - timedelta(seconds=20)) < timedelta(seconds=1)
    (attempt,) = store.get_attempts(session, job.id)
    assert (attempt.outcome, attempt.error_code, attempt.step) == (Outcome.RETRIED, "hiccup", 4)
    assert store.attempts_with_code(session, job.id, "hiccup") == 1
    last = events_after(session, job.id)[-1]
    assert (last.type, last.payload["reason"], last.payload["code"]) == ("job.requeued", "retried", "hiccup")


def test_a_retry_after_the_last_attempt_fails_the_job(session: Session) -> None:
    job = start(session, max_attempts=1)
    assert store.retry(session, job.id, 1, WORKER, "hiccup", "Again.", 0) is Outcome.FAILED
    failed = store.get_job(session, job.id)
    assert (failed.state, failed.error_code) == (JobState.FAILED, "hiccup")


def test_attempts_that_were_handed_back_do_not_count(session: Session) -> None:
    job = submit(session, max_attempts=2)
    for attempt in (1, 2, 3):
        claim(session, job.id)
        assert store.hand_back(session, job.id, attempt, WORKER)
    assert claim(session, job.id).attempt == 4
    assert store.retry(session, job.id, 4, WORKER, "hiccup", "Again.", 0)
    assert store.get_job(session, job.id).state is JobState.QUEUED
    last = claim(session, job.id)
    assert (last.attempt, last.counted_attempts) == (5, 2)
    assert store.retry(session, job.id, 5, WORKER, "hiccup", "Again.", 0)
    assert store.get_job(session, job.id).state is JobState.FAILED
    outcomes = [attempt.outcome for attempt in store.get_attempts(session, job.id)]
    assert outcomes == [Outcome.HANDED_BACK] * 3 + [Outcome.RETRIED, Outcome.FAILED]


def test_the_next_attempt_may_run_at_once_after_a_hand_back(session: Session) -> None:
    job = start(session)
    store.retry(session, job.id, 1, WORKER, "hiccup", "Again.", 60)
    session.execute(update(Job).values(run_after=datetime.now(UTC)))
    claim(session, job.id)
    store.hand_back(session, job.id, 2, WORKER)
    assert claim(session, job.id).attempt == 3


@leaving
@pytest.mark.parametrize(("attempt", "worker"), [(1, OTHER_WORKER), (2, WORKER)])
def test_nobody_else_can_end_an_attempt(session: Session, leave: Leave, attempt: int, worker: str) -> None:
    job = start(session)
    told = events(session, job.id)
    assert not leave(session, job.id, attempt, worker)
    kept = store.get_job(session, job.id)
    assert (kept.state, kept.owner, kept.artifacts) == (JobState.IN_PROGRESS, WORKER, [])
    assert events(session, job.id) == told


@leaving
def test_a_late_worker_changes_nothing_after_a_rescue(session: Session, leave: Leave) -> None:
    job = start(session, lease_s=-1)
    store.rescue(session)
    assert not leave(session, job.id, 1, WORKER)
    assert store.get_job(session, job.id).state is JobState.QUEUED
    claim(session, job.id, OTHER_WORKER)
    assert not leave(session, job.id, 1, WORKER)
    assert not leave(session, job.id, 2, WORKER)
    assert store.get_job(session, job.id).owner == OTHER_WORKER


@leaving
@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_terminal_state_never_changes(session: Session, leave: Leave, state: JobState) -> None:
    job = job_in(session, state)
    before = (job.state, job.finished_at, len(job.artifacts), events(session, job.id))
    assert not leave(session, job.id, job.attempt, WORKER)
    assert store.claim(session, job.id, WORKER, 30) is None
    assert store.rescue(session, datetime.now(UTC) + timedelta(days=9)) == []
    assert store.expire(session, datetime.now(UTC) + timedelta(days=9)) == 0
    after = store.get_job(session, job.id)
    assert (after.state, after.finished_at, len(after.artifacts), events(session, job.id)) == before


@leaving
def test_an_attempt_ends_once(session: Session, leave: Leave) -> None:
    job = start(session)
    assert leave(session, job.id, 1, WORKER)
    assert not any(other(session, job.id, 1, WORKER) for other in WAYS_TO_LEAVE.values())


def test_two_endings_at_once_leave_one_result(committed_database: Database) -> None:
    with committed_database.transaction() as session:
        jobs = [start(session).id for _ in range(5)]
    ready = Barrier(2)

    def end(name: str) -> list[bool]:
        won = []
        for job_id in jobs:
            ready.wait(30)
            with committed_database.transaction() as session:
                won.append(WAYS_TO_LEAVE[name](session, job_id, 1, WORKER) is not None)
        return won

    with ThreadPoolExecutor(2) as threads:
        completed, failed = threads.map(end, ("complete", "fail"))
    assert [one + other for one, other in zip(completed, failed, strict=True)] == [1] * 5
    with committed_database.reading() as session:
        for job_id, won in zip(jobs, completed, strict=True):
            job = store.get_job(session, job_id)
            assert (job.state is JobState.COMPLETED) == won
            assert len(job.artifacts) == won
            assert len(events_after(session, job_id)) == 3


def test_what_an_error_interrupts_leaves_no_trace(committed_database: Database) -> None:
    with committed_database.transaction() as session:
        job_id = start(session).id
    with pytest.raises(RuntimeError), committed_database.transaction() as session:  # noqa: PT012
        store.complete(session, job_id, 1, WORKER, [picture(job_id)])
        raise RuntimeError
    with committed_database.reading() as session:
        job = store.get_job(session, job_id)
        assert (job.state, job.artifacts) == (JobState.IN_PROGRESS, [])
        assert events(session, job_id) == ["job.queued", "job.started"]

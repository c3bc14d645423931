"""Takes back what a killed child left: a new child of the same worker does this before it loads.

A worker has one child at a time and its id is new at each boot, so a job that this worker owns while its new
child has not begun belongs to a dead one. It need not wait for its lease to run out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import select

from core import store
from core.clock import now
from core.lifecycle import JobState
from core.log import get_logger
from core.tables import Attempt, Job
from policy.retry import classify
from tasks.outbox import send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.orm import Session

    from core.db import Database
    from core.settings import Settings

RUN_TIMEOUT = "run_timeout"

_log = get_logger()


def settle(
    database: Database, settings: Settings, worker_id: str, words: tuple[str, str] | None = None
) -> None:
    """End or queue again every job that the worker still owns; a lost attempt counts.

    Args:
        database: Where they stand.
        settings: Where their ids are sent.
        worker_id: The worker.
        words: Code and message that the dead child left, which its attempt then ends with.
    """
    for job in _after(database, worker_id, partial(_lose, words=words)):
        _log.warning("job.lost_with_child", job_id=job.id, attempt=job.attempt, state=job.state)
        if job.state == JobState.QUEUED and job.run_after is None:
            send(database, settings, job)


def hand_back(database: Database, settings: Settings, worker_id: str) -> None:
    """Queue again, uncounted, every job that the worker still owns; for one whose child is gone for good."""
    for job in _after(database, worker_id, _return):
        _log.info("job.handed_back", job_id=job.id, attempt=job.attempt)
        if job.state == JobState.QUEUED:
            send(database, settings, job)


def _after(database: Database, worker_id: str, move: Callable[[Session, Job], object]) -> Iterator[Job]:
    """Each in a transaction of its own: a dead pass may leave many, and rescue locks the same rows."""
    with database.transaction() as session:
        ids = session.scalars(select(Job.id).where(Job.owner == worker_id).order_by(Job.id)).all()
    for job_id in ids:
        with database.transaction() as session:
            job = session.scalars(select(Job).where(Job.id == job_id, Job.owner == worker_id)).one_or_none()
            if job is None:
                continue
            move(session, job)
            session.refresh(job)
        yield job


def _lose(session: Session, job: Job, words: tuple[str, str] | None) -> None:
    if job.cancel_requested_at is None and _ran_too_long(session, job):
        message = f"The attempt ran longer than its limit of {job.run_timeout_s:g} s and had to be killed."
        store.fail(session, job.id, job.attempt, str(job.owner), RUN_TIMEOUT, message, retryable=False)
        return
    if job.cancel_requested_at is None and words is not None:
        _end(session, job, *words)
        return
    # A lease that ends now is one that rescue takes back: one rule for jobs that lost their worker.
    store.heartbeat(session, job.id, job.attempt, str(job.owner), lease_s=0.0)
    store.rescue(session)


def _end(session: Session, job: Job, code: str, message: str) -> None:
    """As an attempt ends that could do so itself (`tasks.ends.fail`)."""
    attempt = (session, job.id, job.attempt, str(job.owner))
    earlier = store.attempts_with_code(session, job.id, code)
    verdict = classify(code, job.counted_attempts, job.max_attempts, earlier)
    if verdict.kind == "fail":
        store.fail(*attempt, code, message, retryable=True)
    else:
        store.retry(*attempt, code, message, verdict.delay_s)


def _ran_too_long(session: Session, job: Job) -> bool:
    """Whether its own work took too long; that of a pass that it shared says nothing about it."""
    if job.run_timeout_s is None:
        return False
    mine = (Attempt.job_id == job.id, Attempt.number == job.attempt)
    late = (Attempt.started_at < now(-job.run_timeout_s)) & Attempt.pass_of.is_(None)
    return session.scalars(select(late).where(*mine)).one()


def _return(session: Session, job: Job) -> None:
    store.hand_back(session, job.id, job.attempt, str(job.owner))

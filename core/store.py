"""The moves of a job, each one guarded UPDATE with its event in the same transaction.

No row back from the UPDATE means that somebody else moved the job first; the functions then return None or
False, and the caller drops what it holds. A move of a running attempt names the attempt's number and its
worker, so a late worker changes nothing; it returns how the attempt ended. All times are the database's.

``core.moves`` carries them out. Functions take a session first and never commit: ``Database.transaction``
does, once, at its end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core import events, moves
from core.artifacts import NewArtifact
from core.clock import now
from core.errors import AlreadyFinished
from core.idempotency import find_earlier, forget_idempotency_keys, keep_key
from core.lifecycle import CANCEL_REQUESTED, MOVES, TERMINAL, JobState, Outcome
from core.queries import (
    attempts_with_code,
    count_by_state,
    count_queued,
    find_artifact,
    find_job,
    get_attempts,
    get_job,
    list_jobs,
    orphaned_keys,
    queue_position,
    queued_ids,
    unpublished,
)
from core.tables import Artifact, Attempt, Job

__all__ = [
    "Beat",
    "NewArtifact",
    "attempts_with_code",
    "claim",
    "complete",
    "count_by_state",
    "count_queued",
    "expire",
    "fail",
    "find_artifact",
    "find_job",
    "forget_idempotency_keys",
    "get_attempts",
    "get_job",
    "hand_back",
    "heartbeat",
    "list_jobs",
    "mark_published",
    "orphaned_keys",
    "queue_position",
    "queued_ids",
    "request_cancel",
    "rescue",
    "retry",
    "stopped",
    "submit",
    "unpublished",
]

WORKER_LOST = "worker_lost"
"""Error code of an attempt that ended without a word from its worker."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a heartbeat learned."""

    cancel_requested: bool
    lease_until: datetime


# --- submit ---------------------------------------------------------------------------------------------


def submit(
    session: Session,
    *,
    request: Mapping[str, Any],
    plan: Mapping[str, Any],
    model: str,
    priority: int = 3,
    caller: str = "local",
    metadata: Mapping[str, str] | None = None,
    queue_timeout_s: float | None = None,
    run_timeout_s: float | None = None,
    max_attempts: int = 3,
    idempotency: tuple[str, str] | None = None,
    inputs: Mapping[str, str] | None = None,
) -> tuple[Job, bool]:
    """Insert a queued job, and with it the record of its idempotency key.

    Args:
        session: The unit of work.
        request: What the caller asked for.
        plan: The same with every gap filled.
        model: Id of the model.
        priority: 0 goes first.
        caller: Whose job it is.
        metadata: The caller's own words, kept as they are.
        queue_timeout_s: The first attempt must start within this time.
        run_timeout_s: Longest time of one attempt.
        max_attempts: Counted attempts before the job is parked.
        idempotency: Key and fingerprint of the request. The same pair again gives the first job.
        inputs: Ids of the files that it draws from, by field of the request.

    Returns:
        The job, and whether it is an earlier one.

    Raises:
        IdempotencyMismatch: The key was used with another fingerprint, or for a batch.
    """
    if (earlier := find_earlier(session, caller, idempotency, "job")) is not None:
        return get_job(session, earlier, caller), True
    columns = {
        "caller": caller,
        "model": model,
        "priority": priority,
        "request": dict(request),
        "plan": dict(plan),
        "metadata_": dict(metadata or {}),
        "max_attempts": max_attempts,
        "queue_deadline_at": None if queue_timeout_s is None else now(queue_timeout_s),
        "run_timeout_s": run_timeout_s,
    }
    try:
        with session.begin_nested():
            job = moves.make_job(session, inputs or {}, **columns)
            keep_key(session, caller, idempotency, job_id=job.id)
    except IntegrityError:
        # Somebody else inserted this key between our look and our insert; the insert waited for its commit.
        if (earlier := find_earlier(session, caller, idempotency, "job")) is None:
            raise
        return get_job(session, earlier, caller), True
    return job, False


def mark_published(session: Session, job_id: str, attempt: int | None = None) -> bool:
    """Note that the job's id was sent; ``attempt`` (as read before sending) keeps a later requeue unsent."""
    guards = [Job.id == job_id, Job.state == JobState.QUEUED]
    if attempt is not None:
        guards.append(Job.attempt == attempt)
    return moves.update_job(session, guards, published_at=now()) is not None


# --- the worker's moves ---------------------------------------------------------------------------------


def claim(
    session: Session, job_id: str, worker_id: str, lease_s: float, pass_of: str | None = None
) -> Job | None:
    """Take a queued job: one more attempt, owned by ``worker_id`` for ``lease_s`` seconds.

    ``pass_of`` is the job whose pass it is to share. None when it is unknown, taken, finished, held by its
    batch, not to run yet, or past its start deadline.
    """
    job = moves.move(
        session,
        "claim",
        job_id,
        ~Job.held,
        or_(Job.run_after.is_(None), Job.run_after <= now()),
        or_(Job.started_at.is_not(None), Job.queue_deadline_at.is_(None), Job.queue_deadline_at > now()),
        attempt=Job.attempt + 1,
        owner=worker_id,
        worker_id=worker_id,
        lease_until=now(lease_s),
        started_at=func.coalesce(Job.started_at, now()),
    )
    if job is None:
        return None
    session.add(Attempt(job_id=job.id, number=job.attempt, worker_id=worker_id, pass_of=pass_of))
    events.append(session, job.id, MOVES["claim"].event, {"attempt": job.attempt, "worker": worker_id})
    return job


def heartbeat(
    session: Session,
    job_id: str,
    attempt: int,
    worker_id: str,
    lease_s: float,
    step: int | None = None,
    steps: int | None = None,
) -> Beat | None:
    """Extend the lease and note the progress; None when the job is no longer this attempt's."""
    progress = {} if step is None else {"progress_step": step, "progress_steps": steps}
    guards = [Job.id == job_id, Job.state == JobState.IN_PROGRESS, *moves.held_by(attempt, worker_id)]
    job = moves.update_job(session, guards, lease_until=now(lease_s), **progress)
    if job is None or job.lease_until is None:
        return None
    return Beat(job.cancel_requested_at is not None, job.lease_until)


def complete(
    session: Session,
    job_id: str,
    attempt: int,
    worker_id: str,
    artifacts: Sequence[NewArtifact],
    timings_ms: Mapping[str, float] | None = None,
    acceleration: Mapping[str, Any] | None = None,
) -> Outcome | None:
    """Make the attempt's files visible and the job completed; None when somebody else won.

    A wish to cancel that comes after the last step is too late.
    """
    held = moves.lock(session, job_id, attempt, worker_id)
    made: dict[str, Any] = {"timings_ms": dict(timings_ms or {}), "acceleration": dict(acceleration or {})}
    # A short job ends before its first beat has told of any step.
    if held is not None and (steps := held.progress_steps or made["acceleration"].get("steps")):
        made |= {"progress_step": steps, "progress_steps": steps}
    ending = moves.Ending(Outcome.COMPLETED)
    told = {"artifacts": len(artifacts)}
    if held is None or not (ended := moves.leave(session, "complete", held, ending, told, **made)):
        return None
    session.add_all(Artifact(job_id=job_id, attempt=attempt, **asdict(artifact)) for artifact in artifacts)
    session.flush()
    return ended


def fail(
    session: Session, job_id: str, attempt: int, worker_id: str, code: str, message: str, *, retryable: bool
) -> Outcome | None:
    """End the job with an error; None when somebody else won.

    ``retryable`` tells the caller whether the same request may succeed another time. A job that may, but has
    no attempt left for it, is parked.
    """
    held = moves.lock(session, job_id, attempt, worker_id)
    if held is None:
        return None
    used_up = retryable and held.counted_attempts >= held.max_attempts
    ending = moves.Ending(Outcome.FAILED, code, moves.clean(message))
    return moves.fail(session, "park" if used_up else "fail", held, ending, retryable=retryable)


def retry(
    session: Session, job_id: str, attempt: int, worker_id: str, code: str, message: str, delay_s: float
) -> Outcome | None:
    """Queue the job again after a counted attempt, not before ``delay_s``; None when somebody else won.

    A job that was to be cancelled is canceled instead, and one without attempts left fails.
    """
    held = moves.lock(session, job_id, attempt, worker_id)
    if held is None:
        return None
    return moves.again(
        session, "retry", held, moves.Ending(Outcome.RETRIED, code, moves.clean(message)), delay_s
    )


def hand_back(
    session: Session,
    job_id: str,
    attempt: int,
    worker_id: str,
    code: str | None = None,
    message: str | None = None,
) -> Outcome | None:
    """Queue the job again, uncounted; None when somebody else won.

    The worker stops, or the pass that the job shared with others failed, with ``code`` and ``message``. A job
    that was to be cancelled is canceled instead.
    """
    held = moves.lock(session, job_id, attempt, worker_id)
    if held is None:
        return None
    if held.cancel_requested_at is not None:
        return moves.stop(session, held, moves.Ending(Outcome.STOPPED), held.progress_step)
    ending = moves.Ending(Outcome.HANDED_BACK, code, None if message is None else moves.clean(message))
    return moves.requeue(session, "hand_back", held, ending, hand_backs=Job.hand_backs + 1)


def stopped(session: Session, job_id: str, attempt: int, worker_id: str, step: int | None) -> Outcome | None:
    """End a running job as canceled, stopped after ``step`` steps; None when somebody else won."""
    held = moves.lock(session, job_id, attempt, worker_id)
    return None if held is None else moves.stop(session, held, moves.Ending(Outcome.STOPPED), step)


# --- the caller's and upkeep's moves --------------------------------------------------------------------


def request_cancel(session: Session, job_id: str, caller: str | None = None) -> Job:
    """Cancel a queued job at once; note the wish for a running one, which stops at its next step.

    Raises:
        NotFound: There is no such job, or it is another caller's.
        AlreadyFinished: It is terminal.
    """
    job = moves.lock_any(session, job_id, caller)
    if job.state in TERMINAL:
        raise AlreadyFinished(f"The job {job_id} has already finished: it is {job.state}.")
    attempt = {"attempt": job.attempt}
    if job.state == JobState.QUEUED:
        if moves.move(session, "cancel", job_id, cancel_requested_at=now()) is not None:
            events.append(session, job_id, MOVES["cancel"].event, attempt)
    elif job.cancel_requested_at is None:
        guards = [Job.id == job_id, Job.state == JobState.IN_PROGRESS]
        if moves.update_job(session, guards, cancel_requested_at=now()) is not None:
            events.append(session, job_id, CANCEL_REQUESTED, attempt)
    return get_job(session, job_id, caller)


def rescue(session: Session, at: datetime | None = None, limit: int = 100) -> list[Job]:
    """Take back the jobs whose lease has run out, as of ``at`` (default: the database's now).

    Each becomes queued; or failed with ``worker_lost`` when its attempts are used up; or canceled when that
    was wished. Returns the moved jobs; those that are queued want sending.
    """
    overdue = select(Job).where(Job.state == JobState.IN_PROGRESS, Job.lease_until <= (at or now()))
    locked = overdue.order_by(Job.lease_until).limit(limit).with_for_update(skip_locked=True)
    jobs = session.scalars(locked.execution_options(populate_existing=True)).all()
    return [job for job in jobs if moves.again(session, "rescue", job, _lost(job))]


def _lost(job: Job) -> "moves.Ending":
    message = (
        f"Attempt {job.attempt} ended without a word from the worker {job.owner}: its process was killed or "
        "crashed, or its host went away. The worker's log may say why."
    )
    return moves.Ending(Outcome.LOST, WORKER_LOST, message)


def expire(session: Session, at: datetime | None = None, limit: int = 1000) -> int:
    """End the queued jobs that no worker took before their start deadline; returns how many."""
    overdue = select(Job.id).where(
        Job.state == JobState.QUEUED, Job.started_at.is_(None), Job.queue_deadline_at <= (at or now())
    )
    ids = session.scalars(overdue.limit(limit).with_for_update(skip_locked=True)).all()
    moved = [job_id for job_id in ids if moves.move(session, "expire", job_id, Job.started_at.is_(None))]
    for job_id in moved:
        events.append(session, job_id, MOVES["expire"].event, {})
    return len(moved)

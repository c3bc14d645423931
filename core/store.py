"""The moves of a job, each one guarded UPDATE with its event in the same transaction.

No row back from the UPDATE means that somebody else moved the job first; the functions then return None or
False, and the caller drops what it holds. A move of a running attempt names the attempt's number and its
worker, so a late worker changes nothing. All times are the database's.

Functions take a session first and never commit: ``Database.transaction`` does, once, at its end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core import events
from core.artifacts import NewArtifact
from core.clock import now
from core.errors import AlreadyFinished, IdempotencyMismatch, NotFound
from core.ids import new_id
from core.lifecycle import CANCEL_REQUESTED, MOVES, TERMINAL, JobState, Outcome
from core.queries import (
    Page,
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
from core.tables import Artifact, Attempt, IdempotencyKey, Job

__all__ = [
    "Beat",
    "NewArtifact",
    "Page",
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

MAX_MESSAGE = 2000
"""Longest error text that is kept, in characters."""

WORKER_LOST = "worker_lost"
"""Error code of an attempt whose worker was not heard of any more."""


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

    Returns:
        The job, and whether it is an earlier one.

    Raises:
        IdempotencyMismatch: The key was used with another fingerprint.
    """
    if idempotency is not None and (earlier := _replayed(session, caller, *idempotency)) is not None:
        return earlier, True
    job = Job(
        id=new_id(),
        caller=caller,
        model=model,
        state=JobState.QUEUED,
        priority=priority,
        request=dict(request),
        plan=dict(plan),
        metadata_=dict(metadata or {}),
        max_attempts=max_attempts,
        queue_deadline_at=None if queue_timeout_s is None else now(queue_timeout_s),
        run_timeout_s=run_timeout_s,
        artifacts=[],
    )
    try:
        with session.begin_nested():
            _insert(session, job, idempotency)
    except IntegrityError:
        # Somebody else inserted this key between our look and our insert; the insert waited for its commit.
        if idempotency is None or (earlier := _replayed(session, caller, *idempotency)) is None:
            raise
        return earlier, True
    return job, False


def _insert(session: Session, job: Job, idempotency: tuple[str, str] | None) -> None:
    session.add(job)
    session.flush()
    session.refresh(
        job, ["queue_deadline_at"]
    )  # computed by the database; the defaults come back by themselves
    if idempotency is not None:
        key, fingerprint = idempotency
        session.add(IdempotencyKey(caller=job.caller, key=key, fingerprint=fingerprint, job_id=job.id))
    events.append(session, job.id, MOVES["submit"].event, {"model": job.model, "priority": job.priority})


def _replayed(session: Session, caller: str, key: str, fingerprint: str) -> Job | None:
    record = session.get(IdempotencyKey, (caller, key), populate_existing=True)
    if record is None:
        return None
    if record.fingerprint != fingerprint:
        raise IdempotencyMismatch(f"The idempotency key {key!r} was used before with another request.")
    return get_job(session, record.job_id, caller)


def mark_published(session: Session, job_id: str, attempt: int | None = None) -> bool:
    """Note that the job's id was sent; ``attempt`` (as read before sending) keeps a later requeue unsent."""
    guards = [Job.id == job_id, Job.state == JobState.QUEUED]
    if attempt is not None:
        guards.append(Job.attempt == attempt)
    return _update(session, guards, published_at=now()) is not None


def forget_idempotency_keys(session: Session, older_than_s: float) -> int:
    """Remove the keys of submissions that long ago; returns how many. Their jobs stay."""
    old = IdempotencyKey.created_at <= now(-older_than_s)
    removed = session.scalars(delete(IdempotencyKey).where(old).returning(IdempotencyKey.key))
    return len(removed.all())


# --- the worker's moves ---------------------------------------------------------------------------------


def claim(session: Session, job_id: str, worker_id: str, lease_s: float) -> Job | None:
    """Take a queued job: one more attempt, owned by ``worker_id`` for ``lease_s`` seconds.

    None when it is unknown, taken, finished, not to run yet, or past its start deadline.
    """
    job = _move(
        session,
        "claim",
        job_id,
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
    session.add(Attempt(job_id=job.id, number=job.attempt, worker_id=worker_id))
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
    guards = [Job.id == job_id, Job.state == JobState.IN_PROGRESS, *_held_by(attempt, worker_id)]
    job = _update(session, guards, lease_until=now(lease_s), **progress)
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
) -> bool:
    """Make the attempt's files visible and the job completed; False when somebody else won.

    A wish to cancel that comes after the last step is too late.
    """
    held = _lock(session, job_id, attempt, worker_id)
    made: dict[str, Any] = {"timings_ms": dict(timings_ms or {}), "acceleration": dict(acceleration or {})}
    # A short job ends before its first beat has told of any step.
    if held is not None and (steps := held.progress_steps or made["acceleration"].get("steps")):
        made |= {"progress_step": steps, "progress_steps": steps}
    ending = _Ending(Outcome.COMPLETED)
    if held is None or not _leave(session, "complete", held, ending, {"artifacts": len(artifacts)}, **made):
        return False
    session.add_all(Artifact(job_id=job_id, attempt=attempt, **asdict(artifact)) for artifact in artifacts)
    session.flush()
    return True


def fail(
    session: Session, job_id: str, attempt: int, worker_id: str, code: str, message: str, *, retryable: bool
) -> bool:
    """End the job with an error; False when somebody else won.

    ``retryable`` tells the caller whether the same request may succeed another time.
    """
    held = _lock(session, job_id, attempt, worker_id)
    ending = _Ending(Outcome.FAILED, code, _clean(message))
    return held is not None and _fail(session, "fail", held, ending, retryable=retryable)


def retry(
    session: Session, job_id: str, attempt: int, worker_id: str, code: str, message: str, delay_s: float
) -> bool:
    """Queue the job again after a counted attempt, not before ``delay_s``; False when somebody else won.

    A job that was to be cancelled is canceled instead, and one without attempts left fails.
    """
    held = _lock(session, job_id, attempt, worker_id)
    return held is not None and _again(
        session, "retry", held, _Ending(Outcome.RETRIED, code, _clean(message)), delay_s
    )


def hand_back(session: Session, job_id: str, attempt: int, worker_id: str) -> bool:
    """Queue the job again, uncounted, because the worker stops; False when somebody else won.

    A job that was to be cancelled is canceled instead.
    """
    held = _lock(session, job_id, attempt, worker_id)
    if held is None:
        return False
    if held.cancel_requested_at is not None:
        return _stop(session, held, _Ending(Outcome.STOPPED), held.progress_step)
    ending = _Ending(Outcome.HANDED_BACK)
    return _requeue(session, "hand_back", held, ending, hand_backs=Job.hand_backs + 1)


def stopped(session: Session, job_id: str, attempt: int, worker_id: str, step: int | None) -> bool:
    """End a running job as canceled, stopped after ``step`` steps; False when somebody else won."""
    held = _lock(session, job_id, attempt, worker_id)
    return held is not None and _stop(session, held, _Ending(Outcome.STOPPED), step)


# --- the caller's and upkeep's moves --------------------------------------------------------------------


def request_cancel(session: Session, job_id: str, caller: str | None = None) -> Job:
    """Cancel a queued job at once; note the wish for a running one, which stops at its next step.

    Raises:
        NotFound: There is no such job, or it is another caller's.
        AlreadyFinished: It is terminal.
    """
    job = _lock_any(session, job_id, caller)
    if job.state in TERMINAL:
        raise AlreadyFinished(f"The job {job_id} has already finished: it is {job.state}.")
    attempt = {"attempt": job.attempt}
    if job.state == JobState.QUEUED:
        if _move(session, "cancel", job_id, cancel_requested_at=now()) is not None:
            events.append(session, job_id, MOVES["cancel"].event, attempt)
    elif job.cancel_requested_at is None:
        guards = [Job.id == job_id, Job.state == JobState.IN_PROGRESS]
        if _update(session, guards, cancel_requested_at=now()) is not None:
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
    return [job for job in jobs if _again(session, "rescue", job, _lost(job))]


def _lost(job: Job) -> "_Ending":
    message = f"The worker {job.owner} was not heard of any more during attempt {job.attempt}."
    return _Ending(Outcome.LOST, WORKER_LOST, message)


def expire(session: Session, at: datetime | None = None, limit: int = 1000) -> int:
    """End the queued jobs that no worker took before their start deadline; returns how many."""
    overdue = select(Job.id).where(
        Job.state == JobState.QUEUED, Job.started_at.is_(None), Job.queue_deadline_at <= (at or now())
    )
    ids = session.scalars(overdue.limit(limit).with_for_update(skip_locked=True)).all()
    moved = [job_id for job_id in ids if _move(session, "expire", job_id, Job.started_at.is_(None))]
    for job_id in moved:
        events.append(session, job_id, MOVES["expire"].event, {})
    return len(moved)


# --- parts of a move ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Ending:
    """How an attempt ends."""

    outcome: Outcome
    code: str | None = None
    message: str | None = None


def _again(session: Session, name: str, held: Job, ending: _Ending, delay_s: float = 0.0) -> bool:
    """Queue a running job for one more attempt, unless it was to be cancelled or none is left."""
    if held.cancel_requested_at is not None:
        return _stop(session, held, ending, held.progress_step)
    if held.counted_attempts >= held.max_attempts:
        return _fail(session, "park", held, ending, retryable=True)
    return _requeue(session, name, held, ending, delay_s)


def _requeue(
    session: Session, name: str, held: Job, ending: _Ending, delay_s: float = 0.0, **values: object
) -> bool:
    run_after = now(delay_s) if delay_s > 0 else None
    told = {"reason": ending.outcome, "code": ending.code, "delay_s": delay_s}
    return _leave(session, name, held, ending, told, run_after=run_after, **values)


def _stop(session: Session, held: Job, ending: _Ending, step: int | None) -> bool:
    return _leave(session, "stop", held, ending, {"step": step}, stopped_at_step=step)


def _fail(session: Session, name: str, held: Job, ending: _Ending, *, retryable: bool) -> bool:
    error = {"error_code": ending.code, "error_message": ending.message, "error_retryable": retryable}
    return _leave(session, name, held, ending, {"code": ending.code}, **error)


def _leave(
    session: Session, name: str, held: Job, ending: _Ending, told: Mapping[str, object], **values: object
) -> bool:
    """Carry out a move that ends the running attempt: the job, the attempt and the event."""
    attempt, step = held.attempt, held.progress_step
    if _move(session, name, held.id, *_held_by(attempt, held.owner), **values) is None:
        return False
    session.execute(
        update(Attempt)
        .where(Attempt.job_id == held.id, Attempt.number == attempt)
        .values(
            outcome=ending.outcome,
            error_code=ending.code,
            error_message=ending.message,
            step=step,
            finished_at=now(),
        ),
        execution_options={"synchronize_session": False},
    )
    events.append(session, held.id, MOVES[name].event, {"attempt": attempt, **told})
    return True


def _move(
    session: Session, name: str, job_id: str, *guards: ColumnElement[bool], **values: object
) -> Job | None:
    """Carry out one arrow of the picture, if the job still stands at its tail and every guard holds."""
    move = MOVES[name]
    stands = [Job.id == job_id, Job.state == move.source, *guards]
    return _update(session, stands, state=move.target, **(_fields_of(move.target) | values))


def _fields_of(state: JobState) -> dict[str, object]:
    """Return the columns that follow from the state alone."""
    fresh: dict[str, object] = {"progress_step": None, "progress_steps": None}
    if state is JobState.IN_PROGRESS:
        return fresh
    released: dict[str, object] = {"owner": None, "lease_until": None}
    if state in TERMINAL:
        return released | {"finished_at": now()}
    return released | fresh | {"queued_at": now(), "published_at": None}


def _update(session: Session, guards: Sequence[ColumnElement[bool]], **values: object) -> Job | None:
    statement = update(Job).where(*guards).values(**values).returning(Job)
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(statement, execution_options=options).one_or_none()


def _held_by(attempt: int, worker_id: str | None) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return Job.attempt == attempt, Job.owner == worker_id


def _lock(session: Session, job_id: str, attempt: int, worker_id: str) -> Job | None:
    """Hold the row, so that the decision taken from it is still true when the move is made."""
    held = [Job.id == job_id, Job.state == JobState.IN_PROGRESS, *_held_by(attempt, worker_id)]
    locked = select(Job).where(*held).with_for_update()
    return session.scalars(locked.execution_options(populate_existing=True)).one_or_none()


def _lock_any(session: Session, job_id: str, caller: str | None) -> Job:
    statement = select(Job).where(Job.id == job_id)
    if caller is not None:
        statement = statement.where(Job.caller == caller)
    locked = statement.with_for_update().execution_options(populate_existing=True)
    job = session.scalars(locked).one_or_none()
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    return job


def _clean(message: str) -> str:
    """Return a text that both databases can keep: no NUL, no lone surrogate, not endless."""
    return message.replace("\0", "").encode("utf-8", "replace").decode()[:MAX_MESSAGE]

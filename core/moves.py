"""What every move of a job is made of: one guarded UPDATE, the end of its attempt, and the event of it.

The only module that writes rows of ``jobs``; ``core.store`` and ``core.batches`` say which move, here it is
carried out. No row back from the UPDATE means that somebody else moved the job first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, insert, select, update
from sqlalchemy.orm import Session

from core import events, files
from core.clock import now
from core.errors import NotFound
from core.ids import new_id
from core.lifecycle import CANCEL_REQUESTED, MOVES, TERMINAL, JobState, Outcome
from core.tables import Attempt, Event, Job

MAX_MESSAGE = 2000
"""Longest error text that is kept, in characters."""
CHUNK = 500
"""Rows of one statement that inserts many."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ends."""

    outcome: Outcome
    code: str | None = None
    message: str | None = None


def again(session: Session, name: str, running: Job, ending: Ending, delay_s: float = 0.0) -> Outcome | None:
    """Queue a running job for one more attempt, unless it was to be cancelled or none is left."""
    if running.cancel_requested_at is not None:
        return stop(session, running, _last(ending, Outcome.STOPPED), running.progress_step)
    if running.counted_attempts >= running.max_attempts:
        return fail(session, "park", running, _last(ending, Outcome.FAILED), retryable=True)
    return requeue(session, name, running, ending, delay_s)


def _last(ending: Ending, outcome: Outcome) -> Ending:
    """The ending of an attempt that no other follows: it was not retried."""
    return replace(ending, outcome=outcome) if ending.outcome is Outcome.RETRIED else ending


def requeue(
    session: Session, name: str, running: Job, ending: Ending, delay_s: float = 0.0, **values: object
) -> Outcome | None:
    run_after = now(delay_s) if delay_s > 0 else None
    # A job of a batch waits for its batch, which may be paused, or closed for the day by now.
    values = {"held": Job.batch_id.is_not(None), **values}
    told = {"reason": ending.outcome, "code": ending.code, "delay_s": delay_s}
    return leave(session, name, running, ending, told, run_after=run_after, **values)


def stop(session: Session, running: Job, ending: Ending, step: int | None) -> Outcome | None:
    return leave(session, "stop", running, ending, {"step": step}, stopped_at_step=step)


def fail(session: Session, name: str, running: Job, ending: Ending, *, retryable: bool) -> Outcome | None:
    error = {"error_code": ending.code, "error_message": ending.message, "error_retryable": retryable}
    parked = name == "park"
    told = {"code": ending.code, "parked": parked}
    return leave(session, name, running, ending, told, parked=parked, **error)


def leave(
    session: Session, name: str, running: Job, ending: Ending, told: Mapping[str, object], **values: object
) -> Outcome | None:
    """Carry out a move that ends the running attempt: the job, the attempt and the event.

    Returns how the attempt ended; None when somebody else moved the job first.
    """
    attempt, step = running.attempt, running.progress_step
    if move(session, name, running.id, *held_by(attempt, running.owner), **values) is None:
        return None
    session.execute(
        update(Attempt)
        .where(Attempt.job_id == running.id, Attempt.number == attempt)
        .values(
            outcome=ending.outcome,
            error_code=ending.code,
            error_message=ending.message,
            step=step,
            finished_at=now(),
        ),
        execution_options={"synchronize_session": False},
    )
    events.append(session, running.id, MOVES[name].event, {"attempt": attempt, **told})
    return ending.outcome


def move(
    session: Session, name: str, job_id: str, *guards: ColumnElement[bool], **values: object
) -> Job | None:
    """Carry out one arrow of the picture, if the job still stands at its tail and every guard holds."""
    arrow = MOVES[name]
    stands = [Job.id == job_id, Job.state == arrow.source, *guards]
    return update_job(session, stands, state=arrow.target, **(_fields_of(arrow.target) | values))


def make_job(session: Session, inputs: Mapping[str, str], **columns: Any) -> Job:  # noqa: ANN401 - columns
    """Insert one queued job with its event; ``inputs`` are ids of the files that it draws from, by field.

    One that repeats another draws from the files of that one.
    """
    job = Job(id=new_id(), state=JobState.QUEUED, artifacts=[], **columns)
    session.add(job)
    session.flush()
    session.refresh(job, ["queue_deadline_at"])  # the database computed it
    files.link_jobs(session, {job.id: inputs})
    if job.requeued_from is not None:
        files.repeat_links(session, [job.id])
    events.append(session, job.id, MOVES["submit"].event, {"model": job.model, "priority": job.priority})
    return job


def make_held_jobs(session: Session, rows: Iterable[Mapping[str, Any]]) -> None:
    """Insert many queued jobs of a batch, held until the batch releases them; ids rise with the rows.

    ``rows`` are read a few at a time: a plan is larger than the line it was made of. ``inputs`` in a row are
    the ids of the files that it draws from, by field.
    """
    following = iter(rows)
    while some := list(islice(following, CHUNK)):
        _insert_held(session, some)


def _insert_held(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    ids = sorted(new_id() for _ in rows)
    fresh = {"state": JobState.QUEUED, "held": True, "attempt": 0, "hand_backs": 0}
    made = [{"id": job_id, **fresh, **row} for job_id, row in zip(ids, rows, strict=True)]
    told = [
        {
            "job_id": job["id"],
            "type": MOVES["submit"].event,
            "payload": {"model": job["model"], "priority": job["priority"], "batch": job["batch_id"]},
        }
        for job in made
    ]
    inputs = {job["id"]: job.pop("inputs", {}) for job in made}
    session.execute(insert(Job), made)
    session.execute(insert(Event), told)
    files.link_jobs(session, inputs)
    files.repeat_links(session, [job["id"] for job in made if job.get("requeued_from")])


def release(session: Session, ids: Sequence[str]) -> Sequence[Job]:
    """Let the held jobs be sent and claimed; returns those that were held, by row."""
    held = [Job.id.in_(ids), Job.state == JobState.QUEUED, Job.held.is_(True)]
    released = _update_jobs(session, held, held=False, queued_at=now(), published_at=None)
    return sorted(released, key=lambda job: job.batch_row or 0)  # RETURNING has no order of its own


def hold(session: Session, batch_id: str) -> int:
    """Keep the queued jobs of a batch from being claimed, also those whose id was sent already."""
    queued = [Job.batch_id == batch_id, ~Job.superseded, Job.state == JobState.QUEUED, ~Job.held]
    return len(_update_rows(session, queued, held=True, published_at=None))


def supersede(session: Session, batch_id: str, states: Sequence[JobState]) -> Sequence[Job]:
    """Mark the current jobs of a batch in these terminal states as ordered again; returns them."""
    ended = [Job.batch_id == batch_id, Job.state.in_(states), ~Job.superseded]
    return _update_jobs(session, ended, superseded=True)


def supersede_job(session: Session, job_id: str) -> None:
    """Mark one job of a batch as ordered again."""
    update_job(session, [Job.id == job_id], superseded=True)


def cancel_batch_jobs(session: Session, batch_id: str) -> None:
    """Cancel the queued jobs of a batch, and note the wish for those that run."""
    arrow, current = MOVES["cancel"], [Job.batch_id == batch_id, ~Job.superseded]
    fields = _fields_of(arrow.target) | {"cancel_requested_at": now()}
    # Held first, so that one that is handed back, retried or claimed just now is not missed.
    live = select(Job.id).where(*current, Job.state.not_in(TERMINAL)).order_by(Job.id)
    session.execute(live.with_for_update()).all()
    queued = [*current, Job.state == arrow.source]
    canceled = _update_rows(session, queued, state=arrow.target, **fields)
    running = [*current, Job.state == JobState.IN_PROGRESS, Job.cancel_requested_at.is_(None)]
    wished = _update_rows(session, running, cancel_requested_at=now())
    rows = [
        {"job_id": job_id, "type": type_, "payload": {"attempt": attempt}}
        for moved, type_ in ((canceled, arrow.event), (wished, CANCEL_REQUESTED))
        for job_id, attempt in moved
    ]
    for start in range(0, len(rows), CHUNK):
        session.execute(insert(Event), rows[start : start + CHUNK])


def _fields_of(state: JobState) -> dict[str, object]:
    """Return the columns that follow from the state alone."""
    fresh: dict[str, object] = {"progress_step": None, "progress_steps": None}
    if state is JobState.IN_PROGRESS:
        return fresh
    released: dict[str, object] = {"owner": None, "lease_until": None}
    if state in TERMINAL:
        return released | {"finished_at": now(), "held": False}
    return released | fresh | {"queued_at": now(), "published_at": None}


def update_job(session: Session, guards: Sequence[ColumnElement[bool]], **values: object) -> Job | None:
    statement = update(Job).where(*guards).values(**values).returning(Job)
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(statement, execution_options=options).one_or_none()


def _update_jobs(session: Session, guards: Sequence[ColumnElement[bool]], **values: object) -> Sequence[Job]:
    statement = update(Job).where(*guards).values(**values).returning(Job)
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(statement, execution_options=options).all()


def _update_rows(
    session: Session, guards: Sequence[ColumnElement[bool]], **values: object
) -> list[tuple[str, int]]:
    """Update many rows and return id and attempt of each; their requests and plans are not read."""
    statement = update(Job).where(*guards).values(**values).returning(Job.id, Job.attempt)
    found = session.execute(statement, execution_options={"synchronize_session": False})
    return [(job_id, attempt) for job_id, attempt in found]


def held_by(attempt: int, worker_id: str | None) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return Job.attempt == attempt, Job.owner == worker_id


def lock(session: Session, job_id: str, attempt: int, worker_id: str) -> Job | None:
    """Hold the row, so that the decision taken from it is still true when the move is made."""
    held = [Job.id == job_id, Job.state == JobState.IN_PROGRESS, *held_by(attempt, worker_id)]
    locked = select(Job).where(*held).with_for_update()
    return session.scalars(locked.execution_options(populate_existing=True)).one_or_none()


def lock_any(session: Session, job_id: str, caller: str | None) -> Job:
    statement = select(Job).where(Job.id == job_id)
    if caller is not None:
        statement = statement.where(Job.caller == caller)
    locked = statement.with_for_update().execution_options(populate_existing=True)
    job = session.scalars(locked).one_or_none()
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    return job


def clean(message: str) -> str:
    """Return a text that both databases can keep: no NUL, no lone surrogate, not endless."""
    return message.replace("\0", "").encode("utf-8", "replace").decode()[:MAX_MESSAGE]

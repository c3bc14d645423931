"""Batches: many jobs that one call, or one firing of a schedule, orders together.

All rows are inserted in one transaction, held; ``release`` lets them go in windows, so that single jobs get
between them and pause, resume and cancel touch rows instead of messages. Functions take a session first and
never commit.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Select, case, exists, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, selectinload

from core import moves
from core.clock import now
from core.errors import AlreadyFinished, Conflict, NotFound
from core.idempotency import find_earlier, keep_key
from core.ids import new_id
from core.lifecycle import ENDED_BATCH, TERMINAL, BatchState, JobState
from core.pages import Page, read_page
from core.tables import Batch, Job
from policy.bulk import Order
from policy.request import Priority

PRIORITIES: Mapping[Priority, int] = {"high": 0, "normal": 3, "low": 6}
LIVE: Collection[JobState] = frozenset(JobState) - TERMINAL
LOST_ROWS = (JobState.FAILED, JobState.EXPIRED)
"""States in which a row has no picture and nobody wished it so."""


# --- create ---------------------------------------------------------------------------------------------


def create_batch(
    session: Session,
    *,
    caller: str,
    name: str,
    orders: Sequence[Order],
    template: Mapping[str, Any],
    window: Mapping[str, Any] | None,
    max_attempts: int,
    idempotency: tuple[str, str] | None = None,
    schedule_id: str | None = None,
    due_at: Any = None,  # noqa: ANN401 - a time, or an expression for one
) -> tuple[Batch, bool]:
    """Insert a batch with a held job for each order; nothing is sent before ``release``.

    A row without a priority of its own gets ``low``, so that single jobs go first.

    Returns:
        The batch, and whether it is an earlier one with the same idempotency key.

    Raises:
        IdempotencyMismatch: The key was used with another fingerprint, or for a single job.
    """
    if (earlier := find_earlier(session, caller, idempotency, "batch")) is not None:
        return get_batch(session, earlier, caller), True
    batch = Batch(
        id=new_id(),
        caller=caller,
        name=name,
        state=BatchState.RUNNING,
        template=dict(template),
        total=len(orders),
        window=None if window is None else dict(window),
        schedule_id=schedule_id,
        due_at=due_at,
    )
    try:
        with session.begin_nested():
            session.add(batch)
            session.flush()
            keep_key(session, caller, idempotency, batch_id=batch.id)
            moves.make_held_jobs(session, _rows(session, batch, orders, max_attempts))
    except IntegrityError:
        if (earlier := find_earlier(session, caller, idempotency, "batch")) is None:
            raise
        return get_batch(session, earlier, caller), True
    return batch, False


def _rows(
    session: Session, batch: Batch, orders: Iterable[Order], max_attempts: int
) -> Iterator[dict[str, Any]]:
    at = session.scalars(select(now())).one()
    for order in orders:
        yield {
            "caller": batch.caller,
            "batch_id": batch.id,
            "batch_row": order.row,
            "batch_fields": dict(order.fields),
            "model": order.request.model,
            "priority": PRIORITIES[order.request.priority if "priority" in order.body else "low"],
            "request": dict(order.body),
            "plan": order.plan.model_dump(mode="json"),
            "inputs": order.inputs,
            "metadata_": dict(order.request.metadata),
            "max_attempts": max_attempts,
            "run_timeout_s": order.request.run_timeout_s,
            "queue_deadline_at": _deadline(at, order.request.queue_timeout_s),
            "created_at": at,
            "queued_at": at,
        }


def _deadline(at: Any, seconds: float | None) -> Any:  # noqa: ANN401
    return None if seconds is None else at + timedelta(seconds=seconds)


# --- read -----------------------------------------------------------------------------------------------


def get_batch(session: Session, batch_id: str, caller: str | None = None) -> Batch:
    """Return the batch; NotFound when there is none, or it is another caller's."""
    batch = session.scalars(_one(batch_id, caller)).one_or_none()
    if batch is None:
        raise NotFound(f"There is no batch {batch_id}.")
    return batch


def fields_of_rows(session: Session, batch_id: str) -> dict[int, dict[str, Any]]:
    """Return what each row of the batch said, by its number."""
    rows = select(Job.batch_row, Job.batch_fields).where(Job.batch_id == batch_id).order_by(Job.batch_row)
    return {row: fields or {} for row, fields in session.execute(rows) if row is not None}


def list_batches(
    session: Session,
    *,
    caller: str | None = None,
    status: BatchState | None = None,
    schedule: str | None = None,
    limit: int = 20,
    after: str | None = None,
) -> Page[Batch]:
    """Return up to ``limit`` batches, newest first, that are older than the batch ``after``.

    Raises:
        InvalidQuery: ``limit`` is not within 1 to 100, or ``after`` is not a batch of this caller.
    """
    filters = {Batch.state: status, Batch.schedule_id: schedule}
    return read_page(
        session,
        Batch,
        Batch.created_at,
        within=[] if caller is None else [Batch.caller == caller],
        wanted=[column == value for column, value in filters.items() if value is not None],
        limit=limit,
        after=after,
    )


def count_jobs(session: Session, batch_ids: Collection[str]) -> dict[str, dict[JobState, int]]:
    """Return for each batch how many of its rows are in each state, with 0 for the states that have none."""
    statement = (
        select(Job.batch_id, Job.state, func.count())
        .where(Job.batch_id.in_(batch_ids), ~Job.superseded)
        .group_by(Job.batch_id, Job.state)
    )
    counts = {batch_id: dict.fromkeys(JobState, 0) for batch_id in batch_ids}
    for batch_id, state, count in session.execute(statement):
        if batch_id is not None:
            counts[batch_id][JobState(state)] = count
    return counts


def batch_jobs(session: Session, batch_id: str, after_row: int = 0, limit: int = 500) -> Sequence[Job]:
    """Return up to ``limit`` current jobs of the batch with their artifacts, by row, after ``after_row``."""
    statement = (
        select(Job)
        .where(Job.batch_id == batch_id, ~Job.superseded, Job.batch_row > after_row)
        .order_by(Job.batch_row)
        .limit(limit)
        .options(selectinload(Job.artifacts))
    )
    return session.scalars(statement.execution_options(populate_existing=True)).all()


# --- the caller's moves ---------------------------------------------------------------------------------


def pause(session: Session, batch_id: str, caller: str | None = None) -> Batch:
    """Let no further job of the batch start; those that run go on to their end.

    Raises:
        AlreadyFinished: It has ended, or is about to end since it was cancelled.
    """
    batch = _lock_live(session, batch_id, caller)
    moves.hold(session, batch.id)
    return _set(session, batch, BatchState.PAUSED)


def resume(session: Session, batch_id: str, caller: str | None = None) -> Batch:
    """Let a paused batch go on; one that runs stays as it is."""
    return _set(session, _lock_live(session, batch_id, caller), BatchState.RUNNING)


def cancel(session: Session, batch_id: str, caller: str | None = None) -> Batch:
    """Cancel every queued job of the batch at once and ask the running ones to stop.

    The batch itself is canceled when the last of them has stopped.
    """
    batch = _lock_live(session, batch_id, caller, again=True)
    moves.cancel_batch_jobs(session, batch.id)
    if batch.cancel_requested_at is None:
        _set(session, batch, batch.state, cancel_requested_at=now())
    close_finished(session, [batch.id])
    return get_batch(session, batch_id, caller)


def retry_failed(session: Session, batch_id: str, caller: str | None = None) -> tuple[Batch, int]:
    """Order the rows that failed or expired again, as new jobs with the same plan; returns how many.

    The batch runs again, also when it had ended. The failed jobs stay as they are and count no more.

    Raises:
        Conflict: No row has failed, or the batch was cancelled.
    """
    batch = lock_batch(session, batch_id, caller)
    check_repeatable(batch)
    lost = moves.supersede(session, batch.id, LOST_ROWS)
    if not lost:
        raise Conflict(f"The batch {batch_id} has no row that failed or expired.")
    return repeat(session, batch, lost), len(lost)


def check_repeatable(batch: Batch) -> None:
    """Refuse to order rows of a cancelled batch again, with Conflict."""
    if batch.cancel_requested_at is not None:
        raise Conflict(f"The batch {batch.id} was cancelled: order its rows as a new batch.")


def repeat(
    session: Session,
    batch: Batch,
    superseded: Sequence[Job],
    limits: Mapping[str, float] = MappingProxyType({}),
) -> Batch:
    """Order these rows of the batch again, held like any other; the batch runs again if it had ended.

    ``limits`` as for `same_order`.
    """
    at = session.scalars(select(now())).one()
    in_order = sorted(superseded, key=lambda job: job.batch_row or 0)
    moves.make_held_jobs(session, [same_order(job, at, limits) for job in in_order])
    state = batch.state if batch.state not in ENDED_BATCH else BatchState.RUNNING
    return _set(session, batch, state, finished_at=None, retries=Batch.retries + 1)


def same_order(job: Job, at: datetime, limits: Mapping[str, float] = MappingProxyType({})) -> dict[str, Any]:
    """Return the columns of a job that repeats ``job``; its start deadline counts anew.

    ``limits`` replace its seconds of waiting and running, under the names that they have in a request.
    """
    waited = None if job.queue_deadline_at is None else job.queue_deadline_at - job.created_at
    if "queue_timeout_s" in limits:
        waited = timedelta(seconds=limits["queue_timeout_s"])
    same = ("caller", "batch_id", "batch_row", "batch_fields", "model", "priority", "plan")
    kept = {name: getattr(job, name) for name in (*same, "metadata_", "max_attempts")}
    return {
        **kept,
        "request": {**job.request, **limits},
        "run_timeout_s": limits.get("run_timeout_s", job.run_timeout_s),
        "requeued_from": job.id,
        "queue_deadline_at": None if waited is None else at + waited,
        "created_at": at,
        "queued_at": at,
    }


# --- the feeder's moves ---------------------------------------------------------------------------------


def live_batches(session: Session, batch_id: str | None = None) -> Sequence[Batch]:
    """Return the batches that have not ended, oldest first; or the one named, if it has not."""
    statement = select(Batch).where(Batch.state.not_in(ENDED_BATCH)).order_by(Batch.created_at, Batch.id)
    if batch_id is not None:
        statement = statement.where(Batch.id == batch_id)
    return session.scalars(statement.execution_options(populate_existing=True)).all()


def release(session: Session, batch_id: str, room: Mapping[str, int]) -> Sequence[Job]:
    """Let the next held rows of a running batch be sent, so that ``room[model]`` jobs are under way.

    Returns:
        The released jobs, to be sent; empty when the batch is not running any more.
    """
    batch = session.scalars(_one(batch_id, None).with_for_update()).one_or_none()
    if batch is None or batch.state != BatchState.RUNNING or batch.cancel_requested_at is not None:
        return ()
    under_way = _count_under_way(session, batch_id)
    return [
        job
        for model, wanted in room.items()
        if (free := wanted - under_way.get(model, 0)) > 0
        for job in moves.release(session, _next_held(session, batch_id, model, free))
    ]


def hold(session: Session, batch_id: str) -> int:
    """Take back the queued jobs of the batch that were released; returns how many."""
    return moves.hold(session, batch_id)


def waiting_models(session: Session, batch_id: str) -> Sequence[str]:
    """Return the models of which the batch still holds rows."""
    held = select(Job.model).where(Job.batch_id == batch_id, Job.state == JobState.QUEUED, Job.held.is_(True))
    return session.scalars(held.distinct().order_by(Job.model)).all()


def close_finished(session: Session, batch_ids: Collection[str] | None = None) -> Sequence[Batch]:
    """End the batches whose last job has ended; returns them. Safe for any number of callers at a time.

    To be called after the end of a job is committed: two that end at once may each see the other running.
    """
    current = (Job.batch_id == Batch.id, ~Job.superseded)
    ended_so = case(
        (Batch.cancel_requested_at.is_not(None), BatchState.CANCELED),
        (exists().where(*current, Job.state.in_(LOST_ROWS)), BatchState.FAILED),
        (exists().where(*current, Job.state == JobState.COMPLETED), BatchState.COMPLETED),
        else_=BatchState.CANCELED,
    )
    over = [Batch.state.not_in(ENDED_BATCH), ~exists().where(*current, Job.state.in_(LIVE))]
    if batch_ids is not None:
        over.append(Batch.id.in_(batch_ids))
    # First the locks, then a statement of its own: one that has waited for a lock looks again, in PostgreSQL,
    # at the locked row only, and would not see the jobs that a retry has inserted meanwhile.
    found = session.scalars(select(Batch.id).where(*over).order_by(Batch.id).with_for_update()).all()
    if not found:
        return []
    chosen = [Batch.id.in_(found), *over]
    statement = update(Batch).where(*chosen).values(state=ended_so, finished_at=now()).returning(Batch)
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(statement, execution_options=options).all()


def _count_under_way(session: Session, batch_id: str) -> dict[str, int]:
    released = or_(Job.state == JobState.IN_PROGRESS, (Job.state == JobState.QUEUED) & ~Job.held)
    statement = select(Job.model, func.count()).where(Job.batch_id == batch_id, released).group_by(Job.model)
    return {row.model: row[1] for row in session.execute(statement)}


def _next_held(session: Session, batch_id: str, model: str, count: int) -> Sequence[str]:
    held: tuple[ColumnElement[bool], ...] = (
        Job.batch_id == batch_id,
        Job.model == model,
        Job.state == JobState.QUEUED,
        Job.held.is_(True),
        or_(Job.run_after.is_(None), Job.run_after <= now()),
    )
    return session.scalars(select(Job.id).where(*held).order_by(Job.batch_row).limit(count)).all()


# --- parts ----------------------------------------------------------------------------------------------


def _one(batch_id: str, caller: str | None) -> Select[Batch]:
    statement = select(Batch).where(Batch.id == batch_id)
    if caller is not None:
        statement = statement.where(Batch.caller == caller)
    return statement.execution_options(populate_existing=True)


def lock_batch(session: Session, batch_id: str, caller: str | None) -> Batch:
    """Hold the row of a batch; NotFound when there is none, or it is another caller's."""
    batch = session.scalars(_one(batch_id, caller).with_for_update()).one_or_none()
    if batch is None:
        raise NotFound(f"There is no batch {batch_id}.")
    return batch


def _lock_live(session: Session, batch_id: str, caller: str | None, *, again: bool = False) -> Batch:
    """Hold the row of a batch that has not ended; ``again`` takes one that is being cancelled, too."""
    batch = lock_batch(session, batch_id, caller)
    if batch.state in ENDED_BATCH:
        raise AlreadyFinished(f"The batch {batch_id} has already ended: it is {batch.state}.")
    if batch.cancel_requested_at is not None and not again:
        raise AlreadyFinished(f"The batch {batch_id} is being cancelled.")
    return batch


def _set(session: Session, batch: Batch, state: BatchState, **values: object) -> Batch:
    statement = update(Batch).where(Batch.id == batch.id).values(state=state, **values).returning(Batch)
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(statement, execution_options=options).one()

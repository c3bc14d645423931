"""The rows of the workers: who is there, what it prepares, whether it can take a job."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from core.clock import now
from core.errors import NotFound
from core.lifecycle import ENDED_WORKER, WorkerState
from core.tables import Worker

__all__ = [
    "MISSED_BEATS",
    "WorkerChanges",
    "WorkerState",
    "count_idle",
    "count_jobs",
    "count_places",
    "count_ready",
    "forget_ended",
    "get_worker",
    "heard_within_s",
    "list_workers",
    "mark_gone",
    "note_step",
    "register_worker",
    "taking_within_s",
    "tell_shapes",
    "update_worker",
]


MISSED_BEATS = 6
"""Beats that a worker may miss before it counts as gone."""


def heard_within_s(heartbeat_s: float) -> float:
    """Return how long ago a worker may have been heard of and still count as there."""
    return heartbeat_s * MISSED_BEATS


TAKING_BEATS = 3
"""Beats after which a silent worker is not counted on for the next job."""
LEAST_TAKING_S = 10.0
"""It is counted on for so long at least: on a busy machine beats of a second come late."""


def taking_within_s(heartbeat_s: float) -> float:
    """Return how long ago a worker may have been heard of and still be counted on to take a job.

    A killed one shows in nothing but its silence. No job depends on it, so this may be sooner, and wrong more
    often, than `heard_within_s`.
    """
    return min(heard_within_s(heartbeat_s), max(heartbeat_s * TAKING_BEATS, LEAST_TAKING_S))


class WorkerChanges(TypedDict, total=False):
    """Columns that ``update_worker`` writes."""

    child_pid: int | None
    state: WorkerState
    policy: Mapping[str, Any]
    preparation: Sequence[Mapping[str, Any]]
    device: Mapping[str, Any]
    error: str | None
    current_job_id: str | None
    jobs_done: int


def register_worker(
    session: Session,
    *,
    worker_id: str,
    name: str,
    host: str,
    pid: int,
    model: str,
    queue: str,
    policy: Mapping[str, Any],
    device: Mapping[str, Any],
    child_pid: int | None = None,
) -> Worker:
    """Insert the row of one boot of a worker, in state ``loading``."""
    worker = Worker(
        id=worker_id,
        name=name,
        host=host,
        pid=pid,
        child_pid=child_pid,
        model=model,
        queue=queue,
        state=WorkerState.LOADING,
        policy=dict(policy),
        preparation=[],
        device=dict(device),
    )
    session.add(worker)
    session.flush()
    return worker


def update_worker(session: Session, worker_id: str, **changes: Unpack[WorkerChanges]) -> bool:
    """Write the given columns and count it as a heartbeat; False when there is no such worker.

    The first change to ``ready`` sets ``ready_at``.
    """
    values: dict[str, Any] = dict(changes) | {"heartbeat_at": now()}
    if changes.get("state") == WorkerState.READY:
        values["ready_at"] = func.coalesce(Worker.ready_at, now())
    return _update(session, worker_id, **values)


def note_step(session: Session, worker_id: str, step: Mapping[str, Any]) -> bool:
    """Add a step of the preparation, or replace the one of the same ``name`` that had only started."""
    worker = session.get(Worker, worker_id, populate_existing=True, with_for_update=True)
    if worker is None:
        return False
    kept = [old for old in worker.preparation if old["name"] != step["name"]]
    return update_worker(session, worker_id, preparation=[*kept, dict(step)])


def tell_shapes(
    session: Session,
    worker_id: str,
    warm: Sequence[str] | None,
    cold: Mapping[str, int] | None,
    note: str | None,
) -> bool:
    """Write which shapes run compiled, and which requests had that do not; None where all run alike."""
    return _update(
        session,
        worker_id,
        warm_shapes=None if warm is None else list(warm),
        cold_requests=None if cold is None else dict(cold),
        shapes_note=note,
    )


def count_jobs(session: Session, worker_id: str, count: int = 1) -> bool:
    """Count so many more finished attempts of the worker, which now holds no job."""
    return _update(session, worker_id, jobs_done=Worker.jobs_done + count, current_job_id=None)


def list_workers(session: Session, *, model: str | None = None, ended: bool = True) -> Sequence[Worker]:
    """Return the workers, newest first; ``ended`` False leaves out those that failed or are gone."""
    statement = select(Worker).order_by(Worker.started_at.desc(), Worker.id.desc())
    if model is not None:
        statement = statement.where(Worker.model == model)
    if not ended:
        statement = statement.where(Worker.state.not_in(ENDED_WORKER))
    return session.scalars(statement.execution_options(populate_existing=True)).all()


def get_worker(session: Session, worker_id: str) -> Worker:
    """Return one worker; NotFound when there is none."""
    worker = session.get(Worker, worker_id, populate_existing=True)
    if worker is None:
        raise NotFound(f"There is no worker {worker_id}.")
    return worker


def count_ready(session: Session, model: str | None = None, *, within_s: float) -> int:
    """Return how many workers can take a job and were heard of within that many seconds.

    ``taking_within_s`` gives them from the interval of the heartbeat.
    """
    statement = select(func.count()).where(
        Worker.state == WorkerState.READY, Worker.heartbeat_at > now(-within_s)
    )
    if model is not None:
        statement = statement.where(Worker.model == model)
    return session.scalars(statement).one()


def count_idle(session: Session, model: str, besides: str, *, within_s: float) -> int:
    """Return how many workers of a model but this one can take a job and hold none."""
    idle = (Worker.state == WorkerState.READY, Worker.current_job_id.is_(None), Worker.id != besides)
    heard = Worker.heartbeat_at > now(-within_s)
    return session.scalars(select(func.count()).where(Worker.model == model, *idle, heard)).one()


def count_places(session: Session, model: str, *, within_s: float) -> int:
    """Return how many jobs the workers that are ready can draw at a time, by their option `microbatch`."""
    ready = (Worker.state == WorkerState.READY, Worker.heartbeat_at > now(-within_s))
    policies = session.scalars(select(Worker.policy).where(Worker.model == model, *ready)).all()
    return sum(_places(policy) for policy in policies)


def _places(policy: Mapping[str, Any]) -> int:
    return int(policy.get("options", {}).get("microbatch", {}).get("value", 1))


def mark_gone(session: Session, older_than_s: float) -> list[str]:
    """Mark the workers not heard of for that long; returns their ids."""
    silent = Worker.heartbeat_at <= now(-older_than_s)
    statement = (
        update(Worker)
        .where(Worker.state.not_in(ENDED_WORKER), silent)
        .values(state=WorkerState.GONE, current_job_id=None)
        .returning(Worker.id)
    )
    return list(session.scalars(statement, execution_options={"synchronize_session": False}))


def forget_ended(session: Session, older_than_s: float) -> int:
    """Remove the rows of workers that failed or are gone and were last heard of that long ago."""
    silent = Worker.heartbeat_at <= now(-older_than_s)
    removed = delete(Worker).where(Worker.state.in_(ENDED_WORKER), silent).returning(Worker.id)
    return len(session.scalars(removed).all())


def _update(session: Session, worker_id: str, **values: object) -> bool:
    statement = update(Worker).where(Worker.id == worker_id).values(**values).returning(Worker.id)
    return (
        session.scalars(statement, execution_options={"synchronize_session": False}).one_or_none() is not None
    )

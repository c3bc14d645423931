"""Orders a job again that failed or expired: a new job with the same request, plan and seed.

A terminal state never changes, so the old job stays what it is. The new one names it, and the database lets
one job name it only.
"""

from collections.abc import Mapping
from types import MappingProxyType

from sqlalchemy import select
from sqlalchemy.orm import Session

from core import batches, moves
from core.clock import now
from core.errors import Conflict, InputGone
from core.files import job_files
from core.queries import find_successor, get_job
from core.tables import Job
from policy.references import PICTURES


def requeue(
    session: Session,
    job_id: str,
    caller: str | None = None,
    limits: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Job, bool]:
    """Make the job that repeats ``job_id``, once; a row of a batch is held by its batch, which runs again.

    ``limits`` are seconds of waiting and running that the new job has instead of those of the old one, under
    the names that they have in a request.

    Returns:
        The new job, and whether an earlier call has made it. One that is not held wants sending.

    Raises:
        NotFound: There is no such job, or it is another caller's.
        Conflict: It did not fail or expire, its batch was cancelled, or an earlier call made the new job with
            other limits.
        InputGone: A single job draws from a picture that is no longer kept.
    """
    batch_id = get_job(session, job_id, caller).batch_id
    # First the batch, then its job: the order in which everybody takes these locks.
    batch = None if batch_id is None else batches.lock_batch(session, batch_id, caller)
    job = moves.lock_any(session, job_id, caller)
    if (successor := find_successor(session, job_id)) is not None:
        made = get_job(session, successor, caller)
        _check_same(made, limits)
        return made, True
    if job.state not in batches.LOST_ROWS:
        raise Conflict(f"Only a job that failed or expired can be requeued; the job {job_id} is {job.state}.")
    if job.superseded:
        raise Conflict(f"The row of the job {job_id} was ordered again already; see its batch {batch_id}.")
    if batch is None:
        at = session.scalars(select(now())).one()
        made = moves.make_job(session, {}, **batches.same_order(job, at, limits))
        _check_inputs(session, made)
        return made, False
    batches.check_repeatable(batch)
    moves.supersede_job(session, job_id)
    batches.repeat(session, batch, [job], limits)
    return get_job(session, str(find_successor(session, job_id)), caller), False


def _check_same(made: Job, limits: Mapping[str, float]) -> None:
    """Refuse limits that the job which is there already does not have; a call that names none takes any."""
    other = {
        name: made.request.get(name) for name, seconds in limits.items() if made.request.get(name) != seconds
    }
    if other:
        has = ", ".join(f"{name} {'unlimited' if it is None else f'{it:g}'}" for name, it in other.items())
        raise Conflict(
            f"The job {made.requeued_from} was ordered again already, as {made.id}, which has {has}: leave "
            "the times out to get that job, or cancel it and send the request anew."
        )


def _check_inputs(session: Session, job: Job) -> None:
    """Refuse, with InputGone, to order what can only fail: a picture that it draws from is not kept."""
    kept = job_files(session, job.id)
    if any(job.plan.get(field) and field not in kept for field in PICTURES):
        raise InputGone

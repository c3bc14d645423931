"""Jobs that share one denoising pass: which of them wait, and how they are claimed beside the one that leads.

Each is claimed, and ends, as a job that is alone does; its attempt names the leader.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core import store
from core.lifecycle import JobState
from core.queries import NEXT, takeable
from core.tables import Attempt, Job


class Led(NamedTuple):
    """Whose pass a job was drawn in, or is."""

    leader: str
    state: JobState
    """Of the job itself."""


def waiting_jobs(session: Session, model: str, limit: int) -> Sequence[Job]:
    """Return queued jobs that a worker of ``model`` could take now, next first."""
    in_order = select(Job).where(*takeable(model)).order_by(Job.priority, Job.created_at, Job.id)
    found = session.scalars(in_order.limit(limit).execution_options(populate_existing=True)).all()
    return sorted(found, key=rank_of)  # by the index first, and then those that were tried before


def rank_of(job: Job) -> int:
    """Return the priority at which a queued job is taken; 0 goes first."""
    return NEXT if job.attempt else job.priority


def claim_mates(
    session: Session,
    leader: Job,
    ids: Sequence[str],
    worker_id: str,
    lease_s: float,
    fit: Callable[[int], int] = lambda free: free,
) -> list[Job]:
    """Claim those of the jobs that still wait for their first attempt, for the pass of ``leader``.

    One that another worker is about to claim is left to it; ``fit`` says how many to take of those that are
    left. Whatever becomes of the transaction, each job is either queued as before or leased.
    """
    fresh = (Job.id.in_(ids), Job.state == JobState.QUEUED, Job.attempt == 0)
    # Held first and without waiting: two workers that take the same jobs along would wait for each other.
    free = set(session.scalars(select(Job.id).where(*fresh).with_for_update(skip_locked=True)))
    wanted = [job_id for job_id in ids if job_id in free][: fit(len(free))]
    claimed = [store.claim(session, job_id, worker_id, lease_s, pass_of=leader.id) for job_id in wanted]
    mates = [job for job in claimed if job is not None]
    if mates:
        mine = (Attempt.job_id == leader.id, Attempt.number == leader.attempt)
        session.execute(update(Attempt).where(*mine).values(pass_of=leader.id))
    return mates


def led(session: Session, job_id: str) -> Led | None:
    """Return in whose pass the latest attempt of a job was, or is; None when it was alone or is unknown."""
    latest = (
        select(Attempt.pass_of, Job.state)
        .join(Job, (Job.id == Attempt.job_id) & (Job.attempt == Attempt.number))
        .where(Job.id == job_id, Attempt.pass_of.is_not(None))
    )
    row = session.execute(latest).one_or_none()
    return None if row is None else Led(str(row[0]), row[1])

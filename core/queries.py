"""What is read: one job, lists, counts, the place in the queue. Nothing here changes a row."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, ColumnExpressionArgument, and_, case, exists, func, or_, select, tuple_
from sqlalchemy.orm import Session, aliased, selectinload

from core.artifacts import parse_key
from core.clock import now
from core.errors import NotFound
from core.lifecycle import JobState, Outcome
from core.pages import Page, read_page
from core.tables import Artifact, Attempt, Job

NEXT = 0
"""Priority at which a job is sent that was tried before: it has waited once."""


def find_job(session: Session, job_id: str, caller: str | None = None) -> Job | None:
    """Return the job with its artifacts; None when there is none, or it is another caller's.

    ``caller`` None sees every job.
    """
    statement = select(Job).where(Job.id == job_id).options(selectinload(Job.artifacts))
    if caller is not None:
        statement = statement.where(Job.caller == caller)
    return session.scalars(statement.execution_options(populate_existing=True)).one_or_none()


def get_job(session: Session, job_id: str, caller: str | None = None) -> Job:
    """Return the job with its artifacts; NotFound when there is none, or it is another caller's."""
    job = find_job(session, job_id, caller)
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    return job


def list_jobs(
    session: Session,
    *,
    caller: str | None = None,
    status: JobState | None = None,
    model: str | None = None,
    batch: str | None = None,
    parked: bool | None = None,
    requeued: bool | None = None,
    limit: int = 20,
    after: str | None = None,
) -> Page[Job]:
    """Return up to ``limit`` jobs, newest first, that are older than the job ``after``.

    Raises:
        InvalidQuery: ``limit`` is not within 1 to 100, or ``after`` is not a job of this caller.
    """
    within = [] if caller is None else [Job.caller == caller]
    wanted: list[ColumnExpressionArgument[bool]] = []
    if status is not None:
        wanted.append(Job.state == status)
    if model is not None:
        wanted.append(Job.model == model)
    if batch is not None:
        wanted += [Job.batch_id == batch, ~Job.superseded]
    if parked is not None:
        wanted.append(Job.parked if parked else ~Job.parked)
    if requeued is not None:
        repeats = aliased(Job)
        ordered_again = exists().where(repeats.requeued_from == Job.id)
        wanted.append(ordered_again if requeued else ~ordered_again)
    return read_page(
        session,
        Job,
        Job.created_at,
        within=within,
        wanted=wanted,
        limit=limit,
        after=after,
        options=[selectinload(Job.artifacts)],
    )


def count_by_state(
    session: Session, *, caller: str | None = None, model: str | None = None
) -> dict[JobState, int]:
    """Return how many jobs are in each state, with 0 for the states that have none."""
    statement = select(Job.state, func.count()).group_by(Job.state)
    if caller is not None:
        statement = statement.where(Job.caller == caller)
    if model is not None:
        statement = statement.where(Job.model == model)
    found = {JobState(state): count for state, count in session.execute(statement)}
    return {state: found.get(state, 0) for state in JobState}


def queue_position(session: Session, job: Job) -> int | None:
    """Return the place of a queued job among those of its model, 1 being the next; None when not in it."""
    if job.state != JobState.QUEUED or job.held:
        return None
    rank = case((Job.attempt > 0, NEXT), else_=Job.priority)
    own_rank = NEXT if job.attempt else job.priority
    goes_before = or_(
        rank < own_rank,
        and_(
            rank == own_rank,
            tuple_(Job.created_at, Job.id) < tuple_(job.created_at, job.id),
        ),
    )
    statement = select(func.count()).where(
        Job.state == JobState.QUEUED, Job.model == job.model, ~Job.held, goes_before
    )
    return 1 + session.scalars(statement).one()


def count_queued(session: Session, model: str) -> int:
    """Return how many queued jobs of ``model`` a worker could take now."""
    return session.scalars(select(func.count()).where(*takeable(model))).one()


def queued_ids(session: Session, model: str, limit: int, published_before_s: float = 0.0) -> Sequence[str]:
    """Return ids of queued jobs that a worker could take now, next first.

    ``published_before_s`` leaves out those whose id was sent within that many seconds.
    """
    sent_long_ago = or_(Job.published_at.is_(None), Job.published_at <= now(-published_before_s))
    statement = select(Job.id).where(*takeable(model), sent_long_ago)
    in_order = statement.order_by(Job.priority, Job.created_at, Job.id).limit(limit)
    return session.scalars(in_order).all()


def takeable(model: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of a queued job that a worker of ``model`` could take now."""
    return (
        Job.state == JobState.QUEUED,
        Job.model == model,
        ~Job.held,
        or_(Job.run_after.is_(None), Job.run_after <= now()),
    )


def unpublished(session: Session, older_than_s: float, limit: int = 100) -> Sequence[Job]:
    """Return queued jobs whose id was not sent since they became queued, at least ``older_than_s`` ago.

    The wait leaves the submitting process time to send it itself. A job that may not run yet is left out.
    """
    statement = select(Job).where(
        Job.state == JobState.QUEUED,
        Job.published_at.is_(None),
        ~Job.held,
        Job.queued_at <= now(-older_than_s),
        or_(Job.run_after.is_(None), Job.run_after <= now()),
    )
    return session.scalars(statement.order_by(Job.queued_at, Job.id).limit(limit)).all()


def get_attempts(session: Session, job_id: str) -> Sequence[Attempt]:
    """Return the job's attempts, first to latest."""
    return session.scalars(select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number)).all()


def find_successor(session: Session, job_id: str) -> str | None:
    """Return the id of the job that repeats this one; None when it was not requeued."""
    return session.scalars(select(Job.id).where(Job.requeued_from == job_id)).one_or_none()


def attempts_with_code(session: Session, job_id: str, code: str) -> int:
    """Return how many attempts of the job ended with this error; those that do not count are left out."""
    own = (Attempt.job_id == job_id, Attempt.error_code == code, Attempt.outcome != Outcome.HANDED_BACK)
    statement = select(func.count()).where(*own)
    return session.scalars(statement).one()


def find_artifact(session: Session, job_id: str, index: int) -> Artifact | None:
    """Return one visible file of a job."""
    return session.get(Artifact, (job_id, index))


def orphaned_keys(session: Session, keys: Sequence[str]) -> list[str]:
    """Return those of ``keys`` that a known job's attempt has left behind: it is over and did not complete.

    Left alone are keys that are not an attempt's file, and those of a job or an attempt that the database
    does not know: it may be a copy from before, or not the one that the files belong to.
    """
    owners = {key: parts for key in keys if (parts := parse_key(key)) is not None}
    job_ids = {parts.job_id for parts in owners.values()}
    jobs = session.execute(select(Job.id, Job.attempt, Job.state).where(Job.id.in_(job_ids)))
    # The number of the latest attempt that is over.
    over = {row.id: row.attempt - (row.state == JobState.IN_PROGRESS) for row in jobs}
    # Read after the jobs: each statement of PostgreSQL sees what was committed before it, and the files of a
    # job that completes between the two are to be seen with it.
    kept = set(session.scalars(select(Artifact.key).where(Artifact.key.in_(owners))))
    kept |= set(session.scalars(select(Artifact.thumbnail_key).where(Artifact.job_id.in_(job_ids))))
    return [
        key
        for key, parts in owners.items()
        if key not in kept and parts.job_id in over and parts.attempt <= over[parts.job_id]
    ]

"""Rows for the tests: a job in any state, moved there by the store itself."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from core import store
from core.artifacts import NewArtifact, artifact_key
from core.lifecycle import JobState
from core.tables import Event, Job

WORKER = "01900000-0000-7000-8000-00000000000a"
OTHER_WORKER = "01900000-0000-7000-8000-00000000000b"


def submit(session: Session, **given: object) -> Job:
    """Submit a job of the model ``tiny``."""
    values: dict = {"request": {"prompt": "a hill"}, "plan": {"seed": 7}, "model": "tiny"}
    job, replayed = store.submit(session, **(values | given))
    assert not replayed
    return job


def start(session: Session, *, lease_s: float = 30, **given: object) -> Job:
    """Submit a job and claim it for WORKER."""
    return claim(session, submit(session, **given).id, lease_s=lease_s)


def claim(session: Session, job_id: str, worker: str = WORKER, *, lease_s: float = 30) -> Job:
    """Claim a job that must be claimable."""
    job = store.claim(session, job_id, worker, lease_s)
    assert job is not None
    return job


def picture(job_id: str, attempt: int = 1, index: int = 0) -> NewArtifact:
    """Describe a picture that an attempt has stored."""
    return NewArtifact(
        index=index,
        key=artifact_key(job_id, attempt, index, "png"),
        media_type="image/png",
        width=64,
        height=48,
        bytes=1234,
        sha256="ab" * 32,
        seed=7 + index,
    )


def job_in(session: Session, state: JobState, **given: object) -> Job:
    """Make a job in ``state``."""
    if state is JobState.EXPIRED:
        job = submit(session, queue_timeout_s=-1, **given)
        assert store.expire(session) >= 1
    elif state is JobState.QUEUED:
        job = submit(session, **given)
    elif state is JobState.CANCELED:
        job = submit(session, **given)
        store.request_cancel(session, job.id)
    else:
        job = start(session, **given)
        if state is JobState.COMPLETED:
            assert store.complete(session, job.id, 1, WORKER, [picture(job.id)])
        if state is JobState.FAILED:
            assert store.fail(session, job.id, 1, WORKER, "broken", "It broke.", retryable=False)
    found = store.get_job(session, job.id)
    assert found.state is state
    return found


def events_after(session: Session, job_id: str, after: int = 0, limit: int = 100) -> Sequence[Event]:
    """Return the job's events whose id is greater than ``after``, oldest first."""
    statement = select(Event).where(Event.job_id == job_id, Event.id > after).order_by(Event.id).limit(limit)
    return session.scalars(statement).all()

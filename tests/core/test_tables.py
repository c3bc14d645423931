"""The database itself refuses pairs that cannot be."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import insert, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core import store
from core.ids import new_id
from core.lifecycle import JobState
from core.tables import Artifact, Attempt, Job
from tests.core.jobs import OTHER_WORKER, WORKER, job_in, start, submit

NOW = datetime.now(UTC)


def refused(session: Session, job_id: str, **values: object) -> None:
    with pytest.raises(IntegrityError), session.begin_nested():
        session.execute(
            update(Job).where(Job.id == job_id).values(**values),
            execution_options={"synchronize_session": False},
        )


def test_a_terminal_job_is_finished_and_no_other_is(session: Session) -> None:
    refused(session, submit(session).id, finished_at=NOW)
    refused(session, submit(session).id, state=JobState.CANCELED)
    refused(session, job_in(session, JobState.COMPLETED).id, finished_at=None)


def test_a_job_in_progress_is_owned_and_no_other_is(session: Session) -> None:
    refused(session, start(session).id, owner=None)
    refused(session, submit(session).id, owner=WORKER)
    refused(session, job_in(session, JobState.COMPLETED).id, owner=WORKER)


def test_a_job_in_progress_is_leased_and_no_other_is(session: Session) -> None:
    refused(session, start(session).id, lease_until=None)
    refused(session, submit(session).id, lease_until=NOW)


def test_work_has_a_start(session: Session) -> None:
    refused(session, start(session).id, started_at=None)
    refused(session, start(session).id, attempt=0)


def test_a_failed_job_has_an_error_and_no_other_has(session: Session) -> None:
    refused(session, job_in(session, JobState.FAILED).id, error_code=None)
    refused(session, job_in(session, JobState.COMPLETED).id, error_code="broken")


def test_only_a_failed_job_is_parked(session: Session) -> None:
    refused(session, submit(session).id, parked=True)
    refused(session, job_in(session, JobState.EXPIRED).id, parked=True)


def test_no_more_attempts_are_handed_back_than_there_were(session: Session) -> None:
    refused(session, start(session).id, hand_backs=2)
    refused(session, start(session).id, hand_backs=-1)


def test_numbers_stay_in_their_range(session: Session) -> None:
    refused(session, submit(session).id, max_attempts=0)
    refused(session, submit(session).id, priority=-1)
    refused(session, submit(session).id, priority=10)


def test_a_job_has_one_running_attempt_and_one_completed(session: Session) -> None:
    running, done = start(session), job_in(session, JobState.COMPLETED)
    with pytest.raises(IntegrityError), session.begin_nested():
        session.execute(insert(Attempt).values(job_id=running.id, number=2, worker_id=OTHER_WORKER))
    ended = {"outcome": "completed", "finished_at": NOW}
    with pytest.raises(IntegrityError), session.begin_nested():
        session.execute(insert(Attempt).values(job_id=done.id, number=2, worker_id=WORKER, **ended))


def test_a_file_belongs_to_an_attempt_that_was(session: Session) -> None:
    job = start(session)
    file = {
        "key": "k",
        "media_type": "image/png",
        "width": 1,
        "height": 1,
        "bytes": 1,
        "sha256": "a",
        "seed": 1,
    }
    with pytest.raises(IntegrityError), session.begin_nested():
        session.execute(insert(Artifact).values(job_id=job.id, index=0, attempt=2, **file))


def test_an_attempt_belongs_to_a_job(session: Session) -> None:
    with pytest.raises(IntegrityError), session.begin_nested():
        session.execute(insert(Attempt).values(job_id=new_id(), number=1, worker_id=WORKER))


def test_what_belongs_to_a_job_goes_with_it(session: Session) -> None:
    job_id = job_in(session, JobState.COMPLETED, idempotency=("key", "print")).id
    assert store.find_artifact(session, job_id, 0) is not None
    session.execute(Job.__table__.delete().where(Job.id == job_id))  # type: ignore[attr-defined]
    assert store.get_attempts(session, job_id) == []
    session.expunge_all()  # what it remembers
    assert store.find_artifact(session, job_id, 0) is None


def test_a_hidden_load_is_an_error(session: Session) -> None:
    job = start(session)
    session.expire(job)
    with pytest.raises(Exception, match="lazy='raise'"):
        _ = job.artifacts


def test_a_time_without_a_zone_is_refused(session: Session) -> None:
    with pytest.raises(Exception, match="a time needs a zone"):
        store.rescue(session, datetime(2026, 1, 1))  # noqa: DTZ001

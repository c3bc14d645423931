"""The checker of the fault runs sees each kind of broken promise, so that finding none means something."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from core import store
from core.artifacts import ArtifactStore, NewArtifact, artifact_key
from core.db import Database
from core.lifecycle import JobState
from core.tables import Artifact, Attempt, Event, IdempotencyKey, Job
from tests.faults.check import Findings, check_files, check_inside
from tests.faults.watch import RowWatch

pytestmark = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
WORKER = "01a22f00-0000-7000-8000-000000000001"
CONTENT = b"a picture"


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore((tmp_path / "artifacts").as_uri())


@pytest.fixture
def done(committed_database: Database, artifacts: ArtifactStore) -> str:
    """A job that was completed by its second attempt; its first was lost."""
    with committed_database.transaction() as session:
        job, _ = store.submit(
            session, request={}, plan={"n": 1}, model="tiny", idempotency=("key", "fingerprint")
        )
        store.claim(session, job.id, WORKER, 0.0)
    with committed_database.transaction() as session:
        assert store.rescue(session)
        store.claim(session, job.id, WORKER, 60.0)
        assert store.complete(session, job.id, 2, WORKER, [kept(artifacts, job.id, 2)])
    return job.id


def kept(artifacts: ArtifactStore, job_id: str, attempt: int, index: int = 0) -> NewArtifact:
    key = artifact_key(job_id, attempt, index, "png")
    artifacts.put(key, CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()
    return NewArtifact(index, key, "image/png", 64, 64, len(CONTENT), digest, 7)


def look(database: Database, artifacts: ArtifactStore) -> Findings:
    findings = Findings()
    check_inside(database, artifacts, findings)
    return findings


def test_a_job_that_lost_an_attempt_and_was_completed_once_is_well(
    committed_database: Database, artifacts: ArtifactStore, done: str
) -> None:
    assert look(committed_database, artifacts).all() == []
    assert check_files(committed_database, artifacts) == []


def live_again(session: Session, job_id: str) -> None:
    values = {"state": JobState.QUEUED, "finished_at": None}
    session.execute(update(Job).where(Job.id == job_id).values(values))


def without_its_file(session: Session, job_id: str) -> None:
    session.execute(delete(Artifact).where(Artifact.job_id == job_id))


def with_a_file_of_another_attempt(session: Session, job_id: str) -> None:
    row = {"job_id": job_id, "index": 1, "attempt": 1, "key": artifact_key(job_id, 1, 1, "png")}
    rest = {"media_type": "image/png", "width": 64, "height": 64, "bytes": 9, "sha256": "0" * 64, "seed": 8}
    session.add(Artifact(**row, **rest))


def with_another_content(session: Session, job_id: str) -> None:
    session.execute(update(Artifact).where(Artifact.job_id == job_id).values(sha256="0" * 64))


def failed_by_a_late_rescuer(session: Session, job_id: str) -> None:
    values = {"state": JobState.FAILED, "error_code": "worker_lost", "error_message": "too late"}
    session.execute(update(Job).where(Job.id == job_id).values(values))
    session.add(Event(job_id=job_id, type="job.failed", payload={}))


def told_of_after_its_end(session: Session, job_id: str) -> None:
    session.add(Event(job_id=job_id, type="job.requeued", payload={}))


def ordered_twice(session: Session, job_id: str) -> None:
    store.submit(session, request={}, plan={"n": 1}, model="tiny")


def without_a_key(session: Session, job_id: str) -> None:
    session.execute(delete(IdempotencyKey).where(IdempotencyKey.job_id == job_id))


def running_on(session: Session, job_id: str) -> None:
    session.add(Attempt(job_id=job_id, number=3, worker_id=WORKER))
    session.execute(update(Job).where(Job.id == job_id).values(attempt=3))


def failed_for_a_reason_that_no_fault_gives(session: Session, job_id: str) -> None:
    job, _ = store.submit(session, request={}, plan={"n": 1}, model="tiny", idempotency=("other", "other"))
    store.claim(session, job.id, WORKER, 60.0)
    store.fail(session, job.id, 1, WORKER, "internal_error", "a fault of ours", retryable=True)


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (live_again, "lost"),
        (without_its_file, "lost"),
        (with_a_file_of_another_attempt, "doubled"),
        (with_another_content, "doubled"),
        (ordered_twice, "doubled"),
        (without_a_key, "doubled"),
        (failed_by_a_late_rescuer, "changed"),
        (told_of_after_its_end, "changed"),
        (running_on, "other"),
        (failed_for_a_reason_that_no_fault_gives, "other"),
    ],
)
def test_rows_that_break_a_promise_are_found(
    committed_database: Database,
    artifacts: ArtifactStore,
    done: str,
    spoil: Callable[[Session, str], None],
    kind: str,
) -> None:
    with committed_database.transaction() as session:
        spoil(session, done)
    assert getattr(look(committed_database, artifacts), kind)


def test_a_file_that_is_gone_or_belongs_to_nobody_is_found(
    committed_database: Database, artifacts: ArtifactStore, done: str
) -> None:
    kept(artifacts, done, 1)
    assert check_files(committed_database, artifacts) == [artifact_key(done, 1, 0, "png")]
    artifacts.delete(artifact_key(done, 2, 0, "png"))
    assert look(committed_database, artifacts).lost


def test_an_end_that_changes_is_seen_while_it_happens(committed_database: Database, done: str) -> None:
    watch = RowWatch(committed_database)
    watch.look()
    with committed_database.transaction() as session:
        session.execute(update(Job).where(Job.id == done).values(attempt=3))
    watch.look()
    assert watch.changed == [f"{done} was ('completed', 2) and is ('completed', 3)"]

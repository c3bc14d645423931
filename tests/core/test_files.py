"""Files that callers send: one row for each content, kept as long as somebody needs them."""

import threading

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core import files, schedules, store
from core.clock import now
from core.db import Database
from core.errors import FileInUse, InputGone, NotFound
from core.lifecycle import JobState
from core.pictures import Facts
from core.requeue import requeue
from core.tables import File, Job, JobInput
from tests.core.jobs import WORKER, claim, job_in, submit

CALLER = "local"
FACTS = Facts("image/png", 80, 60, 1000)
LIFE_S = 100.0


def kept(session: Session, sha256: str = "a" * 64, *, age_s: float = 0.0) -> File:
    file = files.register(session, CALLER, sha256, FACTS)
    stored = files.mark_stored(session, file.id)
    assert stored is not None
    session.execute(update(File).where(File.id == file.id).values(sent_at=now(-age_s)))
    return stored


def draw_from(session: Session, file: File, state: JobState = JobState.QUEUED) -> Job:
    return job_in(session, state, inputs={"image": file.id}, plan={"seed": 7, "image": {"sha256": "a"}})


def age(session: Session, job: Job, seconds: float) -> None:
    session.execute(update(Job).where(Job.id == job.id).values(created_at=now(-seconds)))


def test_the_same_content_is_the_same_file_for_one_caller(session: Session) -> None:
    first = kept(session)
    assert files.register(session, CALLER, "a" * 64, FACTS).id == first.id
    assert files.register(session, "other", "a" * 64, FACTS).id != first.id
    assert files.register(session, CALLER, "b" * 64, FACTS).id != first.id


def test_files_are_found_by_id_and_content_and_by_their_owner_alone(session: Session) -> None:
    file = kept(session)
    unstored = files.register(session, CALLER, "c" * 64, FACTS)
    names = [file.id, f"sha256:{file.sha256}", unstored.id, "sha256:" + "d" * 64, "nonsense"]
    found = files.find_pictures(session, CALLER, names)
    assert set(found) == {file.id, f"sha256:{file.sha256}"}
    assert found[file.id].size == (80, 60)
    assert files.find_pictures(session, "other", names) == {}
    with pytest.raises(NotFound):
        files.get_file(session, file.id, "other")


def test_a_file_is_kept_while_a_job_that_needs_it_has_not_ended(session: Session) -> None:
    file = kept(session, age_s=2 * LIFE_S)
    job = draw_from(session, file)
    age(session, job, 2 * LIFE_S)
    assert files.give_up_old(session, LIFE_S) == []
    with pytest.raises(FileInUse):
        files.give_up(session, file.id, CALLER)
    store.request_cancel(session, job.id)
    assert [given.id for given in files.give_up_old(session, LIFE_S)] == [file.id]
    assert files.find_pictures(session, CALLER, [file.id]) == {}
    with pytest.raises(InputGone):
        draw_from(session, file)


def test_a_job_that_has_ended_lets_its_file_live_its_time(session: Session) -> None:
    file = kept(session, age_s=2 * LIFE_S)
    job = draw_from(session, file, JobState.FAILED)
    assert files.give_up_old(session, LIFE_S) == []
    age(session, job, 2 * LIFE_S)
    assert len(files.give_up_old(session, LIFE_S)) == 1


def test_a_file_that_never_arrived_is_given_up_after_an_hour(session: Session) -> None:
    file = files.register(session, CALLER, "a" * 64, FACTS)
    assert files.give_up_old(session, LIFE_S * 1000) == []
    session.execute(update(File).values(sent_at=now(-files.UPLOAD_S)))
    assert [given.id for given in files.give_up_old(session, LIFE_S * 1000)] == [file.id]
    assert files.mark_stored(session, file.id) is None
    files.forget(session, [file.id])
    assert session.scalars(select(File)).all() == []


def test_a_schedule_keeps_its_files(session: Session) -> None:
    file, other = kept(session, age_s=2 * LIFE_S), kept(session, "b" * 64, age_s=2 * LIFE_S)
    schedule = schedules.create_schedule(
        session,
        caller=CALLER,
        name="n",
        rule={"every_s": 3600},
        order={},
        total=1,
        file_ids=[file.id],
    )
    assert [given.id for given in files.give_up_old(session, LIFE_S)] == [other.id]
    schedules.update_schedule(session, schedule.id, file_ids=[])
    assert [given.id for given in files.give_up_old(session, LIFE_S)] == [file.id]


def test_a_job_that_is_requeued_draws_from_the_same_file(session: Session) -> None:
    file = kept(session)
    lost = draw_from(session, file, JobState.FAILED)
    again, _ = requeue(session, lost.id)
    assert files.job_files(session, again.id)["image"].id == file.id
    assert store.fail(session, claim(session, again.id).id, 1, WORKER, "broken", "It broke.", retryable=False)
    files.give_up(session, file.id, CALLER)
    with pytest.raises(InputGone):
        requeue(session, again.id)


def test_a_job_without_pictures_has_none(session: Session) -> None:
    job = submit(session)
    assert files.job_files(session, job.id) == {}
    assert session.scalars(select(JobInput)).all() == []


def test_an_order_that_comes_while_its_file_is_given_up_is_refused(committed_database: Database) -> None:
    """Giving up waits for an order that was first; an order that comes second sees that it is too late."""
    database = committed_database
    with database.transaction() as session:
        file = kept(session, age_s=2 * LIFE_S)
    began, ended = threading.Event(), threading.Event()
    given: list[str] = []

    def give_up() -> None:
        began.set()
        with database.transaction() as session:
            given.extend(one.id for one in files.give_up_old(session, LIFE_S))
        ended.set()

    thread = threading.Thread(target=give_up)
    with database.transaction() as session:
        draw_from(session, file)
        thread.start()
        assert began.wait(5)
        ended.wait(0.2)
    thread.join(20)
    assert given == []
    with database.transaction() as session:
        for job in session.scalars(select(Job)).all():
            store.request_cancel(session, job.id)
            age(session, job, 2 * LIFE_S)
    with database.transaction() as session:
        assert [one.id for one in files.give_up_old(session, LIFE_S)] == [file.id]
    with pytest.raises(InputGone), database.transaction() as session:
        draw_from(session, file)

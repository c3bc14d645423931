"""Submitting a job, once or again under the same key."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core import store
from core.db import Database
from core.errors import IdempotencyMismatch
from core.ids import is_id
from core.lifecycle import JobState
from tests.core.jobs import events_after, submit

KEY = ("key-1", "fingerprint-1")


def test_a_submitted_job_is_queued_with_all_that_was_given(session: Session) -> None:
    job, replayed = store.submit(
        session,
        request={"prompt": "a hill", "n": 2},
        plan={"seed": 2**53 - 1, "guidance_scale": 0.1 + 0.2},
        model="tiny",
        priority=0,
        caller="ann",
        metadata={"shot": "ä 日本"},
        run_timeout_s=12.5,
        max_attempts=5,
    )
    session.expire_all()
    kept = store.get_job(session, job.id)
    assert not replayed
    assert is_id(kept.id)
    assert kept.state is JobState.QUEUED
    assert kept.request == {"prompt": "a hill", "n": 2}
    assert kept.plan == {"seed": 2**53 - 1, "guidance_scale": 0.1 + 0.2}
    assert (kept.model, kept.priority, kept.caller, kept.metadata_) == ("tiny", 0, "ann", {"shot": "ä 日本"})
    assert (kept.run_timeout_s, kept.max_attempts, kept.attempt) == (12.5, 5, 0)
    assert kept.artifacts == []
    assert kept.created_at.utcoffset() == timedelta(0)


def test_the_start_deadline_is_counted_from_the_database_clock(session: Session) -> None:
    job = submit(session, queue_timeout_s=90)
    assert job.queue_deadline_at is not None
    assert abs(job.queue_deadline_at - job.created_at - timedelta(seconds=90)) < timedelta(seconds=5)


def test_an_event_tells_of_the_submission(session: Session) -> None:
    job = submit(session, priority=6)
    (event,) = events_after(session, job.id)
    assert (event.type, event.payload) == ("job.queued", {"model": "tiny", "priority": 6})


def test_a_job_that_is_not_committed_was_never_there(committed_database: Database) -> None:
    with pytest.raises(RuntimeError), committed_database.transaction() as session:  # noqa: PT012
        job = submit(session, idempotency=KEY)
        raise RuntimeError
    with committed_database.transaction() as session:
        assert store.find_job(session, job.id) is None
        submit(session, idempotency=KEY)


def test_the_same_key_and_request_give_the_first_job(session: Session) -> None:
    first = submit(session, idempotency=KEY)
    again, replayed = store.submit(session, request={}, plan={}, model="tiny", idempotency=KEY)
    assert replayed
    assert again.id == first.id
    assert again.artifacts == []
    assert store.count_by_state(session)[JobState.QUEUED] == 1


def test_the_same_key_with_another_request_is_refused(session: Session) -> None:
    submit(session, idempotency=KEY)
    with pytest.raises(IdempotencyMismatch, match="'key-1' was used before") as caught:
        store.submit(session, request={}, plan={}, model="tiny", idempotency=("key-1", "other"))
    assert caught.value.status == 422
    assert store.count_by_state(session)[JobState.QUEUED] == 1


def test_a_key_belongs_to_its_caller(session: Session) -> None:
    first = submit(session, caller="ann", idempotency=KEY)
    second = submit(session, caller="bob", idempotency=KEY)
    assert first.id != second.id


def test_ten_submissions_at_once_under_one_key_make_one_job(committed_database: Database) -> None:
    start = Barrier(10)

    def submit_at_once(_: int) -> tuple[str, bool]:
        start.wait(30)
        with committed_database.transaction() as session:
            job, replayed = store.submit(session, request={}, plan={}, model="tiny", idempotency=KEY)
            return job.id, replayed

    with ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(submit_at_once, range(10)))
    assert len({job_id for job_id, _ in answers}) == 1
    assert sorted(replayed for _, replayed in answers) == [False] + [True] * 9
    with committed_database.reading() as session:
        assert store.count_by_state(session)[JobState.QUEUED] == 1


def test_ten_different_requests_at_once_under_one_key_make_one_job(committed_database: Database) -> None:
    start = Barrier(10)

    def submit_at_once(number: int) -> str:
        start.wait(30)
        try:
            with committed_database.transaction() as session:
                store.submit(session, request={}, plan={}, model="tiny", idempotency=("key", str(number)))
        except IdempotencyMismatch:
            return "refused"
        return "made"

    with ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(submit_at_once, range(10)))
    assert sorted(answers) == ["made"] + ["refused"] * 9


def test_a_job_that_breaks_a_rule_of_the_table_is_not_taken_for_a_replay(session: Session) -> None:
    with pytest.raises(IntegrityError):
        store.submit(session, request={}, plan={}, model="tiny", max_attempts=0, idempotency=KEY)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_know_is_refused(session: Session, number: float) -> None:
    with pytest.raises(Exception, match="not JSON compliant"), session.begin_nested():
        submit(session, plan={"guidance_scale": number})


def test_any_text_that_json_knows_is_kept(session: Session) -> None:
    request = {"prompt": "\u0000 \ud800 \U0001f304 \\ ' \" %s :x", "nothing": None, "list": [1, 2.5, True]}
    job = submit(session, request=request)
    session.expire_all()
    assert store.get_job(session, job.id).request == request


def test_an_old_key_is_forgotten_and_its_job_stays(session: Session) -> None:
    first = submit(session, idempotency=KEY)
    assert store.forget_idempotency_keys(session, older_than_s=60) == 0
    assert store.forget_idempotency_keys(session, older_than_s=-60) == 1
    second = submit(session, idempotency=KEY)
    assert second.id != first.id
    assert store.get_job(session, first.id).state is JobState.QUEUED

"""Lists, counts, the place in the queue, and what upkeep asks for."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, update
from sqlalchemy.orm import Session

from core import store
from core.db import Database
from core.errors import InvalidQuery, NotFound
from core.lifecycle import JobState
from core.tables import Job
from tests.core.jobs import WORKER, claim, job_in, picture, start, submit

PAST = datetime.now(UTC) - timedelta(hours=1)


def ids(jobs: object) -> list[str]:
    return [job.id for job in jobs]  # type: ignore[attr-defined]


# --- one job ---


def test_an_unknown_job_is_not_found(session: Session) -> None:
    with pytest.raises(NotFound, match="no job x-1") as caught:
        store.get_job(session, "x-1")
    assert (caught.value.code, caught.value.status) == ("not_found", 404)


def test_the_job_of_another_caller_is_not_found(session: Session) -> None:
    job = submit(session, caller="ann")
    assert store.get_job(session, job.id, "ann").id == job.id
    assert store.find_job(session, job.id, "bob") is None
    with pytest.raises(NotFound):
        store.get_job(session, job.id, "bob")


def test_a_file_is_found_by_its_index(session: Session) -> None:
    job = start(session)
    assert store.find_artifact(session, job.id, 0) is None
    store.complete(session, job.id, 1, WORKER, [picture(job.id, 1, 0), picture(job.id, 1, 1)])
    found = store.find_artifact(session, job.id, 1)
    assert found is not None
    assert found.key == f"jobs/{job.id}/1/1.png"
    assert store.find_artifact(session, job.id, 2) is None


# --- lists ---


def test_a_list_is_newest_first(session: Session) -> None:
    jobs = [submit(session) for _ in range(3)]
    page = store.list_jobs(session)
    assert ids(page.rows) == ids(reversed(jobs))
    assert not page.has_more


def test_an_empty_list_has_no_more(session: Session) -> None:
    page = store.list_jobs(session)
    assert (list(page.rows), page.has_more) == ([], False)


def test_pages_follow_each_other_without_gap_or_repeat(session: Session) -> None:
    jobs = [submit(session) for _ in range(7)]
    session.execute(update(Job).values(created_at=PAST))  # all at the same moment: the id decides
    seen: list[str] = []
    after, more = None, True
    while more:
        page = store.list_jobs(session, limit=3, after=after)
        seen += ids(page.rows)
        after, more = page.rows[-1].id, page.has_more
    assert seen == ids(reversed(jobs))


def test_a_job_submitted_while_paging_moves_no_page(session: Session) -> None:
    jobs = [submit(session) for _ in range(4)]
    first = store.list_jobs(session, limit=2)
    submit(session)
    second = store.list_jobs(session, limit=2, after=first.rows[-1].id)
    assert ids(first.rows) + ids(second.rows) == ids(reversed(jobs))


def test_a_full_last_page_has_no_more(session: Session) -> None:
    for _ in range(2):
        submit(session)
    assert not store.list_jobs(session, limit=2).has_more
    assert store.list_jobs(session, limit=1).has_more


def test_a_list_is_filtered_by_caller_state_and_model(session: Session) -> None:
    mine = submit(session, caller="ann", model="flux")
    submit(session, caller="ann", model="tiny")
    submit(session, caller="bob", model="flux")
    running = start(session, caller="ann", model="flux")
    assert ids(store.list_jobs(session, caller="ann", status=JobState.QUEUED, model="flux").rows) == [mine.id]
    assert ids(store.list_jobs(session, status=JobState.IN_PROGRESS).rows) == [running.id]
    assert len(store.list_jobs(session, caller="ann").rows) == 3
    assert len(store.list_jobs(session, model="flux").rows) == 3
    assert len(store.list_jobs(session).rows) == 4


def test_a_listed_job_shows_its_files(session: Session) -> None:
    job_in(session, JobState.COMPLETED)
    (job,) = store.list_jobs(session).rows
    assert len(job.artifacts) == 1


@pytest.mark.parametrize("limit", [0, -1, 101])
def test_a_limit_outside_1_to_100_is_refused(session: Session, limit: int) -> None:
    with pytest.raises(InvalidQuery, match=f"limit must be from 1 to 100, not {limit}"):
        store.list_jobs(session, limit=limit)


@pytest.mark.parametrize("limit", [1, 100])
def test_a_limit_within_1_to_100_is_taken(session: Session, limit: int) -> None:
    assert not store.list_jobs(session, limit=limit).rows


def test_a_list_after_an_unknown_job_is_refused(session: Session) -> None:
    with pytest.raises(InvalidQuery, match="after names no job: 'x-1'"):
        store.list_jobs(session, after="x-1")


def test_a_list_after_the_job_of_another_caller_is_refused(session: Session) -> None:
    theirs = submit(session, caller="ann")
    with pytest.raises(InvalidQuery, match="after names no job"):
        store.list_jobs(session, caller="bob", after=theirs.id)


# --- counts and places ---


def test_every_state_is_counted(session: Session) -> None:
    for state in JobState:
        job_in(session, state)
    submit(session, caller="ann")
    submit(session, model="flux")
    counts = store.count_by_state(session)
    assert counts == dict.fromkeys(JobState, 1) | {JobState.QUEUED: 3}
    assert store.count_by_state(session, caller="ann") == dict.fromkeys(JobState, 0) | {JobState.QUEUED: 1}
    assert store.count_by_state(session, model="flux")[JobState.QUEUED] == 1


def test_the_place_in_the_queue_follows_priority_then_age(session: Session) -> None:
    low, normal, later, high = (submit(session, priority=priority) for priority in (6, 3, 3, 0))
    submit(session, model="flux", priority=0)
    start(session, priority=0)
    assert [store.queue_position(session, job) for job in (high, normal, later, low)] == [1, 2, 3, 4]


def test_a_job_that_was_tried_before_goes_next(session: Session) -> None:
    waiting = submit(session, priority=3)
    tried = start(session, priority=6)
    assert store.hand_back(session, tried.id, tried.attempt, tried.owner or "")
    assert [store.queue_position(session, job) for job in (tried, waiting)] == [1, 2]


def test_a_job_that_is_not_queued_has_no_place(session: Session) -> None:
    assert store.queue_position(session, start(session)) is None


# --- what upkeep asks for ---


def test_a_job_whose_id_was_never_sent_is_found(session: Session) -> None:
    sent, unsent = submit(session), submit(session)
    assert store.mark_published(session, sent.id)
    assert ids(store.unpublished(session, older_than_s=0)) == [unsent.id]


def test_the_submitter_is_given_time_to_send_it(session: Session) -> None:
    submit(session)
    assert store.unpublished(session, older_than_s=30) == []


def test_a_requeued_job_is_unsent_again_when_its_time_has_come(session: Session) -> None:
    job = submit(session)
    store.mark_published(session, job.id)
    claim(session, job.id)
    store.retry(session, job.id, 1, WORKER, "hiccup", "Again.", 60)
    assert store.unpublished(session, older_than_s=0) == []
    assert store.count_queued(session, "tiny") == 0
    session.execute(update(Job).values(run_after=PAST))
    assert ids(store.unpublished(session, older_than_s=0)) == [job.id]
    assert store.count_queued(session, "tiny") == 1


def test_only_so_many_unsent_jobs_are_given_oldest_first(session: Session) -> None:
    jobs = [submit(session) for _ in range(3)]
    assert ids(store.unpublished(session, older_than_s=0, limit=2)) == ids(jobs[:2])


def test_a_sending_noted_late_does_not_hide_a_requeue(session: Session) -> None:
    job = submit(session)
    claim(session, job.id)
    store.hand_back(session, job.id, 1, WORKER)
    assert not store.mark_published(session, job.id, attempt=0)
    assert ids(store.unpublished(session, older_than_s=0)) == [job.id]
    assert store.mark_published(session, job.id, attempt=1)


def test_a_job_that_is_not_queued_cannot_be_noted_as_sent(session: Session) -> None:
    job = start(session)
    assert not store.mark_published(session, job.id)
    assert store.get_job(session, job.id).published_at is None


def test_queued_ids_come_in_the_order_in_which_they_should_run(session: Session) -> None:
    low, normal, high = (submit(session, priority=priority) for priority in (6, 3, 0))
    submit(session, model="flux")
    start(session)
    assert store.queued_ids(session, "tiny", 10) == [high.id, normal.id, low.id]
    assert store.queued_ids(session, "tiny", 2) == [high.id, normal.id]
    assert store.count_queued(session, "tiny") == 3


def test_ids_sent_a_moment_ago_can_be_left_out(session: Session) -> None:
    sent, unsent = submit(session), submit(session)
    store.mark_published(session, sent.id)
    assert store.queued_ids(session, "tiny", 10, published_before_s=30) == [unsent.id]
    assert store.queued_ids(session, "tiny", 10) == [sent.id, unsent.id]


def test_the_files_of_attempts_that_did_not_complete_are_orphans(session: Session) -> None:
    job = start(session)
    store.hand_back(session, job.id, 1, WORKER)
    claim(session, job.id)
    store.complete(session, job.id, 2, WORKER, [picture(job.id, 2)])
    running = start(session)
    keys = {
        "lost": f"jobs/{job.id}/1/0.png",
        "kept": f"jobs/{job.id}/2/0.png",
        "surplus": f"jobs/{job.id}/2/9.png",
        "at work": f"jobs/{running.id}/1/0.png",
        "too late": f"jobs/{running.id}/0/0.png",
        "unknown job": "jobs/no-such-job/1/0.png",
        "unknown attempt": f"jobs/{job.id}/3/0.png",
        "not ours": "notes/readme.txt",
    }
    orphans = store.orphaned_keys(session, list(keys.values()))
    assert {name for name, key in keys.items() if key in orphans} == {
        "lost",
        "surplus",
        "too late",
    }


def test_the_file_of_a_job_that_completes_as_orphans_are_looked_for_is_none(
    committed_database: Database,
) -> None:
    database = committed_database
    with database.transaction() as session:
        job_id = start(session).id
    left = ["the next statement"]

    def complete(*_: object) -> None:
        if left:
            left.clear()
            with database.transaction() as other:
                assert store.complete(other, job_id, 1, WORKER, [picture(job_id, 1)])

    with database.reading() as session:
        event.listen(database.db_engine, "after_cursor_execute", complete)
        try:
            orphans = store.orphaned_keys(session, [f"jobs/{job_id}/1/0.png"])
        finally:
            event.remove(database.db_engine, "after_cursor_execute", complete)
    assert not left
    assert orphans == []


def test_no_keys_have_no_orphans(session: Session) -> None:
    assert store.orphaned_keys(session, []) == []

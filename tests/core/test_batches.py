"""Batches: inserted whole and held, released in windows, paused, cancelled, ended, ordered again."""

from collections.abc import Sequence

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core import batches, store
from core.errors import AlreadyFinished, Conflict, IdempotencyMismatch, NotFound
from core.lifecycle import BatchState, JobState
from core.tables import Batch, Event, Job
from policy.bulk import Order, make_orders
from policy.catalogue import Catalogue

CATALOGUE = Catalogue.load()
WORKER = "01890000-0000-7000-8000-000000000001"
OTHER = "01890000-0000-7000-8000-000000000002"


def orders_of(count: int, **template: object) -> list[Order]:
    body = {
        "template": {"model": "tiny", "prompt": "a {colour} house", **template},
        "rows": [{"colour": f"colour{number}"} for number in range(count)],
    }
    return make_orders(body, CATALOGUE, lambda: 7)


def make(session: Session, count: int = 3, **given: object) -> Batch:
    template = given.pop("template", {})
    assert isinstance(template, dict)
    values: dict = {"caller": "local", "name": "spring", "window": None, "max_attempts": 3, **given}
    batch, _ = batches.create_batch(session, orders=orders_of(count, **template), template=template, **values)
    return batch


def jobs_of(session: Session, batch: Batch) -> Sequence[Job]:
    return batches.batch_jobs(session, batch.id)


def run(session: Session, job: Job, *, fails: bool = False) -> None:
    claimed = store.claim(session, job.id, WORKER, 30)
    assert claimed is not None
    if fails:
        assert store.fail(session, job.id, claimed.attempt, WORKER, "broken", "It broke.", retryable=True)
    else:
        assert store.complete(session, job.id, claimed.attempt, WORKER, [])


def test_every_row_becomes_a_held_job_with_an_event(session: Session) -> None:
    batch = make(session, 3)
    jobs = jobs_of(session, batch)
    assert [(job.batch_row, job.held, job.state) for job in jobs] == [
        (row, True, JobState.QUEUED) for row in (1, 2, 3)
    ]
    assert [job.request["prompt"] for job in jobs] == [f"a colour{n} house" for n in range(3)]
    assert jobs[0].batch_fields == {"colour": "colour0"}
    events = session.scalars(select(Event).where(Event.job_id.in_([job.id for job in jobs]))).all()
    assert [event.type for event in events] == ["job.queued"] * 3
    assert sorted(job.id for job in jobs) == [job.id for job in jobs]


def test_a_row_goes_after_single_jobs_unless_it_says_otherwise(session: Session) -> None:
    assert {job.priority for job in jobs_of(session, make(session))} == {6}
    assert {job.priority for job in jobs_of(session, make(session, template={"priority": "normal"}))} == {3}


def test_a_held_job_is_neither_claimed_nor_sent_nor_counted(session: Session) -> None:
    job = jobs_of(session, make(session))[0]
    assert store.claim(session, job.id, WORKER, 30) is None
    assert store.unpublished(session, -1) == []
    assert store.count_queued(session, "tiny") == 0
    assert store.queued_ids(session, "tiny", 10) == []
    assert store.queue_position(session, job) is None


def test_release_fills_the_room_in_row_order_and_no_more(session: Session) -> None:
    batch = make(session, 5)
    released = batches.release(session, batch.id, {"tiny": 2})
    assert [job.batch_row for job in released] == [1, 2]
    assert batches.release(session, batch.id, {"tiny": 2}) == []
    run(session, released[0])
    assert [job.batch_row for job in batches.release(session, batch.id, {"tiny": 2})] == [3]
    assert batches.waiting_models(session, batch.id) == ["tiny"]


def test_pause_holds_what_was_released_and_resume_lets_it_go_on(session: Session) -> None:
    batch = make(session, 3)
    first, second = batches.release(session, batch.id, {"tiny": 2})
    assert store.claim(session, first.id, WORKER, 30) is not None
    assert batches.pause(session, batch.id).state == BatchState.PAUSED
    assert store.claim(session, second.id, WORKER, 30) is None
    assert batches.release(session, batch.id, {"tiny": 9}) == ()
    assert store.complete(session, first.id, 1, WORKER, [])  # what ran goes on
    assert batches.resume(session, batch.id).state == BatchState.RUNNING
    assert [job.batch_row for job in batches.release(session, batch.id, {"tiny": 9})] == [2, 3]


def test_cancel_ends_the_queued_ones_at_once_and_the_batch_with_the_running_one(session: Session) -> None:
    batch = make(session, 4)
    first, *_ = batches.release(session, batch.id, {"tiny": 2})
    store.claim(session, first.id, WORKER, 30)
    assert batches.cancel(session, batch.id).state == BatchState.RUNNING
    counts = batches.count_jobs(session, [batch.id])[batch.id]
    assert (counts[JobState.CANCELED], counts[JobState.IN_PROGRESS]) == (3, 1)
    with pytest.raises(AlreadyFinished, match="is being cancelled"):
        batches.resume(session, batch.id)
    beat = store.heartbeat(session, first.id, 1, WORKER, 30)
    assert beat is not None
    assert beat.cancel_requested
    assert store.stopped(session, first.id, 1, WORKER, 3)
    assert [ended.state for ended in batches.close_finished(session)] == [BatchState.CANCELED]


def test_a_batch_that_only_waited_is_canceled_at_once(session: Session) -> None:
    batch = make(session)
    assert batches.cancel(session, batch.id).state == BatchState.CANCELED
    with pytest.raises(AlreadyFinished, match="it is canceled"):
        batches.cancel(session, batch.id)


@pytest.mark.parametrize(("fails", "state"), [(False, BatchState.COMPLETED), (True, BatchState.FAILED)])
def test_a_batch_ends_with_its_last_job(session: Session, fails: bool, state: BatchState) -> None:
    batch = make(session, 2)
    first, second = batches.release(session, batch.id, {"tiny": 9})
    run(session, first)
    assert batches.close_finished(session) == []
    run(session, second, fails=fails)
    (ended,) = batches.close_finished(session)
    assert (ended.state, ended.finished_at is not None) == (state, True)
    assert batches.close_finished(session) == []


def test_failed_rows_are_ordered_again_as_new_jobs_with_the_same_plan(session: Session) -> None:
    batch = make(session, 2)
    first, second = batches.release(session, batch.id, {"tiny": 9})
    run(session, first)
    run(session, second, fails=True)
    batches.close_finished(session)
    again, count = batches.retry_failed(session, batch.id)
    assert (again.state, again.finished_at, again.retries, count) == (BatchState.RUNNING, None, 1, 1)
    done, fresh = jobs_of(session, batch)
    assert (done.id, fresh.batch_row, fresh.plan, fresh.held) == (first.id, 2, second.plan, True)
    assert fresh.id != second.id
    assert store.get_job(session, second.id).state == JobState.FAILED
    counts = batches.count_jobs(session, [batch.id])[batch.id]
    assert {state: n for state, n in counts.items() if n} == {JobState.COMPLETED: 1, JobState.QUEUED: 1}
    (sent,) = batches.release(session, batch.id, {"tiny": 9})
    run(session, sent)
    assert [ended.state for ended in batches.close_finished(session)] == [BatchState.COMPLETED]


def test_nothing_to_retry_is_a_conflict(session: Session) -> None:
    batch = make(session, 1)
    with pytest.raises(Conflict, match="no row that failed"):
        batches.retry_failed(session, batch.id)
    batches.cancel(session, batch.id)
    with pytest.raises(Conflict, match="was cancelled"):
        batches.retry_failed(session, batch.id)


def test_the_same_key_gives_the_same_batch_and_another_body_is_refused(session: Session) -> None:
    batch = make(session, idempotency=("key", "print"))
    again, replayed = batches.create_batch(
        session,
        caller="local",
        name="spring",
        orders=orders_of(3),
        template={},
        window=None,
        max_attempts=3,
        idempotency=("key", "print"),
    )
    assert (again.id, replayed) == (batch.id, True)
    with pytest.raises(IdempotencyMismatch):
        make(session, idempotency=("key", "other"))
    with pytest.raises(IdempotencyMismatch, match="for a batch"):
        store.submit(session, request={}, plan={}, model="tiny", idempotency=("key", "print"))


def test_batches_are_seen_by_their_caller_only(session: Session) -> None:
    batch = make(session)
    make(session, caller="other")
    assert [found.id for found in batches.list_batches(session, caller="local").rows] == [batch.id]
    with pytest.raises(NotFound):
        batches.get_batch(session, batch.id, "other")
    for move in (batches.pause, batches.resume, batches.cancel, batches.retry_failed):
        with pytest.raises(NotFound):
            move(session, batch.id, "other")


def test_the_list_goes_on_after_the_last_one(session: Session) -> None:
    made = [make(session, 1) for _ in range(3)]
    page = batches.list_batches(session, limit=2)
    assert ([found.id for found in page.rows], page.has_more) == ([made[2].id, made[1].id], True)
    rest = batches.list_batches(session, limit=2, after=page.rows[-1].id)
    assert ([found.id for found in rest.rows], rest.has_more) == ([made[0].id], False)
    assert batches.list_batches(session, status=BatchState.PAUSED).rows == []

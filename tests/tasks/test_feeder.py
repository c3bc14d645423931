"""Batches are fed to the queue in windows: little is under way and single jobs get between."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from core import batches
from core.lifecycle import BatchState, JobState
from core.tables import Batch
from policy.bulk import make_orders
from tasks.feeder import AHEAD, feed
from tasks.upkeep import Upkeep
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import Stage

QUICK: dict[str, Any] = {"num_inference_steps": 4, "cache": "off"}


@pytest.fixture
def upkeep(stage: Stage) -> Iterator[Upkeep]:
    upkeep = Upkeep.of(stage.settings)
    yield upkeep
    upkeep.database.dispose()


def order(stage: Stage, rows: int, window: dict[str, str] | None = None, **template: Any) -> Batch:
    given = {"model": "tiny", "prompt": "a {colour} house on a green meadow", **QUICK, **template}
    body = {"template": given, "rows": [{"colour": "white"}] * rows}
    orders = make_orders(body, stage.catalogue, lambda: 7)
    with stage.database.transaction() as session:
        batch, _ = batches.create_batch(
            session,
            caller="local",
            name="spring",
            orders=orders,
            template=given,
            window=window,
            max_attempts=3,
        )
    return batch


def window_around(start_h: float, end_h: float) -> dict[str, str]:
    """A daily window from and to so many hours from now."""
    at = datetime.now(UTC)
    start, end = (f"{at + timedelta(hours=hours):%H:%M}" for hours in (start_h, end_h))
    return {"start": start, "end": end, "timezone": "UTC"}


def state_of(stage: Stage, batch: Batch) -> BatchState:
    with stage.database.reading() as session:
        return batches.get_batch(session, batch.id).state


def counts_of(stage: Stage, batch: Batch) -> dict[JobState, int]:
    with stage.database.reading() as session:
        return batches.count_jobs(session, [batch.id])[batch.id]


def test_only_a_few_rows_of_a_batch_are_sent(stage: Stage, upkeep: Upkeep) -> None:
    order(stage, 3 * AHEAD)
    assert feed(upkeep) == AHEAD
    assert feed(upkeep) == 0
    assert stage.messages() == AHEAD


def test_nothing_is_sent_while_the_window_is_closed(stage: Stage, upkeep: Upkeep) -> None:
    order(stage, 5, window_around(1, 2))
    assert feed(upkeep) == 0
    order(stage, 5, window_around(-1, 1))
    assert feed(upkeep) == AHEAD


def test_a_batch_that_cannot_be_fed_does_not_keep_the_others_waiting(stage: Stage, upkeep: Upkeep) -> None:
    order(stage, 5, {**window_around(-1, 1), "timezone": "Mars/Olympus"})
    through = order(stage, 1)
    with stage.database.reading() as session:
        (job,) = batches.batch_jobs(session, through.id)
    stage.cancel(job.id)
    order(stage, 5)
    assert feed(upkeep) == AHEAD
    assert state_of(stage, through) == BatchState.CANCELED


def test_what_was_sent_is_taken_back_when_the_window_closes(stage: Stage, upkeep: Upkeep) -> None:
    batch = order(stage, 5, window_around(-1, 1))
    assert feed(upkeep) == AHEAD
    with stage.database.transaction() as session:
        batch = batches.get_batch(session, batch.id)
        batch.window = window_around(1, 2)
    assert feed(upkeep) == 0
    with stage.database.reading() as session:
        assert all(job.held for job in batches.batch_jobs(session, batch.id))


def test_a_paused_batch_is_not_sent_and_a_resumed_one_is_sent_again(stage: Stage, upkeep: Upkeep) -> None:
    batch = order(stage, 5)
    assert feed(upkeep) == AHEAD
    with stage.database.transaction() as session:
        batches.pause(session, batch.id)
    assert feed(upkeep) == 0
    with stage.database.transaction() as session:
        batches.resume(session, batch.id)
    assert feed(upkeep) == AHEAD


def test_a_batch_that_is_through_is_ended_by_upkeep(stage: Stage, upkeep: Upkeep) -> None:
    batch = order(stage, 2)
    with stage.database.reading() as session:
        rows = batches.batch_jobs(session, batch.id)
    for job in rows:
        stage.cancel(job.id)
    feed(upkeep)
    assert state_of(stage, batch) == BatchState.CANCELED


def test_a_worker_renders_a_batch_and_a_single_job_starts_next(shared_stage: Stage) -> None:
    batch = order(shared_stage, 12, num_inference_steps=24)
    wait_until(lambda: counts_of(shared_stage, batch)[JobState.COMPLETED] > 0, what="a first picture")
    single = shared_stage.wait_job(shared_stage.submit(**QUICK))
    wait_until(lambda: state_of(shared_stage, batch) == BatchState.COMPLETED, 60, "the batch's end")
    with shared_stage.database.reading() as session:
        starts = [job.started_at for job in batches.batch_jobs(session, batch.id)]
    assert single.started_at is not None
    before = [at for at in starts if at and single.created_at < at < single.started_at]
    assert len(before) <= 1  # one may be claimed while the single job is on its way
    assert [at for at in starts if at and at > single.started_at]


def test_pausing_lets_the_job_in_hand_end_and_no_other_start(shared_stage: Stage) -> None:
    batch = order(shared_stage, 8, num_inference_steps=24)
    wait_until(lambda: counts_of(shared_stage, batch)[JobState.IN_PROGRESS] > 0, what="a first job")
    with shared_stage.database.transaction() as session:
        batches.pause(session, batch.id)
    wait_until(lambda: counts_of(shared_stage, batch)[JobState.IN_PROGRESS] == 0, what="the end of that job")
    done = counts_of(shared_stage, batch)[JobState.COMPLETED]
    shared_stage.wait_job(shared_stage.submit(**QUICK))
    assert counts_of(shared_stage, batch)[JobState.COMPLETED] == done < 8
    with shared_stage.database.transaction() as session:
        batches.cancel(session, batch.id)
    assert state_of(shared_stage, batch) == BatchState.CANCELED

"""When a batch will end: measured seconds, rows left, workers, the window."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core import batches, store, workers
from core.clock import now
from core.eta import estimate_end
from core.lifecycle import JobState, WorkerState
from core.tables import Attempt, Batch
from tests.core.test_batches import WORKER, make

HEARD_S = 30.0
NIGHT = {"start": "22:00", "end": "06:00", "timezone": "UTC"}


def ready_worker(session: Session, worker_id: str = WORKER, model: str = "tiny") -> None:
    workers.register_worker(
        session,
        worker_id=worker_id,
        name="tiny@host",
        host="host",
        pid=1,
        model=model,
        queue=f"render.{model}",
        policy={},
        device={},
    )
    workers.update_worker(session, worker_id, state=WorkerState.READY)


def measured(session: Session, seconds: float, rows: int = 10, **given: object) -> Batch:
    """A batch of which one job took that many seconds."""
    batch = make(session, rows, **given)
    (job,) = batches.release(session, batch.id, {"tiny": 1})
    store.claim(session, job.id, WORKER, 30)
    store.complete(session, job.id, 1, WORKER, [])
    began = now(-seconds)
    session.execute(
        update(Attempt).where(Attempt.job_id == job.id).values(started_at=began, finished_at=now())
    )
    return batch


def seconds_left(session: Session, batch: Batch) -> float | None:
    end = estimate_end(session, batch, HEARD_S)
    at: datetime = session.scalars(select(now())).one()
    return None if end is None else (end - at).total_seconds()


def test_rows_left_take_the_measured_time_each(session: Session) -> None:
    ready_worker(session)
    assert seconds_left(session, measured(session, 20.0)) == pytest.approx(9 * 20, abs=2)


def test_two_workers_halve_it(session: Session) -> None:
    ready_worker(session)
    ready_worker(session, "01890000-0000-7000-8000-000000000003")
    assert seconds_left(session, measured(session, 20.0)) == pytest.approx(9 * 10, abs=2)


def test_a_batch_without_a_measured_job_follows_the_model(session: Session) -> None:
    ready_worker(session)
    measured(session, 20.0)
    assert seconds_left(session, make(session, 5)) == pytest.approx(5 * 20, abs=2)


def test_the_wait_before_an_attempt_does_not_count(session: Session) -> None:
    ready_worker(session)
    batch = measured(session, 20.0)
    job = batches.batch_jobs(session, batch.id)[0]
    assert job.state == JobState.COMPLETED
    job.started_at = now(-86400)  # type: ignore[assignment] - handed back the night before
    session.flush()
    assert seconds_left(session, batch) == pytest.approx(9 * 20, abs=2)


def test_nothing_is_told_without_measure_worker_or_while_paused(session: Session) -> None:
    batch = measured(session, 20.0)
    assert seconds_left(session, batch) is None
    ready_worker(session, model="other")
    assert seconds_left(session, batch) is None
    ready_worker(session, "01890000-0000-7000-8000-000000000004")
    assert seconds_left(session, batch) is not None
    assert seconds_left(session, batches.pause(session, batch.id)) is None


def test_only_the_time_in_which_the_window_is_open_counts(session: Session) -> None:
    ready_worker(session)
    day = timedelta(days=1).total_seconds()
    left = seconds_left(session, measured(session, 8 * 3600, rows=4, window=NIGHT))  # three nights of 8 h
    assert left is not None
    assert 2 * day < left <= 3 * day + 8 * 3600


@pytest.mark.parametrize(
    ("window", "seconds"),
    [
        ({**NIGHT, "end": "22:01"}, 5 * 3600.0),
        ({**NIGHT, "timezone": "Mars/Olympus"}, 20.0),
        (None, 1e12),
    ],
)
def test_an_end_that_nobody_can_tell_is_not_told(
    session: Session, window: dict[str, str] | None, seconds: float
) -> None:
    ready_worker(session)
    batch = measured(session, 20.0, rows=1000, window=window)
    session.execute(update(Attempt).values(started_at=now(-min(seconds, 1e9))))
    left = seconds_left(session, batch)
    assert left is None or left > 366 * 86400

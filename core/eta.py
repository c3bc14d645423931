"""When a batch will probably end, from seconds that were measured.

The mean of the latest jobs of the batch, or else of its model, times the rows left, over the workers that are
ready; in a batch with a window only the time in which it is open counts. Other work in the queue is not
foreseen.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from policy.windows import Window
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from core.clock import now
from core.lifecycle import TERMINAL, BatchState, JobState
from core.tables import Batch, Job
from core.workers import count_ready

MEASURED_JOBS = 50
"""Latest jobs whose times are looked at."""


def estimate_end(session: Session, batch: Batch, within_s: float) -> datetime | None:
    """Return when the last job of a running batch will probably have ended.

    None when it does not run, when nothing of its kind was measured yet, or when no worker that was heard of
    ``within_s`` seconds ago is ready for one of its models.
    """
    if batch.state != BatchState.RUNNING:
        return None
    needed = [
        _seconds_for(session, batch, model, left, within_s) for model, left in _rows_left(session, batch)
    ]
    known = [seconds for seconds in needed if seconds is not None]
    if not known or len(known) < len(needed):
        return None
    at = session.scalars(select(now())).one()
    if batch.window is None:
        return at + timedelta(seconds=max(known))
    return Window.model_validate(batch.window).advance(at, max(known))


def _rows_left(session: Session, batch: Batch) -> Sequence[tuple[str, int]]:
    live = select(Job.model, func.count()).where(
        Job.batch_id == batch.id, ~Job.superseded, Job.state.not_in(TERMINAL)
    )
    return [(row[0], row[1]) for row in session.execute(live.group_by(Job.model))]


def _seconds_for(session: Session, batch: Batch, model: str, left: int, within_s: float) -> float | None:
    """Return how long the rows left of one model will take; the models run beside each other."""
    workers = count_ready(session, model, within_s=within_s)
    mean = _mean_seconds(session, Job.batch_id == batch.id, Job.model == model)
    if mean is None:
        mean = _mean_seconds(session, Job.caller == batch.caller, Job.model == model)
    return None if mean is None or not workers else left * mean / workers


def _mean_seconds(session: Session, *among: ColumnElement[bool]) -> float | None:
    """Return the mean time from the first start to the end of the latest jobs, in seconds."""
    latest = (
        select(Job.started_at, Job.finished_at)
        .where(*among, Job.state == JobState.COMPLETED)
        .order_by(Job.created_at.desc(), Job.id.desc())
        .limit(MEASURED_JOBS)
    )
    taken = [(row[1] - row[0]).total_seconds() for row in session.execute(latest) if row[0] and row[1]]
    return sum(taken) / len(taken) if taken else None

"""When a batch will probably end, from seconds that were measured.

The mean of the latest jobs of the batch, or else of its model, times the rows left, over the workers that are
ready; in a batch with a window only the time in which it is open counts. Other work in the queue is not
foreseen.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from core.clock import now
from core.lifecycle import TERMINAL, BatchState, JobState, Outcome
from core.tables import Attempt, Batch, Job
from core.workers import count_ready
from policy.windows import Window

MEASURED_JOBS = 50
"""Latest jobs whose times are looked at."""
FARTHEST_DAYS = 366
"""An end beyond so many openings of a window is not told: it is found day by day."""


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
    try:
        return _later(at, max(known), batch.window)
    except (ValueError, OverflowError):  # a window whose zone is gone; a time beyond the calendar
        return None


def _later(at: datetime, seconds: float, window: Mapping[str, Any] | None) -> datetime | None:
    if window is None:
        return at + timedelta(seconds=seconds)
    opened = Window.model_validate(window)
    nights = seconds / _open_seconds(opened)
    return None if nights > FARTHEST_DAYS else opened.advance(at, seconds)


def _open_seconds(window: Window) -> float:
    """Return how long the window is open in a day without a change of clocks."""
    start, end = (datetime.strptime(text, "%H:%M") for text in (window.start, window.end))  # noqa: DTZ007
    return (end - start).total_seconds() % timedelta(days=1).total_seconds()


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
    """Return the mean time of the attempts that completed the latest jobs, in seconds.

    Jobs that shared a pass count with their part of it.
    """
    latest = (
        select(Attempt.started_at, Attempt.finished_at, Attempt.pass_of)
        .join(Job, Job.id == Attempt.job_id)
        .where(*among, Job.state == JobState.COMPLETED, Attempt.outcome == Outcome.COMPLETED)
        .order_by(Job.created_at.desc(), Job.id.desc())
        .limit(MEASURED_JOBS)
    )
    ended = [row for row in session.execute(latest) if row.finished_at]
    jobs = _jobs_in_pass(session, {row.pass_of for row in ended if row.pass_of})
    taken = [(row.finished_at - row.started_at).total_seconds() / jobs.get(row.pass_of, 1) for row in ended]
    return sum(taken) / len(taken) if taken else None


def _jobs_in_pass(session: Session, leaders: Collection[str]) -> dict[str | None, int]:
    """Return how many jobs shared the pass of each leader, and its time."""
    counted = select(Attempt.pass_of, func.count()).where(Attempt.pass_of.in_(leaders))
    return {row[0]: row[1] for row in session.execute(counted.group_by(Attempt.pass_of))}

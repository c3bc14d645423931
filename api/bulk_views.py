"""Batches, schedules and firings as the bodies that callers read."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from api.bulk_schemas import BatchUrls, BatchView, FiringView, ScheduleUrls, ScheduleView, WindowView
from api.serving import Serving
from core import batches
from core.eta import estimate_end
from core.firing import window_of
from core.lifecycle import ENDED_BATCH, BatchState, JobState
from core.tables import Batch, Firing, Schedule
from policy.windows import Window

Counts = Mapping[JobState, int]


def view_batch(batch: Batch, counts: Counts, base_url: str) -> BatchView:
    """Return ``batch`` as it stands in a list; ``view_whole_batch`` says more."""
    url = f"{base_url}/v1/batches/{batch.id}"
    moves = {verb: f"{url}/{verb}" for verb in ("pause", "resume", "cancel", "retry")}
    files = {part: f"{url}/{part}" for part in ("content", "results", "sheet")}
    return BatchView(
        id=batch.id,
        name=batch.name,
        status=batch.state,
        total=batch.total,
        counts={state.value: count for state, count in counts.items()},
        window=view_window(batch.window),
        schedule_id=batch.schedule_id,
        due_at=batch.due_at,
        created_at=batch.created_at,
        finished_at=batch.finished_at,
        cancel_requested_at=batch.cancel_requested_at,
        retries=batch.retries,
        eta=None,
        template=batch.template,
        warnings=[text for text in (holding_back(batch),) if text],
        urls=BatchUrls(self=url, jobs=f"{base_url}/v1/jobs?batch={batch.id}", **files, **moves),
    )


def view_whole_batch(session: Session, batch: Batch, base_url: str, serving: Serving) -> BatchView:
    """Return ``batch`` with its expected end and with what keeps its jobs from starting."""
    counts = batches.count_jobs(session, [batch.id])[batch.id]
    view = view_batch(batch, counts, base_url)
    if batch.state == BatchState.RUNNING and batch.cancel_requested_at is None:
        models = batches.waiting_models(session, batch.id)
        unserved = (serving.warning(session, model) for model in models)
        view.warnings += [warning for warning in unserved if warning]
        view.eta = estimate_end(session, batch, serving.within_s)
    return view


def holding_back(batch: Batch) -> str | None:
    """Return in words what keeps the rows of ``batch`` from being sent; None when nothing does."""
    if batch.state in ENDED_BATCH:
        return None
    if batch.cancel_requested_at is not None:
        return "the batch is being cancelled: its running jobs stop at their next step"
    if batch.state == BatchState.PAUSED:
        return "the batch is paused: resume lets it go on"
    return None if batch.window is None else _closed_window(batch.window)


def _closed_window(kept: Mapping[str, Any]) -> str | None:
    try:
        window, at = Window.model_validate(kept), datetime.now(UTC)
    except ValueError:  # the time zone database has changed since
        return f"the time zone {kept.get('timezone')!r} of the batch's window is not installed any more"
    if window.is_open(at):
        return None
    opens = window.opens_at(at).astimezone(ZoneInfo(window.timezone))
    return f"the window of the batch opens at {opens:%Y-%m-%d %H:%M} {window.timezone}"


def view_window(window: Mapping[str, Any] | None) -> WindowView | None:
    """Return a window as it was ordered."""
    return None if window is None else WindowView.model_validate(window)


def view_firing(firing: Firing) -> FiringView:
    """Return one firing."""
    return FiringView.model_validate(firing, from_attributes=True)


def view_schedule(
    schedule: Schedule, last: Firing | None, base_url: str, order: Mapping[str, Any] | None = None
) -> ScheduleView:
    """Return ``schedule``; ``order``, which a list leaves out, is what each firing makes."""
    url = f"{base_url}/v1/schedules/{schedule.id}"
    verbs = ("enable", "disable", "fire", "next", "firings")
    return ScheduleView(
        id=schedule.id,
        name=schedule.name,
        cron=schedule.cron,
        at=schedule.at,
        every_s=schedule.every_s,
        timezone=schedule.timezone,
        window=view_window(window_of(schedule)),
        misfire=schedule.misfire.value,
        misfire_grace_s=schedule.misfire_grace_s,
        enabled=schedule.enabled,
        template=None if order is None else order.get("template") or {},
        grid=None if order is None else order.get("grid"),
        total=schedule.total,
        next_at=schedule.next_at,
        created_at=schedule.created_at,
        updated_at=schedule.updated_at,
        last_firing=None if last is None else view_firing(last),
        urls=ScheduleUrls(
            self=url,
            batches=f"{base_url}/v1/batches?schedule={schedule.id}",
            **{verb: f"{url}/{verb}" for verb in verbs},
        ),
    )

"""Rows as the bodies that callers read."""

from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from sqlalchemy.orm import Session

from api.bulk_views import holding_back
from api.schemas import (
    ArtifactView,
    AttemptError,
    AttemptView,
    FileView,
    JobError,
    JobUrls,
    JobView,
    ModelView,
    Page,
    Progress,
    WorkerView,
)
from api.serving import Serving
from core.batches import LOST_ROWS, PRIORITIES
from core.file_tables import File
from core.lifecycle import JobState
from core.queries import find_successor
from core.store import queue_position
from core.tables import Artifact, Attempt, Batch, Job, Worker
from policy.model_spec import ModelSpec

NOT_SENT = "the queue did not take the job yet; it is stored and will be sent again"
_PRIORITY_WORDS = {number: word for word, number in PRIORITIES.items()}


class _Identified(Protocol):
    id: str


Item = TypeVar("Item", bound=_Identified)


def view_page(data: list[Item], *, has_more: bool = False) -> "Page[Item]":
    """Return a list, or a part of one, as callers see it."""
    ends = (data[0].id, data[-1].id) if data else (None, None)
    return Page(data=data, first_id=ends[0], last_id=ends[1], has_more=has_more)


def view_job(session: Session, job: Job, base_url: str, serving: Serving, *, place: bool = True) -> JobView:
    """Return ``job`` as callers see it; ``place`` False saves counting the jobs before it."""
    url = f"{base_url}/v1/jobs/{job.id}"
    batch = None if job.batch_id is None else session.get(Batch, job.batch_id)
    return JobView(
        id=job.id,
        status=job.state,
        model=job.model,
        request=job.request,
        plan=job.plan,
        priority=_PRIORITY_WORDS[job.priority],
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        cancel_requested_at=job.cancel_requested_at,
        stopped_at_step=job.stopped_at_step,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        queue_position=queue_position(session, job) if place else None,
        progress=_progress(job),
        artifacts=[_view_artifact(artifact, url) for artifact in job.artifacts],
        error=_error(job),
        parked=job.parked,
        requeued_from=job.requeued_from,
        requeued_as=find_successor(session, job.id) if job.state in LOST_ROWS else None,
        timings_ms=_timings(job),
        acceleration=job.acceleration,
        worker=job.worker_id,
        batch_id=job.batch_id,
        batch_row=job.batch_row,
        schedule_id=None if batch is None else batch.schedule_id,
        metadata=job.metadata_,
        warnings=_warnings(session, job, batch, serving),
        urls=_urls(url),
    )


def view_attempt(attempt: Attempt) -> AttemptView:
    """Return one try at a job."""
    code, message = attempt.error_code, attempt.error_message
    return AttemptView(
        number=attempt.number,
        worker=attempt.worker_id,
        outcome=attempt.outcome,
        error=None if code is None else AttemptError(code=code, message=message or ""),
        step=attempt.step,
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
    )


def view_model(spec: ModelSpec, ready_workers: int) -> ModelView:
    """Return what a caller may ask of a model, and whether somebody serves it."""
    return ModelView(**spec.as_public_json(), gated=spec.gated, ready_workers=ready_workers)


def view_worker(worker: Worker) -> WorkerView:
    """Return a worker with its resolved policy and the record of its preparation."""
    return WorkerView.model_validate(worker, from_attributes=True)


def view_file(file: File, life_s: float) -> FileView:
    """Return a file that was sent; it is kept for ``life_s`` seconds."""
    return FileView(
        id=file.id,
        sha256=file.sha256,
        bytes=file.bytes,
        media_type=file.media_type,
        width=file.width,
        height=file.height,
        created_at=file.created_at,
        kept_until=file.sent_at + timedelta(seconds=life_s),
    )


def _urls(url: str) -> JobUrls:
    parts = ("attempts", "cancel", "content", "requeue")
    return JobUrls(self=url, **{part: f"{url}/{part}" for part in parts})


def _progress(job: Job) -> Progress | None:
    if job.progress_step is None or not job.progress_steps:
        return None
    fraction = min(1.0, job.progress_step / job.progress_steps)
    return Progress(step=job.progress_step, steps=job.progress_steps, fraction=round(fraction, 4))


def _view_artifact(artifact: Artifact, job_url: str) -> ArtifactView:
    url = f"{job_url}/content?index={artifact.index}"
    return ArtifactView(
        index=artifact.index,
        url=url,
        media_type=artifact.media_type,
        width=artifact.width,
        height=artifact.height,
        bytes=artifact.bytes,
        sha256=artifact.sha256,
        seed=artifact.seed,
        frames=artifact.frames,
        fps=artifact.fps,
        duration_s=artifact.duration_s,
        thumbnail_url=f"{url}&variant=thumbnail" if artifact.thumbnail_key else None,
    )


def _error(job: Job) -> JobError | None:
    if job.error_code is None:
        return None
    return JobError(code=job.error_code, message=job.error_message or "", retryable=bool(job.error_retryable))


def _timings(job: Job) -> dict[str, float] | None:
    """The worker's own times, and those that only the row knows: waiting, and all together."""
    if job.started_at is None:
        return None
    known = {"queue": _milliseconds(job.created_at, job.started_at), **(job.timings_ms or {})}
    if job.finished_at is not None:
        known["total"] = _milliseconds(job.created_at, job.finished_at)
    return known


def _milliseconds(begin: datetime, end: datetime) -> float:
    return round((end - begin).total_seconds() * 1000, 1)


def _warnings(session: Session, job: Job, batch: Batch | None, serving: Serving) -> list[str]:
    if job.state != JobState.QUEUED:
        return []
    found: tuple[str | None, ...] = (
        serving.warning(session, job.model),
        _why_held(batch) if job.held and batch is not None else None,
        None if job.published_at or job.held else NOT_SENT,
    )
    return [warning for warning in found if warning]


def _why_held(batch: Batch) -> str:
    return holding_back(batch) or "the rows of its batch before it are sent first"

"""The bodies this API answers with. Requests are not here: their words belong to ``policy.request``."""

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field

from policy.request import Priority

Item = TypeVar("Item")
JobStatus = Literal["queued", "in_progress", "completed", "failed", "canceled", "expired"]
AttemptOutcome = Literal["completed", "failed", "retried", "handed_back", "lost", "stopped"]
WorkerStateWord = Literal[
    "loading", "mounting", "compiling", "warming", "ready", "disconnected", "draining", "failed", "gone"
]


class Progress(BaseModel):
    """How far the denoising of the current attempt is."""

    step: int
    steps: int
    fraction: float = Field(ge=0, le=1)


class ArtifactView(BaseModel):
    """One finished file."""

    index: int
    url: str
    media_type: str
    width: int
    height: int
    bytes: int
    sha256: str
    seed: int
    frames: int | None = Field(description="Video only, as fps and duration_s.")
    fps: float | None
    duration_s: float | None
    thumbnail_url: str | None = Field(description="A small WebP of a video's first frame.")


class FileView(BaseModel):
    """A picture that was sent."""

    id: str
    object: Literal["file"] = "file"
    sha256: str
    bytes: int
    media_type: str
    width: int = Field(description="Pixels of the picture when it stands upright.")
    height: int
    created_at: datetime
    kept_until: datetime = Field(
        description="At least until then; longer while a job or a schedule that names it needs it."
    )


class JobError(BaseModel):
    """Why a job failed."""

    code: str
    message: str
    retryable: bool


class JobUrls(BaseModel):
    """Where to go from here."""

    self: str
    attempts: str
    cancel: str
    content: str
    requeue: str


class AttemptError(BaseModel):
    """What ended an attempt early."""

    code: str
    message: str


class AttemptView(BaseModel):
    """One try at a job by one worker."""

    object: Literal["attempt"] = "attempt"
    number: int = Field(description="From 1.")
    worker: str = Field(description="Id of the worker that made it.")
    outcome: AttemptOutcome | None = Field(description="Null while it runs.")
    error: AttemptError | None
    step: int | None = Field(description="The last step that was reported.")
    started_at: datetime
    finished_at: datetime | None


class Attempts(BaseModel):
    """Every try at a job, the first one first."""

    object: Literal["list"] = "list"
    data: list[AttemptView]


class JobView(BaseModel):
    """A job: one order, what became of it, and where its files are."""

    id: str
    object: Literal["job"] = "job"
    status: JobStatus = Field(
        description="The last four are terminal and never change. Treat unknown words as not terminal."
    )
    model: str
    request: dict[str, Any] = Field(description="What was asked for, as it was sent.")
    plan: dict[str, Any] = Field(description="The request with every gap filled: enough to repeat the work.")
    priority: Priority
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    stopped_at_step: int | None = Field(description="The step at which a cancelled job stopped.")
    attempt: int = Field(description="The current or last try, from 1; 0 before the first.")
    max_attempts: int
    queue_position: int | None = Field(
        description="Place among the model's queued jobs, 1 being the next. Null in lists, if not queued, "
        "and while its batch holds the job back."
    )
    progress: Progress | None
    artifacts: list[ArtifactView]
    error: JobError | None
    parked: bool = Field(description="It failed because its attempts were used up.")
    requeued_from: str | None = Field(description="The failed or expired job that this one repeats.")
    requeued_as: str | None = Field(description="The job that repeats this one.")
    timings_ms: dict[str, float] | None
    acceleration: dict[str, Any] | None
    worker: str | None = Field(description="Id of the worker that has or had it last.")
    batch_id: str | None
    batch_row: int | None = Field(description="Its row in the batch, from 1.")
    schedule_id: str | None = Field(description="The schedule that made its batch.")
    metadata: dict[str, str]
    warnings: list[str] = Field(description="What may keep the job from ending soon, in words.")
    urls: JobUrls


class Page(BaseModel, Generic[Item]):
    """A list, newest first. Ask on with ``after=last_id`` while ``has_more``."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ModelView(BaseModel):
    """A model that jobs may name, with its limits."""

    id: str
    object: Literal["model"] = "model"
    name: str
    family: str
    kind: Literal["image", "video"]
    description: str
    license: str
    gated: bool
    source: str
    revision: str | None
    size: dict[str, Any]
    steps: dict[str, Any]
    guidance: dict[str, Any]
    boundary_ratio: float | None = Field(
        description="Where two transformers change over; null: the model has one."
    )
    frames: dict[str, Any] | None
    limits: dict[str, Any]
    output_formats: list[str]
    inputs: dict[str, Any] | None = Field(
        description="Whether it draws from an image, whole or inside a mask; null: from none."
    )
    cache: dict[str, Any] = Field(description="Fewest steps that each cache preset can take.")
    loras: list[dict[str, Any]] = Field(description="What the field lora may name, with its scales.")
    ready_workers: int = Field(description="Workers that could take a job of this model now.")


class WorkerView(BaseModel):
    """A worker process: what it serves, how it was prepared, and what it does."""

    id: str
    object: Literal["worker"] = "worker"
    name: str
    host: str
    pid: int
    child_pid: int | None
    model: str
    queue: str
    state: WorkerStateWord = Field(description="Only ready takes jobs.")
    policy: dict[str, Any] = Field(description="Every resolved option with its source and reason.")
    preparation: list[dict[str, Any]] = Field(
        description="Load, mount, compile, warm up: each with its time."
    )
    device: dict[str, Any]
    error: str | None
    started_at: datetime
    ready_at: datetime | None = Field(description="When it first could take a job.")
    heartbeat_at: datetime
    current_job_id: str | None
    jobs_done: int
    warm_shapes: list[str] | None = Field(
        description="Shapes at which a request runs compiled. Null: nothing is compiled, so all run alike."
    )
    cold_requests: dict[str, int] | None = Field(
        description="Shapes that are not warm -> requests that ran uncompiled there. The worker warms them "
        "while it is idle, the most wanted first. Null: as above."
    )
    shapes_note: str | None = Field(description="What else is to be said of shapes, in words.")


class Check(BaseModel):
    """One thing that must hold before the service can render."""

    name: Literal["database", "redis", "artifacts", "workers"]
    ok: bool
    reason: str


class Readiness(BaseModel):
    """Whether an accepted job could be rendered now."""

    ready: bool
    checks: list[Check]
    models: list[str] = Field(description="Models that could be rendered now: none while a check fails.")


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"
    version: str


class Home(BaseModel):
    """What answers here."""

    name: Literal["renderq"] = "renderq"
    version: str
    description: str
    docs: str
    openapi: str
    links: dict[str, str]

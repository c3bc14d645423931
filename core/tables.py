"""The tables. Plural names, times end in ``_at``, relationships raise on a hidden load.

A change here needs a migration in ``migrations/versions``; a test compares the two.
"""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Text,
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.bulk_tables import Batch, Firing, Schedule
from core.clock import now
from core.file_tables import File, JobInput, ScheduleFile
from core.lifecycle import TERMINAL, JobState, Outcome, WorkerState
from core.orm import ID, Base, Json, words

__all__ = [
    "Artifact",
    "Attempt",
    "Base",
    "Batch",
    "CompileCache",
    "Event",
    "File",
    "Firing",
    "IdempotencyKey",
    "Job",
    "JobInput",
    "Json",
    "Schedule",
    "ScheduleFile",
    "Worker",
]


_TERMINAL = f"state IN ({words(TERMINAL)})"


class Job(Base):
    """One order: what was asked for, how it stands, what came of it."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    caller: Mapped[str] = mapped_column(String(100))
    model: Mapped[str] = mapped_column(String(200))
    state: Mapped[JobState]
    priority: Mapped[int]
    """0 goes first; high 0, normal 3, low 6."""
    request: Mapped[Json]
    plan: Mapped[Json]
    metadata_: Mapped[dict[str, str]] = mapped_column("metadata")
    attempt: Mapped[int] = mapped_column(default=0)
    """Number of the latest attempt; 0 before the first."""
    hand_backs: Mapped[int] = mapped_column(default=0)
    """Attempts that ended by a worker's shutdown and do not count."""
    max_attempts: Mapped[int]
    owner: Mapped[str | None] = mapped_column(ID)
    """Worker that holds the job now."""
    lease_until: Mapped[datetime | None]
    worker_id: Mapped[str | None] = mapped_column(ID)
    """Worker of the latest attempt, kept when the job is no longer held."""
    run_after: Mapped[datetime | None]
    """No attempt before this time."""
    queue_deadline_at: Mapped[datetime | None]
    """The first attempt must start before this time."""
    run_timeout_s: Mapped[float | None]
    """Longest time of one attempt."""
    cancel_requested_at: Mapped[datetime | None]
    stopped_at_step: Mapped[int | None]
    progress_step: Mapped[int | None]
    progress_steps: Mapped[int | None]
    error_code: Mapped[str | None] = mapped_column(String(100))
    error_message: Mapped[str | None] = mapped_column(Text)
    error_retryable: Mapped[bool | None]
    timings_ms: Mapped[dict[str, float] | None]
    acceleration: Mapped[Json | None]
    created_at: Mapped[datetime] = mapped_column(default=now())
    queued_at: Mapped[datetime] = mapped_column(default=now())
    """When it last became queued."""
    published_at: Mapped[datetime | None]
    """When its id was last sent to the broker while it was queued as it is now."""
    started_at: Mapped[datetime | None]
    """When its first attempt began."""
    finished_at: Mapped[datetime | None]
    batch_id: Mapped[str | None] = mapped_column(ID, ForeignKey("batches.id"))
    batch_row: Mapped[int | None]
    """Number of its row in the batch, from 1."""
    batch_fields: Mapped[Json | None]
    """What its row said, for names of files and the table of results."""
    held: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Queued but not released by its batch yet: neither sent nor claimed."""
    superseded: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Its row was ordered again after it failed; counts of the batch leave it out."""
    parked: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Failed because its attempts were used up, not because another one would fail the same way."""
    requeued_from: Mapped[str | None] = mapped_column(ID, ForeignKey("jobs.id"))
    """The failed or expired job that this one repeats."""

    artifacts: Mapped[list["Artifact"]] = relationship(
        lazy="raise", order_by="Artifact.index", passive_deletes=True
    )

    __table_args__ = (
        CheckConstraint(f"state IN ({words(JobState)})", name="state_known"),
        CheckConstraint(f"({_TERMINAL}) = (finished_at IS NOT NULL)", name="terminal_is_finished"),
        CheckConstraint("(state = 'in_progress') = (owner IS NOT NULL)", name="in_progress_is_owned"),
        CheckConstraint("(state = 'in_progress') = (lease_until IS NOT NULL)", name="in_progress_is_leased"),
        CheckConstraint(
            "state NOT IN ('in_progress', 'completed') OR (started_at IS NOT NULL AND attempt > 0)",
            name="work_was_started",
        ),
        CheckConstraint("(state = 'failed') = (error_code IS NOT NULL)", name="failed_has_error"),
        CheckConstraint("attempt >= 0 AND hand_backs BETWEEN 0 AND attempt", name="attempts_counted"),
        CheckConstraint("max_attempts >= 1", name="max_attempts_positive"),
        CheckConstraint("priority BETWEEN 0 AND 9", name="priority_known"),
        CheckConstraint("NOT held OR (state = 'queued' AND batch_id IS NOT NULL)", name="held_is_queued"),
        CheckConstraint("NOT parked OR state = 'failed'", name="parked_is_failed"),
        Index("ix_jobs_list", "caller", "created_at", "id"),
        Index("ix_jobs_list_state", "caller", "state", "created_at", "id"),
        Index("ix_jobs_list_model", "caller", "model", "created_at", "id"),
        Index(
            "ix_jobs_list_parked",
            *("caller", "created_at", "id"),
            sqlite_where=text("parked = 1"),
            postgresql_where=text("parked"),
        ),
        Index(
            "uq_jobs_requeued_from",
            "requeued_from",
            unique=True,
            sqlite_where=text("requeued_from IS NOT NULL"),
            postgresql_where=text("requeued_from IS NOT NULL"),
        ),
        Index("ix_jobs_batch", "batch_id", "batch_row", "id"),
        Index("ix_jobs_batch_state", "batch_id", "superseded", "state", "held"),
        Index(
            "ix_jobs_queue",
            *("model", "priority", "created_at", "id"),
            sqlite_where=text("state = 'queued'"),
            postgresql_where=text("state = 'queued'"),
        ),
        Index(
            "ix_jobs_unpublished",
            "queued_at",
            sqlite_where=text("state = 'queued' AND published_at IS NULL AND held = 0"),
            postgresql_where=text("state = 'queued' AND published_at IS NULL AND NOT held"),
        ),
        Index(
            "ix_jobs_deadline",
            "queue_deadline_at",
            sqlite_where=text("state = 'queued' AND queue_deadline_at IS NOT NULL"),
            postgresql_where=text("state = 'queued' AND queue_deadline_at IS NOT NULL"),
        ),
        Index(
            "ix_jobs_lease",
            "lease_until",
            sqlite_where=text("state = 'in_progress'"),
            postgresql_where=text("state = 'in_progress'"),
        ),
    )

    @property
    def counted_attempts(self) -> int:
        """Attempts that count against ``max_attempts``."""
        return self.attempt - self.hand_backs


class Attempt(Base):
    """One try at a job by one worker, numbered from 1."""

    __tablename__ = "attempts"

    job_id: Mapped[str] = mapped_column(ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    worker_id: Mapped[str] = mapped_column(ID)
    outcome: Mapped[Outcome | None]
    """None while it runs."""
    error_code: Mapped[str | None] = mapped_column(String(100))
    error_message: Mapped[str | None] = mapped_column(Text)
    step: Mapped[int | None]
    """Last step that was reported."""
    pass_of: Mapped[str | None] = mapped_column(ID)
    """Job that led the pass which this attempt shared with others, itself included; None: it was alone."""
    started_at: Mapped[datetime] = mapped_column(default=now())
    finished_at: Mapped[datetime | None]

    __table_args__ = (
        CheckConstraint(f"outcome IN ({words(Outcome)})", name="outcome_known"),
        CheckConstraint("(outcome IS NULL) = (finished_at IS NULL)", name="outcome_is_final"),
        Index(
            "uq_attempts_one_completed",
            "job_id",
            unique=True,
            sqlite_where=text("outcome = 'completed'"),
            postgresql_where=text("outcome = 'completed'"),
        ),
        Index(
            "uq_attempts_one_running",
            "job_id",
            unique=True,
            sqlite_where=text("outcome IS NULL"),
            postgresql_where=text("outcome IS NULL"),
        ),
        Index(
            "ix_attempts_pass",
            "pass_of",
            sqlite_where=text("pass_of IS NOT NULL"),
            postgresql_where=text("pass_of IS NOT NULL"),
        ),
    )


class Artifact(Base):
    """A file that the completing attempt made."""

    __tablename__ = "artifacts"

    job_id: Mapped[str] = mapped_column(ID, primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[int]
    key: Mapped[str] = mapped_column(String(300), unique=True)
    """Where the artifact store keeps it."""
    media_type: Mapped[str] = mapped_column(String(100))
    width: Mapped[int]
    height: Mapped[int]
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    seed: Mapped[int] = mapped_column(BigInteger)
    frames: Mapped[int | None]
    fps: Mapped[float | None]
    duration_s: Mapped[float | None]
    thumbnail_key: Mapped[str | None] = mapped_column(String(300))
    """Where the artifact store keeps a small picture of a video's first frame."""
    thumbnail_bytes: Mapped[int | None] = mapped_column(BigInteger)
    thumbnail_sha256: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(default=now())

    __table_args__ = (
        ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
        ForeignKeyConstraint(
            ["job_id", "attempt"], ["attempts.job_id", "attempts.number"], ondelete="CASCADE"
        ),
    )


class Event(Base):
    """Something that happened to a job, in the order of ``id`` for one job."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    job_id: Mapped[str] = mapped_column(ID, ForeignKey("jobs.id", ondelete="CASCADE"))
    type: Mapped[str] = mapped_column(String(50))
    payload: Mapped[Json]
    created_at: Mapped[datetime] = mapped_column(default=now())

    __table_args__ = (Index(None, "job_id", "id"), {"sqlite_autoincrement": True})


class Worker(Base):
    """One boot of one worker."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    host: Mapped[str] = mapped_column(String(255))
    pid: Mapped[int]
    child_pid: Mapped[int | None]
    model: Mapped[str] = mapped_column(String(200))
    queue: Mapped[str] = mapped_column(String(200))
    state: Mapped[WorkerState]
    policy: Mapped[Json]
    preparation: Mapped[list[Json]]
    """Steps of the start, in order, each ``{name, state, seconds, detail}``."""
    device: Mapped[Json]
    error: Mapped[str | None] = mapped_column(Text)
    current_job_id: Mapped[str | None] = mapped_column(ID)
    jobs_done: Mapped[int] = mapped_column(default=0)
    warm_shapes: Mapped[list[str] | None]
    """Shapes at which requests run compiled; None: nothing is compiled, or not known yet."""
    cold_requests: Mapped[dict[str, int] | None]
    """Shapes not warm yet -> requests that ran uncompiled there."""
    shapes_note: Mapped[str | None] = mapped_column(Text)
    started_at: Mapped[datetime] = mapped_column(default=now())
    ready_at: Mapped[datetime | None]
    """When it first could take a job."""
    heartbeat_at: Mapped[datetime] = mapped_column(default=now())

    __table_args__ = (
        CheckConstraint(f"state IN ({words(WorkerState)})", name="state_known"),
        Index("ix_workers_alive", "state", "heartbeat_at"),
    )


class CompileCache(Base):
    """What compilers made for workers of one kind, kept for the next; the bytes lie elsewhere."""

    __tablename__ = "compile_caches"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Hash of ``facts``."""
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    facts: Mapped[Json]
    """Model, versions, device and options that it fits."""
    created_at: Mapped[datetime] = mapped_column(default=now())
    used_at: Mapped[datetime] = mapped_column(default=now())


class IdempotencyKey(Base):
    """A key under which a caller submitted a job or a batch, and what the request was."""

    __tablename__ = "idempotency_keys"

    caller: Mapped[str] = mapped_column(String(100), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(128))
    job_id: Mapped[str | None] = mapped_column(ID, ForeignKey("jobs.id", ondelete="CASCADE"))
    batch_id: Mapped[str | None] = mapped_column(ID, ForeignKey("batches.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = mapped_column(default=now())

    __table_args__ = (
        CheckConstraint("(job_id IS NULL) <> (batch_id IS NULL)", name="of_one_order"),
        Index(None, "created_at"),
    )

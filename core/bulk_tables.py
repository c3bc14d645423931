"""The tables of bulk renders: batches, the schedules that create them, and their firings."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.lifecycle import ENDED_BATCH, BatchState, FiringKind, FiringOutcome, Misfire
from core.orm import ID, Base, Json, words


class Batch(Base):
    """Many jobs sent in one call, or by one firing of a schedule."""

    __tablename__ = "batches"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    caller: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(200))
    state: Mapped[BatchState]
    template: Mapped[Json]
    """What its rows had in common."""
    total: Mapped[int]
    """Number of rows."""
    window: Mapped[Json | None]
    """Daily times in which its jobs may start: ``{start, end, timezone}``."""
    schedule_id: Mapped[str | None] = mapped_column(ID, ForeignKey("schedules.id", ondelete="SET NULL"))
    due_at: Mapped[datetime | None]
    """The time of the schedule for which it was made."""
    retries: Mapped[int] = mapped_column(default=0)
    """How often its failed rows were ordered again."""
    cancel_requested_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=now())
    finished_at: Mapped[datetime | None]

    __table_args__ = (
        CheckConstraint(f"state IN ({words(BatchState)})", name="state_known"),
        CheckConstraint(
            f"(state IN ({words(ENDED_BATCH)})) = (finished_at IS NOT NULL)", name="ended_is_finished"
        ),
        CheckConstraint("total >= 1", name="has_rows"),
        Index("ix_batches_list", "caller", "created_at", "id"),
        Index("ix_batches_state", "state", "created_at"),
        Index("ix_batches_schedule", "schedule_id", "created_at", "id"),
    )


class Schedule(Base):
    """A rule that creates a batch at given times."""

    __tablename__ = "schedules"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    caller: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(200))
    cron: Mapped[str | None] = mapped_column(String(200))
    at: Mapped[datetime | None]
    every_s: Mapped[int | None]
    timezone: Mapped[str | None] = mapped_column(String(100))
    window: Mapped[Json | None]
    misfire: Mapped[Misfire]
    misfire_grace_s: Mapped[int]
    """A slot found later than this is missed."""
    enabled: Mapped[bool]
    order: Mapped[Json] = mapped_column(deferred=True, deferred_raiseload=True)
    """What each firing orders: ``{template, rows, grid, text_cells}``; large, read only when asked for."""
    total: Mapped[int]
    """Rows of each batch."""
    version: Mapped[int] = mapped_column(default=1)
    """Counts its changes, so that a firing never uses an order that was changed meanwhile."""
    next_at: Mapped[datetime | None]
    """The next slot; None when there is none any more, or while it is not enabled."""
    created_at: Mapped[datetime] = mapped_column(default=now())
    updated_at: Mapped[datetime] = mapped_column(default=now())

    __table_args__ = (
        CheckConstraint(
            "(cron IS NOT NULL AND at IS NULL AND every_s IS NULL) OR "
            "(cron IS NULL AND at IS NOT NULL AND every_s IS NULL) OR "
            "(cron IS NULL AND at IS NULL AND every_s IS NOT NULL)",
            name="one_rule",
        ),
        CheckConstraint("cron IS NULL OR timezone IS NOT NULL", name="cron_has_zone"),
        CheckConstraint(f"misfire IN ({words(Misfire)})", name="misfire_known"),
        CheckConstraint("enabled OR next_at IS NULL", name="disabled_has_no_slot"),
        Index("ix_schedules_list", "caller", "created_at", "id"),
        Index(
            "ix_schedules_due",
            "next_at",
            sqlite_where=text("next_at IS NOT NULL"),
            postgresql_where=text("next_at IS NOT NULL"),
        ),
    )


class Firing(Base):
    """One time that a schedule came due, or was fired by hand, and what came of it."""

    __tablename__ = "firings"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    schedule_id: Mapped[str] = mapped_column(ID, ForeignKey("schedules.id", ondelete="CASCADE"))
    kind: Mapped[FiringKind]
    outcome: Mapped[FiringOutcome]
    due_at: Mapped[datetime]
    fired_at: Mapped[datetime] = mapped_column(default=now())
    missed: Mapped[int] = mapped_column(default=0)
    """Earlier slots that this one stands for, or that were passed over with it."""
    batch_id: Mapped[str | None] = mapped_column(ID, ForeignKey("batches.id"))
    error: Mapped[str | None] = mapped_column(Text)

    __table_args__ = (
        CheckConstraint(f"kind IN ({words(FiringKind)})", name="kind_known"),
        CheckConstraint(f"outcome IN ({words(FiringOutcome)})", name="outcome_known"),
        CheckConstraint("(outcome = 'fired') = (batch_id IS NOT NULL)", name="fired_has_batch"),
        CheckConstraint("(outcome = 'failed') = (error IS NOT NULL)", name="failed_has_error"),
        Index(
            "uq_firings_slot",
            *("schedule_id", "due_at"),
            unique=True,
            sqlite_where=text("kind = 'due'"),
            postgresql_where=text("kind = 'due'"),
        ),
        Index("ix_firings_list", "schedule_id", "fired_at", "id"),
    )

"""Batches, schedules and their firings; jobs of a batch; idempotency keys of batches."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BATCH_STATES = "'canceled', 'completed', 'failed', 'paused', 'running'"
_ENDED = "'canceled', 'completed', 'failed'"
_UNSENT = "state = 'queued' AND published_at IS NULL"

_JOB_COLUMNS = (
    "batch_id VARCHAR(36) CONSTRAINT fk_jobs_batch_id REFERENCES batches (id)",
    "batch_row INTEGER",
    "batch_fields JSON",
    (
        "held BOOLEAN DEFAULT false NOT NULL CONSTRAINT ck_jobs_held_is_queued "
        "CHECK (NOT held OR (state = 'queued' AND batch_id IS NOT NULL))"
    ),
    "superseded BOOLEAN DEFAULT false NOT NULL",
)
"""Added in plain SQL: making the table anew, as SQLite else needs, would empty those that refer to it."""


def upgrade() -> None:
    """Apply."""
    _create_schedules()
    _create_batches()
    _create_firings()
    for column in _JOB_COLUMNS:
        op.execute(f"ALTER TABLE jobs ADD COLUMN {column}")
    op.create_index("ix_jobs_batch", "jobs", ["batch_id", "batch_row", "id"])
    op.create_index("ix_jobs_batch_state", "jobs", ["batch_id", "superseded", "state", "held"])
    op.drop_index("ix_jobs_unpublished", "jobs")
    _index_unpublished(f"{_UNSENT} AND held = 0", f"{_UNSENT} AND NOT held")
    _widen_idempotency_keys()


def downgrade() -> None:
    """Take back; jobs of batches stay as single ones, keys of batches go."""
    op.execute("DELETE FROM idempotency_keys WHERE job_id IS NULL")
    with op.batch_alter_table("idempotency_keys") as keys:
        keys.drop_constraint(op.f("ck_idempotency_keys_of_one_order"), type_="check")
        keys.drop_constraint(op.f("fk_idempotency_keys_batch_id"), type_="foreignkey")
        keys.drop_column("batch_id")
        keys.alter_column("job_id", existing_type=sa.String(36), nullable=False)
    for index in ("ix_jobs_batch", "ix_jobs_batch_state", "ix_jobs_unpublished"):
        op.drop_index(index, "jobs")
    for column in ("superseded", "held", "batch_fields", "batch_row", "batch_id"):
        op.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
    _index_unpublished(_UNSENT, _UNSENT)
    for table in ("firings", "batches", "schedules"):
        op.drop_table(table)


def _create_schedules() -> None:
    op.create_table(
        "schedules",
        *_owned("schedules"),
        _column("cron", sa.String(200), null=True),
        _at("at", null=True),
        _column("every_s", sa.Integer(), null=True),
        _column("timezone", sa.String(100), null=True),
        _json("window", null=True),
        _column("misfire", sa.String(20)),
        _column("misfire_grace_s", sa.Integer()),
        _column("enabled", sa.Boolean()),
        _json("order"),
        _column("total", sa.Integer()),
        _column("version", sa.Integer()),
        _at("next_at", null=True),
        _at("created_at"),
        _at("updated_at"),
        _check(
            "schedules",
            "one_rule",
            "(cron IS NOT NULL AND at IS NULL AND every_s IS NULL) OR "
            "(cron IS NULL AND at IS NOT NULL AND every_s IS NULL) OR "
            "(cron IS NULL AND at IS NULL AND every_s IS NOT NULL)",
        ),
        _check("schedules", "cron_has_zone", "cron IS NULL OR timezone IS NOT NULL"),
        _check("schedules", "misfire_known", "misfire IN ('once', 'skip')"),
        _check("schedules", "disabled_has_no_slot", "enabled OR next_at IS NULL"),
    )
    op.create_index("ix_schedules_list", "schedules", ["caller", "created_at", "id"])
    due = sa.text("next_at IS NOT NULL")
    op.create_index("ix_schedules_due", "schedules", ["next_at"], sqlite_where=due, postgresql_where=due)


def _create_batches() -> None:
    op.create_table(
        "batches",
        *_owned("batches"),
        _column("state", sa.String(20)),
        _json("template"),
        _column("total", sa.Integer()),
        _json("window", null=True),
        _column("schedule_id", sa.String(36), null=True),
        _at("due_at", null=True),
        _column("retries", sa.Integer()),
        _at("cancel_requested_at", null=True),
        _at("created_at"),
        _at("finished_at", null=True),
        _reference("batches", "schedule_id", "schedules", "SET NULL"),
        _check("batches", "state_known", f"state IN ({_BATCH_STATES})"),
        _check("batches", "ended_is_finished", f"(state IN ({_ENDED})) = (finished_at IS NOT NULL)"),
        _check("batches", "has_rows", "total >= 1"),
    )
    op.create_index("ix_batches_list", "batches", ["caller", "created_at", "id"])
    op.create_index("ix_batches_state", "batches", ["state", "created_at"])
    op.create_index("ix_batches_schedule", "batches", ["schedule_id", "created_at", "id"])


def _create_firings() -> None:
    op.create_table(
        "firings",
        _column("id", sa.String(36)),
        _column("schedule_id", sa.String(36)),
        _column("kind", sa.String(20)),
        _column("outcome", sa.String(20)),
        _at("due_at"),
        _at("fired_at"),
        _column("missed", sa.Integer()),
        _column("batch_id", sa.String(36), null=True),
        _column("error", sa.Text(), null=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_firings")),
        _reference("firings", "schedule_id", "schedules", "CASCADE"),
        _reference("firings", "batch_id", "batches", None),
        _check("firings", "kind_known", "kind IN ('due', 'manual')"),
        _check("firings", "outcome_known", "outcome IN ('failed', 'fired', 'skipped')"),
        _check("firings", "fired_has_batch", "(outcome = 'fired') = (batch_id IS NOT NULL)"),
        _check("firings", "failed_has_error", "(outcome = 'failed') = (error IS NOT NULL)"),
    )
    due = sa.text("kind = 'due'")
    slot = ["schedule_id", "due_at"]
    op.create_index("uq_firings_slot", "firings", slot, unique=True, sqlite_where=due, postgresql_where=due)
    op.create_index("ix_firings_list", "firings", ["schedule_id", "fired_at", "id"])


def _widen_idempotency_keys() -> None:
    """A key belongs to a job or to a batch. Nothing refers to this table, so it may be made anew."""
    with op.batch_alter_table("idempotency_keys") as keys:
        keys.add_column(_column("batch_id", sa.String(36), null=True))
        keys.alter_column("job_id", existing_type=sa.String(36), nullable=True)
        keys.create_foreign_key(
            op.f("fk_idempotency_keys_batch_id"), "batches", ["batch_id"], ["id"], ondelete="CASCADE"
        )
        keys.create_check_constraint(
            op.f("ck_idempotency_keys_of_one_order"), "(job_id IS NULL) <> (batch_id IS NULL)"
        )


def _index_unpublished(sqlite: str, postgresql: str) -> None:
    op.create_index(
        "ix_jobs_unpublished",
        "jobs",
        ["queued_at"],
        sqlite_where=sa.text(sqlite),
        postgresql_where=sa.text(postgresql),
    )


def _owned(table: str) -> tuple[Any, ...]:
    return (
        _column("id", sa.String(36)),
        _column("caller", sa.String(100)),
        _column("name", sa.String(200)),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")),
    )


def _column(name: str, type_: Any, *, null: bool = False) -> sa.Column[Any]:  # noqa: ANN401
    return sa.Column(name, type_, nullable=null)


def _at(name: str, *, null: bool = False) -> sa.Column[Any]:
    return _column(name, sa.DateTime(timezone=True), null=null)


def _json(name: str, *, null: bool = False) -> sa.Column[Any]:
    return _column(name, sa.JSON(none_as_null=True), null=null)


def _check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))


def _reference(table: str, column: str, other: str, on_delete: str | None) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_{column}")
    return sa.ForeignKeyConstraint([column], [f"{other}.id"], name=name, ondelete=on_delete)

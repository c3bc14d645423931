"""Parked jobs, and jobs that repeat another."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COLUMNS = (
    (
        "parked BOOLEAN DEFAULT false NOT NULL CONSTRAINT ck_jobs_parked_is_failed "
        "CHECK (NOT parked OR state = 'failed')"
    ),
    "requeued_from VARCHAR(36) CONSTRAINT fk_jobs_requeued_from REFERENCES jobs (id)",
)
"""In plain SQL, as in 0002: SQLite would make the table anew and empty those below it."""


def upgrade() -> None:
    """Apply; failed jobs that could be tried again but for their attempts are parked ones."""
    for column in _COLUMNS:
        op.execute(f"ALTER TABLE jobs ADD COLUMN {column}")
    op.execute(
        "UPDATE jobs SET parked = true "
        "WHERE state = 'failed' AND error_retryable AND attempt - hand_backs >= max_attempts"
    )
    op.create_index(
        "ix_jobs_list_parked",
        "jobs",
        ["caller", "created_at", "id"],
        sqlite_where=sa.text("parked = 1"),
        postgresql_where=sa.text("parked"),
    )
    named = sa.text("requeued_from IS NOT NULL")
    op.create_index(
        "uq_jobs_requeued_from",
        "jobs",
        ["requeued_from"],
        unique=True,
        sqlite_where=named,
        postgresql_where=named,
    )


def downgrade() -> None:
    """Take back; what a job repeats, and whether it was parked, is forgotten."""
    for index in ("uq_jobs_requeued_from", "ix_jobs_list_parked"):
        op.drop_index(index, "jobs")
    for column in ("requeued_from", "parked"):
        op.execute(f"ALTER TABLE jobs DROP COLUMN {column}")

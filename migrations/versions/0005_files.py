"""Files that callers send, which jobs and schedules draw from, and thumbnails of videos."""

import sqlalchemy as sa
from alembic import op

from core.clock import Timestamp

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_THUMBNAIL = ("thumbnail_key VARCHAR(300)", "thumbnail_bytes BIGINT", "thumbnail_sha256 VARCHAR(64)")
"""In plain SQL, as in 0002: SQLite would make the table anew and empty those below it."""


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "files",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("caller", sa.String(100), nullable=False),
        sa.Column("key", sa.String(300), nullable=False),
        sa.Column("media_type", sa.String(100), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("stored", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("gone_at", Timestamp(), nullable=True),
        sa.Column("sent_at", Timestamp(), nullable=False),
        sa.Column("created_at", Timestamp(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
        sa.UniqueConstraint("key", name=op.f("uq_files_key")),
    )
    kept = sa.text("gone_at IS NULL")
    op.create_index(
        "uq_files_content",
        "files",
        ["caller", "sha256"],
        unique=True,
        sqlite_where=kept,
        postgresql_where=kept,
    )
    op.create_index("ix_files_sent_at", "files", ["sent_at"])
    op.create_table(
        "job_inputs",
        sa.Column("job_id", sa.String(36), nullable=False),
        sa.Column("field", sa.String(20), nullable=False),
        sa.Column("file_id", sa.String(36), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "field", name=op.f("pk_job_inputs")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_inputs_job_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["file_id"], ["files.id"], name=op.f("fk_job_inputs_file_id"), ondelete="CASCADE"
        ),
    )
    op.create_index("ix_job_inputs_file_id", "job_inputs", ["file_id"])
    op.create_table(
        "schedule_files",
        sa.Column("schedule_id", sa.String(36), nullable=False),
        sa.Column("file_id", sa.String(36), nullable=False),
        sa.PrimaryKeyConstraint("schedule_id", "file_id", name=op.f("pk_schedule_files")),
        sa.ForeignKeyConstraint(
            ["schedule_id"],
            ["schedules.id"],
            name=op.f("fk_schedule_files_schedule_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["file_id"], ["files.id"], name=op.f("fk_schedule_files_file_id"), ondelete="CASCADE"
        ),
    )
    op.create_index("ix_schedule_files_file_id", "schedule_files", ["file_id"])
    for column in _THUMBNAIL:
        op.execute(f"ALTER TABLE artifacts ADD COLUMN {column}")


def downgrade() -> None:
    """Take back; the bytes of the files stay in the artifact store, where nobody knows them any more."""
    for column in _THUMBNAIL:
        op.execute(f"ALTER TABLE artifacts DROP COLUMN {column.split()[0]}")
    for table in ("schedule_files", "job_inputs", "files"):
        op.drop_table(table)

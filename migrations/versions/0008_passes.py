"""Attempts of several jobs that shared one denoising pass."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_SHARED = sa.text("pass_of IS NOT NULL")


def upgrade() -> None:
    """Apply."""
    op.add_column("attempts", sa.Column("pass_of", sa.String(36), nullable=True))
    op.create_index(
        "ix_attempts_pass", "attempts", ["pass_of"], sqlite_where=_SHARED, postgresql_where=_SHARED
    )


def downgrade() -> None:
    """Take back; which attempts shared a pass is forgotten."""
    op.drop_index("ix_attempts_pass", "attempts")
    with op.batch_alter_table("attempts") as attempts:
        attempts.drop_column("pass_of")

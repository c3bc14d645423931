"""What a worker knows of shapes."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("workers", sa.Column("warm_shapes", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("workers", sa.Column("cold_requests", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("workers", sa.Column("shapes_note", sa.Text(), nullable=True))


def downgrade() -> None:
    """Take back; each worker tells it again when it starts."""
    with op.batch_alter_table("workers") as workers:
        for name in ("shapes_note", "cold_requests", "warm_shapes"):
            workers.drop_column(name)

"""One more state of a worker: warm, but no message reaches it."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_NAME = "ck_workers_state_known"
_BEFORE = "'compiling', 'draining', 'failed', 'gone', 'loading', 'mounting', 'ready', 'warming'"
_NOW = "'compiling', 'disconnected', 'draining', 'failed', 'gone', 'loading', 'mounting', 'ready', 'warming'"


def upgrade() -> None:
    """Apply."""
    _allow(_NOW)


def downgrade() -> None:
    """Take back; a worker that is disconnected now will say what it is at its next heartbeat."""
    op.execute("UPDATE workers SET state = 'loading' WHERE state = 'disconnected'")
    _allow(_BEFORE)


def _allow(states: str) -> None:
    # Nothing refers to this table, so SQLite may make it anew.
    with op.batch_alter_table("workers") as workers:
        workers.drop_constraint(op.f(_NAME), type_="check")
        workers.create_check_constraint(op.f(_NAME), f"state IN ({states})")

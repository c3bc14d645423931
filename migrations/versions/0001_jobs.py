"""Jobs, their attempts, files and events; workers; idempotency keys."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_STATES = "'canceled', 'completed', 'expired', 'failed', 'in_progress', 'queued'"
_TERMINAL = "state IN ('canceled', 'completed', 'expired', 'failed')"
_WORKER_STATES = "'compiling', 'draining', 'failed', 'gone', 'loading', 'mounting', 'ready', 'warming'"
_OUTCOMES = "'completed', 'failed', 'handed_back', 'lost', 'retried', 'stopped'"


def upgrade() -> None:
    """Apply."""
    _create_jobs()
    _index_jobs()
    _create_attempts()
    _create_artifacts()
    _create_events()
    _create_workers()
    _create_idempotency_keys()


def downgrade() -> None:
    """Take back."""
    for table in ("idempotency_keys", "workers", "events", "artifacts", "attempts", "jobs"):
        op.drop_table(table)


def _column(name: str, type_: Any, *, null: bool = False, **options: Any) -> sa.Column[Any]:  # noqa: ANN401
    return sa.Column(name, type_, nullable=null, **options)


def _id(name: str, *, null: bool = False) -> sa.Column[Any]:
    return _column(name, sa.String(36), null=null)


def _at(name: str, *, null: bool = False) -> sa.Column[Any]:
    return _column(name, sa.DateTime(timezone=True), null=null)


def _json(name: str, *, null: bool = False) -> sa.Column[Any]:
    return _column(name, sa.JSON(none_as_null=True), null=null)


def _check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))


def _of_job(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["job_id"], ["jobs.id"], name=op.f(f"fk_{table}_job_id"), ondelete="CASCADE"
    )


def _partial(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        _id("id"),
        _column("caller", sa.String(100)),
        _column("model", sa.String(200)),
        _column("state", sa.String(20)),
        _column("priority", sa.Integer()),
        _json("request"),
        _json("plan"),
        _json("metadata"),
        _column("attempt", sa.Integer()),
        _column("hand_backs", sa.Integer()),
        _column("max_attempts", sa.Integer()),
        _id("owner", null=True),
        _at("lease_until", null=True),
        _id("worker_id", null=True),
        _at("run_after", null=True),
        _at("queue_deadline_at", null=True),
        _column("run_timeout_s", sa.Double(), null=True),
        _at("cancel_requested_at", null=True),
        _column("stopped_at_step", sa.Integer(), null=True),
        _column("progress_step", sa.Integer(), null=True),
        _column("progress_steps", sa.Integer(), null=True),
        _column("error_code", sa.String(100), null=True),
        _column("error_message", sa.Text(), null=True),
        _column("error_retryable", sa.Boolean(), null=True),
        _json("timings_ms", null=True),
        _json("acceleration", null=True),
        _at("created_at"),
        _at("queued_at"),
        _at("published_at", null=True),
        _at("started_at", null=True),
        _at("finished_at", null=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        *_job_checks(),
    )


def _job_checks() -> list[sa.CheckConstraint]:
    conditions = {
        "state_known": f"state IN ({_STATES})",
        "terminal_is_finished": f"({_TERMINAL}) = (finished_at IS NOT NULL)",
        "in_progress_is_owned": "(state = 'in_progress') = (owner IS NOT NULL)",
        "in_progress_is_leased": "(state = 'in_progress') = (lease_until IS NOT NULL)",
        "work_was_started": (
            "state NOT IN ('in_progress', 'completed') OR (started_at IS NOT NULL AND attempt > 0)"
        ),
        "failed_has_error": "(state = 'failed') = (error_code IS NOT NULL)",
        "attempts_counted": "attempt >= 0 AND hand_backs BETWEEN 0 AND attempt",
        "max_attempts_positive": "max_attempts >= 1",
        "priority_known": "priority BETWEEN 0 AND 9",
    }
    return [_check("jobs", name, condition) for name, condition in conditions.items()]


def _index_jobs() -> None:
    op.create_index("ix_jobs_list", "jobs", ["caller", "created_at", "id"])
    op.create_index("ix_jobs_list_state", "jobs", ["caller", "state", "created_at", "id"])
    op.create_index("ix_jobs_list_model", "jobs", ["caller", "model", "created_at", "id"])
    queued = "state = 'queued'"
    _partial("ix_jobs_queue", "jobs", ["model", "priority", "created_at", "id"], queued)
    _partial("ix_jobs_unpublished", "jobs", ["queued_at"], f"{queued} AND published_at IS NULL")
    _partial("ix_jobs_deadline", "jobs", ["queue_deadline_at"], f"{queued} AND queue_deadline_at IS NOT NULL")
    _partial("ix_jobs_lease", "jobs", ["lease_until"], "state = 'in_progress'")


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        _id("job_id"),
        _column("number", sa.Integer(), autoincrement=False),
        _id("worker_id"),
        _column("outcome", sa.String(20), null=True),
        _column("error_code", sa.String(100), null=True),
        _column("error_message", sa.Text(), null=True),
        _column("step", sa.Integer(), null=True),
        _at("started_at"),
        _at("finished_at", null=True),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_attempts")),
        _of_job("attempts"),
        _check("attempts", "outcome_known", f"outcome IN ({_OUTCOMES})"),
        _check("attempts", "outcome_is_final", "(outcome IS NULL) = (finished_at IS NULL)"),
    )
    _partial("uq_attempts_one_completed", "attempts", ["job_id"], "outcome = 'completed'", unique=True)
    _partial("uq_attempts_one_running", "attempts", ["job_id"], "outcome IS NULL", unique=True)


def _create_artifacts() -> None:
    op.create_table(
        "artifacts",
        _id("job_id"),
        _column("index", sa.Integer(), autoincrement=False),
        _column("attempt", sa.Integer()),
        _column("key", sa.String(300)),
        _column("media_type", sa.String(100)),
        _column("width", sa.Integer()),
        _column("height", sa.Integer()),
        _column("bytes", sa.BigInteger()),
        _column("sha256", sa.String(64)),
        _column("seed", sa.BigInteger()),
        _column("frames", sa.Integer(), null=True),
        _column("fps", sa.Double(), null=True),
        _column("duration_s", sa.Double(), null=True),
        _at("created_at"),
        sa.PrimaryKeyConstraint("job_id", "index", name=op.f("pk_artifacts")),
        sa.UniqueConstraint("key", name=op.f("uq_artifacts_key")),
        _of_job("artifacts"),
        sa.ForeignKeyConstraint(
            ["job_id", "attempt"],
            ["attempts.job_id", "attempts.number"],
            name=op.f("fk_artifacts_job_id_attempt"),
            ondelete="CASCADE",
        ),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        _column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite")),
        _id("job_id"),
        _column("type", sa.String(50)),
        _json("payload"),
        _at("created_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        _of_job("events"),
        sqlite_autoincrement=True,  # an id is never used again, so a reader's place stays right
    )
    op.create_index(op.f("ix_events_job_id_id"), "events", ["job_id", "id"])


def _create_workers() -> None:
    op.create_table(
        "workers",
        _id("id"),
        _column("name", sa.String(200)),
        _column("host", sa.String(255)),
        _column("pid", sa.Integer()),
        _column("child_pid", sa.Integer(), null=True),
        _column("model", sa.String(200)),
        _column("queue", sa.String(200)),
        _column("state", sa.String(20)),
        _json("policy"),
        _json("preparation"),
        _json("device"),
        _column("error", sa.Text(), null=True),
        _id("current_job_id", null=True),
        _column("jobs_done", sa.Integer()),
        _at("started_at"),
        _at("ready_at", null=True),
        _at("heartbeat_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
        _check("workers", "state_known", f"state IN ({_WORKER_STATES})"),
    )
    op.create_index("ix_workers_alive", "workers", ["state", "heartbeat_at"])


def _create_idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        _column("caller", sa.String(100)),
        _column("key", sa.String(255)),
        _column("fingerprint", sa.String(128)),
        _id("job_id"),
        _at("created_at"),
        sa.PrimaryKeyConstraint("caller", "key", name=op.f("pk_idempotency_keys")),
        _of_job("idempotency_keys"),
    )
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"])

"""The states of a job and the moves between them; pure, and the only place that says what may follow what.

``core.store`` carries the moves out, ``docs/lifecycle.md`` draws them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class JobState(StrEnum):
    """Where a job stands. A client must treat a word it does not know as not terminal."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"

    @property
    def is_terminal(self) -> bool:
        """Whether the state never changes again."""
        return self in TERMINAL


TERMINAL: Final = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELED, JobState.EXPIRED})


class WorkerState(StrEnum):
    """Where a worker stands; only ``ready`` takes jobs."""

    LOADING = "loading"
    MOUNTING = "mounting"
    COMPILING = "compiling"
    WARMING = "warming"
    READY = "ready"
    DISCONNECTED = "disconnected"
    """Warm, but no message reaches it: Redis is away, or its consumer is stuck and it will be restarted."""
    DRAINING = "draining"
    FAILED = "failed"
    GONE = "gone"


ENDED_WORKER: Final = frozenset({WorkerState.FAILED, WorkerState.GONE})
"""States of a worker that takes no job any more."""


class BatchState(StrEnum):
    """Where a batch stands. An ended one runs again when its failed rows are ordered again."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    """Every job has ended, at least one of them failed or expired."""
    CANCELED = "canceled"


ENDED_BATCH: Final = frozenset({BatchState.COMPLETED, BatchState.FAILED, BatchState.CANCELED})


class Misfire(StrEnum):
    """What becomes of slots of a schedule that were missed while nothing could fire them."""

    SKIP = "skip"
    ONCE = "once"
    """The latest is fired, for all of them."""


class FiringKind(StrEnum):
    """Why a schedule fired."""

    DUE = "due"
    MANUAL = "manual"


class FiringOutcome(StrEnum):
    """What came of a firing."""

    FIRED = "fired"
    SKIPPED = "skipped"
    FAILED = "failed"
    """Its order is not valid any more, as when its model has left the catalogue."""


class Outcome(StrEnum):
    """How an attempt ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    RETRIED = "retried"
    HANDED_BACK = "handed_back"
    LOST = "lost"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Move:
    """One arrow of the picture: who may be moved where, and the event that tells of it."""

    name: str
    source: JobState | None
    """None: the job comes into being."""
    target: JobState
    event: str


def _table(*moves: Move) -> Mapping[str, Move]:
    return MappingProxyType({move.name: move for move in moves})


MOVES: Final = _table(
    Move("submit", None, JobState.QUEUED, "job.queued"),
    Move("claim", JobState.QUEUED, JobState.IN_PROGRESS, "job.started"),
    Move("cancel", JobState.QUEUED, JobState.CANCELED, "job.canceled"),
    Move("expire", JobState.QUEUED, JobState.EXPIRED, "job.expired"),
    Move("complete", JobState.IN_PROGRESS, JobState.COMPLETED, "job.completed"),
    Move("fail", JobState.IN_PROGRESS, JobState.FAILED, "job.failed"),
    Move("park", JobState.IN_PROGRESS, JobState.FAILED, "job.failed"),
    Move("stop", JobState.IN_PROGRESS, JobState.CANCELED, "job.canceled"),
    Move("retry", JobState.IN_PROGRESS, JobState.QUEUED, "job.requeued"),
    Move("hand_back", JobState.IN_PROGRESS, JobState.QUEUED, "job.requeued"),
    Move("rescue", JobState.IN_PROGRESS, JobState.QUEUED, "job.requeued"),
)

CANCEL_REQUESTED: Final = "job.cancel_requested"
"""Event of a wish to cancel a running job: a field is set, the state stays."""

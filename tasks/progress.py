"""While a job runs: a thread that extends its lease, keeps its progress and looks for a wish to cancel.

The thread is a plain one, so it goes on while the main thread computes. The main thread never waits for the
database; between two steps it reads what the thread learned and decides whether to go on.
"""

from __future__ import annotations

import threading
import time
from enum import Enum
from typing import TYPE_CHECKING, Self

from sqlalchemy import select

from core import store
from core.log import get_logger
from core.tables import Job
from tasks.patience import DATABASE_ERRORS

if TYPE_CHECKING:
    from core.db import Database
    from tasks.board import Board

#: Seconds between two looks for a wish to cancel, which is what a caller waits beyond the running step.
LOOK_S = 0.25
#: Shortest time between two writes of the progress.
WRITE_S = 0.5

_log = get_logger()


class Stop(Enum):
    """Why a job was told to stop."""

    LOST = "another worker holds the job"
    CANCELED = "the caller wished it"
    RUN_TIMEOUT = "it ran too long"
    DRAINING = "the worker stops and the rest would take too long"


class Progress:
    """Watches one attempt from its claim to its end; use it as a context around the work."""

    def __init__(
        self,
        job: Job,
        database: Database,
        board: Board,
        *,
        lease_s: float,
        heartbeat_s: float,
        kill_grace_s: float,
    ) -> None:
        self.job = job
        self.stop: Stop | None = None
        self.step = 0
        self.steps: int | None = None
        self.failures = 0
        self._database = database
        self._board = board
        self._lease_s = lease_s
        self._heartbeat_s = heartbeat_s
        self._kill_grace_s = kill_grace_s
        self._lost = False
        self._cancel = False
        self._started = time.monotonic()
        self._written_at = self._started
        self._written_step = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"heartbeat-{job.id}", daemon=True)

    def __enter__(self) -> Self:
        self._board.begin_job(self.job.run_timeout_s)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._board.end_job()

    def on_step(self, step: int, steps: int) -> bool:
        """Note a finished step; False when the job has to stop here, with the reason in ``stop``."""
        self.step, self.steps = step, steps
        self.stop = self._reason()
        return self.stop is None

    def _reason(self) -> Stop | None:
        if self._lost:
            return Stop.LOST
        if self._cancel:
            return Stop.CANCELED
        if self._overdue():
            return Stop.RUN_TIMEOUT
        return Stop.DRAINING if self._drains_too_soon() else None

    def _overdue(self) -> bool:
        limit = self.job.run_timeout_s
        return limit is not None and time.monotonic() - self._started > limit

    def _drains_too_soon(self) -> bool:
        """Whether the worker stops before the rest, at the speed so far, is done."""
        if not self._board.draining or not self.step or not self.steps:
            return False
        now = time.monotonic()
        rest_s = (now - self._started) / self.step * (self.steps - self.step)
        return now + rest_s > self._board.cells.drain_until

    def _watch(self) -> None:
        while not self._end.wait(LOOK_S):
            self._board.beat(asking=True)
            try:
                self._tick()
            except DATABASE_ERRORS as error:
                # The lease outlives a short outage; should it not, the end of the attempt finds that out.
                self.failures += 1
                _log.warning("job.heartbeat_failed", job_id=self.job.id, error=type(error).__name__)
            self._board.beat()
            if self._cancel or self._overdue():
                self._board.kill_after(self._kill_grace_s)

    def _tick(self) -> None:
        silent_s = time.monotonic() - self._written_at
        moved = self.step != self._written_step and silent_s >= WRITE_S
        if moved or silent_s >= self._heartbeat_s:
            self._beat()
        else:
            self._look()

    def _beat(self) -> None:
        step = self.step
        progress = (step, self.steps) if step else (None, None)
        with self._database.transaction() as session:
            beat = store.heartbeat(
                session, self.job.id, self.job.attempt, str(self.job.owner), self._lease_s, *progress
            )
        self._written_at, self._written_step = time.monotonic(), step
        self._lost = beat is None
        self._cancel = beat is not None and beat.cancel_requested

    def _look(self) -> None:
        mine = (Job.id == self.job.id, Job.attempt == self.job.attempt, Job.owner == self.job.owner)
        with self._database.reading() as session:
            row = session.execute(select(Job.cancel_requested_at).where(*mine)).one_or_none()
        self._lost = row is None
        self._cancel = row is not None and row.cancel_requested_at is not None

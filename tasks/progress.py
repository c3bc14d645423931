"""While jobs run: a thread that extends their leases, keeps their progress and looks for wishes to cancel.

The thread is a plain one, so it goes on while the main thread computes. The main thread never waits for the
database; between two steps it reads what the thread learned and decides whether to go on.

Jobs that share a pass have one thread. A job that leaves the pass before its end is brought to its own end by
the thread, since the main thread computes for the others.
"""

from __future__ import annotations

import threading
import time
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Self

from sqlalchemy import select

from core import store
from core.log import get_logger
from core.tables import Job
from tasks.patience import DATABASE_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.orm import Session

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
    """Watches one attempt from its claim to its end; use it, or a `Heartbeat` of several, around the work."""

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
        self.board = board
        self.kill_grace_s = kill_grace_s
        self.database = database
        self._lease_s = lease_s
        self._heartbeat_s = heartbeat_s
        self._lost = False
        self._cancel = False
        self._started = time.monotonic()
        self._written_at = self._started
        self._written_step = 0
        self._heartbeat = Heartbeat([self], limit_s=job.run_timeout_s)

    def __enter__(self) -> Self:
        self._heartbeat.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._heartbeat.__exit__()

    def on_step(self, step: int, steps: int) -> bool:
        """Note a finished step; False when the job has to stop here, with the reason in ``stop``."""
        self.step, self.steps = step, steps
        self.stop = self._reason()
        return self.stop is None

    @property
    def must_stop(self) -> bool:
        """Whether the job has to be over soon, so that a process that hangs may be killed for it."""
        return self._cancel or self._overdue()

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
        if not self.board.draining or not self.step or not self.steps:
            return False
        now = time.monotonic()
        rest_s = (now - self._started) / self.step * (self.steps - self.step)
        return now + rest_s > self.board.cells.drain_until

    @property
    def is_due(self) -> bool:
        """Whether it is time to write the progress and extend the lease."""
        silent_s = time.monotonic() - self._written_at
        moved = self.step != self._written_step and silent_s >= WRITE_S
        return moved or silent_s >= self._heartbeat_s

    def beat(self, session: Session) -> Callable[[], None]:
        """Write the progress and extend the lease; what is returned notes it once that is kept."""
        step = self.step
        progress = (step, self.steps) if step else (None, None)
        beat = store.heartbeat(
            session, self.job.id, self.job.attempt, str(self.job.owner), self._lease_s, *progress
        )

        def note() -> None:
            self._written_at, self._written_step = time.monotonic(), step
            self.learn(lost=beat is None, cancel=beat is not None and beat.cancel_requested)

        return note

    def learn(self, *, lost: bool, cancel: bool) -> None:
        """Note what the row says: another worker holds the job; the caller wishes its end."""
        self._lost, self._cancel = lost, cancel


class Heartbeat:
    """The thread of the jobs that run; use it as a context around their work."""

    def __init__(
        self,
        jobs: Sequence[Progress],
        *,
        limit_s: float | None = None,
        end: Callable[[Progress], None] | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            jobs: At least one.
            limit_s: How long the work may take, if that is limited.
            end: Ends a job that has stopped while others go on; None: whoever runs it does.
        """
        self._jobs = list(jobs)
        first = self._jobs[0]
        self._board, self._kill_grace_s, self._database = first.board, first.kill_grace_s, first.database
        self._limit_s = limit_s
        self._end_of = end
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._board.begin_job(self._limit_s)
        name = f"heartbeat-{self._jobs[0].job.id}"
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._board.end_job()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()
            if any(progress.must_stop for progress in self._jobs):
                self._board.kill_after(self._kill_grace_s)

    def look(self) -> None:
        """End the jobs that have stopped; beat for the others, all in one transaction and one query."""
        for progress in tuple(self._jobs):
            if progress.stop is not None and self._end_of is not None:
                self._visit([progress], partial(self._leave, progress, self._end_of))
        if self._jobs:
            self._visit(self._jobs, self._beat)

    def _visit(self, jobs: Sequence[Progress], ask: Callable[[], None]) -> None:
        self._board.beat(asking=True)
        try:
            ask()
        except DATABASE_ERRORS as error:
            # The lease outlives a short outage; should it not, the end of the attempt finds that out.
            for progress in jobs:
                progress.failures += 1
                _log.warning("job.heartbeat_failed", job_id=progress.job.id, error=type(error).__name__)
        self._board.beat()

    def _leave(self, progress: Progress, end: Callable[[Progress], None]) -> None:
        end(progress)
        self._jobs.remove(progress)
        self._board.spare()

    def _beat(self) -> None:
        due = [progress for progress in self._jobs if progress.is_due]
        written = self._write(due) if due else []
        rest = [progress for progress in self._jobs if progress not in written]
        if rest:
            self._read(rest)

    def _write(self, due: Sequence[Progress]) -> list[Progress]:
        """Beats for those whose rows are free: over several, two transactions may wait for each other."""
        ids = [progress.job.id for progress in due]
        with self._database.transaction() as session:
            free = set(
                session.scalars(select(Job.id).where(Job.id.in_(ids)).with_for_update(skip_locked=True))
            )
            written = [progress for progress in due if progress.job.id in free]
            notes = [progress.beat(session) for progress in written]
        for note in notes:
            note()
        return written

    def _read(self, jobs: Sequence[Progress]) -> None:
        wanted = select(Job.id, Job.attempt, Job.owner, Job.cancel_requested_at)
        with self._database.reading() as session:
            rows = session.execute(wanted.where(Job.id.in_([progress.job.id for progress in jobs]))).all()
        held = {(row.id, row.attempt, row.owner): row.cancel_requested_at for row in rows}
        for progress in jobs:
            mine = (progress.job.id, progress.job.attempt, progress.job.owner)
            progress.learn(lost=mine not in held, cancel=held.get(mine) is not None)

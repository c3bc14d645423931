"""Looks at the rows all the while: a terminal state that was seen once must be seen ever after."""

import threading
from contextlib import suppress
from typing import Self

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from core.db import Database
from core.errors import AppError
from core.lifecycle import TERMINAL
from core.tables import Attempt, Job

LOOK_S = 0.25


class RowWatch:
    """A thread that notes the end of every job; use it as a context around a run."""

    def __init__(self, database: Database) -> None:
        self.changed: list[str] = []
        self.ends: dict[str, tuple[str, int]] = {}
        self.looks = 0
        self.most_running = 0
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rows", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            with suppress(SQLAlchemyError, AppError):  # the database may be hit, too
                self.look()

    def look(self) -> None:
        """Compare every job's row with what was seen of it before."""
        with self._database.reading() as session:
            rows = session.execute(select(Job.id, Job.state, Job.attempt)).all()
            running = session.execute(select(Attempt.job_id).where(Attempt.outcome.is_(None))).all()
        self.looks += 1
        self.most_running = max(self.most_running, len(running))
        for job_id, state, attempt in rows:
            now = (str(state), attempt)
            before = self.ends.get(job_id)
            if before is not None and before != now:
                self.changed.append(f"{job_id} was {before} and is {now}")
            if before is None and state in TERMINAL:
                self.ends[job_id] = now

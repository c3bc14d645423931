"""What a test of one cell does: order, wait for a phase, hold it there, and look at what came of it."""

import os
import re
import signal
import sqlite3
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError

from core.tables import Attempt, Event, Job, Worker
from tests.faults.check import Findings, check_inside
from tests.faults.orders import TEMPLATE
from tests.faults.system import DATABASE_SERVER, System
from tests.fixtures.plain import http
from tests.fixtures.waiting import wait_until

LAST_STEP = 8
"""Of the jobs that `Scene.submit` orders."""
WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND position('FOR UPDATE' in query) > 0
"""
TERMINAL = ("completed", "failed", "canceled", "expired")


@dataclass(slots=True)
class Scene:
    """A system, and the moves of a test on it."""

    system: System

    def make_whole(self) -> None:
        """Start what does not run, mend what is broken, let every job go, and wait until none is live."""
        for owned in self.system.owned.values():
            owned.send_all(signal.SIGCONT)
            if not owned.runs:
                owned.start()
        for proxy in (*self.system.redis_proxies.values(), *self.system.database_proxies.values()):
            proxy.mend()
        self.let_go()
        self.system.wait_ready()
        wait_until(lambda: not self.live(), 60, "the end of every job")
        (self.system.phases / "go").unlink()

    def live(self) -> list[str]:
        with self.system.database.reading() as session:
            return list(session.scalars(select(Job.id).where(Job.state.in_(("queued", "in_progress")))))

    def let_go(self) -> None:
        """Let every job that is held at a step go on."""
        (self.system.phases / "go").touch()

    def show_logs(self) -> None:
        """Write the end of each log to standard error, which pytest shows when a test has failed."""
        for owned in self.system.owned.values():
            sys.stderr.write(f"--- {owned.name}\n{owned.said(3000)}\n")

    # --- orders -----------------------------------------------------------------------------------------

    def post(self, body: dict[str, Any], key: str) -> httpx2.Response:
        url, headers = f"{self.system.url}/v1/jobs", {"Idempotency-Key": key}
        return http.post(url, json=TEMPLATE | body, headers=headers)

    def submit(self, held_at: int | None = None, **fields: Any) -> str:
        """Order a job that is held after a step, 0 being before the first."""
        words = "a picture" if held_at is None else f"a picture, hold at step {held_at}"
        answer = self.post({"prompt": words, **fields}, str(uuid.uuid4()))
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def held(self, held_at: int) -> tuple[str, str]:
        """Order a held job and return its id and the worker that holds it, once it is there."""
        job_id = self.submit(held_at)
        wait_until(lambda: self.owner(job_id), what="a worker took the job")
        worker = self.owner(job_id)
        assert worker is not None
        phase = f"step {held_at}" if held_at else "starting"
        wait_until(lambda: (seen := self.system.see(worker)) and seen.phase == phase, what=phase)
        return job_id, worker

    def owner(self, job_id: str) -> str | None:
        """Our name of the worker that holds the job now."""
        with self.system.database.reading() as session:
            owner = select(Worker.pid).where(Worker.id == Job.owner, Job.id == job_id)
            pid = session.scalars(owner).one_or_none()
        names = {self.system.owned[name].pid: name for name in self.system.layout.workers}
        return None if pid is None else names[pid]

    # --- phases -----------------------------------------------------------------------------------------

    @contextmanager
    def saving(self, job_id: str) -> Iterator[None]:
        """Its files cannot be kept: a worker that begins to save keeps trying to."""
        wall = self.system.folder / "artifacts" / "jobs" / job_id
        wall.parent.mkdir(parents=True, exist_ok=True)
        wall.touch()
        try:
            yield
        finally:
            wall.unlink()

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Nobody can write a job's row: a worker that has kept its files waits to commit."""
        with self._write_lock():
            yield

    @contextmanager
    def _write_lock(self) -> Iterator[None]:
        database = self.system.database
        if database.url.get_backend_name() == "sqlite":
            connection = sqlite3.connect(str(database.url.database), timeout=20, isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")
                connection.close()
        else:
            # Its server may be killed meanwhile.
            with suppress(OperationalError), database.db_engine.connect() as other:
                other.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
                other.exec_driver_sql("LOCK TABLE jobs IN EXCLUSIVE MODE")
                yield

    def wait_phase(self, worker: str, phase: str) -> None:
        wait_until(lambda: (seen := self.system.see(worker)) and seen.phase == phase, what=phase)

    def wait_files(self, job_id: str, attempt: int = 1) -> None:
        """Return when an attempt has kept its file and, on PostgreSQL, waits for the row."""
        wait_until(lambda: list(self.system.artifacts.list(f"jobs/{job_id}/{attempt}/")), what="the file")
        if self.system.database.url.get_backend_name() != "sqlite":
            wait_until(self._waits_for_row, what="a transaction that waits")

    def _waits_for_row(self) -> bool:
        with self.system.database.db_engine.connect() as connection:
            found = connection.execute(text(WAITING))
            return bool(found.scalar_one())

    # --- faults -----------------------------------------------------------------------------------------

    def kill_child(self, worker: str) -> None:
        seen = self.system.see(worker)
        assert seen is not None
        os.kill(seen.child, signal.SIGKILL)

    def kill(self, name: str) -> None:
        self.system.owned[name].send(signal.SIGKILL)
        wait_until(lambda: not self.system.owned[name].runs, what=f"the end of {name}")

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """A process and all below it stand still."""
        owned = self.system.owned[name]
        owned.send_all(signal.SIGSTOP)
        try:
            yield
        finally:
            owned.send_all(signal.SIGCONT)

    @contextmanager
    def standby(self) -> Iterator[None]:
        """The database server comes back as one that follows another, and then as itself."""
        server = self.system.owned[DATABASE_SERVER]
        sign = server.log.parent / "data" / "standby.signal"
        for is_standby in (True, False):
            self.kill(DATABASE_SERVER)
            sign.touch() if is_standby else sign.unlink()
            server.start()
            if is_standby:
                yield

    # --- what came of it --------------------------------------------------------------------------------

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(http.get(f"{self.system.url}/v1/jobs/{job_id}").raise_for_status().json())

    def wait_end(self, job_id: str, timeout_s: float = 40.0) -> dict[str, Any]:
        """The job as the API shows it once it has ended."""

        def look() -> dict[str, Any]:
            with suppress(httpx2.HTTPError):
                job = self.job(job_id)
                return job if job["status"] in TERMINAL else {}
            return {}

        return wait_until(look, timeout_s, f"the end of {job_id}, outcomes {self.outcomes(job_id)}")

    def outcomes(self, job_id: str) -> list[str | None]:
        with self.system.database.reading() as session:
            mine = select(Attempt.outcome).where(Attempt.job_id == job_id).order_by(Attempt.number)
            return [outcome and str(outcome) for outcome in session.scalars(mine)]

    def wait_outcomes(self, job_id: str, *wanted: str | None) -> None:
        wait_until(partial(self._has_outcomes, job_id, list(wanted)), 30, f"attempts that ended {wanted}")

    def _has_outcomes(self, job_id: str, wanted: list[str | None]) -> bool:
        return self.outcomes(job_id) == wanted

    def wait_log(self, name: str, words: str, since: int) -> None:
        """Return when a process has logged what the pattern says behind that many characters."""
        log = self.system.owned[name].log
        wait_until(
            lambda: re.search(words, log.read_text(errors="replace")[since:]), 30, f"{words!r} of {name}"
        )

    def logged(self, name: str) -> int:
        """Characters that a process has logged so far."""
        return len(self.system.owned[name].log.read_text(errors="replace"))

    def events(self, job_id: str) -> list[str]:
        with self.system.database.reading() as session:
            mine = select(Event.type).where(Event.job_id == job_id).order_by(Event.id)
            return list(session.scalars(mine))

    def check(self, job_id: str, *outcomes: str) -> None:
        """The job is completed by the last of these attempts, and no promise about any job is broken."""
        job = self.wait_end(job_id)
        assert job["status"] == "completed", job
        assert self.outcomes(job_id) == list(outcomes)
        findings = Findings()
        check_inside(self.system.database, self.system.artifacts, findings)
        assert [words for words in findings.all() if job_id in words] == []

    def rest(self, seconds: float) -> None:
        """Let time pass that has to pass, as a lease has to run out."""
        end = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() > end, seconds + 10)


def on(*kinds: str) -> pytest.MarkDecorator:
    """Run a test on these kinds of database, each in the xdist group that has its system."""
    params = [pytest.param(kind, marks=pytest.mark.xdist_group(f"faults on {kind}")) for kind in kinds]
    return pytest.mark.parametrize("database_kind", params, indirect=True)

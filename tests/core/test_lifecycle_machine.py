"""Any order of calls, from workers early and late: what must hold always, holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text
from sqlalchemy.orm import Session

from core import store
from core.db import Database
from core.errors import AlreadyFinished
from core.events import events_after
from core.lifecycle import MOVES, TERMINAL, JobState, Outcome
from core.tables import Job
from tests.core.jobs import picture

WORKERS = st.sampled_from(["worker-a", "worker-b"])
LEASES = st.sampled_from([-1.0, 30.0])
LONG_FROM_NOW = timedelta(hours=1)

Hold = tuple[str, int, str]
"""Job, attempt, worker: what a worker believes it holds, perhaps long after it has lost it."""


class Lifecycle(RuleBasedStateMachine):
    """Workers that claim, beat, end, fall silent and come back late; callers and upkeep between them."""

    database: Database

    jobs = Bundle("jobs")
    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.ended: dict[str, tuple] = {}
        self.holder: dict[str, Hold] = {}
        self.counted: dict[str, int] = {}
        self.wished: set[str] = set()

    @contextmanager
    def work(self) -> Iterator[Session]:
        with self.database.transaction() as session:
            yield session

    @initialize()
    def begin_empty(self) -> None:
        with self.work() as session:
            session.execute(text("DELETE FROM jobs"))

    # --- callers ---

    @rule(target=jobs, max_attempts=st.integers(1, 3), deadline=st.sampled_from([None, -1.0, 60.0]))
    def submit(self, max_attempts: int, deadline: float | None) -> str:
        with self.work() as session:
            job, _ = store.submit(
                session,
                request={},
                plan={},
                model="tiny",
                max_attempts=max_attempts,
                queue_timeout_s=deadline,
            )
        self.counted[job.id] = 0
        return job.id

    @rule(job_id=jobs)
    def cancel(self, job_id: str) -> None:
        try:
            with self.work() as session:
                job = store.request_cancel(session, job_id)
        except AlreadyFinished:
            assert job_id in self.ended
            return
        assert job_id not in self.ended
        assert job.state is (JobState.IN_PROGRESS if job_id in self.holder else JobState.CANCELED)
        self.wished.add(job_id)

    # --- workers ---

    @rule(target=holds, job_id=jobs, worker=WORKERS, lease_s=LEASES)
    def claim(self, job_id: str, worker: str, lease_s: float) -> object:
        with self.work() as session:
            job = store.claim(session, job_id, worker, lease_s)
        if job is None:
            return multiple()
        assert job_id not in self.holder
        assert job_id not in self.ended
        self.counted[job_id] += 1
        assert self.counted[job_id] <= job.max_attempts
        self.holder[job_id] = (job_id, job.attempt, worker)
        return self.holder[job_id]

    @rule(hold=holds, lease_s=LEASES, step=st.integers(0, 24))
    def heartbeat(self, hold: Hold, lease_s: float, step: int) -> None:
        with self.work() as session:
            beat = store.heartbeat(session, *hold, lease_s, step, 24)
        assert (beat is not None) == self.is_held(hold)
        assert beat is None or beat.cancel_requested == (hold[0] in self.wished)

    @rule(hold=holds)
    def complete(self, hold: Hold) -> None:
        job_id, attempt, _ = hold
        files = [picture(job_id, attempt, index) for index in range(2)]
        with self.work() as session:
            won = store.complete(session, *hold, files, {"total": 1.0}, {})
        self.check_ending(hold, won)

    @rule(hold=holds)
    def fail(self, hold: Hold) -> None:
        with self.work() as session:
            won = store.fail(session, *hold, "broken", "It broke.", retryable=False)
        self.check_ending(hold, won)

    @rule(hold=holds, delay_s=st.sampled_from([0.0, 60.0]))
    def retry(self, hold: Hold, delay_s: float) -> None:
        with self.work() as session:
            won = store.retry(session, *hold, "hiccup", "Again.", delay_s)
        self.check_ending(hold, won)

    @rule(hold=holds)
    def hand_back(self, hold: Hold) -> None:
        with self.work() as session:
            won = store.hand_back(session, *hold)
        self.check_ending(hold, won, counts=False)

    @rule(hold=holds)
    def stop(self, hold: Hold) -> None:
        with self.work() as session:
            won = store.stopped(session, *hold, 3)
        self.check_ending(hold, won)

    @rule(hold=consumes(holds))
    def forget(self, hold: Hold) -> None:
        """A worker dies: nobody will ever end this attempt but upkeep."""

    def is_held(self, hold: Hold) -> bool:
        return self.holder.get(hold[0]) == hold

    def check_ending(self, hold: Hold, won: bool, *, counts: bool = True) -> None:
        assert won == self.is_held(hold)
        if won:
            del self.holder[hold[0]]
            self.counted[hold[0]] -= 0 if counts else 1

    # --- upkeep ---

    @rule(later=st.sampled_from([timedelta(0), LONG_FROM_NOW]))
    def rescue(self, later: timedelta) -> None:
        with self.work() as session:
            moved = store.rescue(session, datetime.now(UTC) + later)
        for job in moved:
            assert self.holder.pop(job.id)[1] == job.attempt
        if later:
            assert not self.holder

    @rule()
    def expire(self) -> None:
        with self.work() as session:
            store.expire(session)

    @rule()
    def wait_until_retries_are_due(self) -> None:
        with self.work() as session:
            session.execute(text("UPDATE jobs SET run_after = NULL WHERE state = 'queued'"))

    # --- what must hold always ---

    @invariant()
    def every_job_is_right(self) -> None:
        with self.database.reading() as session:
            for job_id in self.counted:
                self.check_job(session, store.get_job(session, job_id))

    def check_job(self, session: Session, job: Job) -> None:
        attempts = store.get_attempts(session, job.id)
        events = [event.type for event in events_after(session, job.id)]
        self.check_state(job, events)
        assert [attempt.number for attempt in attempts] == list(range(1, job.attempt + 1))
        running = [attempt.number for attempt in attempts if attempt.outcome is None]
        completed = [attempt.number for attempt in attempts if attempt.outcome is Outcome.COMPLETED]
        assert running == ([job.attempt] if job.state is JobState.IN_PROGRESS else [])
        assert completed == ([job.attempt] if job.state is JobState.COMPLETED else [])
        assert {made.attempt for made in job.artifacts} == set(completed)
        assert len(job.artifacts) == 2 * len(completed)
        assert job.counted_attempts == self.counted[job.id] <= job.max_attempts

    def check_state(self, job: Job, events: list[str]) -> None:
        if job.state in TERMINAL:
            seen = (job.state, job.finished_at, job.attempt, tuple(events))
            assert self.ended.setdefault(job.id, seen) == seen
        assert (job.state is JobState.IN_PROGRESS) == (job.id in self.holder)
        assert job.owner == (self.holder[job.id][2] if job.id in self.holder else None)
        if job.id in self.wished:
            assert job.state is not JobState.QUEUED
        last = [type_ for type_ in events if type_ != "job.cancel_requested"][-1]
        assert last in {move.event for move in MOVES.values() if move.target is job.state}


@pytest.fixture
def quick_sqlite(tmp_path: Path) -> Iterator[Database]:
    """A file that need not survive a power cut."""
    database = Database(f"sqlite:///{tmp_path}/machine.db")
    database.upgrade()
    with database.db_engine.connect() as connection:
        connection.connection.execute("PRAGMA synchronous=OFF")  # type: ignore[attr-defined]
        connection.rollback()
    yield database
    database.dispose()


def test_no_order_of_calls_breaks_the_life_of_a_job(quick_sqlite: Database) -> None:
    machine = type("Machine", (Lifecycle,), {"database": quick_sqlite})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )

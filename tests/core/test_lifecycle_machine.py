"""Any order of calls, from workers early and late: what must hold always, holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text
from sqlalchemy.orm import Session

from core import store
from core.db import Database
from core.errors import AlreadyFinished
from core.lifecycle import MOVES, TERMINAL, JobState, Outcome
from core.tables import Job
from tests.core.jobs import events_after, picture

WORKERS = st.sampled_from(["worker-a", "worker-b"])
LEASES = st.sampled_from([-1.0, 30.0])
PICKS = st.integers(0, 11)
LIVE_JOBS = 2
"""Few at a time, so that much happens to each."""

Hold = tuple[str, int, str]
"""Job, attempt, worker: what a worker believes it holds, perhaps long after it has lost it."""

ENDINGS = st.sampled_from(["retry", "hand_back", "retry", "hand_back", "stop", "fail", "complete"])
"""Those after which the job goes on come more often."""


class Lifecycle(RuleBasedStateMachine):
    """Workers that claim, beat, end, fall silent and come back late; callers and upkeep between them."""

    database: Database

    def __init__(self) -> None:
        super().__init__()
        self.live: list[str] = []
        self.ended: dict[str, tuple] = {}
        self.holds: list[Hold] = []
        self.holder: dict[str, Hold] = {}
        self.counted: dict[str, int] = {}
        self.wished: set[str] = set()
        self.overdue: set[str] = set()
        self.delayed: set[str] = set()

    @contextmanager
    def work(self) -> Iterator[Session]:
        with self.database.transaction() as session:
            yield session

    def waiting(self) -> list[str]:
        return [job_id for job_id in self.live if job_id not in self.holder]

    def stale(self) -> list[Hold]:
        """Return holds that were lost: first those of jobs that another attempt holds, then the latest."""
        lost = [hold for hold in self.holds if self.holder.get(hold[0]) != hold]
        return sorted(lost[-6:], key=lambda hold: hold[0] not in self.holder)

    @initialize(worker=WORKERS, max_attempts=st.integers(1, 3), wished=st.booleans(), again=st.booleans())
    def begin_with_a_lost_attempt(self, worker: str, max_attempts: int, wished: bool, again: bool) -> None:
        """One worker has lost its job, which the same or another one may hold now and may have to stop."""
        with self.work() as session:
            session.execute(text("DELETE FROM jobs"))
        self.submit(max_attempts, 60.0)
        self.claim(0, "worker-a", -1.0)
        self.rescue(timedelta(0))
        self.every_job_is_right()
        if self.live:
            self.claim(0, worker, -1.0)
            self.cancel(0, wished)
            if again:
                self.rescue(timedelta(0))

    # --- callers ---

    @precondition(lambda self: len(self.live) < LIVE_JOBS)
    @rule(max_attempts=st.integers(1, 3), deadline=st.sampled_from([None, None, 60.0, -1.0]))
    def submit(self, max_attempts: int, deadline: float | None) -> None:
        with self.work() as session:
            job, _ = store.submit(
                session,
                request={},
                plan={},
                model="tiny",
                max_attempts=max_attempts,
                queue_timeout_s=deadline,
            )
        self.live.append(job.id)
        self.counted[job.id] = 0
        if deadline == -1.0:
            self.overdue.add(job.id)

    @precondition(lambda self: self.live)
    @rule(pick=PICKS, really=st.booleans())
    def cancel(self, pick: int, really: bool) -> None:
        job_id = self.live[pick % len(self.live)]
        if not really:
            return
        with self.work() as session:
            job = store.request_cancel(session, job_id)
        assert job.state is (JobState.IN_PROGRESS if job_id in self.holder else JobState.CANCELED)
        self.wished.add(job_id)

    @precondition(lambda self: self.ended)
    @rule(pick=PICKS)
    def cancel_too_late(self, pick: int) -> None:
        job_id = list(self.ended)[pick % len(self.ended)]
        with pytest.raises(AlreadyFinished), self.work() as session:
            store.request_cancel(session, job_id)

    # --- workers ---

    @precondition(lambda self: self.waiting())
    @rule(pick=PICKS, worker=WORKERS, lease_s=LEASES)
    def claim(self, pick: int, worker: str, lease_s: float) -> None:
        job_id = self.waiting()[pick % len(self.waiting())]
        with self.work() as session:
            job = store.claim(session, job_id, worker, lease_s)
        if job is None:
            assert job_id in self.overdue | self.delayed
            return
        assert job_id not in self.overdue | self.delayed
        self.counted[job_id] += 1
        self.holder[job_id] = (job_id, job.attempt, worker)
        self.holds.append(self.holder[job_id])

    @precondition(lambda self: self.holder)
    @rule(pick=PICKS, worker=WORKERS)
    def claim_what_is_held(self, pick: int, worker: str) -> None:
        job_id = list(self.holder)[pick % len(self.holder)]
        with self.work() as session:
            assert store.claim(session, job_id, worker, 30) is None

    @precondition(lambda self: self.holder)
    @rule(pick=PICKS, lease_s=LEASES, step=st.integers(0, 24))
    def heartbeat(self, pick: int, lease_s: float, step: int) -> None:
        hold = list(self.holder.values())[pick % len(self.holder)]
        with self.work() as session:
            beat = store.heartbeat(session, *hold, lease_s, step, 24)
        assert beat is not None
        assert beat.cancel_requested == (hold[0] in self.wished)

    @precondition(lambda self: self.holder)
    @rule(pick=PICKS, how=ENDINGS, delay_s=st.sampled_from([0.0, 0.0, 0.0, 60.0]))
    def end(self, pick: int, how: str, delay_s: float) -> None:
        job_id, *_ = hold = list(self.holder.values())[pick % len(self.holder)]
        assert self.carry_out(how, hold, delay_s)
        del self.holder[job_id]
        if how == "hand_back" and job_id not in self.wished:
            self.counted[job_id] -= 1
        if how == "retry" and delay_s:
            self.delayed.add(job_id)

    @precondition(lambda self: self.stale())
    @rule(pick=PICKS, how=ENDINGS)
    def end_too_late(self, pick: int, how: str) -> None:
        assert not self.carry_out(how, self.stale()[pick % len(self.stale())])

    @precondition(lambda self: self.holder)
    @rule(pick=PICKS, how=ENDINGS)
    def end_what_another_worker_holds(self, pick: int, how: str) -> None:
        job_id, attempt, worker = list(self.holder.values())[pick % len(self.holder)]
        other = {"worker-a": "worker-b", "worker-b": "worker-a"}[worker]
        assert not self.carry_out(how, (job_id, attempt, other))

    @precondition(lambda self: self.stale())
    @rule(pick=PICKS)
    def heartbeat_too_late(self, pick: int) -> None:
        with self.work() as session:
            assert store.heartbeat(session, *self.stale()[pick % len(self.stale())], 30, 1, 24) is None

    def carry_out(self, how: str, hold: Hold, delay_s: float = 0.0) -> bool:
        with self.work() as session:
            if how == "complete":
                files = [picture(hold[0], hold[1], index) for index in range(2)]
                return store.complete(session, *hold, files, {"total": 1.0}, {})
            if how == "fail":
                return store.fail(session, *hold, "broken", "It broke.", retryable=False)
            if how == "retry":
                return store.retry(session, *hold, "hiccup", "Again.", delay_s)
            if how == "stop":
                return store.stopped(session, *hold, 3)
            return store.hand_back(session, *hold)

    # --- upkeep ---

    @precondition(lambda self: self.holder)
    @rule(later=st.sampled_from([timedelta(0), timedelta(0), timedelta(hours=1)]))
    def rescue(self, later: timedelta) -> None:
        with self.work() as session:
            moved = store.rescue(session, datetime.now(UTC) + later)
        for job in moved:
            assert self.holder.pop(job.id)[1] == job.attempt
        assert not later or not self.holder

    @precondition(lambda self: self.waiting())
    @rule()
    def expire(self) -> None:
        waiting = {job_id for job_id in self.overdue if job_id in self.live}
        with self.work() as session:
            assert store.expire(session) == len(waiting)
            assert all(store.get_job(session, job_id).state is JobState.EXPIRED for job_id in waiting)

    @precondition(lambda self: self.delayed)
    @rule()
    def wait_until_retries_are_due(self) -> None:
        with self.work() as session:
            session.execute(text("UPDATE jobs SET run_after = NULL WHERE state = 'queued'"))
        self.delayed.clear()

    # --- what must hold always ---

    @invariant()
    def every_job_is_right(self) -> None:
        with self.database.reading() as session:
            for job_id in [*self.live, *list(self.ended)[-2:]]:
                self.check_job(session, store.get_job(session, job_id))

    def check_job(self, session: Session, job: Job) -> None:
        attempts = store.get_attempts(session, job.id)
        self.check_state(job, [event.type for event in events_after(session, job.id)])
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
            seen = (job.state, job.finished_at, job.attempt, len(job.artifacts), tuple(events))
            assert self.ended.setdefault(job.id, seen) == seen
            self.live = [job_id for job_id in self.live if job_id != job.id]
        assert (job.state is JobState.IN_PROGRESS) == (job.id in self.holder)
        assert job.owner == (self.holder[job.id][2] if job.id in self.holder else None)
        assert job.id not in self.wished or job.state is not JobState.QUEUED
        last = [type_ for type_ in events if type_ != "job.cancel_requested"][-1]
        assert last in {move.event for move in MOVES.values() if move.target is job.state}


@pytest.fixture
def quick_sqlite(tmp_path: Path) -> Iterator[Database]:
    """A file that need not survive a power cut."""
    database = Database(f"sqlite:///{tmp_path}/machine.db")
    database.upgrade()
    with database.db_engine.connect() as connection:
        connection.rollback()
        connection.connection.driver_connection.execute("PRAGMA synchronous=OFF")
    yield database
    database.dispose()


@pytest.mark.timeout(900)  # a failure is made small first, which takes up to five minutes
def test_no_order_of_calls_breaks_the_life_of_a_job(quick_sqlite: Database) -> None:
    machine = type("Machine", (Lifecycle,), {"database": quick_sqlite})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )

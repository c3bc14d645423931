"""Batches under several hands at once: nothing is stranded, nothing is missed."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from core import batches, schedules, store
from core.db import Database
from core.errors import Conflict
from core.lifecycle import BatchState, JobState
from tests.core.test_batches import WORKER, jobs_of, make
from tests.core.test_schedules import make as make_schedule
from tests.fixtures.waiting import wait_until

pytestmark = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
"""SQLite has one writer at a time."""


class Beside:
    """A call in a thread of its own; ``result`` waits for it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._answer, self._error = call, None, None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as error:  # noqa: BLE001 - raised by result
            self._error = error

    def result(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answer


def waiting(database: Database, call: Callable[[], Any]) -> Beside:
    """Start ``call`` and go on when PostgreSQL says that it waits for a lock."""
    beside = Beside(call)
    looks = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    # A transaction would go on to see the activity of its first look.
    with database.db_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        wait_until(lambda: connection.scalar(looks), what="a wait for a lock")
    return beside


def move(database: Database, call: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    def moved() -> Any:
        with database.transaction() as session:
            return call(session, *arguments)

    return moved


def end_all_but_one(database: Database) -> tuple[str, str]:
    """A batch of three: two rows have failed, one runs."""
    with database.transaction() as session:
        batch = make(session, 3)
        first, second, third = batches.release(session, batch.id, {"tiny": 9})
        for job in (first, second):
            store.claim(session, job.id, WORKER, 30)
            store.fail(session, job.id, 1, WORKER, "broken", "It broke.", retryable=True)
        store.claim(session, third.id, WORKER, 30)
    return batch.id, third.id


def test_a_batch_is_not_ended_while_its_failed_rows_are_ordered_again(committed_database: Database) -> None:
    database = committed_database
    batch_id, running = end_all_but_one(database)
    with database.transaction() as session:
        assert store.complete(session, running, 1, WORKER, [])
    with database.transaction() as session:
        batches.retry_failed(session, batch_id)
        beside = waiting(database, move(database, batches.close_finished))
    assert list(beside.result()) == []
    with database.reading() as session:
        assert batches.get_batch(session, batch_id).state == BatchState.RUNNING
        assert batches.count_jobs(session, [batch_id])[batch_id][JobState.QUEUED] == 2


def test_a_job_that_is_handed_back_while_its_batch_is_cancelled_is_canceled(
    committed_database: Database,
) -> None:
    database = committed_database
    batch_id, running = end_all_but_one(database)
    with database.transaction() as session:
        assert store.hand_back(session, running, 1, WORKER)
        beside = waiting(database, move(database, batches.cancel, batch_id))
    beside.result()
    with database.reading() as session:
        assert store.get_job(session, running).state == JobState.CANCELED
        assert batches.get_batch(session, batch_id).state == BatchState.CANCELED


def test_of_two_changes_of_a_schedule_one_is_refused(committed_database: Database) -> None:
    database = committed_database
    with database.transaction() as session:
        schedule = make_schedule(session)

    def change(name: str) -> Callable[[], Any]:
        def changed() -> Any:
            with database.transaction() as session:
                return schedules.update_schedule(session, schedule.id, expected_version=1, name=name)

        return changed

    with database.transaction() as session:
        schedules.update_schedule(session, schedule.id, expected_version=1, name="first")
        beside = waiting(database, change("second"))
    with pytest.raises(Conflict, match="changed by another call"):
        beside.result()
    with database.reading() as session:
        assert schedules.get_schedule(session, schedule.id).name == "first"


def test_a_job_that_comes_back_waits_for_its_batch(committed_database: Database) -> None:
    database = committed_database
    batch_id, running = end_all_but_one(database)
    with database.transaction() as session:
        batches.pause(session, batch_id)
        assert store.hand_back(session, running, 1, WORKER)
    with database.transaction() as session:
        assert store.claim(session, running, WORKER, 30) is None
        assert [job.held for job in jobs_of(session, batches.get_batch(session, batch_id))] == [
            False,
            False,
            True,
        ]

"""A PostgreSQL server that cuts its connections or is away, as in a restart, and a warm worker on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from core.db import Database
from core.lifecycle import JobState
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import MEDIUM, Stage, WorkerProcess

pytestmark = [
    pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True),
    pytest.mark.xdist_group("worker on postgresql"),
]

SHORT: dict[str, Any] = {"num_inference_steps": 8, "cache": "off"}
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'"


@pytest.fixture
def worker(shared_stage: Stage) -> WorkerProcess:
    return shared_stage.first_worker()


def tell_server(stage: Stage, *statements: str) -> None:
    """Speak to the server through another database than the stage's, whose name goes into the braces."""
    server = Database(stage.database.url.set(database="postgres").render_as_string(hide_password=False))
    with server.db_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements:
            connection.exec_driver_sql(statement.format(stage.database.url.database))
    server.dispose()


@contextmanager
def away(stage: Stage) -> Iterator[None]:
    """No connection is left and none is accepted."""
    tell_server(stage, "ALTER DATABASE {} ALLOW_CONNECTIONS false", CUT)
    try:
        yield
    finally:
        tell_server(stage, "ALTER DATABASE {} ALLOW_CONNECTIONS true")


def test_a_job_goes_on_when_the_connections_are_cut(shared_stage: Stage, worker: WorkerProcess) -> None:
    child = worker.child_pid()
    job_id = shared_stage.submit(**MEDIUM)
    step = shared_stage.wait_step(job_id).progress_step or 0
    tell_server(shared_stage, CUT)
    shared_stage.wait_step(job_id, step + 1)
    shared_stage.wait_job(job_id)
    assert shared_stage.outcomes(job_id) == ["completed"]
    assert worker.child_pid() == child


def test_a_job_that_ends_while_the_database_is_away_is_completed_when_it_is_back(
    shared_stage: Stage, worker: WorkerProcess
) -> None:
    child = worker.child_pid()
    job_id = shared_stage.submit(**MEDIUM)
    shared_stage.wait_step(job_id)
    with away(shared_stage):
        wait_until(lambda: len(list(shared_stage.artifacts.list(f"jobs/{job_id}/"))) == 3, what="the files")
        assert worker.process.poll() is None
    shared_stage.wait_job(job_id)
    assert shared_stage.outcomes(job_id) == ["completed"]
    assert worker.child_pid() == child


def test_a_job_whose_message_comes_while_the_database_is_away_is_done_when_it_is_back(
    shared_stage: Stage, worker: WorkerProcess
) -> None:
    child = worker.child_pid()
    job_id = shared_stage.submit(send=False, **SHORT)
    assert shared_stage.job(job_id).state == JobState.QUEUED
    with away(shared_stage):
        shared_stage.send_without_note(job_id)
        wait_until(lambda: shared_stage.messages() == 0, what="the worker read the message")
    shared_stage.wait_job(job_id)
    assert shared_stage.outcomes(job_id) == ["completed"]
    assert worker.child_pid() == child

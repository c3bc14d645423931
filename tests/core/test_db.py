"""Units of work: kept whole or not at all, and safe beside each other."""

import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core import store
from core.clock import now
from core.db import Database
from core.errors import DatabaseUnavailable
from tests.core.jobs import submit


def test_a_unit_of_work_is_kept(committed_database: Database) -> None:
    with committed_database.transaction() as session:
        job_id = submit(session).id
    with committed_database.reading() as session:
        assert store.get_job(session, job_id).id == job_id


def test_an_interrupted_unit_is_not_kept_even_by_a_stop_of_the_process(committed_database: Database) -> None:
    with pytest.raises(SystemExit), committed_database.transaction() as session:  # noqa: PT012
        submit(session)
        raise SystemExit(0)
    with committed_database.reading() as session:
        assert not store.list_jobs(session).rows


def test_what_was_read_stays_readable_afterwards(committed_database: Database) -> None:
    with committed_database.transaction() as session:
        job = submit(session)
    assert (job.model, job.artifacts) == ("tiny", [])
    assert job.created_at is not None


def test_nothing_can_be_written_while_reading(committed_database: Database) -> None:
    with pytest.raises(Exception, match=r"(?i)read.?only"), committed_database.reading() as session:  # noqa: PT012
        submit(session)
        session.flush()
    with committed_database.transaction() as session:
        submit(session)


def test_readers_do_not_wait_for_a_writer(committed_database: Database) -> None:
    with committed_database.transaction() as writing:
        submit(writing)
        writing.flush()
        with committed_database.reading() as session:
            assert not store.list_jobs(session).rows


def test_writers_at_once_all_succeed(committed_database: Database) -> None:
    start = threading.Barrier(8)

    def write(_: int) -> None:
        start.wait(30)
        for _ in range(10):
            with committed_database.transaction() as session:
                submit(session)
                store.list_jobs(session)
                submit(session)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(8)))
    with committed_database.reading() as session:
        assert sum(store.count_by_state(session).values()) == 160


def test_a_new_sqlite_file_can_be_opened_by_many_at_once(tmp_path: Path) -> None:
    start = threading.Barrier(12)

    def connect(_: int) -> str:
        database = Database(f"sqlite:///{tmp_path}/new.db")
        start.wait(30)
        with database.reading() as session:
            mode = session.execute(text("PRAGMA journal_mode")).scalar_one()
        database.dispose()
        return str(mode)

    with ThreadPoolExecutor(12) as threads:
        assert set(threads.map(connect, range(12))) == {"wal"}


def test_the_clock_is_the_databases_and_moves_within_a_unit_of_work(session: Session) -> None:
    first = session.scalars(select(now())).one()
    assert abs(first - datetime.now(UTC)) < timedelta(minutes=5)
    later = session.scalars(select(now(90.5))).one() - first
    assert timedelta(seconds=90) < later < timedelta(seconds=120)
    assert session.scalars(select(now(-60))).one() < first
    while session.scalars(select(now())).one() == first:
        pass


def test_a_time_comes_back_as_it_went_in(session: Session) -> None:
    at = datetime(2026, 7, 1, 12, 30, 15, 123456, tzinfo=UTC)
    there = at.astimezone(datetime.now().astimezone().tzinfo)
    job = submit(session)
    job.run_after = there
    session.flush()
    session.refresh(job)
    assert job.run_after == at
    assert job.run_after.utcoffset() == timedelta(0)


def test_a_database_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    database = Database(f"postgresql://nobody@/none?host={tmp_path}")
    told = pytest.raises(DatabaseUnavailable, match=r"The database did not answer: ")
    with told as caught, database.transaction() as session:
        submit(session)
    assert caught.value.status == 503
    with pytest.raises(DatabaseUnavailable), database.reading() as session:
        session.execute(text("SELECT 1"))


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_silent_postgresql_is_given_up_within_half_a_minute(committed_database: Database) -> None:
    with committed_database.reading() as session:
        assert session.scalar(text("SHOW statement_timeout")) == "30s"
        assert session.scalar(text("SHOW idle_in_transaction_session_timeout")) == "10s"
        driver: Any = session.connection().connection.driver_connection
        parameters = driver.info.get_parameters()
    assert parameters["tcp_user_timeout"] == "10000"
    idle, interval, count = (int(parameters[f"keepalives_{name}"]) for name in ("idle", "interval", "count"))
    assert idle + interval * count < 30


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_statement_that_takes_too_long_says_so(committed_database: Database) -> None:
    with (  # noqa: PT012
        pytest.raises(DatabaseUnavailable, match="statement timeout"),
        committed_database.reading() as session,
    ):
        session.execute(text("SET LOCAL statement_timeout = '50ms'"))
        session.execute(text("SELECT pg_sleep(5)"))


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_database_that_takes_no_writes_is_unavailable(committed_database: Database) -> None:
    """As one does while another server takes over from it."""
    with (  # noqa: PT012
        pytest.raises(DatabaseUnavailable, match="read-only transaction"),
        committed_database.transaction() as session,
    ):
        session.execute(text("SET TRANSACTION READ ONLY"))
        submit(session)


def test_a_commit_that_fails_leaves_no_lock_behind(tmp_path: Path) -> None:
    """SQLite keeps the transaction of a failed COMMIT open: the connection must not be kept with it."""
    database = Database(f"sqlite:///{tmp_path / 'full.db'}")
    database.upgrade()

    def refuse(action: int, what: str | None, *_: object) -> int:
        is_commit = action == sqlite3.SQLITE_TRANSACTION and what == "COMMIT"
        return sqlite3.SQLITE_DENY if is_commit else sqlite3.SQLITE_OK

    with pytest.raises(DatabaseUnavailable), database.transaction() as session:  # noqa: PT012
        submit(session)
        session.connection().connection.driver_connection.set_authorizer(refuse)
    with sqlite3.connect(tmp_path / "full.db", timeout=0) as other:
        other.execute("BEGIN IMMEDIATE")
    other.close()
    with database.transaction() as session:
        submit(session)
    with database.reading() as session:
        assert session.scalar(text("SELECT count(*) FROM jobs")) == 1
    database.dispose()


def test_a_damaged_sqlite_file_is_unavailable(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/damaged.db")
    database.upgrade()
    database.dispose()  # the last to leave writes the log into the file
    with (tmp_path / "damaged.db").open("r+b") as file:
        file.seek(4096)  # the first page holds the file's header
        file.write(b"\xff" * 4096 * 20)
    with pytest.raises(DatabaseUnavailable, match="malformed"), database.reading() as session:
        session.execute(text("SELECT count(*) FROM jobs, attempts, events, artifacts")).all()
    database.dispose()


def test_what_the_database_refuses_is_not_an_outage(session: Session) -> None:
    with pytest.raises(IntegrityError), session.begin_nested():
        submit(session, max_attempts=0)


def test_a_database_without_tables_says_so(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(DatabaseUnavailable, match="no such table: jobs"), database.reading() as session:
        store.list_jobs(session)
    database.dispose()


def test_an_error_does_not_show_what_was_written(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(DatabaseUnavailable) as caught, database.transaction() as session:
        submit(session, request={"prompt": "a secret hill"})
    assert "secret" not in str(caught.value)
    database.dispose()


def test_sqlite_survives_the_kill_of_its_writer(tmp_path: Path) -> None:
    """What was committed is there, what was not is not, and nobody has to clean up."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    database = Database(url)
    database.upgrade()
    code = f"""
import os, signal
from core import store
from core.db import Database
database = Database({url!r})
with database.transaction() as session:
    print(store.submit(session, request={{}}, plan={{}}, model="tiny")[0].id, flush=True)
with database.transaction() as session:
    store.submit(session, request={{}}, plan={{}}, model="tiny")
    session.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    with database.transaction() as session:
        assert [job.id for job in store.list_jobs(session).rows] == [killed.stdout.strip()]
        submit(session)
    database.dispose()

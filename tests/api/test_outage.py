"""Orders while the database is away, cut off or fails in the middle, and across a restart of the API."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from sqlite3 import SQLITE_TRANSACTION
from typing import Any

import psycopg
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import Connection, event, func, select
from sqlalchemy.exc import OperationalError

from api.app import create_app
from core import store
from core.db import Database
from core.ids import new_id
from core.settings import Settings
from core.tables import Event, IdempotencyKey, Job
from tests.api.parts import ORDER, Worker, assert_problem, open_client
from tests.api.test_submit import on_queue, post
from tests.fixtures.redis import Valkey
from tests.fixtures.waiting import wait_until

Submit = Callable[..., dict[str, Any]]
BATCH = {"template": {"model": "tiny", "prompt": "a house"}, "rows": [{"seed": 1}]}
SCHEDULE = BATCH | {"name": "nightly", "every_s": 3600}


# --- the database ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("database_kind", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/jobs", ORDER),
        ("/v1/jobs/{id}/cancel", None),
        ("/v1/jobs/{id}/requeue", None),
        ("/v1/batches", BATCH),
        ("/v1/batches/{id}/cancel", None),
        ("/v1/schedules", SCHEDULE),
    ],
)
def test_an_order_without_the_database_is_refused_with_a_time_to_come_again(
    tmp_path: Path, database_kind: str, path: str, body: object
) -> None:
    away = {"sqlite": "sqlite:////nowhere/at/all.db", "postgresql": "postgresql://nobody@127.0.0.1:1/none"}
    with open_client(create_app(Settings.for_data_dir(tmp_path, database_url=away[database_kind]))) as client:
        answer = client.post(path.format(id=new_id()), json=body)
    assert_problem(answer, 503, "database_unavailable")
    assert answer.headers["retry-after"] == "5"


@contextmanager
def failing(database: Database, at: str) -> Iterator[None]:
    """Lose the database just before a statement that begins so, or in the commit itself."""

    def look(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith(at):
            raise OperationalError("", None, Exception("the connection was cut"))

    name, listener = ("commit", break_commit) if at == "COMMIT" else ("before_cursor_execute", look)
    event.listen(database.db_engine, name, listener)
    yield
    event.remove(database.db_engine, name, listener)


def break_commit(connection: Connection) -> None:
    driver = connection.connection.driver_connection
    assert driver is not None
    if connection.dialect.name == "sqlite":
        driver.set_authorizer(lambda action, what, *_: action == SQLITE_TRANSACTION and what == "COMMIT")
    else:
        with psycopg.connect(driver.info.dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [driver.info.backend_pid])


@pytest.mark.parametrize(
    "at", ["INSERT INTO jobs", "INSERT INTO events", "INSERT INTO idempotency_keys", "SELECT count", "COMMIT"]
)
def test_an_order_that_fails_half_way_leaves_no_job_no_key_and_no_message(
    settings: Settings, redis_url: str, session_valkey: Valkey, committed_database: Database, at: str
) -> None:
    with on_queue(settings, redis_url) as client, session_valkey.client() as queue:
        database = client.app.state.services.database  # type: ignore[attr-defined]
        with failing(database, at):
            refused = post(client, "k1")
        assert_problem(refused, 503, "database_unavailable")
        assert refused.headers["retry-after"] == "5"
        assert rows(committed_database) == (0, 0, 0)
        assert queue.keys("render.*") == []
        assert post(client, "k1", n=2).status_code == 202  # the key is free, for any body
    assert rows(committed_database) == (1, 1, 1)


def rows(database: Database) -> tuple[int, ...]:
    with database.reading() as session:
        tables = (Job, Event, IdempotencyKey)
        return tuple(session.scalars(select(func.count()).select_from(table)).one() for table in tables)


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_orders_are_taken_again_as_soon_as_the_database_is_back(app: FastAPI, own_client: TestClient) -> None:
    """A restart of PostgreSQL cuts every connection, also those that wait in the API's pool."""
    first = own_client.post("/v1/jobs", json=ORDER)
    url = app.state.services.database.url.render_as_string(hide_password=False)
    other = Database(url)
    with other.db_engine.connect() as connection:
        cut = connection.exec_driver_sql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).scalar_one()
    other.dispose()
    assert cut >= 1
    assert own_client.get(first.json()["urls"]["self"]).status_code == 200
    assert own_client.post("/v1/jobs", json=ORDER).status_code == 202


def test_an_order_that_is_stored_is_not_refused_when_the_database_goes_while_its_caller_waits(
    settings: Settings, committed_database: Database
) -> None:
    answers: list[Any] = []
    with open_client(create_app(settings)) as client:

        def order() -> None:
            answers.append(client.post("/v1/jobs", json=ORDER, headers={"Prefer": "wait=30"}))

        caller = threading.Thread(target=order)
        caller.start()
        wait_until(lambda: rows(committed_database)[0] == 1, what="a stored job")
        with failing(client.app.state.services.database, "SELECT"):  # type: ignore[attr-defined]
            caller.join()
    assert answers[0].status_code == 202
    assert answers[0].headers["location"] == answers[0].json()["urls"]["self"]
    assert answers[0].json()["status"] == "queued"


# --- what stays -----------------------------------------------------------------------------------------


def test_a_key_is_known_after_a_restart_of_the_api(settings: Settings, count_jobs: Callable[[], int]) -> None:
    with open_client(create_app(settings)) as before:
        job = post(before, "k1", seed=None).json()
    with open_client(create_app(settings)) as after:
        again = post(after, "k1", seed=None)
        assert (again.status_code, again.json()["id"]) == (202, job["id"])
        assert again.headers["idempotent-replayed"] == "true"
        assert_problem(post(after, "k1", n=2), 422, "idempotency_key_reused")
    assert count_jobs() == 1


def test_a_key_of_another_caller_is_not_known(
    client: TestClient, committed_database: Database, count_jobs: Callable[[], int]
) -> None:
    with committed_database.transaction() as session:
        theirs, _ = store.submit(
            session, request={}, plan={}, model="tiny", caller="ann", idempotency=("k1", "their request")
        )
    answer = post(client, "k1")
    assert answer.status_code == 202
    assert answer.json()["id"] != theirs.id
    assert "idempotent-replayed" not in answer.headers
    assert count_jobs() == 2


def test_a_late_report_of_progress_changes_nothing_of_a_finished_job(
    client: TestClient, submit: Submit, worker: Worker, committed_database: Database
) -> None:
    job = submit()
    worker.complete(job["id"], b"picture")
    done = client.get(job["urls"]["self"]).json()
    file = client.get(job["urls"]["content"])
    for step in (3, 24):
        with committed_database.transaction() as session:
            assert store.heartbeat(session, job["id"], 1, worker.id, 30, step, 24) is None
    assert client.get(job["urls"]["self"]).json() == done
    assert client.get(job["urls"]["content"]).content == file.content == b"picture"


def test_a_job_that_nobody_starts_in_time_has_expired(
    client: TestClient, submit: Submit, committed_database: Database
) -> None:
    job, patient = submit(queue_timeout_s=60), submit(queue_timeout_s=3600)
    with committed_database.transaction() as session:
        assert store.expire(session, datetime.now(UTC) + timedelta(minutes=2)) == 1
    expired = client.get(job["urls"]["self"])
    assert "retry-after" not in expired.headers
    assert (expired.json()["status"], expired.json()["attempt"]) == ("expired", 0)
    assert expired.json()["finished_at"] is not None
    assert_problem(client.get(job["urls"]["content"]), 409, "no_result")
    assert_problem(client.post(job["urls"]["cancel"]), 409, "already_finished")
    assert client.get(patient["urls"]["self"]).json()["status"] == "queued"

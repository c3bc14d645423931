"""`renderq health`: 0 when the process can do its work now, 1 and the reason when it cannot."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from core import workers
from core.db import Database
from core.ids import new_id
from core.lifecycle import WorkerState
from core.tables import Worker
from tests.cli.conftest import Run
from tests.fixtures.redis import Valkey
from tests.fixtures.scripted_server import ScriptedServer

HERE = socket.gethostname()
GOOD = {"name": "database", "ok": True, "reason": "it answers"}


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> Database:
    """A database and a queue that the environment names."""
    url = f"sqlite:///{tmp_path}/renderq.db"
    monkeypatch.setenv("RENDERQ_DATABASE_URL", url)
    monkeypatch.setenv("RENDERQ_REDIS_URL", redis_url)
    database = Database(url)
    database.upgrade()
    return database


def add_worker(database: Database, state: WorkerState, host: str = HERE) -> str:
    worker_id = new_id()
    with database.transaction() as session:
        workers.register_worker(
            session,
            worker_id=worker_id,
            name=f"tiny-{os.getpid()}@{host}",
            host=host,
            pid=os.getpid(),
            model="tiny",
            queue="render.tiny",
            policy={},
            device={},
        )
        workers.update_worker(session, worker_id, state=state)
    return worker_id


def answer(database: dict[str, Any], workers_are_ready: bool) -> dict[str, Any]:
    check = {"name": "workers", "ok": workers_are_ready, "reason": "no worker is ready"}
    return {"ready": database["ok"] and workers_are_ready, "checks": [database, check], "models": []}


def test_an_api_with_its_database_takes_jobs_also_while_no_worker_is_ready(
    renderq: Run, server: ScriptedServer
) -> None:
    server.add("/readyz", answer(GOOD, workers_are_ready=False), status=503)
    result = renderq("health", "api")
    assert result.exit_code == 0
    assert result.stdout == "takes jobs; workers: no worker is ready\n"


def test_an_api_without_its_database_takes_none(renderq: Run, server: ScriptedServer) -> None:
    server.add("/readyz", answer({**GOOD, "ok": False, "reason": "refused"}, True), status=503)
    result = renderq("health", "api")
    assert result.exit_code == 1
    assert "database" in result.stderr
    assert "refused" in result.stderr


@pytest.mark.parametrize("body", [b"<html>", {"status": "ok"}, []])
def test_what_is_not_our_api_is_not_taken_for_it(renderq: Run, server: ScriptedServer, body: object) -> None:
    server.add("/readyz", body)
    result = renderq("health", "api")
    assert result.exit_code == 1
    assert "is not renderq's API" in result.stderr


@pytest.mark.parametrize("command", [("api",), ("flower", "--url", "http://127.0.0.1:9")])
def test_what_does_not_answer_is_unhealthy(
    renderq: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("RENDERQ_URL", "http://127.0.0.1:9")
    result = renderq("health", *command)
    assert result.exit_code == 1
    assert "does not answer" in result.stderr
    assert ("(--url says where Flower is)" in result.stderr) is (command[0] == "flower")


def test_a_warm_worker_of_this_host_is_healthy(renderq: Run, deployed: Database) -> None:
    add_worker(deployed, WorkerState.READY)
    result = renderq("health", "worker")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"ready: tiny-{os.getpid()}@{HERE}\n"


@pytest.mark.parametrize("state", [WorkerState.LOADING, WorkerState.WARMING, WorkerState.DRAINING])
def test_a_worker_that_prepares_or_drains_takes_no_job(
    renderq: Run, deployed: Database, state: WorkerState
) -> None:
    add_worker(deployed, state)
    result = renderq("health", "worker")
    assert result.exit_code == 1
    assert f"tiny-{os.getpid()}@{HERE} is {state}" in result.stderr


def test_a_ready_worker_elsewhere_does_not_make_this_host_healthy(renderq: Run, deployed: Database) -> None:
    add_worker(deployed, WorkerState.READY, host="elsewhere")
    result = renderq("health", "worker")
    assert result.exit_code == 1
    assert "none was heard of" in result.stderr


def test_a_worker_that_fell_silent_is_not_believed(renderq: Run, deployed: Database) -> None:
    worker_id = add_worker(deployed, WorkerState.READY)
    with deployed.transaction() as session:
        row = session.get_one(Worker, worker_id)
        row.heartbeat_at = row.heartbeat_at.replace(year=2020)
    result = renderq("health", "worker")
    assert result.exit_code == 1
    assert "none was heard of" in result.stderr


def test_a_worker_whose_queue_is_away_takes_no_job(
    renderq: Run, deployed: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_worker(deployed, WorkerState.READY)
    monkeypatch.setenv("RENDERQ_REDIS_URL", "redis://:secret@127.0.0.1:9/0")
    result = renderq("health", "worker")
    assert result.exit_code == 1
    assert "127.0.0.1:9/0 does not answer" in result.stderr
    assert "secret" not in result.stderr


@pytest.mark.parametrize("url", ["postgresql://a:b@127.0.0.1:9/x", "nonsense://x"])
def test_a_database_that_cannot_be_asked_is_unhealthy_and_not_another_code(
    renderq: Run, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("RENDERQ_DATABASE_URL", url)
    result = renderq("health", "worker")
    assert result.exit_code == 1


def test_without_an_upkeep_process_its_check_says_so(renderq: Run, deployed: Database) -> None:
    result = renderq("health", "upkeep")
    assert result.exit_code == 1
    assert f"no upkeep process on {HERE} answers" in result.stderr


def test_an_upkeep_process_whose_queue_is_away_cannot_be_sent_its_duties(
    renderq: Run, deployed: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RENDERQ_REDIS_URL", "redis://:secret@127.0.0.1:9/0")
    result = renderq("health", "upkeep")
    assert result.exit_code == 1
    assert "Redis does not answer" in result.stderr
    assert "secret" not in result.stderr


def test_a_queue_that_answers_and_refuses_is_not_said_to_be_silent(
    renderq: Run, deployed: Database, own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RENDERQ_REDIS_URL", own_valkey.url)
    add_worker(deployed, WorkerState.READY)
    with own_valkey.client() as client:
        client.config_set("maxmemory", "1")
    for part in ("worker", "upkeep"):
        result = renderq("health", part)
        assert result.exit_code == 1
        assert "takes no messages: " in result.stderr

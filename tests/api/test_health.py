"""Alive and ready are two questions."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from api.app import create_app
from core.settings import Settings
from core.workers import WorkerState
from tests.api.parts import Worker, open_client
from tests.fixtures.redis import Valkey


def ask(settings: Settings, *, worker: WorkerState | None = None) -> Any:
    with open_client(create_app(settings)) as client:
        if worker:
            Worker.of(client).register(worker)
        assert client.get("/healthz").json()["status"] == "ok"
        return client.get("/readyz")


def failing(answer: Any) -> dict[str, str]:
    return {check["name"]: check["reason"] for check in answer.json()["checks"] if not check["ok"]}


def test_ready_when_all_is_there_and_a_worker_is_ready(settings: Settings, redis_url: str) -> None:
    answer = ask(settings.model_copy(update={"redis_url": redis_url}), worker=WorkerState.READY)
    assert answer.status_code == 200
    assert answer.json()["ready"] is True
    assert answer.json()["models"] == ["tiny"]
    assert [check["name"] for check in answer.json()["checks"]] == [
        "database",
        "redis",
        "artifacts",
        "workers",
    ]


@pytest.mark.parametrize("state", [None, *(state for state in WorkerState if state != WorkerState.READY)])
def test_not_ready_without_a_ready_worker(
    settings: Settings, redis_url: str, state: WorkerState | None
) -> None:
    answer = ask(settings.model_copy(update={"redis_url": redis_url}), worker=state)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert failing(answer) == {"workers": "no worker is ready for any model of the catalogue"}
    assert answer.json()["models"] == []


def test_not_ready_without_redis(settings: Settings) -> None:
    answer = ask(settings, worker=WorkerState.READY)
    assert answer.status_code == 503
    assert failing(answer).keys() == {"redis"}
    assert answer.json()["models"] == []


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_not_ready_when_the_only_worker_missed_some_beats(settings: Settings, redis_url: str) -> None:
    with open_client(create_app(settings.model_copy(update={"redis_url": redis_url}))) as client:
        worker = Worker.of(client)
        worker.register(WorkerState.READY)
        worker.fall_silent(10)
        assert client.get("/readyz").status_code == 200
        worker.fall_silent(20)
        answer = client.get("/readyz")
    assert failing(answer).keys() == {"workers"}


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_hanging_redis_is_told_in_bounded_time(settings: Settings, own_valkey: Valkey) -> None:
    own_valkey.freeze()
    begun = time.monotonic()
    answer = ask(settings.model_copy(update={"redis_url": own_valkey.url}), worker=WorkerState.READY)
    assert time.monotonic() - begun < 10
    own_valkey.thaw()
    assert failing(answer).keys() == {"redis"}


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("refuse", [("CONFIG", "SET", "maxmemory", "1"), ("REPLICAOF", "127.0.0.1", "1")])
def test_not_ready_while_redis_takes_no_messages_though_it_answers(
    settings: Settings, own_valkey: Valkey, refuse: tuple[str, ...]
) -> None:
    with own_valkey.client() as client:
        client.execute_command(*refuse)
        assert client.ping()
    answer = ask(settings.model_copy(update={"redis_url": own_valkey.url}), worker=WorkerState.READY)
    assert answer.status_code == 503
    assert failing(answer).keys() == {"redis"}


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_not_ready_while_the_disk_is_full(
    settings: Settings, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage("/").free
    monkeypatch.setattr("core.room.LEAST_FREE_BYTES", 1000 * free)  # of any disk here
    artifacts = {"artifacts_url": (settings.data_dir / "artifacts").as_uri()}
    answer = ask(settings.model_copy(update={"redis_url": redis_url, **artifacts}), worker=WorkerState.READY)
    assert answer.status_code == 503
    reasons = failing(answer)
    assert reasons.keys() == {"database", "artifacts"}
    assert all("is full" in reason for reason in reasons.values())


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_redis_that_would_drop_messages_is_told_of_though_jobs_can_be_rendered(
    settings: Settings, own_valkey: Valkey
) -> None:
    with own_valkey.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    answer = ask(settings.model_copy(update={"redis_url": own_valkey.url}), worker=WorkerState.READY)
    assert answer.status_code == 200
    reasons = {check["name"]: check["reason"] for check in answer.json()["checks"]}
    assert "allkeys-lru" in reasons["redis"]
    assert "noeviction" in reasons["redis"]


@pytest.mark.parametrize(
    "database_url", ["postgresql://nobody@127.0.0.1:1/none", "sqlite:////nowhere/at/all.db"]
)
def test_not_ready_without_a_database(tmp_path: Path, database_url: str) -> None:
    answer = ask(Settings.for_data_dir(tmp_path, database_url=database_url))
    assert answer.status_code == 503
    assert failing(answer).keys() == {"database", "redis", "workers"}


def test_not_ready_on_a_database_without_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    answer = ask(Settings.for_data_dir(tmp_path, database_url=url))
    assert answer.status_code == 503
    assert "no such table" in failing(answer)["database"]

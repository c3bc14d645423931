"""The API over a real database, with helpers that move jobs as a worker would."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from api.app import create_app
from core.db import Database
from core.settings import Settings
from core.tables import Job
from tests.api.parts import ORDER, Worker, open_client, url_of


@pytest.fixture
def settings(committed_database: Database, tmp_path: Path) -> Settings:
    """A migrated database, files in memory, and nobody where Redis should be."""
    return Settings.for_data_dir(tmp_path, database_url=url_of(committed_database), artifacts_url="memory://")


@pytest.fixture(scope="session")
def shared_client(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("api")
    settings = Settings.for_data_dir(folder, database_url=database_url, artifacts_url="memory://")
    with open_client(create_app(settings)) as client:
        yield client


@pytest.fixture
def client(shared_client: TestClient, committed_database: Database) -> TestClient:
    """Calls the session's application; the rows are deleted after the test."""
    del committed_database
    return shared_client


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    """An application of the test's own, to be taken apart."""
    return create_app(settings)


@pytest.fixture
def own_client(app: FastAPI) -> Iterator[TestClient]:
    with open_client(app) as client:
        yield client


@pytest.fixture
def submit(client: TestClient) -> Callable[..., dict[str, Any]]:
    def submit(**fields: object) -> dict[str, Any]:
        answer = client.post("/v1/jobs", json=ORDER | fields)
        assert answer.status_code == 202, answer.text
        job: dict[str, Any] = answer.json()
        return job

    return submit


@pytest.fixture
def worker(client: TestClient) -> Worker:
    return Worker.of(client)


@pytest.fixture
def count_jobs(database_url: str) -> Iterator[Callable[[], int]]:
    database = Database(database_url)

    def count_jobs() -> int:
        with database.reading() as session:
            return session.scalars(select(func.count()).select_from(Job)).one()

    yield count_jobs
    database.dispose()

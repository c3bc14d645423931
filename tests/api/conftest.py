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
from tests.api.parts import BASE, ORDER, Worker


@pytest.fixture
def settings(committed_database: Database, tmp_path: Path) -> Settings:
    """A migrated database, files in memory, and nobody where Redis should be."""
    return Settings.for_data_dir(
        tmp_path,
        database_url=committed_database.url.render_as_string(hide_password=False),
        artifacts_url="memory://",
    )


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    return create_app(settings)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def refusing_client(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """One application for the many calls of a module that must leave nothing behind."""
    folder = tmp_path_factory.mktemp("refusing")
    settings = Settings.for_data_dir(folder, database_url=database_url, artifacts_url="memory://")
    with TestClient(create_app(settings), base_url=BASE, raise_server_exceptions=False) as client:
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
def worker(app: FastAPI) -> Worker:
    return Worker(app)


@pytest.fixture
def count_jobs(database_url: str) -> Iterator[Callable[[], int]]:
    database = Database(database_url)

    def count_jobs() -> int:
        with database.reading() as session:
            return session.scalars(select(func.count()).select_from(Job)).one()

    yield count_jobs
    database.dispose()

"""Whatever goes wrong, the answer is a problem document and the log has the reason."""

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import event

from api.app import create_app
from api.errors import PROBLEMS
from api.problems import JsonResponse
from core.artifacts import ArtifactStore
from core.ids import new_id
from core.settings import Settings
from core.tables import Job
from tests.api.parts import BASE, ORDER, Worker, assert_problem

pytestmark = [
    pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True),
    pytest.mark.usefixtures("database_kind"),
]


@pytest.mark.parametrize(
    "path", ["/v2", "/v1", "/v1/jobs/", "/v1/jobs/a/b/c", "/docs/x", "/%00", "/favicon.ico"]
)
def test_an_unknown_address_is_not_found(shared_client: TestClient, path: str) -> None:
    assert_problem(shared_client.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/jobs", {"GET", "HEAD", "POST"}),
        ("DELETE", "/v1/jobs/{id}", {"GET", "HEAD"}),
        ("GET", "/v1/jobs/{id}/cancel", {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("OPTIONS", "/v1/jobs", {"GET", "HEAD", "POST"}),
        ("BREW", "/healthz", {"GET", "HEAD"}),
    ],
)
def test_a_method_that_an_address_does_not_know_is_refused_with_those_it_knows(
    shared_client: TestClient, method: str, path: str, allowed: set[str]
) -> None:
    answer = shared_client.request(method, path.format(id=new_id()))
    assert_problem(answer, 405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == allowed


def test_a_fault_of_ours_is_logged_with_its_reason_and_answered_without(
    app: FastAPI, own_client: TestClient
) -> None:
    @app.get("/broken")
    def broken() -> None:
        raise ZeroDivisionError("secret reason")

    with structlog.testing.capture_logs() as lines:
        answer = own_client.get("/broken", headers={"X-Request-Id": "r1"})
    problem = assert_problem(answer, 500, "internal_error")
    assert "secret" not in answer.text
    assert problem["request_id"] == "r1"
    (failed,) = [line for line in lines if line["event"] == "http.failed"]
    assert failed["exc_info"]
    assert [line["status"] for line in lines if line["event"] == "http.answered"] == [500]


@pytest.mark.parametrize(
    "url", ["postgresql://nobody:secret@127.0.0.1:1/none", "sqlite:////nowhere/at/all.db"]
)
@pytest.mark.parametrize(
    "path", ["/v1/jobs", "/v1/jobs/{id}", "/v1/models", "/v1/workers", "/v1/jobs/{id}/content"]
)
def test_a_database_that_is_away_is_told_and_when_to_try_again(tmp_path: Path, url: str, path: str) -> None:
    app = create_app(Settings.for_data_dir(tmp_path, database_url=url))
    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as client:
        answer = client.get(path.format(id=new_id()))
    assert_problem(answer, 503, "database_unavailable")
    assert answer.headers["retry-after"] == "5"
    assert "secret" not in answer.text


def test_an_order_is_not_half_taken_when_the_database_fails(
    own_client: TestClient, count_jobs: Callable[[], int], app: FastAPI
) -> None:
    """The queue's position cannot be counted after the insert: the insert is taken back with it."""
    database = app.state.services.database

    def fail(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT count"):
            raise sqlite3.OperationalError("disk I/O error")

    event.listen(database.db_engine, "before_cursor_execute", fail)
    answer = own_client.post("/v1/jobs", json=ORDER)
    event.remove(database.db_engine, "before_cursor_execute", fail)
    assert answer.status_code == 503, answer.text
    assert count_jobs() == 0


def test_a_store_of_files_that_fails_is_told(own_client: TestClient, app: FastAPI, tmp_path: Path) -> None:
    job = own_client.post("/v1/jobs", json=ORDER).json()
    Worker.of(own_client).complete(job["id"], b"picture")
    folder = tmp_path / "files"
    store = ArtifactStore(folder.as_uri())
    (folder / "jobs").write_text("a file where a folder should be")
    app.state.services = replace(app.state.services, artifacts=store)
    answer = own_client.get(job["urls"]["content"])
    assert answer.status_code in {410, 503}
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_problem_can_be_sent_whatever_text_it_repeats() -> None:
    assert json.loads(JsonResponse({"detail": "half \ud800 a pair, 🏠"}).body) == {
        "detail": "half ? a pair, 🏠"
    }


def test_every_code_has_one_sentence_and_a_status_of_an_error() -> None:
    for code, (status, sentence) in PROBLEMS.items():
        assert code.isidentifier()
        assert 400 <= status < 600
        assert sentence.endswith(".")


def test_a_stored_job_can_be_read_though_its_model_is_no_longer_offered(
    own_client: TestClient, app: FastAPI
) -> None:
    job = own_client.post("/v1/jobs", json=ORDER).json()
    with app.state.services.database.transaction() as session:
        session.get(Job, job["id"]).model = "withdrawn"
    assert own_client.get(job["urls"]["self"]).json()["model"] == "withdrawn"
    assert own_client.get("/v1/jobs?model=withdrawn").json()["data"][0]["id"] == job["id"]

"""Reading, listing and cancelling jobs."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.ids import new_id
from tests.api.parts import BASE, Worker, assert_problem

Submit = Callable[..., dict[str, Any]]


def test_a_running_job_shows_attempt_worker_and_progress(
    client: TestClient, submit: Submit, worker: Worker
) -> None:
    job = submit()
    worker.claim(job["id"], step=6)
    answer = client.get(job["urls"]["self"])
    assert answer.status_code == 200
    assert answer.headers["retry-after"] == "1"
    running = answer.json()
    assert running["status"] == "in_progress"
    assert running["attempt"] == 1
    assert running["worker"] == worker.id
    assert running["progress"] == {"step": 6, "steps": 24, "fraction": 0.25}
    assert running["queue_position"] is None
    assert running["warnings"] == []
    assert running["started_at"] >= running["created_at"]
    assert running["timings_ms"].keys() == {"queue"}


def test_a_completed_job_shows_its_files_times_and_acceleration(
    client: TestClient, submit: Submit, worker: Worker
) -> None:
    job = submit(n=2)
    worker.complete(job["id"], b"first", b"second")
    answer = client.get(job["urls"]["self"])
    assert "retry-after" not in answer.headers
    done = answer.json()
    assert done["status"] == "completed"
    assert [file["index"] for file in done["artifacts"]] == [0, 1]
    assert [file["seed"] for file in done["artifacts"]] == [7, 8]
    assert [file["bytes"] for file in done["artifacts"]] == [5, 6]
    assert done["artifacts"][1]["url"] == f"{job['urls']['content']}?index=1"
    assert done["artifacts"][0]["media_type"] == "image/png"
    assert done["acceleration"] == {"cache": "balanced", "cached_steps": 9, "compiled": False, "compiles": 0}
    assert done["timings_ms"].keys() == {"queue", "encode", "denoise", "decode", "save", "total"}
    assert done["timings_ms"]["total"] >= done["timings_ms"]["queue"] >= 0
    assert done["finished_at"] >= done["started_at"]
    assert done["error"] is None


def test_times_are_in_utc_with_their_zone(submit: Submit) -> None:
    assert submit()["created_at"].endswith("Z")


def test_a_failed_job_says_why(client: TestClient, submit: Submit, worker: Worker) -> None:
    job = submit()
    worker.fail(job["id"], "out_of_memory", "the GPU has no room")
    failed = client.get(job["urls"]["self"]).json()
    assert failed["status"] == "failed"
    assert failed["error"] == {
        "code": "out_of_memory",
        "message": "the GPU has no room",
        "retryable": False,
    }


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/{new}",
        "/v1/jobs/{new}/content",
        "/v1/jobs/1",
        "/v1/jobs/%00",
        "/v1/jobs/..%2f..%2fetc",
        "/v1/jobs/{upper}",
        "/v1/jobs/{new}%20",
        "/v1/jobs/%F0%9F%8F%A0",
        "/v1/jobs/" + "a" * 3000,
    ],
)
def test_a_job_that_is_not_there_is_not_found(client: TestClient, path: str) -> None:
    address = path.format(new=new_id(), upper=new_id().upper())
    assert_problem(client.get(address), 404, "not_found")


# --- lists ----------------------------------------------------------------------------------------------


def test_a_list_is_newest_first_and_read_on_by_its_last_id(client: TestClient, submit: Submit) -> None:
    ids = [submit()["id"] for _ in range(5)]
    newest_first = ids[::-1]
    first = client.get("/v1/jobs", params={"limit": 2}).json()
    assert first["object"] == "list"
    assert [job["id"] for job in first["data"]] == newest_first[:2]
    assert (first["first_id"], first["last_id"], first["has_more"]) == (
        newest_first[0],
        newest_first[1],
        True,
    )
    submit()  # a newcomer does not shift the next page
    second = client.get("/v1/jobs", params={"limit": 3, "after": first["last_id"]}).json()
    assert [job["id"] for job in second["data"]] == newest_first[2:]
    assert second["has_more"] is False
    assert {job["queue_position"] for job in second["data"]} == {None}


def test_an_empty_list_is_a_list(client: TestClient) -> None:
    assert client.get("/v1/jobs").json() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


def test_a_list_is_filtered_by_status_and_model(client: TestClient, submit: Submit, worker: Worker) -> None:
    done, other, waiting = submit(), submit(model="flux.1-dev"), submit()
    worker.complete(done["id"], b"picture")

    def ids(**params: str) -> list[str]:
        return [job["id"] for job in client.get("/v1/jobs", params=params).json()["data"]]

    assert ids(status="completed") == [done["id"]]
    assert ids(status="queued") == [waiting["id"], other["id"]]
    assert ids(status="queued", model="tiny") == [waiting["id"]]
    assert ids(model="nobody") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=-1", "limit"),
        ("limit=ten", "limit"),
        ("limit=2.5", "limit"),
        ("limit=", "limit"),
        ("limit=99999999999999999999", "limit"),
        ("limit=1&limit=2", "limit"),
        ("status=done", "status"),
        ("status=", "status"),
        ("status=QUEUED", "status"),
        ("model=%00", "model"),
        ("model=a%20b", "model"),
        ("model=%ED%A0%80", "model"),
        ("model=" + "a" * 500, "model"),
        ("after=1", "after"),
        ("after=%00", "after"),
        ("after=", "after"),
        ("before=1", "before"),
        ("Limit=1", "Limit"),
        ("%00=1", "\0"),
        ("=1", ""),
    ],
)
def test_a_bad_query_is_refused_and_the_parameter_named(client: TestClient, query: str, field: str) -> None:
    problem = assert_problem(client.get(f"/v1/jobs?{query}"), 422, "invalid_query")
    assert [error["field"] for error in problem["errors"]] == [field]


def test_a_list_after_a_job_that_is_not_there_is_refused(client: TestClient) -> None:
    problem = assert_problem(client.get(f"/v1/jobs?after={new_id()}"), 422, "invalid_query")
    assert [error["field"] for error in problem["errors"]] == ["after"]


def test_an_unknown_parameter_is_refused_wherever_it_stands(client: TestClient, submit: Submit) -> None:
    job = submit()
    for method, path in [
        ("POST", "/v1/jobs"),
        ("GET", f"/v1/jobs/{job['id']}"),
        ("POST", f"/v1/jobs/{job['id']}/cancel"),
        ("GET", f"/v1/jobs/{job['id']}/content"),
        ("GET", "/v1/models"),
        ("GET", "/v1/workers"),
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/"),
    ]:
        assert_problem(client.request(method, f"{path}?wait=5"), 422, "invalid_query")


# --- cancelling -----------------------------------------------------------------------------------------


def test_a_queued_job_is_canceled_at_once(client: TestClient, submit: Submit) -> None:
    job = submit()
    answer = client.post(job["urls"]["cancel"])
    assert answer.status_code == 200
    assert "retry-after" not in answer.headers
    assert answer.json()["status"] == "canceled"
    assert client.get(job["urls"]["self"]).json()["status"] == "canceled"


def test_a_running_job_is_asked_to_stop(client: TestClient, submit: Submit, worker: Worker) -> None:
    job = submit()
    worker.claim(job["id"])
    answer = client.post(job["urls"]["cancel"])
    assert answer.status_code == 202
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["status"] == "in_progress"
    assert answer.json()["cancel_requested_at"] is not None
    assert client.post(job["urls"]["cancel"]).status_code == 202


def test_a_job_that_has_ended_cannot_be_canceled(client: TestClient, submit: Submit, worker: Worker) -> None:
    job = submit()
    worker.complete(job["id"], b"picture")
    problem = assert_problem(client.post(job["urls"]["cancel"]), 409, "already_finished")
    assert "completed" in problem["detail"]
    assert client.get(job["urls"]["self"]).json()["status"] == "completed"


def test_a_job_that_is_not_there_cannot_be_canceled(client: TestClient) -> None:
    assert_problem(client.post(f"{BASE}/v1/jobs/{new_id()}/cancel"), 404, "not_found")


@pytest.mark.parametrize(
    ("query", "words", "limit", "nearest"),
    [
        ("limit=101", 'limit must be at most 100, not "101"; nearest: 100', 100, 100),
        ("limit=0", 'limit must be at least 1, not "0"; nearest: 1', 1, 1),
        ("limit=many", 'limit must be an integer, not "many"', "an integer", None),
    ],
)
def test_a_bad_parameter_is_told_with_its_value_limit_and_nearest(
    client: TestClient, query: str, words: str, limit: object, nearest: object
) -> None:
    (error,) = client.get(f"/v1/jobs?{query}").json()["errors"]
    assert error == {
        "row": None, "field": "limit", "message": words, "limit": limit, "nearest": nearest,
    }  # fmt: skip

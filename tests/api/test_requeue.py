"""Attempts of a job, parked jobs, and ordering a failed one again."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.settings import Settings
from tests.api.parts import Worker, assert_problem
from tests.api.test_submit import NOT_SENT, on_queue
from tests.fixtures.redis import Valkey

Submit = Callable[..., dict[str, Any]]


@pytest.fixture
def failed(submit: Submit, worker: Worker) -> dict[str, Any]:
    job = submit(metadata={"sku": "A-1"}, n=2)
    worker.fail(job["id"], "broken", "It broke.")
    return job


def read(client: TestClient, job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = client.get(job["urls"]["self"]).json()
    return found


def test_a_failed_job_is_ordered_again_and_both_name_each_other(
    client: TestClient, failed: dict[str, Any]
) -> None:
    assert read(client, failed)["requeued_as"] is None
    answer = client.post(failed["urls"]["requeue"])
    assert answer.status_code == 202
    new = answer.json()
    assert answer.headers["location"] == new["urls"]["self"]
    assert answer.headers["retry-after"] == "1"
    assert (new["status"], new["attempt"], new["requeued_from"]) == ("queued", 0, failed["id"])
    for same in ("request", "plan", "priority", "metadata", "model"):
        assert new[same] == failed[same]
    old = read(client, failed)
    assert (old["status"], old["requeued_as"], old["error"]["code"]) == ("failed", new["id"], "broken")
    assert read(client, new)["requeued_from"] == failed["id"]


def test_ordering_it_again_twice_makes_one_job(
    client: TestClient, failed: dict[str, Any], count_jobs: Callable[[], int]
) -> None:
    first = client.post(failed["urls"]["requeue"])
    second = client.post(failed["urls"]["requeue"])
    assert (first.status_code, second.status_code) == (202, 200)
    assert second.json()["id"] == first.json()["id"]
    assert second.headers["location"] == first.headers["location"]
    assert count_jobs() == 2


def test_the_new_job_is_sent_to_the_queue(settings: Settings, redis_url: str, session_valkey: Valkey) -> None:
    with on_queue(settings, redis_url) as client, session_valkey.client() as queue:
        job = client.post("/v1/jobs", json={"model": "tiny", "prompt": "a house", "priority": "low"}).json()
        Worker.of(client).fail(job["id"], "broken", "It broke.")
        queue.flushall()
        new = client.post(job["urls"]["requeue"]).json()
        assert NOT_SENT not in new["warnings"]
        (waiting,) = queue.keys("render.tiny*")
        assert waiting.endswith(b"6")
        assert new["id"].encode() in queue.lindex(waiting, 0)


def test_the_new_job_is_kept_though_the_queue_is_away(client: TestClient, failed: dict[str, Any]) -> None:
    answer = client.post(failed["urls"]["requeue"])
    assert answer.status_code == 202
    assert NOT_SENT in answer.json()["warnings"]


def test_a_job_that_did_not_fail_is_not_ordered_again(
    client: TestClient, submit: Submit, worker: Worker
) -> None:
    job = submit()
    problem = assert_problem(client.post(job["urls"]["requeue"]), 409, "conflict")
    assert "queued" in problem["detail"]
    worker.complete(job["id"], b"picture")
    problem = assert_problem(client.post(job["urls"]["requeue"]), 409, "conflict")
    assert "completed" in problem["detail"]


@pytest.mark.parametrize(("method", "part"), [("POST", "requeue"), ("GET", "attempts")])
@pytest.mark.parametrize("job_id", ["no-id", "01890000-0000-7000-8000-00000000abcd"])
def test_a_job_that_is_not_there_has_no_attempts_and_is_not_ordered_again(
    client: TestClient, method: str, part: str, job_id: str
) -> None:
    assert_problem(client.request(method, f"/v1/jobs/{job_id}/{part}"), 404, "not_found")


def test_a_row_of_a_batch_is_ordered_again_within_its_batch(
    settings: Settings, redis_url: str, session_valkey: Valkey
) -> None:
    order = {"template": {"model": "tiny", "prompt": "a house"}, "rows": [{"seed": 1}, {"seed": 2}]}
    with on_queue(settings, redis_url) as client, session_valkey.client() as queue:
        batch = client.post("/v1/batches", json=order).json()
        Worker.of(client).end(batch["id"], fail_row=2)
        (row,) = client.get("/v1/jobs", params={"batch": batch["id"], "status": "failed"}).json()["data"]
        queue.flushall()
        new = client.post(row["urls"]["requeue"]).json()
        assert (new["batch_id"], new["batch_row"], new["plan"]["seed"]) == (batch["id"], 2, 2)
        assert queue.keys("render.*") == []  # its batch sends it in its turn
        again = client.get(batch["urls"]["self"]).json()
    assert (again["status"], again["counts"]["completed"], again["counts"]["queued"]) == ("running", 1, 1)
    assert (again["counts"]["failed"], again["retries"]) == (0, 1)


def test_parked_jobs_are_listed_and_say_so(
    client: TestClient, failed: dict[str, Any], submit: Submit, worker: Worker
) -> None:
    job = submit()
    for _ in range(3):
        worker.lose(job["id"])
    listed = client.get("/v1/jobs", params={"status": "failed", "parked": "true"}).json()["data"]
    assert [(found["id"], found["parked"], found["error"]["code"]) for found in listed] == [
        (job["id"], True, "worker_lost")
    ]
    others = client.get("/v1/jobs", params={"status": "failed", "parked": "false"}).json()["data"]
    assert [(found["id"], found["parked"]) for found in others] == [(failed["id"], False)]
    assert_problem(client.get("/v1/jobs", params={"parked": "maybe"}), 422, "invalid_query")


def test_jobs_that_nobody_has_ordered_again_are_listed_alone(
    client: TestClient, failed: dict[str, Any], submit: Submit, worker: Worker
) -> None:
    open_ = submit()
    worker.fail(open_["id"], "broken", "It broke.")
    new = client.post(failed["urls"]["requeue"]).json()

    def listed(requeued: str) -> list[str]:
        answer = client.get("/v1/jobs", params={"requeued": requeued, "limit": 10})
        return [job["id"] for job in answer.json()["data"]]

    assert listed("true") == [failed["id"]]
    assert listed("false") == [new["id"], open_["id"]]


def test_an_expired_job_is_ordered_again_with_a_longer_time(
    client: TestClient, submit: Submit, worker: Worker
) -> None:
    job = submit(queue_timeout_s=0.001, run_timeout_s=60)
    worker.expire()
    limits = {"queue_timeout_s": "3600.5", "run_timeout_s": "90"}
    new = client.post(job["urls"]["requeue"], params=limits).json()
    assert (new["request"]["queue_timeout_s"], new["request"]["run_timeout_s"]) == (3600.5, 90)
    assert worker.limits(new["id"]) == (pytest.approx(3600.5, abs=0.01), 90)
    for same in (limits, {"run_timeout_s": 90}, {}):
        again = client.post(job["urls"]["requeue"], params=same)
        assert (again.status_code, again.json()["id"]) == (200, new["id"])
    other = client.post(job["urls"]["requeue"], params={**limits, "run_timeout_s": 91})
    told = assert_problem(other, 409, "conflict")["detail"]
    assert f"as {new['id']}, which has run_timeout_s 90:" in told
    assert read(client, job)["request"]["queue_timeout_s"] == 0.001


@pytest.mark.parametrize(
    "query", ["queue_timeout_s=0", "run_timeout_s=86401", "queue_timeout_s=soon", "seed=1"]
)
def test_a_time_that_cannot_be_is_refused_before_anything_is_ordered(
    client: TestClient, failed: dict[str, Any], count_jobs: Callable[[], int], query: str
) -> None:
    problem = assert_problem(client.post(f"{failed['urls']['requeue']}?{query}"), 422, "invalid_query")
    assert query.partition("=")[0] in problem["detail"]
    assert count_jobs() == 1


def test_every_attempt_is_told_with_its_worker_times_and_outcome(
    client: TestClient, submit: Submit, worker: Worker
) -> None:
    job = submit()
    attempts = lambda: client.get(job["urls"]["attempts"]).json()  # noqa: E731 - read at four moments
    assert attempts() == {"object": "list", "data": []}
    worker.lose(job["id"], step=5)
    worker.hand_back(job["id"])
    worker.claim(job["id"])
    lost, back, running = attempts()["data"]
    assert [(try_["number"], try_["outcome"]) for try_ in (lost, back, running)] == [
        (1, "lost"), (2, "handed_back"), (3, None),
    ]  # fmt: skip
    assert {try_["worker"] for try_ in (lost, back, running)} == {worker.id}
    assert (lost["step"], lost["error"]["code"]) == (5, "worker_lost")
    assert worker.id in lost["error"]["message"]
    assert "killed or crashed" in lost["error"]["message"]
    assert back["error"] is None
    times = [lost["started_at"], lost["finished_at"], back["started_at"], back["finished_at"]]
    assert times == sorted(times, key=datetime.fromisoformat)
    assert running["finished_at"] is None
    assert running["started_at"].endswith("Z")

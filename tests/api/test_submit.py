"""An accepted order: what is answered, what is kept, what is sent to the queue."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.app import create_app
from api.waiting import MOST_WAITING
from core.db import Database
from core.ids import new_id
from core.settings import Settings
from core.tables import Job
from core.workers import WorkerState
from tests.api.parts import BASE, ORDER, Worker, assert_problem, open_client, url_of
from tests.fixtures.redis import Valkey
from tests.fixtures.waiting import wait_until

NOT_SENT = "the queue did not take the job yet; it is stored and will be sent again"


def on_queue(settings: Settings, url: str) -> TestClient:
    return open_client(create_app(settings.model_copy(update={"redis_url": url})))


def test_a_job_is_answered_at_once_with_where_to_find_it(client: TestClient) -> None:
    answer = client.post("/v1/jobs", json=ORDER | {"metadata": {"order": "7"}, "n": 2})
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == job["urls"]["self"] == f"{BASE}/v1/jobs/{job['id']}"
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["cache-control"] == "no-store"
    assert job["object"] == "job"
    assert job["status"] == "queued"
    assert job["model"] == "tiny"
    assert job["priority"] == "normal"
    assert job["request"] == ORDER | {"metadata": {"order": "7"}, "n": 2}
    assert job["metadata"] == {"order": "7"}
    assert job["attempt"] == 0
    assert job["max_attempts"] == 3
    assert job["queue_position"] == 1
    assert job["artifacts"] == []
    for absent in ("started_at", "finished_at", "progress", "error", "timings_ms", "acceleration", "worker"):
        assert job[absent] is None
    for later in ("batch_id", "schedule_id"):
        assert job[later] is None


def test_the_plan_fills_every_gap_of_the_request(submit: Callable[..., dict[str, Any]]) -> None:
    plan = submit(n=2)["plan"]
    assert plan["seed"] == 7
    assert (plan["width"], plan["height"]) == (64, 64)
    assert plan["num_inference_steps"] == 24
    assert plan["n"] == 2
    assert plan["output_format"] == "png"
    assert None not in {plan["guidance_scale"], plan["kind"], plan["model"]}


def test_a_seed_is_drawn_when_none_is_named(submit: Callable[..., dict[str, Any]]) -> None:
    drawn = {submit(seed=None)["plan"]["seed"] for _ in range(3)}
    assert len(drawn) == 3
    assert all(0 <= seed < 2**53 for seed in drawn)


@pytest.mark.parametrize(
    "text",
    [
        "a house 🏠👩‍👩‍👧 on a meadow",
        "بيت أحمر على مرج",
        "\u202ereversed\u202c house",
        "e\u0301 \u200b house",
        'a "house" \\ \n tab\t',
    ],
)
def test_any_text_comes_back_as_it_was_sent(client: TestClient, text: str) -> None:
    answer = client.post("/v1/jobs", json=ORDER | {"prompt": text, "metadata": {text: text}})
    assert answer.status_code == 202, answer.text
    job = client.get(answer.headers["location"]).json()
    assert job["request"]["prompt"] == job["plan"]["prompt"] == text
    assert job["metadata"] == {text: text}


def test_the_row_is_committed_before_the_answer_leaves(
    client: TestClient, committed_database: Database
) -> None:
    job_id = client.post("/v1/jobs", json=ORDER).json()["id"]
    other_connection = Database(url_of(committed_database))
    with other_connection.reading() as session:
        assert session.get(Job, job_id) is not None
    other_connection.dispose()


def test_urls_carry_the_public_name(settings: Settings) -> None:
    public = settings.model_copy(update={"public_url": "https://render.example/base"})
    with TestClient(create_app(public), base_url=BASE) as client:
        job = client.post("/v1/jobs", json=ORDER).json()
    address = f"https://render.example/base/v1/jobs/{job['id']}"
    parts = ("attempts", "cancel", "content", "requeue")
    assert job["urls"] == {"self": address, **{part: f"{address}/{part}" for part in parts}}


def test_the_place_in_the_queue_follows_priority_and_time(
    client: TestClient, submit: Callable[..., dict[str, Any]]
) -> None:
    first, second = submit(), submit()
    urgent = submit(priority="high")
    last = submit(priority="low")
    places = [
        client.get(job["urls"]["self"]).json()["queue_position"] for job in (urgent, first, second, last)
    ]
    assert places == [1, 2, 3, 4]


def test_the_hint_when_to_look_again_grows_with_the_queue(
    submit: Callable[..., Any], client: TestClient
) -> None:
    jobs = [submit() for _ in range(12)]
    hints = [client.get(job["urls"]["self"]).headers["retry-after"] for job in (jobs[0], jobs[4], jobs[11])]
    assert hints == ["1", "5", "10"]


# --- who would render it --------------------------------------------------------------------------------


def test_a_model_that_nobody_serves_is_told_with_the_job(submit: Callable[..., dict[str, Any]]) -> None:
    assert "no worker is serving model tiny now" in submit()["warnings"]


def test_a_worker_that_still_prepares_is_told_with_the_job(
    submit: Callable[..., dict[str, Any]], worker: Worker
) -> None:
    worker.register(WorkerState.WARMING)
    assert "the worker of model tiny is not ready yet: it is warming" in submit()["warnings"]


def test_a_served_model_and_a_living_queue_leave_no_warning(settings: Settings, redis_url: str) -> None:
    with on_queue(settings, redis_url) as client:
        Worker.of(client).register()
        job = client.post("/v1/jobs", json=ORDER).json()
        assert job["warnings"] == []
        assert client.get(job["urls"]["self"]).json()["warnings"] == []


# --- the queue ------------------------------------------------------------------------------------------


def test_the_queue_of_the_model_gets_the_id_and_nothing_else(
    settings: Settings, redis_url: str, session_valkey: Valkey, committed_database: Database
) -> None:
    with on_queue(settings, redis_url) as client, session_valkey.client() as queue:
        job = client.post("/v1/jobs", json=ORDER | {"priority": "low"}).json()
        (waiting,) = queue.keys("render.tiny*")
        assert waiting.endswith(b"6")
        assert queue.llen(waiting) == 1
        message = queue.lindex(waiting, 0)
    assert job["id"].encode() in message
    assert b"house" not in message
    with committed_database.reading() as session:
        row = session.get(Job, job["id"])
        assert row is not None
        assert row.published_at is not None


def test_an_order_is_taken_though_the_queue_is_away(client: TestClient, committed_database: Database) -> None:
    begun = time.monotonic()
    job = client.post("/v1/jobs", json=ORDER).json()
    assert time.monotonic() - begun < 5
    assert NOT_SENT in job["warnings"]
    with committed_database.reading() as session:
        row = session.get(Job, job["id"])
        assert row is not None
        assert row.published_at is None


def test_an_order_is_taken_in_bounded_time_though_the_queue_hangs(
    settings: Settings, own_valkey: Valkey
) -> None:
    with on_queue(settings, own_valkey.url) as client:
        assert NOT_SENT not in client.post("/v1/jobs", json=ORDER).json()["warnings"]
        own_valkey.freeze()
        begun = time.monotonic()
        answer = client.post("/v1/jobs", json=ORDER)
        assert time.monotonic() - begun < 10
        own_valkey.thaw()
    assert answer.status_code == 202
    assert NOT_SENT in answer.json()["warnings"]


def test_a_hanging_queue_does_not_hold_up_other_calls(settings: Settings, own_valkey: Valkey) -> None:
    with on_queue(settings, own_valkey.url) as client:
        own_valkey.freeze()
        posting = [threading.Thread(target=lambda: client.post("/v1/jobs", json=ORDER)) for _ in range(8)]
        for thread in posting:
            thread.start()
        begun = time.monotonic()
        assert client.get("/v1/jobs").status_code == 200
        assert time.monotonic() - begun < 4  # each of the eight hangs for a second or more
        own_valkey.thaw()
        for thread in posting:
            thread.join()


# --- idempotency ----------------------------------------------------------------------------------------


def post(client: TestClient, key: str, **fields: object) -> Any:
    return client.post("/v1/jobs", json=ORDER | fields, headers={"Idempotency-Key": key})


def test_the_same_key_and_body_give_the_same_job(client: TestClient, count_jobs: Callable[[], int]) -> None:
    first = post(client, "k1", seed=None)
    again = post(client, "k1", seed=None)
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.json()["id"] == first.json()["id"]
    assert again.json()["plan"] == first.json()["plan"]
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert count_jobs() == 1


def test_the_order_of_keys_does_not_make_another_body(client: TestClient) -> None:
    headers = {"Idempotency-Key": "k1", "Content-Type": "application/json"}
    first = client.post("/v1/jobs", content=json.dumps(ORDER), headers=headers)
    turned = json.dumps(dict(reversed(ORDER.items())), indent=1)
    again = client.post("/v1/jobs", content=turned, headers=headers)
    assert again.json()["id"] == first.json()["id"]


def test_the_same_key_with_another_body_is_refused(client: TestClient, count_jobs: Callable[[], int]) -> None:
    post(client, "k1")
    assert_problem(post(client, "k1", n=2), 422, "idempotency_key_reused")
    assert count_jobs() == 1


def test_a_key_of_a_refused_order_is_free_again(client: TestClient) -> None:
    assert post(client, "k1", n=0).status_code == 422
    assert post(client, "k1").status_code == 202


def test_a_replay_shows_the_job_as_it_stands_now(client: TestClient, worker: Worker) -> None:
    job = post(client, "k1").json()
    worker.complete(job["id"], b"picture")
    again = post(client, "k1")
    assert again.status_code == 202
    assert again.json()["status"] == "completed"
    assert "retry-after" not in again.headers


def test_ten_calls_at_once_with_one_key_make_one_job(
    client: TestClient, count_jobs: Callable[[], int]
) -> None:
    ids: list[str] = []
    start = threading.Barrier(10)

    def call() -> None:
        start.wait()
        answer = post(client, "k1")
        assert answer.status_code == 202, answer.text
        ids.append(answer.json()["id"])

    threads = [threading.Thread(target=call) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 10
    assert len(set(ids)) == 1
    assert count_jobs() == 1


@pytest.mark.parametrize("key", ["", " ", "a b", "k" * 256, "a\tb", "é", "\x7f"], ids=repr)
def test_a_key_that_cannot_be_kept_is_refused(
    client: TestClient, count_jobs: Callable[[], int], key: str
) -> None:
    headers = {"Idempotency-Key": key.encode("utf-8"), "Content-Type": "application/json"}
    answer = client.post("/v1/jobs", content=json.dumps(ORDER), headers=headers)
    assert_problem(answer, 400, "bad_header")
    assert count_jobs() == 0


def test_two_keys_in_one_call_are_refused(client: TestClient) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    assert_problem(client.post("/v1/jobs", json=ORDER, headers=headers), 400, "bad_header")


def test_a_key_of_the_longest_length_is_taken(client: TestClient) -> None:
    assert post(client, "k" * 255).status_code == 202


# --- Prefer: wait ---------------------------------------------------------------------------------------


def test_a_waiting_caller_gets_the_finished_job(client: TestClient, committed_database: Database) -> None:
    worker = Worker.of(client)

    def finish() -> None:
        def newest() -> str | None:
            jobs = client.get("/v1/jobs").json()["data"]
            return jobs[0]["id"] if jobs else None

        worker.complete(wait_until(newest, 10, "a job to finish"), b"picture")

    finishing = threading.Thread(target=finish)
    finishing.start()
    answer = client.post("/v1/jobs", json=ORDER, headers={"Prefer": "wait=30"})
    finishing.join()
    assert answer.status_code == 200
    assert answer.headers["preference-applied"] == "wait=30"
    assert "retry-after" not in answer.headers
    assert answer.headers["location"] == answer.json()["urls"]["self"]
    assert answer.json()["status"] == "completed"
    assert len(answer.json()["artifacts"]) == 1


def test_a_caller_who_waited_in_vain_gets_the_job_as_it_stands(client: TestClient) -> None:
    begun = time.monotonic()
    answer = client.post("/v1/jobs", json=ORDER, headers={"Prefer": "wait=1"})
    assert 1 <= time.monotonic() - begun < 5
    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "wait=1"
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["status"] == "queued"


def test_a_reader_can_wait_too(
    client: TestClient, submit: Callable[..., dict[str, Any]], worker: Worker
) -> None:
    job = submit()
    finishing = threading.Timer(0.3, worker.complete, (job["id"], b"picture"))
    finishing.start()
    answer = client.get(job["urls"]["self"], headers={"Prefer": "wait=30"})
    finishing.join()
    assert answer.json()["status"] == "completed"
    assert answer.headers["preference-applied"] == "wait=30"
    assert client.get(f"/v1/jobs/{new_id()}", headers={"Prefer": "wait=30"}).status_code == 404


@pytest.mark.parametrize("value", ["wait=0", "wait", "wait=-1", "wait=x", "respond-async", ""])
def test_a_preference_that_says_nothing_is_not_applied(client: TestClient, value: str) -> None:
    answer = client.post("/v1/jobs", json=ORDER, headers={"Prefer": value})
    assert answer.status_code == 202
    assert "preference-applied" not in answer.headers


def test_a_server_that_stops_lets_waiting_callers_go(app: FastAPI, own_client: TestClient) -> None:
    app.state.is_stopping = lambda: True
    begun = time.monotonic()
    answer = own_client.post("/v1/jobs", json=ORDER, headers={"Prefer": "wait=60"})
    assert answer.status_code == 202
    assert time.monotonic() - begun < 5


def test_when_too_many_wait_the_next_is_answered_at_once(app: FastAPI, own_client: TestClient) -> None:
    app.state.waiting_room.taken = MOST_WAITING
    answer = own_client.post("/v1/jobs", json=ORDER, headers={"Prefer": "wait=60"})
    assert answer.status_code == 202
    assert "preference-applied" not in answer.headers


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_waiting_callers_hold_no_thread_and_no_connection(app: FastAPI, own_client: TestClient) -> None:
    """More callers wait than there are threads (40) and connections (15); others are served meanwhile."""
    waiting = [
        threading.Thread(
            target=lambda: own_client.post("/v1/jobs", json=ORDER, headers={"Prefer": "wait=30"}), daemon=True
        )
        for _ in range(50)
    ]
    for thread in waiting:
        thread.start()
    wait_until(lambda: app.state.waiting_room.taken >= 45, 60, "callers to wait")
    begun = time.monotonic()
    assert own_client.get("/v1/models").status_code == 200
    assert time.monotonic() - begun < 3
    app.state.is_stopping = lambda: True
    for thread in waiting:
        thread.join()

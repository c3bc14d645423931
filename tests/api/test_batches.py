"""Batches: what is answered, what is kept, and what the caller may do with them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.ids import new_id
from core.workers import WorkerState
from tests.api.parts import BASE, ORDER, Worker, assert_problem

ON_SQLITE = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)

TEMPLATE = {"model": "tiny", "prompt": "a {colour} house, {size}"}
ROWS = [{"colour": "red", "size": "small"}, {"colour": "white", "size": "large", "seed": 5}]
CSV = b"colour,size,seed\r\nred,small,\r\nwhite,large,5\r\n"
Call = Callable[..., dict[str, Any]]


@pytest.fixture
def order(client: TestClient) -> Call:
    def order(**fields: object) -> dict[str, Any]:
        answer = client.post("/v1/batches", json={"template": TEMPLATE, "rows": ROWS} | fields)
        assert answer.status_code == 202, answer.text
        batch: dict[str, Any] = answer.json()
        return batch

    return order


def send_file(
    client: TestClient, content: bytes = CSV, filename: str = "products.csv", key: str = "", **parts: str
) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    data = {"template": json.dumps(TEMPLATE)} | parts
    return client.post("/v1/batches", data=data, files={"file": (filename, content)}, headers=headers)


def jobs_of(client: TestClient, batch: dict[str, Any], **params: object) -> list[dict[str, Any]]:
    """Return the jobs of the batch by row."""
    answer = client.get("/v1/jobs", params={"batch": batch["id"], "limit": 100, **params})
    assert answer.status_code == 200, answer.text
    return sorted(answer.json()["data"], key=lambda job: job["batch_row"])


# --- order ----------------------------------------------------------------------------------------------


def test_a_batch_is_answered_at_once_with_where_to_find_it(client: TestClient) -> None:
    answer = client.post("/v1/batches", json={"name": "mugs", "template": TEMPLATE, "rows": ROWS})
    assert answer.status_code == 202
    batch = answer.json()
    url = f"{BASE}/v1/batches/{batch['id']}"
    assert answer.headers["location"] == batch["urls"]["self"] == url
    assert int(answer.headers["retry-after"]) > 0
    assert batch["object"] == "batch"
    assert batch["name"] == "mugs"
    assert batch["status"] == "running"
    assert batch["total"] == 2
    assert batch["counts"] == {
        "queued": 2, "in_progress": 0, "completed": 0, "failed": 0, "canceled": 0, "expired": 0,
    }  # fmt: skip
    assert batch["template"] == TEMPLATE
    assert batch["retries"] == 0
    for absent in ("window", "schedule_id", "due_at", "finished_at", "cancel_requested_at", "eta"):
        assert batch[absent] is None, absent
    parts = ("content", "results", "sheet", "pause", "resume", "cancel", "retry")
    jobs = {"self": url, "jobs": f"{BASE}/v1/jobs?batch={batch['id']}"}
    assert batch["urls"] == jobs | {part: f"{url}/{part}" for part in parts}
    assert client.get(url).json() == batch


def test_each_row_is_a_job_of_the_batch(client: TestClient, order: Call) -> None:
    batch = order()
    first, second = jobs_of(client, batch)
    assert [job["plan"]["prompt"] for job in (first, second)] == [
        "a red house, small",
        "a white house, large",
    ]
    assert second["plan"]["seed"] == 5
    assert [job["batch_row"] for job in (first, second)] == [1, 2]
    for job in (first, second):
        assert job["batch_id"] == batch["id"]
        assert job["schedule_id"] is None
        assert job["priority"] == "low"
        assert client.get(job["urls"]["self"]).json()["batch_id"] == batch["id"]


def test_a_single_job_belongs_to_no_batch(submit: Call) -> None:
    job = submit()
    assert (job["batch_id"], job["batch_row"], job["schedule_id"]) == (None, None, None)


def test_a_table_file_gives_the_same_jobs_as_the_rows_in_json(client: TestClient, order: Call) -> None:
    answer = send_file(client, filename="mugs.csv")
    assert answer.status_code == 202, answer.text
    from_file, from_json = (jobs_of(client, batch) for batch in (answer.json(), order()))
    assert [job["request"] for job in from_file] == [job["request"] for job in from_json]
    assert from_file[1]["plan"]["seed"] == 5


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", CSV.replace(b",", b"\t")),
        ("a.csv", CSV.replace(b",", b";")),
        ("A.CSV", b"\xef\xbb\xbf" + CSV.replace(b"\r\n", b"\n")),
        ("..\\x/a.csv", CSV),
        ("a.jsonl", b"\n".join(json.dumps(row).encode() for row in ROWS)),
    ],
)
@ON_SQLITE
@pytest.mark.usefixtures("database_kind")
def test_tables_of_several_kinds_are_read(client: TestClient, name: str, content: bytes) -> None:
    answer = send_file(client, content, name)
    assert answer.status_code == 202, answer.text
    assert [job["plan"]["prompt"] for job in jobs_of(client, answer.json())] == [
        "a red house, small",
        "a white house, large",
    ]


def test_a_form_takes_name_grid_and_window(client: TestClient) -> None:
    window = {"start": "22:00", "end": "06:00", "timezone": "Europe/Berlin"}
    parts = {"name": "nachts 🏠", "grid": '{"n": [1, 2]}', "window": json.dumps(window)}
    answer = send_file(client, **parts)
    assert answer.status_code == 202, answer.text
    batch = answer.json()
    assert (batch["name"], batch["window"], batch["total"]) == ("nachts 🏠", window, 4)
    assert [job["plan"]["n"] for job in jobs_of(client, batch)] == [1, 2, 1, 2]


def test_a_grid_alone_is_a_batch(client: TestClient) -> None:
    body = {"template": {"model": "tiny"}, "grid": {"prompt": ["a house", "a boat"], "seed": [1, 2]}}
    answer = client.post("/v1/batches", json=body)
    assert answer.status_code == 202, answer.text
    made = [(job["plan"]["prompt"], job["plan"]["seed"]) for job in jobs_of(client, answer.json())]
    assert made == [("a house", 1), ("a house", 2), ("a boat", 1), ("a boat", 2)]


def test_a_list_of_jobs_is_a_batch(client: TestClient) -> None:
    answer = client.post("/v1/batches", json={"rows": [ORDER, ORDER | {"model": "flux.1-dev"}]})
    assert answer.status_code == 202, answer.text
    assert [job["model"] for job in jobs_of(client, answer.json())] == ["tiny", "flux.1-dev"]


def test_nulls_count_as_left_out(order: Call) -> None:
    assert order(name=None, window=None, grid=None)["name"] == ""


# --- once -----------------------------------------------------------------------------------------------


def test_the_same_key_gives_the_same_batch_once(client: TestClient, count_jobs: Callable[[], int]) -> None:
    body = {"template": TEMPLATE, "rows": ROWS}
    first, again = (
        client.post("/v1/batches", json=body, headers={"Idempotency-Key": "k-1"}) for _ in range(2)
    )
    assert "idempotent-replayed" not in first.headers
    assert again.status_code == 202
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["id"] == first.json()["id"]
    assert count_jobs() == 2
    other = client.post("/v1/batches", json=body | {"name": "x"}, headers={"Idempotency-Key": "k-1"})
    assert_problem(other, 422, "idempotency_key_reused")
    assert_problem(
        client.post("/v1/jobs", json=ORDER, headers={"Idempotency-Key": "k-1"}), 422, "idempotency_key_reused"
    )


def test_the_same_file_under_the_same_key_is_one_batch(
    client: TestClient, count_jobs: Callable[[], int]
) -> None:
    first, again = (send_file(client, key="k-2") for _ in range(2))
    assert first.json()["id"] == again.json()["id"]
    assert count_jobs() == 2
    assert_problem(send_file(client, CSV + b"blue,small,\r\n", key="k-2"), 422, "idempotency_key_reused")


# --- read -----------------------------------------------------------------------------------------------


def test_counts_follow_the_jobs(client: TestClient, order: Call, worker: Worker) -> None:
    batch = order()
    worker.release(batch["id"])
    first, second = jobs_of(client, batch)
    worker.complete(first["id"], b"picture")
    worker.claim(second["id"])
    now = client.get(batch["urls"]["self"]).json()
    assert (now["counts"]["completed"], now["counts"]["in_progress"]) == (1, 1)
    assert now["status"] == "running"


def test_a_batch_that_has_ended_says_so_and_hints_no_more(
    client: TestClient, order: Call, worker: Worker
) -> None:
    batch = order()
    worker.end(batch["id"], fail_row=2)
    answer = client.get(batch["urls"]["self"])
    ended = answer.json()
    assert ended["status"] == "failed"
    assert ended["finished_at"] >= ended["created_at"]
    assert ended["warnings"] == []
    assert "retry-after" not in answer.headers


def test_a_list_is_newest_first_and_read_on_by_its_last_id(client: TestClient, order: Call) -> None:
    ids = [order()["id"] for _ in range(3)][::-1]
    first = client.get("/v1/batches", params={"limit": 2}).json()
    assert [batch["id"] for batch in first["data"]] == ids[:2]
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, ids[0], ids[1])
    assert first["data"][0]["counts"]["queued"] == 2
    order()
    second = client.get("/v1/batches", params={"limit": 2, "after": first["last_id"]}).json()
    assert [batch["id"] for batch in second["data"]] == ids[2:]
    assert second["has_more"] is False


def test_a_list_is_filtered_by_status_and_schedule(client: TestClient, order: Call) -> None:
    paused, running = order(), order()
    client.post(paused["urls"]["pause"])

    def ids(**params: str) -> list[str]:
        return [batch["id"] for batch in client.get("/v1/batches", params=params).json()["data"]]

    assert ids(status="paused") == [paused["id"]]
    assert ids(status="running") == [running["id"]]
    assert ids(schedule=new_id()) == []
    assert client.get("/v1/jobs", params={"batch": new_id()}).json()["data"] == []


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/batches?limit=0", "limit"),
        ("/v1/batches?limit=101", "limit"),
        ("/v1/batches?status=done", "status"),
        ("/v1/batches?status=queued", "status"),
        ("/v1/batches?after=1", "after"),
        ("/v1/batches?schedule=%00", "schedule"),
        ("/v1/batches?page=1", "page"),
        ("/v1/jobs?batch=1", "batch"),
    ],
)
@ON_SQLITE
@pytest.mark.usefixtures("database_kind")
def test_a_bad_query_is_refused_and_the_parameter_named(client: TestClient, path: str, field: str) -> None:
    problem = assert_problem(client.get(path), 422, "invalid_query")
    assert [error["field"] for error in problem["errors"]] == [field]


def test_a_list_after_a_batch_that_is_not_there_is_refused(client: TestClient) -> None:
    assert_problem(client.get(f"/v1/batches?after={new_id()}"), 422, "invalid_query")


@pytest.mark.parametrize(
    "verb", ["", "/content", "/results", "/sheet", "/pause", "/resume", "/cancel", "/retry"]
)
@pytest.mark.parametrize("batch_id", ["1", "%00", "..%2f..%2fetc", "new"])
@ON_SQLITE
@pytest.mark.usefixtures("database_kind")
def test_a_batch_that_is_not_there_is_not_found(client: TestClient, batch_id: str, verb: str) -> None:
    method = "POST" if verb in {"/pause", "/resume", "/cancel", "/retry"} else "GET"
    address = f"/v1/batches/{new_id() if batch_id == 'new' else batch_id}{verb}"
    assert_problem(client.request(method, address), 404, "not_found")


# --- what keeps it waiting ------------------------------------------------------------------------------


def test_a_batch_says_which_model_nobody_serves(client: TestClient, order: Call, worker: Worker) -> None:
    batch = order()
    assert batch["warnings"] == ["no worker is serving model tiny now"]
    worker.register(WorkerState.READY)
    assert client.get(batch["urls"]["self"]).json()["warnings"] == []


def test_a_held_job_has_no_place_in_the_queue_and_says_what_holds_it(
    client: TestClient, order: Call, worker: Worker
) -> None:
    worker.register(WorkerState.READY)
    batch = order()
    answer = client.get(jobs_of(client, batch)[0]["urls"]["self"])
    assert answer.headers["retry-after"] == "10"
    job = answer.json()
    assert job["queue_position"] is None
    assert job["warnings"] == ["the rows of its batch before it are sent first"]
    client.post(batch["urls"]["pause"])
    job = client.get(job["urls"]["self"]).json()
    assert job["warnings"] == ["the batch is paused: resume lets it go on"]
    client.post(batch["urls"]["resume"])
    worker.release(batch["id"])
    job = client.get(job["urls"]["self"]).json()
    assert job["queue_position"] == 1


def test_a_closed_window_is_told_with_the_time_at_which_it_opens(client: TestClient, order: Call) -> None:
    from datetime import UTC, datetime, timedelta

    opens = datetime.now(UTC) + timedelta(hours=3)
    window = {"start": f"{opens:%H:%M}", "end": f"{opens + timedelta(hours=1):%H:%M}", "timezone": "UTC"}
    batch = order(window=window)
    told = f"the window of the batch opens at {opens:%Y-%m-%d %H:%M} UTC"
    assert told in batch["warnings"]
    assert told in jobs_of(client, batch)[0]["warnings"]
    assert told in client.get("/v1/batches").json()["data"][0]["warnings"]


# --- moves ----------------------------------------------------------------------------------------------


def test_a_batch_is_paused_and_goes_on(client: TestClient, order: Call) -> None:
    batch = order()
    for _ in range(2):
        paused = client.post(batch["urls"]["pause"])
        assert (paused.status_code, paused.json()["status"]) == (200, "paused")
        assert "the batch is paused: resume lets it go on" in paused.json()["warnings"]
    for _ in range(2):
        running = client.post(batch["urls"]["resume"])
        assert (running.status_code, running.json()["status"]) == (200, "running")


def test_a_cancelled_batch_cancels_its_waiting_jobs(client: TestClient, order: Call) -> None:
    batch = order()
    answer = client.post(batch["urls"]["cancel"])
    assert answer.status_code == 200
    assert answer.json()["status"] == "canceled"
    assert answer.json()["counts"]["canceled"] == 2
    assert {job["status"] for job in jobs_of(client, batch)} == {"canceled"}


def test_one_held_row_is_cancelled_alone(client: TestClient, order: Call) -> None:
    batch = order()
    first, second = jobs_of(client, batch)
    answer = client.post(first["urls"]["cancel"])
    assert (answer.status_code, answer.json()["status"]) == (200, "canceled")
    assert client.get(batch["urls"]["self"]).json()["counts"]["canceled"] == 1
    assert client.get(second["urls"]["self"]).json()["status"] == "queued"


def test_a_cancelled_batch_waits_for_its_running_job(client: TestClient, order: Call, worker: Worker) -> None:
    batch = order()
    worker.release(batch["id"])
    worker.claim(jobs_of(client, batch)[0]["id"])
    answer = client.post(batch["urls"]["cancel"]).json()
    assert answer["status"] == "running"
    assert answer["cancel_requested_at"] is not None
    assert "the batch is being cancelled" in answer["warnings"][0]
    assert answer["counts"] | {"in_progress": 1, "canceled": 1} == answer["counts"]
    assert jobs_of(client, batch, status="in_progress")[0]["cancel_requested_at"] is not None
    assert client.post(batch["urls"]["cancel"]).status_code == 200


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel"])
def test_an_ended_batch_cannot_be_moved(client: TestClient, order: Call, verb: str) -> None:
    batch = order()
    client.post(batch["urls"]["cancel"])
    problem = assert_problem(client.post(batch["urls"][verb]), 409, "already_finished")
    assert "canceled" in problem["detail"]


def test_failed_rows_are_ordered_again_with_the_same_plan(
    client: TestClient, order: Call, worker: Worker
) -> None:
    batch = order()
    worker.end(batch["id"], fail_row=2)
    before = jobs_of(client, batch, status="failed")[0]
    answer = client.post(batch["urls"]["retry"])
    assert answer.status_code == 200
    again = answer.json()
    assert (again["status"], again["retries"], again["finished_at"]) == ("running", 1, None)
    assert again["counts"] | {"completed": 1, "queued": 1, "failed": 0} == again["counts"]
    (job,) = jobs_of(client, batch, status="queued")
    assert (job["batch_row"], job["plan"]) == (2, before["plan"])
    assert job["id"] != before["id"]


def test_there_is_nothing_to_order_again_when_nothing_failed(client: TestClient, order: Call) -> None:
    batch = order()
    assert_problem(client.post(batch["urls"]["retry"]), 409, "conflict")


def test_a_page_of_another_site_cannot_order_with_a_form(client: TestClient) -> None:
    answer = client.post(
        "/v1/batches",
        data={"a": "b"},
        files={"file": ("a.csv", CSV)},
        headers={"Origin": "http://evil.example"},
    )
    assert_problem(answer, 403, "cross_site")


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("database_kind")
def test_empty_cells_of_a_prompts_column_are_warned_of(client: TestClient) -> None:
    template = {"model": "tiny", "prompt": "a {colour} house"}
    body = {"template": template, "rows": [{"colour": "red"}, {"colour": ""}]}
    gap = "1 row has an empty {colour} (row 2)"
    batch = client.post("/v1/batches", json=body)
    assert batch.status_code == 202
    assert gap in batch.json()["warnings"]
    schedule = client.post("/v1/schedules", json=body | {"name": "nightly", "every_s": 3600})
    assert schedule.json()["warnings"] == [gap]
    address = schedule.json()["urls"]["self"]
    assert client.get(address).json()["warnings"] == []
    assert client.patch(address, json={"template": template | {"seed": 7}}).json()["warnings"] == [gap]
    assert client.patch(address, json={"name": "daily"}).json()["warnings"] == []

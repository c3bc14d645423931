"""What is offered and who renders it."""

import pytest
from fastapi.testclient import TestClient

from api.routes.workers import ENDED_SHOWN
from core.ids import new_id
from core.workers import WorkerState
from tests.api.parts import Worker, assert_problem


def test_every_model_of_the_catalogue_is_listed_with_its_limits(client: TestClient) -> None:
    page = client.get("/v1/models").json()
    assert page["object"] == "list"
    assert [model["id"] for model in page["data"]] == sorted(client.app.state.services.catalogue)
    (tiny,) = [model for model in page["data"] if model["id"] == "tiny"]
    assert tiny == client.get("/v1/models/tiny").json()
    assert tiny["object"] == "model"
    assert tiny["kind"] == "image"
    assert tiny["size"]["multiple"] == 16
    assert tiny["steps"] == {"default": 24, "minimum": 4, "maximum": 50}
    assert tiny["limits"]["n"] == 8
    assert tiny["output_formats"] == ["png", "jpeg", "webp"]
    assert tiny["cache"]["minimum_steps"].keys() == {"quality", "balanced", "fast"}
    assert tiny["ready_workers"] == 0


def test_a_model_counts_the_workers_that_are_ready(client: TestClient) -> None:
    Worker.of(client).register()
    Worker.of(client).register()
    Worker.of(client).register(WorkerState.LOADING)
    Worker.of(client).register(model="flux.1-dev")
    assert client.get("/v1/models/tiny").json()["ready_workers"] == 2


@pytest.mark.parametrize("model", ["tinny", "TINY", "%00", "..%2ftiny", "%ED%A0%80"])
def test_a_model_that_is_not_there_is_not_found(client: TestClient, model: str) -> None:
    assert_problem(client.get(f"/v1/models/{model}"), 404, "not_found")


def test_workers_are_listed_newest_first_with_policy_and_preparation(client: TestClient) -> None:
    first = Worker.of(client).register(WorkerState.GONE)
    second = Worker.of(client).register()
    page = client.get("/v1/workers").json()
    assert [worker["id"] for worker in page["data"]] == [second, first]
    ready = page["data"][0]
    assert ready == client.get(f"/v1/workers/{second}").json()
    assert ready["object"] == "worker"
    assert ready["state"] == "ready"
    assert ready["model"] == "tiny"
    assert ready["policy"]["options"]["cache"]["source"] == "default"
    assert ready["preparation"] == [{"name": "load", "state": "done", "seconds": 1.5, "detail": {}}]
    assert ready["ready_at"] is not None
    assert page["data"][1]["ready_at"] is None


def test_workers_that_ended_long_ago_do_not_hide_those_that_are_there(client: TestClient) -> None:
    there = Worker.of(client).register()
    ended = [Worker.of(client).register(WorkerState.FAILED) for _ in range(ENDED_SHOWN + 2)]
    listed = [worker["id"] for worker in client.get("/v1/workers").json()["data"]]
    assert listed == [*reversed(ended[2:]), there]


@pytest.mark.parametrize("worker_id", ["1", "%00", "x" * 3000])
def test_a_worker_that_is_not_there_is_not_found(client: TestClient, worker_id: str) -> None:
    assert_problem(client.get(f"/v1/workers/{worker_id}"), 404, "not_found")
    assert_problem(client.get(f"/v1/workers/{new_id()}"), 404, "not_found")

"""A worker process that draws waiting jobs in one pass: who comes along, and what becomes of each."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from core import batches, passes
from core.ids import new_id
from core.lifecycle import BatchState, JobState
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import Stage


@pytest.fixture
def client(crew_stage: Stage) -> Iterator[TestClient]:
    crew_stage.first_worker()
    with TestClient(create_app(crew_stage.settings), base_url="http://localhost") as client:
        yield client


def order(client: TestClient, prompt: str, **fields: Any) -> str:
    answer = client.post("/v1/jobs", json={"model": "tiny", "prompt": prompt, **fields})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def read(client: TestClient, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = client.get(f"/v1/jobs/{job_id}").json()
    return job


class Crew:
    """Three jobs that run in one pass until they are let go."""

    def __init__(self, stage: Stage, client: TestClient, mate: str | None = None) -> None:
        self.stage, self.client = stage, client
        self.name = new_id()
        before = f"before {self.name}"
        first = order(client, f"wait {before}", quality="high", priority="high")
        stage.wait_step(first)
        prompts = [f"wait {self.name}", mate or f"wait {self.name}", f"wait {self.name}"]
        self.ids = [order(client, prompt) for prompt in prompts]
        (stage.folder / before).touch()
        for job_id in self.ids:
            stage.wait_step(job_id)
        stage.wait_job(first)

    def let_go(self) -> None:
        (self.stage.folder / self.name).touch()

    def states(self) -> list[str]:
        return [self.stage.job(job_id).state for job_id in self.ids]


def test_waiting_jobs_share_a_pass_and_each_can_be_cancelled_on_its_own(
    crew_stage: Stage, client: TestClient
) -> None:
    crew = Crew(crew_stage, client)
    leader, gone, other = crew.ids
    assert crew.states() == [JobState.IN_PROGRESS] * 3
    with crew_stage.database.reading() as session:
        assert {passes.led(session, job_id) for job_id in crew.ids} == {(leader, JobState.IN_PROGRESS)}

    assert client.post(f"/v1/jobs/{gone}/cancel").is_success
    canceled = crew_stage.wait_job(gone, JobState.CANCELED, timeout_s=10)
    assert (canceled.stopped_at_step or 0) > 0
    step = crew_stage.job(other).progress_step or 0
    crew_stage.wait_step(other, step + 60)  # longer than a cancelled job may take to stop
    assert crew.states() == [JobState.IN_PROGRESS, JobState.CANCELED, JobState.IN_PROGRESS]

    crew.let_go()
    for job_id in (leader, other):
        crew_stage.wait_job(job_id)
        assert crew_stage.outcomes(job_id) == ["completed"]
        told = read(client, job_id)["acceleration"]
        assert (told["microbatch"], told["pass_of"]) == (3, leader)
    wait_until(lambda: crew_stage.messages() == 0, what="the messages of those that came along")


def test_a_pass_that_nobody_wants_any_more_stops(crew_stage: Stage, client: TestClient) -> None:
    crew = Crew(crew_stage, client)
    for job_id in crew.ids:
        client.post(f"/v1/jobs/{job_id}/cancel")
    for job_id in crew.ids:
        crew_stage.wait_job(job_id, JobState.CANCELED, timeout_s=10)
    crew_stage.wait_job(order(client, "paint"))


def test_the_jobs_of_a_worker_that_is_killed_in_a_pass_are_taken_back_each_and_run_alone(
    crew_stage: Stage, client: TestClient
) -> None:
    crew = Crew(crew_stage, client)
    crew_stage.first_worker().kill_child()
    crew.let_go()
    for job_id in crew.ids:
        crew_stage.wait_job(job_id, timeout_s=30)
        assert crew_stage.outcomes(job_id) == ["lost", "completed"]
        told = read(client, job_id)["acceleration"]
        assert told["pass_of"] is None


def test_a_batch_of_rows_alike_fills_its_passes(crew_stage: Stage, client: TestClient) -> None:
    template = {"model": "tiny", "prompt": "steps {count}", "quality": "high"}
    answer = client.post("/v1/batches", json={"template": template, "rows": [{"count": "5"}] * 12})
    assert answer.status_code == 202, answer.text
    batch_id = answer.json()["id"]

    def ended() -> bool:
        with crew_stage.database.reading() as session:
            return batches.get_batch(session, batch_id).state == BatchState.COMPLETED

    wait_until(ended, what="the batch")
    with crew_stage.database.reading() as session:
        jobs = batches.batch_jobs(session, batch_id)
        leaders = [passes.led(session, job.id) for job in jobs]
    together = [led.leader for led in leaders if led is not None]
    assert max(map(together.count, together)) == 4
    assert len(set(together)) <= 5


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_worker_that_dies_with_its_host_leaves_each_job_to_its_lease(stage: Stage) -> None:
    worker = stage.warm_worker(stand_in=True, flags={"microbatch": 4})
    with TestClient(create_app(stage.settings), base_url="http://localhost") as client:
        crew = Crew(stage, client)
    worker.end()
    stage.start_upkeep()
    wait_until(partial(all_queued, stage, crew.ids), what="the rescue of all")
    crew.let_go()
    stage.warm_worker(stand_in=True, flags={"microbatch": 4})
    for job_id in crew.ids:
        stage.wait_job(job_id)
        assert stage.outcomes(job_id) == ["lost", "completed"]


def all_queued(stage: Stage, ids: list[str]) -> bool:
    return all(stage.job(job_id).state == JobState.QUEUED for job_id in ids)

"""Orders that come over HTTP, and a worker whose engine does what the prompt says: bursts, queues, times."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert, select, update

from api.app import create_app
from core import store
from core.clock import now
from core.ids import new_id
from core.lifecycle import JobState
from core.tables import Attempt, Job
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import Stage, WorkerProcess, on_quick_stage

pytestmark = on_quick_stage("sqlite", "postgresql")


@pytest.fixture
def client(quick_stage: Stage, worker: WorkerProcess) -> Iterator[TestClient]:
    del worker
    with TestClient(create_app(quick_stage.settings), base_url="http://localhost") as client:
        yield client


def order(client: TestClient, prompt: str = "paint", **fields: Any) -> str:
    answer = client.post("/v1/jobs", json={"model": "tiny", "prompt": prompt, **fields})
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["id"]
    return job_id


def read(client: TestClient, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = client.get(f"/v1/jobs/{job_id}").json()
    return job


class Held:
    """A job that runs until it is let go, so that whatever comes meanwhile waits."""

    def __init__(self, stage: Stage, client: TestClient) -> None:
        self.name = new_id()
        self.stage = stage
        self.id = order(client, f"wait {self.name}", priority="high")
        stage.wait_step(self.id)

    def let_go(self) -> None:
        (self.stage.folder / self.name).touch()


def cancel_all(client: TestClient, ids: list[str]) -> list[int]:
    """Cancel many jobs, ten calls at a time."""
    with ThreadPoolExecutor(10) as callers:
        return list(callers.map(lambda job_id: client.post(f"/v1/jobs/{job_id}/cancel").status_code, ids))


# --- cancel ---------------------------------------------------------------------------------------------


def test_a_burst_of_cancels_ends_what_waits_and_runs_and_leaves_what_has_ended(
    quick_stage: Stage, client: TestClient, worker: WorkerProcess
) -> None:
    child = worker.child_pid()
    ended = [order(client) for _ in range(10)]
    for job_id in ended:
        quick_stage.wait_job(job_id)
    before = [read(client, job_id) for job_id in ended]
    running = Held(quick_stage, client).id
    waiting = [order(client) for _ in range(89)]
    # The running one last: when it stops, the worker may take one of those whose call is on its way.
    burst = [job_id for pair in zip(waiting[:10], ended, strict=True) for job_id in pair]
    burst += [*waiting[10:], running]
    answers = dict(zip(burst, cancel_all(client, burst), strict=True))
    assert len(answers) == 100
    assert {answers[job_id] for job_id in ended} == {409}
    assert answers[running] == 202
    at_once = [job_id for job_id in waiting if answers[job_id] == 200]
    assert len(at_once) >= 80
    assert (quick_stage.wait_job(running, JobState.CANCELED).stopped_at_step or 0) > 0
    quick_stage.wait_job(order(client))
    assert set(cancel_all(client, burst)) == {409}
    for job_id in at_once:
        assert (quick_stage.job(job_id).state, quick_stage.outcomes(job_id)) == (JobState.CANCELED, [])
    assert [read(client, job_id) for job_id in ended] == before
    assert quick_stage.outcomes(running) == ["stopped"]
    assert worker.child_pid() == child


# --- waiting --------------------------------------------------------------------------------------------


def test_a_job_is_in_progress_only_once_it_is_worked_on(quick_stage: Stage, client: TestClient) -> None:
    held = Held(quick_stage, client)
    waiting = order(client)
    quick_stage.wait_step(held.id, (quick_stage.job(held.id).progress_step or 0) + 30)
    seen = read(client, waiting)
    assert (seen["status"], seen["attempt"], seen["started_at"], seen["worker"]) == ("queued", 0, None, None)
    assert (seen["progress"], seen["queue_position"]) == (None, 1)
    assert quick_stage.messages() == 1  # it stays where another worker could take it
    held.let_go()
    first, second = quick_stage.wait_job(held.id), quick_stage.wait_job(waiting)
    assert first.finished_at is not None
    assert second.started_at is not None
    assert second.started_at >= first.finished_at


def test_a_thousand_waiting_jobs_let_a_later_one_of_higher_priority_pass(
    quick_stage: Stage, client: TestClient
) -> None:
    held = Held(quick_stage, client)
    crowd = multiply(quick_stage, order(client, priority="low"), 1000)
    assert quick_stage.messages() == 1000
    later = order(client, priority="normal")
    assert read(client, later)["queue_position"] == 1
    held.let_go()
    started = quick_stage.wait_job(later).started_at
    with quick_stage.database.transaction() as session:
        in_crowd = Job.id.in_(crowd)
        assert session.scalars(select(Job.id).where(in_crowd, Job.started_at < started)).all() == []
        gone = {"state": JobState.CANCELED, "finished_at": now()}
        waiting = update(Job).where(in_crowd, Job.state == JobState.QUEUED)
        assert session.execute(waiting.values(gone)).rowcount > 900  # type: ignore[attr-defined]
    with quick_stage.valkey.client() as queue:
        queue.delete(*queue.keys("render.tiny*"))


def multiply(stage: Stage, job_id: str, count: int) -> list[str]:
    """Make a job that waits into ``count`` of them, rows and messages, faster than a thousand calls do."""
    ids = [job_id, *sorted(new_id() for _ in range(count - 1))]
    with stage.valkey.client() as queue:
        (key,) = queue.keys("render.tiny*")
        message = json.loads(queue.lindex(key, 0))
        body = b64decode(message["body"]).decode()
        bodies = [b64encode(body.replace(job_id, each).encode()).decode() for each in ids[1:]]
        queue.lpush(key, *(json.dumps({**message, "body": body}) for body in bodies))
    others = [column for column in Job.__table__.columns if column.name != "id"]
    with stage.database.transaction() as session:
        row = session.execute(select(*others).where(Job.id == job_id)).mappings().one()
        session.execute(insert(Job.__table__), [{**row, "id": each} for each in ids[1:]])
    return ids


# --- times ----------------------------------------------------------------------------------------------


def an_hour_ago(stage: Stage, job_id: str) -> None:
    """Move all that has happened to a job so far an hour back."""
    past = {"created_at": now(-3600), "queued_at": now(-3600)}
    with stage.database.transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(past))
        begun = update(Job).where(Job.id == job_id, Job.started_at.is_not(None))
        session.execute(begun.values(started_at=now(-3600)))
        session.execute(update(Attempt).where(Attempt.job_id == job_id).values(started_at=now(-3600)))


def test_a_long_wait_does_not_count_as_running_time(quick_stage: Stage, client: TestClient) -> None:
    held = Held(quick_stage, client)
    job_id = order(client, "steps 10", run_timeout_s=20, queue_timeout_s=7200)
    an_hour_ago(quick_stage, job_id)
    held.let_go()
    job = quick_stage.wait_job(job_id)
    assert quick_stage.outcomes(job_id) == ["completed"]
    assert job.timings_ms is not None
    assert job.timings_ms["queue"] > 3500e3


def test_each_attempt_has_the_whole_running_time(
    quick_stage: Stage, client: TestClient, worker: WorkerProcess
) -> None:
    """The first attempt was lost an hour ago, the second one loses its process, the third one completes."""
    held = Held(quick_stage, client)
    name = new_id()
    job_id = order(client, f"wait {name}", run_timeout_s=60)
    with quick_stage.database.transaction() as session:
        assert store.claim(session, job_id, "another-worker", -1) is not None
    wait_until(lambda: quick_stage.outcomes(job_id) == ["lost"], what="its rescue")
    an_hour_ago(quick_stage, job_id)
    held.let_go()
    quick_stage.wait_step(job_id)
    worker.kill_child()
    (quick_stage.folder / name).touch()
    quick_stage.wait_job(job_id)
    assert quick_stage.outcomes(job_id) == ["lost", "lost", "completed"]


# --- Redis ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["killed", "hung"])
def test_an_order_that_redis_does_not_take_runs_when_redis_is_back(
    quick_stage: Stage, client: TestClient, fault: str
) -> None:
    valkey = quick_stage.valkey
    fail, mend = {"killed": (valkey.kill, valkey.start), "hung": (valkey.freeze, valkey.thaw)}[fault]
    fail()
    try:
        job_id = order(client)
        assert read(client, job_id)["status"] == "queued"
    finally:
        mend()
    quick_stage.wait_job(job_id)
    assert quick_stage.outcomes(job_id) == ["completed"]

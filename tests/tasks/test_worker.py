"""One warm worker for all of these on each kind of database: they leave it warm."""

import hashlib
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from core import store
from core.clock import now
from core.lifecycle import JobState
from core.tables import Job
from pipeline.encode import read_provenance
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import LONG, MEDIUM, PROMPT, Stage, WorkerProcess

pytestmark = pytest.mark.parametrize(
    "database_kind",
    [
        pytest.param(kind, marks=pytest.mark.xdist_group(f"worker on {kind}"))
        for kind in ("sqlite", "postgresql")
    ],
    indirect=True,
)

SHORT: dict[str, Any] = {"num_inference_steps": 8, "cache": "off", "seed": 11}


@pytest.fixture
def worker(shared_stage: Stage) -> WorkerProcess:
    return shared_stage.first_worker()


def content(stage: Stage, job: Job) -> list[bytes]:
    return [stage.artifacts.get(artifact.key) for artifact in job.artifacts]


def render(stage: Stage, **fields: Any) -> Job:
    return stage.wait_job(stage.submit(**fields))


def sent_again_by_hand(stage: Stage, job_id: str) -> None:
    """Make the pause before the next attempt of a job end now."""
    with stage.database.transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(run_after=None))
    stage.send(job_id)


def test_a_job_is_rendered_kept_and_completed(shared_stage: Stage) -> None:
    job = render(shared_stage, n=2, **SHORT)
    assert [artifact.seed for artifact in job.artifacts] == [11, 12]
    for artifact, data in zip(job.artifacts, content(shared_stage, job), strict=True):
        assert (artifact.media_type, artifact.width, artifact.height) == ("image/png", 64, 64)
        assert (artifact.bytes, artifact.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert artifact.attempt == 1
    assert set(job.timings_ms or {}) == {"queue", "encode", "denoise", "decode", "save", "total"}
    assert job.acceleration is not None
    assert (job.acceleration["cache"], job.acceleration["compiles"]) == ("off", 0)
    assert shared_stage.outcomes(job.id) == ["completed"]


def test_the_cache_that_the_job_asks_for_is_the_one_that_ran(shared_stage: Stage) -> None:
    job = render(shared_stage, cache="fast", num_inference_steps=24)
    assert job.acceleration is not None
    assert job.acceleration["cache"] == "fast"
    assert job.acceleration["cached_steps"] > 0


def test_the_same_request_gives_the_same_bytes_whatever_ran_before(shared_stage: Stage) -> None:
    first = render(shared_stage, **SHORT)
    render(shared_stage, prompt="a boat with a red sail on the sea at night", cache="balanced", seed=5)
    second = render(shared_stage, priority="high", metadata={"order": "4711"}, **SHORT)
    assert content(shared_stage, first) == content(shared_stage, second)


def test_a_picture_of_many_is_the_one_that_its_seed_alone_gives(shared_stage: Stage) -> None:
    several = render(shared_stage, n=2, **SHORT)
    single = render(shared_stage, **SHORT | {"seed": 12})
    both = [read_provenance(content(shared_stage, job)[-1]) for job in (several, single)]
    assert [told["seed"] for told in both] == [12, 12]
    assert pixels(content(shared_stage, several)[1]) == pixels(content(shared_stage, single)[0])


def pixels(data: bytes) -> bytes:
    from io import BytesIO

    from PIL import Image

    return Image.open(BytesIO(data)).tobytes()


def test_a_file_says_how_it_was_made_and_nothing_about_who_ordered_it(shared_stage: Stage) -> None:
    job = render(
        shared_stage, metadata={"customer": "Anna"}, priority="high", num_inference_steps=8, cache="off"
    )
    [data] = content(shared_stage, job)
    told: dict[str, Any] = read_provenance(data)
    assert told["request"] == {
        "model": "tiny",
        "prompt": PROMPT,
        "num_inference_steps": 8,
        "cache": "off",
        "seed": 7,
        "n": 1,
        "lora": [],
        "quality": "lossless",
    }
    assert told["plan"] == job.plan
    assert told["policy"]["cache_preset"] == {"value": "balanced", "source": "default"}
    assert told["acceleration"]["cache"] == "off"
    assert told["versions"]["diffusers"]
    for secret in (b"Anna", b"customer", job.id.encode(), str(job.worker_id).encode()):
        assert secret not in data


def test_a_message_that_comes_twice_is_run_once(shared_stage: Stage) -> None:
    job_id = shared_stage.submit(**SHORT)
    shared_stage.send(job_id)
    shared_stage.wait_job(job_id)
    shared_stage.send(job_id)
    render(shared_stage, **SHORT)  # behind it in the queue
    assert shared_stage.outcomes(job_id) == ["completed"]


def test_a_message_for_no_job_at_all_does_no_harm(shared_stage: Stage, worker: WorkerProcess) -> None:
    from tasks.app import publish

    child = worker.child_pid()
    assert publish("no-such-job", "tiny", 3, settings=shared_stage.settings)
    render(shared_stage, **SHORT)
    assert worker.child_pid() == child


def test_a_running_job_stops_at_the_next_step_and_the_worker_stays_warm(
    shared_stage: Stage, worker: WorkerProcess
) -> None:
    child = worker.child_pid()
    job_id = shared_stage.submit(**LONG)
    shared_stage.wait_step(job_id)
    shared_stage.cancel(job_id)
    job = shared_stage.wait_job(job_id, JobState.CANCELED, timeout_s=5)
    assert job.stopped_at_step is not None
    assert 0 < job.stopped_at_step < 400
    assert job.artifacts == []
    assert shared_stage.outcomes(job_id) == ["stopped"]
    render(shared_stage, **SHORT)
    assert worker.child_pid() == child


def test_a_job_cancelled_while_it_waits_is_never_run(shared_stage: Stage) -> None:
    job_id = shared_stage.submit(send=False)
    shared_stage.cancel(job_id)
    shared_stage.send_without_note(job_id)
    render(shared_stage, **SHORT)
    assert shared_stage.job(job_id).state == JobState.CANCELED
    assert shared_stage.outcomes(job_id) == []


def test_a_running_job_shows_its_progress_and_its_worker(shared_stage: Stage, worker: WorkerProcess) -> None:
    job_id = shared_stage.submit(**LONG)
    job = shared_stage.wait_step(job_id, 20)
    assert job.progress_steps == 400
    row = worker.row()
    assert row is not None
    assert (row.current_job_id, job.owner, row.state) == (job_id, row.id, "ready")
    assert job.lease_until is not None
    assert job.lease_until > datetime.now(UTC)
    shared_stage.cancel(job_id)
    shared_stage.wait_job(job_id, JobState.CANCELED)
    wait_until(lambda: worker.row().current_job_id is None, what="an idle worker")  # type: ignore[union-attr]


def test_a_job_that_runs_too_long_fails_and_is_not_tried_again(shared_stage: Stage) -> None:
    job = shared_stage.wait_job(shared_stage.submit(run_timeout_s=1, **LONG), JobState.FAILED)
    assert job.error_code == "run_timeout"
    assert "1 s" in (job.error_message or "")
    assert shared_stage.outcomes(job.id) == ["failed"]


def test_a_job_that_another_worker_took_over_ends_without_a_trace(
    shared_stage: Stage, worker: WorkerProcess
) -> None:
    job_id = shared_stage.submit(**MEDIUM)
    shared_stage.wait_step(job_id)
    with shared_stage.database.transaction() as session:
        overdue = Job.id == job_id
        session.execute(update(Job).where(overdue).values(lease_until=now(-60)))
        store.rescue(session)
        store.claim(session, job_id, "another-worker", 60)
    with shared_stage.database.transaction() as session:
        assert store.hand_back(session, job_id, 2, "another-worker")
    wait_until(lambda: "another worker holds the job" in worker.text(), 5, "it stops by itself")
    job = shared_stage.wait_job(job_id)
    assert shared_stage.outcomes(job_id) == ["lost", "handed_back", "completed"]
    assert {artifact.attempt for artifact in job.artifacts} == {3}
    assert len(job.artifacts) == 3


def test_a_plan_that_the_pipeline_refuses_fails_at_once_with_its_reason(shared_stage: Stage) -> None:
    job_id = shared_stage.submit(send=False)
    spoil(shared_stage, job_id, output_format="mp4")
    shared_stage.send(job_id)
    job = shared_stage.wait_job(job_id, JobState.FAILED)
    assert job.error_code == "unsupported"
    assert "mp4" in (job.error_message or "")
    assert shared_stage.outcomes(job_id) == ["failed"]


def test_an_error_nobody_expected_is_tried_once_more_and_tells_no_traceback(
    shared_stage: Stage, worker: WorkerProcess
) -> None:
    child = worker.child_pid()
    job_id = shared_stage.submit(send=False)
    with shared_stage.database.transaction() as session:
        store.get_job(session, job_id).request = ["many"]  # type: ignore[assignment]
    shared_stage.send(job_id)
    wait_until(lambda: shared_stage.outcomes(job_id) == ["retried"], what="the second attempt")
    sent_again_by_hand(shared_stage, job_id)
    job = shared_stage.wait_job(job_id, JobState.FAILED)
    assert (job.error_code, job.error_retryable) == ("internal_error", True)
    assert "Traceback" not in (job.error_message or "")
    assert "many" not in (job.error_message or "")
    assert "Traceback" in worker.text()
    render(shared_stage, **SHORT)
    assert worker.child_pid() == child


def spoil(stage: Stage, job_id: str, **fields: Any) -> None:
    """Change a job's plan to something the API would not have accepted."""
    with stage.database.transaction() as session:
        job = store.get_job(session, job_id)
        job.plan = {**job.plan, **fields}


def test_the_row_shows_the_policy_and_every_step_of_the_preparation(worker: WorkerProcess) -> None:
    row = worker.row()
    assert row is not None
    steps = {step["name"]: step for step in row.preparation}
    assert list(steps) == ["import", "load", "mount", "compile", "warmup"]
    assert all(step["state"] == "done" and step["seconds"] >= 0 for step in steps.values())
    assert row.policy["options"]["compile"]["value"] is False
    assert (row.model, row.queue, row.pid) == ("tiny", "render.tiny", worker.pid)
    assert row.device["device"] in ("cpu", "cuda", "mps")
    assert row.ready_at is not None


def test_until_it_is_ready_its_log_has_no_line_of_a_library_that_nothing_uses(worker: WorkerProcess) -> None:
    before, ready, _ = worker.text().partition('"event": "worker.ready"')
    assert ready
    assert all(line.startswith("{") for line in before.splitlines()), before


def test_the_parent_holds_no_torch_and_the_child_does(worker: WorkerProcess) -> None:
    def maps(pid: int) -> str:
        return Path(f"/proc/{pid}/maps").read_text()

    assert "libtorch" in maps(worker.child_pid())
    assert "libtorch" not in maps(worker.pid)
    assert "numpy" not in maps(worker.pid)


def test_the_parent_answers_while_the_child_renders(shared_stage: Stage, worker: WorkerProcess) -> None:
    job_id = shared_stage.submit(**LONG)
    shared_stage.wait_step(job_id)
    row = worker.row()
    assert row is not None
    assert shared_stage.pings() == [{row.name: {"ok": "pong"}}]
    assert shared_stage.job(job_id).state == JobState.IN_PROGRESS
    shared_stage.cancel(job_id)
    shared_stage.wait_job(job_id, JobState.CANCELED)


def test_a_killed_child_is_replaced_behind_a_closed_gate_and_its_job_is_done(
    shared_stage: Stage, worker: WorkerProcess
) -> None:
    running = shared_stage.submit(**MEDIUM)
    shared_stage.wait_step(running)
    waiting = shared_stage.submit(**SHORT)
    dead = worker.kill_child()
    wait_until(lambda: worker.state() == "loading", what="the row says that the worker is cold")
    wait_until(lambda: worker.row().child_pid not in (dead, None), what="a new child")  # type: ignore[union-attr]
    # The new child has taken the job back before it loads, and neither job is held by the cold worker.
    wait_until(lambda: shared_stage.outcomes(running) == ["lost"], timeout_s=5, what="the job is back")
    worker.wait_loading()
    assert shared_stage.messages() == 2
    assert worker.state() != "ready"
    worker.wait_state("ready")
    shared_stage.wait_job(waiting)
    job = shared_stage.wait_job(running)
    assert shared_stage.outcomes(running) == ["lost", "completed"]
    assert {artifact.attempt for artifact in job.artifacts} == {2}
    assert worker.child_pid() != dead


def test_a_restarted_redis_is_found_again(shared_stage: Stage) -> None:
    shared_stage.valkey.kill()
    job_id = shared_stage.submit(send=False, **SHORT)
    shared_stage.valkey.start()
    shared_stage.wait_job(job_id)


def test_a_job_survives_a_restart_of_redis_while_it_runs(shared_stage: Stage) -> None:
    job_id = shared_stage.submit(**MEDIUM)
    shared_stage.wait_step(job_id)
    shared_stage.valkey.kill()
    shared_stage.valkey.start()
    shared_stage.wait_job(job_id)
    assert shared_stage.outcomes(job_id) == ["completed"]
    render(shared_stage, **SHORT)


def test_a_worker_killed_outright_loses_no_job(shared_stage: Stage) -> None:
    """Its child dies with it; the other worker gets the job when the lease has run out, here at once."""
    doomed = shared_stage.warm_worker(stand_in=True)
    child = doomed.child_pid()
    # The other one draws what the stand-in takes for a command without end.
    jobs = [shared_stage.submit(prompt="wait forever", **MEDIUM) for _ in range(2)]
    for job_id in jobs:
        shared_stage.wait_step(job_id)
    row = doomed.row()
    assert row is not None
    [hit] = [job_id for job_id in jobs if shared_stage.job(job_id).owner == row.id]
    doomed.signal(signal.SIGKILL)
    assert doomed.wait_exit() == -signal.SIGKILL
    wait_until(lambda: not Path(f"/proc/{child}").exists(), what="the child died with its parent")
    with shared_stage.database.transaction() as session:
        session.execute(update(Job).where(Job.id == hit).values(lease_until=now()))
    for job_id in jobs:
        shared_stage.wait_job(job_id)
    assert shared_stage.outcomes(hit) == ["lost", "completed"]
    wait_until(lambda: doomed.state() == "gone", what="upkeep noticed")

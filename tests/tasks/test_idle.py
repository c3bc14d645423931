"""A worker that compiles, with a compiler of the test's own, and the shapes that it warms while idle."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import redis

from core.tables import Job
from policy.catalogue import Catalogue
from tests.fixtures.waiting import wait_until
from tests.fixtures.worker_process import wide
from tests.fixtures.workers import Stage, WorkerProcess

pytestmark = [
    pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True),
    pytest.mark.xdist_group("idle worker"),
]
# As many different numbers of tokens.
WIDE, TALL, WIDEST, LARGE = (
    {"width": width, "height": height} for width, height in ((96, 64), (96, 96), (128, 64), (128, 128))
)
JOB: dict[str, Any] = {"num_inference_steps": 8, "seed": 11}


@pytest.fixture
def worker(stage: Stage) -> WorkerProcess:
    return start(stage)


def start(stage: Stage) -> WorkerProcess:
    stage.catalogue = Catalogue({"tiny": wide(stage.catalogue["tiny"], 128)})
    worker = stage.start_worker(
        widest=128,
        flags={"compile": True, "compile_dynamic": "false"},  # each shape is compiled on its own
        compiler=str(stage.folder),
    )
    worker.wait_state("ready")
    return worker


def render(stage: Stage, **fields: Any) -> Job:
    return stage.wait_job(stage.submit(**JOB | fields))


def ran(job: Job) -> dict[str, Any]:
    told = job.acceleration or {}
    return {name: told[name] for name in ("compiled", "compiles", "warm_shape")}


def digest(job: Job) -> str:
    return job.artifacts[0].sha256


def is_warm(worker: WorkerProcess, shape: str) -> bool:
    row = worker.row()
    assert row is not None
    return shape in (row.warm_shapes or ()) and shape not in (row.cold_requests or ())


def wants(worker: WorkerProcess, *shapes: str) -> bool:
    row = worker.row()
    return row is not None and set(shapes) <= set(row.cold_requests or ())


def held_in(stage: Stage, hold: Path) -> None:
    """Return when the worker compiles and does not come to an end."""
    (stage.folder / "compiling").unlink(missing_ok=True)
    assert hold.exists()
    wait_until((stage.folder / "compiling").exists, what="it compiles while idle")


def test_a_new_shape_runs_at_once_and_is_warmed_while_idle_until_a_job_comes(
    stage: Stage, worker: WorkerProcess
) -> None:
    child = worker.child_pid()
    row = worker.row()
    assert row is not None
    assert {"64x64", "64x64 guided"} <= set(row.warm_shapes or ())
    assert row.cold_requests == {}
    first = render(stage)
    assert ran(first) == {"compiled": True, "compiles": 0, "warm_shape": True}

    # At once and uncompiled; compiled the next time.
    assert ran(render(stage, **WIDE)) == {"compiled": False, "compiles": 0, "warm_shape": False}
    wait_until(lambda: is_warm(worker, "96x64"), what="the shape is warm")
    assert ran(render(stage, **WIDE)) == {"compiled": True, "compiles": 0, "warm_shape": True}

    # The most wanted comes first, and a job comes before either.
    hold = stage.folder / "hold"
    hold.touch()
    render(stage, **WIDEST)
    for _ in range(2):
        render(stage, **TALL)
    held_in(stage, hold)
    row = worker.row()
    assert row is not None
    assert (row.state, row.cold_requests) == ("ready", {"128x64": 1, "96x96": 2})
    assert digest(render(stage)) == digest(first)
    assert "shape.warming_interrupted" in worker.text()
    row = worker.row()
    assert row is not None
    assert row.cold_requests == {"128x64": 1, "96x96": 2}  # nothing of it is called warm
    held_in(stage, hold)
    hold.unlink()
    wait_until(lambda: is_warm(worker, "96x96"), what="the wanted shape is warm")
    wait_until(lambda: is_warm(worker, "128x64"), what="the other one too")
    for fields in (TALL, WIDEST, WIDE, {}):
        assert ran(render(stage, **fields)) == {"compiled": True, "compiles": 0, "warm_shape": True}
    assert worker.text().index('"shape": "96x96"') < worker.text().index('"shape": "128x64"')
    assert digest(render(stage)) == digest(first)
    assert worker.child_pid() == child

    # A stop comes through as well.
    hold.touch()
    render(stage, **LARGE)
    held_in(stage, hold)
    worker.signal(signal.SIGTERM)
    assert worker.wait_exit(20) == 0


def asks(client: redis.Redis) -> bool:
    """Whether a worker waits for a message on a connection of its own."""
    return any(each["cmd"] == "brpop" for each in client.client_list())


def test_an_offer_that_is_lost_with_the_connection_does_not_end_the_warming(
    stage_of_own_valkey: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RENDERQ_LOG_LEVEL", "debug")
    stage = stage_of_own_valkey
    worker = start(stage)
    render(stage, **WIDEST)
    render(stage, **TALL)
    child = worker.child_pid()
    wait_until(lambda: wants(worker, "128x64", "96x96"), what="the child is done with both jobs")
    os.kill(child, signal.SIGSTOP)  # it takes the offer and does not say so
    try:
        wait_until(lambda: "shape.offered" in worker.text(), what="an offer")
        with stage.valkey.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")
            wait_until(lambda: asks(client), what="another connection")
    finally:
        os.kill(child, signal.SIGCONT)
    wait_until(lambda: is_warm(worker, "96x96") and is_warm(worker, "128x64"), what="both are warm")
    assert worker.child_pid() == child

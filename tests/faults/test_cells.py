"""Cells of the fault matrix that chance should not decide: one component, one fault, one phase, one end.

`docs/promises.md` has the whole matrix. What a cell does to a lone worker is tested in `tests/tasks`.
"""

import signal
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select

from core.tables import IdempotencyKey, Job
from tests.faults.conftest import LEASE_S
from tests.faults.scene import LAST_STEP, Scene, on
from tests.faults.system import DATABASE_SERVER
from tests.fixtures.plain import http
from tests.fixtures.small_disk import filled
from tests.fixtures.waiting import wait_until


def hold_in(scene: Scene, phase: str) -> tuple[str, str, AbstractContextManager[None]]:
    """A job that is in the phase as long as the returned context is entered, and its worker."""
    job_id, worker = scene.held(0 if phase == "starting" else LAST_STEP)
    if phase == "saving":
        return job_id, worker, scene.saving(job_id)
    return job_id, worker, scene.committing() if phase == "committing" else nullcontext()


def reach(scene: Scene, phase: str, job_id: str, worker: str) -> None:
    if phase != "starting":
        scene.let_go()
        scene.wait_phase(worker, "saving")
    if phase == "committing":
        scene.wait_files(job_id)


@on("sqlite", "postgresql")
@pytest.mark.parametrize("phase", ["starting", "saving", "committing"])
def test_a_child_killed_in_any_phase_leaves_one_result(scene: Scene, phase: str) -> None:
    job_id, worker, held = hold_in(scene, phase)
    with held:
        reach(scene, phase, job_id, worker)
        scene.kill_child(worker)
    scene.let_go()
    scene.check(job_id, "lost", "completed")


@on("sqlite", "postgresql")
def test_a_worker_killed_while_it_commits_is_followed_by_another_even_if_upkeep_slept(scene: Scene) -> None:
    job_id, worker, held = hold_in(scene, "committing")
    with scene.stopped("upkeep"):
        with held:
            reach(scene, "committing", job_id, worker)
            scene.kill(worker)
        scene.rest(LEASE_S)
        assert scene.outcomes(job_id) == [None]
    scene.check(job_id, "lost", "completed")


@on("sqlite", "postgresql")
def test_what_a_worker_made_that_stood_still_for_longer_than_its_lease_is_not_taken(scene: Scene) -> None:
    job_id, worker = scene.held(3)
    said = scene.logged(worker)
    with scene.stopped(worker):
        scene.wait_outcomes(job_id, "lost", None)
        scene.let_go()
        scene.check(job_id, "lost", "completed")
        seen = scene.job(job_id)
    # It stops at its next step, or at the end, or is killed since its heartbeat stood still.
    scene.wait_log(worker, "another worker holds the job|job.lost|worker.child_killed", said)
    scene.check(job_id, "lost", "completed")
    assert scene.job(job_id) == seen
    assert scene.events(job_id)[-1] == "job.completed"


@on("sqlite")
def test_an_order_whose_answer_was_lost_with_the_api_is_one_job_when_it_is_sent_again(scene: Scene) -> None:
    body, key = {"prompt": "sent twice"}, "lost-with-the-api"
    answers: list[Any] = []

    def order() -> None:
        try:
            answers.append(scene.post(body, key))
        except httpx2.TransportError as error:
            answers.append(error)

    with scene.committing():
        caller = threading.Thread(target=order)
        caller.start()
        scene.rest(0.5)  # nothing shows from outside that a call waits for the lock
        scene.kill("api")
    caller.join()
    assert isinstance(answers[0], httpx2.TransportError)
    scene.system.owned["api"].start()
    wait_until(scene.system.answers, what="the API")
    job_id = scene.post(body, key).json()["id"]
    assert scene.post(body, key).json()["id"] == job_id
    with scene.system.database.reading() as session:
        keys = select(func.count()).where(IdempotencyKey.key == key)
        jobs = select(func.count()).where(Job.request["prompt"].as_string() == "sent twice")
        assert (session.scalars(keys).one(), session.scalars(jobs).one()) == (1, 1)
    scene.check(job_id, "completed")


@on("sqlite")
def test_what_waits_when_redis_comes_back_without_its_data_is_done(scene: Scene) -> None:
    """Both workers are busy, three jobs wait behind them, and the messages of these are gone."""
    busy = [scene.held(3)[0] for _ in scene.system.layout.workers]
    waiting = [scene.submit(priority=word) for word in ("low", "normal", "high")]
    scene.kill("redis")
    scene.system.forget()
    scene.system.owned["redis"].start()
    wait_until(scene.system.valkey_answers, what="Valkey")
    scene.let_go()
    for job_id in (*busy, *waiting):
        scene.check(job_id, "completed")


@on("sqlite")
def test_an_order_is_taken_while_the_api_cannot_reach_redis_and_runs_when_it_can(scene: Scene) -> None:
    for fault in ("refuse", "stall"):
        proxies = scene.system.redis_proxies
        for name in ("api", "upkeep"):
            getattr(proxies[name], fault)()
        began = time.monotonic()
        job_id = scene.submit()
        assert time.monotonic() - began < 10
        assert scene.job(job_id)["status"] == "queued"
        for name in ("api", "upkeep"):
            proxies[name].mend()
        scene.check(job_id, "completed")


@on("postgresql")
def test_a_worker_without_its_database_for_longer_than_its_lease_gives_its_job_up(scene: Scene) -> None:
    job_id, worker = scene.held(3)
    said = scene.logged(worker)
    proxy = scene.system.database_proxies[worker]
    proxy.refuse()
    scene.wait_outcomes(job_id, "lost", None)
    scene.let_go()
    scene.check(job_id, "lost", "completed")
    proxy.mend()
    scene.wait_log(worker, "job.lost", said)
    scene.check(job_id, "lost", "completed")


@on("postgresql")
def test_a_commit_whose_answer_is_cut_off_is_done_once(scene: Scene) -> None:
    """Its worker cannot know whether it was done and does it again."""
    job_id, worker, held = hold_in(scene, "committing")
    with held:
        reach(scene, "committing", job_id, worker)
        scene.system.database_proxies[worker].cut()
    scene.check(job_id, "completed")


@on("postgresql")
def test_an_order_without_the_database_is_refused_with_a_time_to_come_again(scene: Scene) -> None:
    proxy = scene.system.database_proxies["api"]
    proxy.refuse()
    answer = scene.post({"prompt": "refused"}, "refused")
    assert answer.status_code == 503
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert int(answer.headers["retry-after"]) > 0
    proxy.mend()
    again = wait_until(
        lambda: (got := scene.post({"prompt": "refused"}, "refused")).status_code == 202 and got
    )
    scene.check(again.json()["id"], "completed")


@on("sqlite")
@pytest.mark.parametrize("name", ["api", "upkeep", "worker-1", "redis"])
def test_a_process_that_is_told_to_end_while_jobs_run_and_wait_ends_and_loses_none(
    scene: Scene, name: str
) -> None:
    jobs = [scene.held(3)[0] for _ in scene.system.layout.workers]
    jobs.append(scene.submit())
    scene.system.owned[name].send(signal.SIGTERM)
    scene.let_go()
    wait_until(lambda: not scene.system.owned[name].runs, 30, f"the end of {name}")
    assert scene.system.owned[name].code in (0, -signal.SIGTERM if name == "redis" else 0)
    scene.system.owned[name].start()
    for job_id in jobs:
        assert scene.wait_end(job_id)["status"] == "completed"
        assert set(scene.outcomes(job_id)) <= {"handed_back", "completed"}


@on("postgresql")
def test_a_worker_that_stands_still_in_the_middle_of_its_commit_does_not_keep_the_job(scene: Scene) -> None:
    """Its transaction holds the job's row, which rescue leaves alone until the server has ended it."""
    job_id, worker, held = hold_in(scene, "committing")
    with held:
        reach(scene, "committing", job_id, worker)
        scene.system.owned[worker].send_all(signal.SIGSTOP)
    scene.check(job_id, "lost", "completed")
    seen = scene.job(job_id)
    scene.system.owned[worker].send_all(signal.SIGCONT)
    scene.system.wait_ready()
    scene.check(job_id, "lost", "completed")
    assert scene.job(job_id) == seen


@on("postgresql")
@pytest.mark.parametrize("phase", ["step", "committing"])
def test_what_was_accepted_is_done_after_the_database_server_was_killed(scene: Scene, phase: str) -> None:
    job_id, worker, held = hold_in(scene, phase)
    waiting = scene.submit()
    with held:
        if phase == "committing":
            reach(scene, phase, job_id, worker)
        scene.kill(DATABASE_SERVER)
    refused = scene.post({"prompt": "no database"}, f"killed-{phase}")
    assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
    scene.system.owned[DATABASE_SERVER].start()
    scene.let_go()
    again = wait_until(
        lambda: (got := scene.post({"prompt": "no database"}, f"killed-{phase}")).status_code == 202 and got
    )
    for one in (job_id, waiting, again.json()["id"]):
        assert scene.wait_end(one)["status"] == "completed"
        assert scene.outcomes(one)[-1] == "completed"
        assert set(scene.outcomes(one)[:-1]) <= {"lost"}


@on("postgresql")
def test_a_database_server_that_has_become_a_standby_makes_nobody_ready(scene: Scene) -> None:
    server = scene.system.owned[DATABASE_SERVER]
    with scene.standby():
        ready = http.get(f"{scene.system.url}/readyz").json()
        reasons = {check["name"]: check["reason"] for check in ready["checks"] if not check["ok"]}
        assert reasons["database"] == "it is a standby, which takes no writes"
        refused = scene.post({"prompt": "standby"}, "standby")
        assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
    assert server.runs
    scene.check(scene.submit(), "completed")


def _order_until_refused(scene: Scene) -> tuple[list[str], httpx2.Response]:
    """SQLite's log may have room for a few orders that was taken before the disk was full."""
    accepted: list[str] = []
    for number in range(1000):
        answer = scene.post({"prompt": "no room"}, f"no-room-{number}")
        if answer.status_code != 202:
            return accepted, answer
        accepted.append(answer.json()["id"])
    raise AssertionError("a thousand orders found room on a full disk")


def _failing(scene: Scene) -> set[str]:
    ready = http.get(f"{scene.system.url}/readyz")
    assert ready.status_code == 503
    return {check["name"] for check in ready.json()["checks"] if not check["ok"]}


@on("sqlite")
def test_a_full_disk_costs_time_and_no_job_and_no_process(scene: Scene) -> None:
    """Database, files, logs and the file of Valkey are on it."""
    if not scene.system.folder.is_mount():
        pytest.skip("this user may not mount a disk that can be filled")
    starts = {name: owned.starts for name, owned in scene.system.owned.items()}
    job_id, worker = scene.held(3)
    with filled(scene.system.folder):
        accepted, refused = _order_until_refused(scene)
        assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
        assert int(refused.headers["retry-after"]) > 0
        # Redis finds out at its next write.
        wait_until(lambda: _failing(scene) >= {"database", "redis", "artifacts"})
        scene.let_go()
        scene.wait_phase(worker, "saving")
    again = wait_until(
        lambda: (
            (got := scene.post({"prompt": "no room"}, f"no-room-{len(accepted)}")).status_code == 202 and got
        )
    )
    for one in (job_id, *accepted, again.json()["id"]):
        assert scene.wait_end(one)["status"] == "completed"
        assert set(scene.outcomes(one)[:-1]) <= {"lost"}
    assert {name: owned.starts for name, owned in scene.system.owned.items() if owned.runs} == starts

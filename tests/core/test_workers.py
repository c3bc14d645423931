"""The rows of the workers."""

import pytest
from sqlalchemy.orm import Session

from core import workers
from core.errors import NotFound
from core.workers import WorkerState
from tests.core.jobs import OTHER_WORKER, WORKER


def register(session: Session, worker_id: str = WORKER, model: str = "tiny") -> None:
    workers.register_worker(
        session,
        worker_id=worker_id,
        name=f"{model}@host",
        host="host",
        pid=11,
        model=model,
        queue=f"render.{model}",
        policy={"cache": True},
        device={"name": "cpu"},
    )


def state(session: Session, worker_id: str = WORKER) -> WorkerState:
    return workers.get_worker(session, worker_id).state


def test_a_worker_begins_by_loading(session: Session) -> None:
    register(session)
    worker = workers.get_worker(session, WORKER)
    assert (worker.state, worker.preparation, worker.ready_at) == (WorkerState.LOADING, [], None)
    assert (worker.policy, worker.device, worker.jobs_done) == ({"cache": True}, {"name": "cpu"}, 0)
    assert worker.started_at == worker.heartbeat_at


def test_steps_of_the_preparation_are_seen_while_they_run(session: Session) -> None:
    register(session)
    workers.note_step(session, WORKER, {"name": "load", "state": "started", "seconds": None})
    assert workers.get_worker(session, WORKER).preparation[0]["state"] == "started"
    workers.note_step(session, WORKER, {"name": "load", "state": "done", "seconds": 1.5})
    workers.note_step(session, WORKER, {"name": "mount", "state": "started", "seconds": None})
    steps = workers.get_worker(session, WORKER).preparation
    assert [(step["name"], step["state"]) for step in steps] == [("load", "done"), ("mount", "started")]


def test_ready_since_is_kept_when_the_worker_gets_ready_again(session: Session) -> None:
    register(session)
    workers.update_worker(session, WORKER, state=WorkerState.READY)
    first = workers.get_worker(session, WORKER).ready_at
    assert first is not None
    workers.update_worker(session, WORKER, state=WorkerState.LOADING)
    workers.update_worker(session, WORKER, state=WorkerState.READY)
    assert workers.get_worker(session, WORKER).ready_at == first


def test_only_what_is_given_is_changed(session: Session) -> None:
    register(session)
    workers.update_worker(session, WORKER, child_pid=12, current_job_id="j")
    workers.update_worker(session, WORKER, state=WorkerState.FAILED, error="no weights", current_job_id=None)
    worker = workers.get_worker(session, WORKER)
    assert (worker.child_pid, worker.error, worker.current_job_id) == (12, "no weights", None)


def test_an_unknown_worker_is_told_so(session: Session) -> None:
    assert not workers.update_worker(session, "nobody", state=WorkerState.READY)
    assert not workers.note_step(session, "nobody", {"name": "load"})
    assert not workers.count_jobs(session, "nobody")
    with pytest.raises(NotFound, match="no worker nobody"):
        workers.get_worker(session, "nobody")


def test_a_finished_job_is_counted(session: Session) -> None:
    register(session)
    workers.update_worker(session, WORKER, current_job_id="job-1")
    assert workers.count_jobs(session, WORKER)
    worker = workers.get_worker(session, WORKER)
    assert (worker.jobs_done, worker.current_job_id) == (1, None)


def test_a_silent_worker_is_gone(session: Session) -> None:
    register(session)
    workers.update_worker(session, WORKER, state=WorkerState.READY, current_job_id="job-1")
    assert workers.mark_gone(session, older_than_s=60) == []
    assert workers.mark_gone(session, older_than_s=-60) == [WORKER]
    assert state(session) is WorkerState.GONE
    assert workers.get_worker(session, WORKER).current_job_id is None
    assert workers.mark_gone(session, older_than_s=-60) == []


def test_a_failed_worker_stays_failed(session: Session) -> None:
    register(session)
    workers.update_worker(session, WORKER, state=WorkerState.FAILED, error="no weights")
    assert workers.mark_gone(session, older_than_s=-60) == []
    assert state(session) is WorkerState.FAILED


def test_a_worker_that_was_only_paused_comes_back(session: Session) -> None:
    register(session)
    workers.mark_gone(session, older_than_s=-60)
    workers.update_worker(session, WORKER, state=WorkerState.READY)
    assert state(session) is WorkerState.READY


def test_only_ready_workers_heard_of_lately_can_take_a_job(session: Session) -> None:
    register(session)
    register(session, OTHER_WORKER, model="flux")
    assert workers.count_ready(session, within_s=60) == 0
    workers.update_worker(session, WORKER, state=WorkerState.READY)
    assert workers.count_ready(session, within_s=60) == 1
    assert workers.count_ready(session, "flux", within_s=60) == 0
    assert workers.count_ready(session, "tiny", within_s=-60) == 0


def test_a_worker_may_miss_some_beats_whatever_their_interval() -> None:
    assert workers.heard_within_s(5) == 30
    assert workers.heard_within_s(60) == 360


@pytest.mark.parametrize(("beat_s", "within_s"), [(5, 15), (60, 180), (2, 10), (0.5, 3)])
def test_a_silent_worker_is_counted_on_for_three_beats_and_some_seconds_at_least(
    beat_s: float, within_s: float
) -> None:
    assert workers.taking_within_s(beat_s) == within_s


def test_the_rows_of_workers_that_ended_long_ago_are_removed(session: Session) -> None:
    register(session)
    register(session, OTHER_WORKER)
    workers.update_worker(session, WORKER, state=WorkerState.FAILED)
    assert workers.forget_ended(session, older_than_s=60) == 0
    assert workers.forget_ended(session, older_than_s=-60) == 1
    assert [worker.id for worker in workers.list_workers(session)] == [OTHER_WORKER]


def test_workers_are_listed_newest_first(session: Session) -> None:
    register(session)
    register(session, OTHER_WORKER, model="flux")
    workers.mark_gone(session, older_than_s=-60)
    workers.update_worker(session, OTHER_WORKER, state=WorkerState.READY)
    listed = [worker.id for worker in workers.list_workers(session)]
    assert listed == [OTHER_WORKER, WORKER]
    assert [worker.id for worker in workers.list_workers(session, ended=False)] == [OTHER_WORKER]
    assert [worker.id for worker in workers.list_workers(session, model="tiny")] == [WORKER]

"""How an attempt ends when the engine fails: the real engine, whose render is made to fail."""

import threading
from typing import Any

import pytest
import torch
from sqlalchemy import event, text, update
from sqlalchemy.orm import Session

from core import store
from core.hardware import detect
from core.ids import new_id
from core.lifecycle import JobState
from core.tables import Job
from pipeline.engine import Engine
from pipeline.errors import MountFailed, NotFinite, OutOfMemory, WeightsMissing
from policy.plan import RenderPlan
from policy.resolve import resolve
from tasks import attempt
from tasks.board import Board
from tasks.child import Child, Setup
from tasks.engine import DEVICE_LOST_EXIT
from tests.fixtures.workers import Stage


class Failing(Engine):
    """An engine that meets one error; it keeps the plans it was given, and which were to be safer."""

    error: BaseException
    plans: list[RenderPlan]
    safer: list[bool]

    def render(
        self, plan: RenderPlan, on_step: Any = None, *, safer: bool = False, inputs: Any = None
    ) -> Any:
        del on_step, inputs
        self.plans.append(plan)
        self.safer.append(safer)
        raise self.error


@pytest.fixture
def me(stage: Stage) -> Child:
    spec = stage.catalogue["tiny"]
    policy = resolve(spec, flags={}, env={}, hardware=detect())
    setup = Setup(stage.settings, spec, policy, new_id(), "tiny@test", Board())
    engine = Failing(spec, policy)
    engine.plans, engine.safer = [], []
    return Child(setup, engine, stage.database, stage.artifacts)


def claim(stage: Stage, me: Child, job_id: str) -> Job:
    with stage.database.transaction() as session:
        job = store.claim(session, job_id, me.setup.worker_id, 60)
    assert job is not None
    return job


def run(stage: Stage, me: Child, job_id: str, error: BaseException) -> Job:
    assert isinstance(me.engine, Failing)
    me.engine.error = error
    told = attempt.run(me, claim(stage, me, job_id))
    with stage.database.reading() as session:
        latest = store.get_attempts(session, job_id)[-1]
    said = f"{latest.outcome}: {latest.error_code}" if latest.outcome else "unknown"
    assert told == said, "Flower shows what the row says"
    return stage.job(job_id)


@pytest.mark.parametrize("error", [MemoryError(), OutOfMemory("too big"), NotFinite("NaN")])
def test_a_failure_that_a_safer_try_may_avoid_is_tried_once_more_in_a_safer_way(
    stage: Stage, me: Child, error: Exception
) -> None:
    job_id = stage.submit(send=False, cache="fast")
    assert run(stage, me, job_id, error).state == JobState.QUEUED
    assert stage.messages() == 1, "it is sent at once"
    job = run(stage, me, job_id, error)
    assert job.state == JobState.FAILED
    assert job.error_code in ("out_of_memory", "output_not_finite")
    assert stage.outcomes(job_id) == ["retried", "failed"]
    assert isinstance(me.engine, Failing)
    assert [plan.cache for plan in me.engine.plans] == ["fast", "off"]
    assert me.engine.safer == [False, True]


def test_a_failure_that_no_try_can_help_fails_at_once_in_its_own_words(stage: Stage, me: Child) -> None:
    job = run(stage, me, stage.submit(send=False), WeightsMissing("no weights in this folder"))
    assert (job.state, job.error_code, job.error_retryable) == (JobState.FAILED, "weights_missing", False)
    assert job.error_message == "no weights in this folder"


def test_an_unexpected_error_waits_before_its_second_try(stage: Stage, me: Child) -> None:
    job = run(stage, me, stage.submit(send=False), ZeroDivisionError("secret /path"))
    assert job.state == JobState.QUEUED
    assert job.run_after is not None
    assert stage.messages() == 0


def test_a_job_without_attempts_left_fails_with_the_last_error(stage: Stage, me: Child) -> None:
    job = run(stage, me, stage.submit(send=False, max_attempts=1), ZeroDivisionError("secret /path"))
    assert (job.state, job.error_code) == (JobState.FAILED, "internal_error")
    assert "secret" not in (job.error_message or "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"of_tomorrow": 1}, "another version of renderq than this worker's (of_tomorrow)"),
        (
            {"revision": "abc"},
            "model tiny at revision abc, and this worker holds model tiny without a revision",
        ),
        ({"model": "other"}, "model other without a revision"),
    ],
)
def test_a_plan_that_is_not_this_workers_fails_with_words_to_act_on(
    stage: Stage, me: Child, changes: dict[str, Any], words: str
) -> None:
    job_id = stage.submit(send=False)
    with stage.database.transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(plan=stage.job(job_id).plan | changes))
    job = run(stage, me, job_id, AssertionError("it was rendered"))
    assert (job.state, job.error_code, job.error_retryable) == (JobState.FAILED, "plan_not_supported", True)
    assert words in (job.error_message or "")
    assert "send the request again" in (job.error_message or "")


@pytest.fixture
def lost_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA as it is after a fault in a kernel: it refuses every call."""

    def refuse() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)


@pytest.mark.usefixtures("lost_device")
@pytest.mark.parametrize("error", [RuntimeError("CUDA error"), MountFailed("CUDA error")])
def test_a_worker_whose_device_is_lost_takes_no_further_job(
    stage: Stage, me: Child, error: Exception
) -> None:
    board = me.setup.board
    board.begin_child()
    board.say_warm()
    job_id = stage.submit(send=False)
    with pytest.raises(SystemExit) as stop:
        run(stage, me, job_id, error)
    assert stop.value.code == DEVICE_LOST_EXIT
    assert board.cells.warm_pid == 0, "the gate is closed"
    job = stage.job(job_id)
    assert (job.state, job.run_after, job.error_code) == (JobState.QUEUED, None, None)
    assert stage.messages() == 1, "another worker may take it at once"
    with stage.database.reading() as session:
        (tried,) = store.get_attempts(session, job_id)
    assert (tried.outcome, tried.error_code) == ("retried", "device_lost")


@pytest.mark.usefixtures("lost_device")
def test_a_job_that_breaks_every_device_is_parked(stage: Stage, me: Child) -> None:
    job_id = stage.submit(send=False, max_attempts=1)
    with pytest.raises(SystemExit):
        run(stage, me, job_id, RuntimeError("CUDA error"))
    job = stage.job(job_id)
    assert (job.state, job.error_code, job.error_retryable) == (JobState.FAILED, "device_lost", True)


def test_the_end_of_the_process_hands_the_job_back_uncounted(stage: Stage, me: Child) -> None:
    job_id = stage.submit(send=False, max_attempts=1)
    with pytest.raises(SystemExit):
        run(stage, me, job_id, SystemExit(0))
    job = stage.job(job_id)
    assert (job.state, job.counted_attempts) == (JobState.QUEUED, 0)
    assert stage.messages() == 1


def test_a_stop_between_queueing_a_job_again_and_sending_it_does_not_keep_it_from_being_sent(
    stage: Stage, me: Child
) -> None:
    here, stops = threading.get_ident(), [SystemExit(0)]

    def stop(_: Session) -> None:
        if threading.get_ident() == here and stops:  # other threads of this process commit as well
            raise stops.pop()

    job_id = stage.submit(send=False)
    claimed = claim(stage, me, job_id)
    assert isinstance(me.engine, Failing)
    me.engine.error = NotFinite("NaN")
    event.listen(Session, "after_commit", stop)  # the next unit of work queues the job again
    try:
        with pytest.raises(SystemExit):
            attempt.run(me, claimed)
    finally:
        event.remove(Session, "after_commit", stop)
    assert stage.outcomes(job_id) == ["retried"]
    assert stage.messages() == 1


#: Statements after which no row of ``jobs`` takes an error.
REFUSALS = {
    "sqlite": (
        "CREATE TRIGGER no_end BEFORE UPDATE OF error_code ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION no_end() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$",
        "CREATE TRIGGER no_end BEFORE UPDATE OF error_code ON jobs EXECUTE FUNCTION no_end()",
    ),
}


def test_an_end_that_cannot_be_written_leaves_the_job_to_its_lease(
    stage: Stage, me: Child, database_kind: str
) -> None:
    job_id = stage.submit(send=False)
    with stage.database.transaction() as session:
        for statement in REFUSALS[database_kind]:
            session.execute(text(statement))
    job = run(stage, me, job_id, WeightsMissing("no weights"))
    assert job.state == JobState.IN_PROGRESS

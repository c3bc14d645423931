"""Several jobs in one pass, each brought to its own end; the engine does what the prompts say."""

from typing import Any

import pytest
from sqlalchemy import text

from core import store, workers
from core.db import Database
from core.hardware import detect
from core.ids import new_id
from core.lifecycle import JobState, WorkerState
from policy.resolve import resolve
from tasks import ends, mates, render
from tasks.board import Board
from tasks.child import Child, Setup
from tests.fixtures.stand_in import StandIn
from tests.fixtures.workers import Stage

PAINT = "paint"
#: Two seconds.
STEPS = "steps 100"


@pytest.fixture
def me(stage: Stage) -> Child:
    spec = stage.catalogue["tiny"]
    policy = resolve(spec, flags={"microbatch": 4}, env={}, hardware=detect())
    setup = Setup(stage.settings, spec, policy, new_id(), "tiny@test", Board(), kill_grace_s=5)
    with stage.database.transaction() as session:
        workers.register_worker(
            session,
            worker_id=setup.worker_id,
            name=setup.name,
            host="host",
            pid=1,
            model="tiny",
            queue="render.tiny",
            policy=policy.as_json(),
            device={},
        )
    return Child(setup, StandIn(spec, policy), stage.database, stage.artifacts)


def submit(stage: Stage, *prompts: str, **fields: Any) -> list[str]:
    return [stage.submit(send=False, prompt=prompt, **fields) for prompt in prompts]


def states(stage: Stage, ids: list[str]) -> list[JobState]:
    return [stage.job(job_id).state for job_id in ids]


def sizes_of(me: Child) -> list[int]:
    assert isinstance(me.engine, StandIn)
    return me.engine.passes


def test_waiting_jobs_are_drawn_in_the_pass_of_the_first_and_each_is_told_so(stage: Stage, me: Child) -> None:
    ids = submit(stage, PAINT, PAINT, PAINT)
    assert render._render(me, ids[0]) == "completed, with 2 others in its pass"
    assert states(stage, ids) == [JobState.COMPLETED] * 3
    assert sizes_of(me) == [3]
    for job_id in ids:
        job = stage.job(job_id)
        assert job.acceleration is not None
        assert (job.acceleration["microbatch"], job.acceleration["pass_of"]) == (3, ids[0])
        assert len(job.artifacts) == 1
        assert stage.outcomes(job_id) == ["completed"]
    with stage.database.reading() as session:
        assert workers.get_worker(session, me.setup.worker_id).jobs_done == 3


def test_the_message_of_a_job_that_was_taken_along_ends_at_once_and_says_in_whose_pass(
    stage: Stage, me: Child
) -> None:
    ids = submit(stage, PAINT, PAINT)
    render._render(me, ids[0])
    assert render._render(me, ids[1]) == f"completed, in the pass of {ids[0]}"
    assert render._render(me, ids[0]) == "not there to be taken"
    assert stage.messages() == 0


def test_a_job_that_waits_alone_is_alone(stage: Stage, me: Child) -> None:
    (job_id,) = submit(stage, PAINT)
    assert render._render(me, job_id) == "completed"
    job = stage.job(job_id)
    assert job.acceleration is not None
    assert job.acceleration["pass_of"] is None
    assert sizes_of(me) == [1]


def test_another_callers_job_in_the_pass_is_not_named(stage: Stage, me: Child) -> None:
    ids = submit(stage, PAINT, PAINT)
    with stage.database.transaction() as session:
        session.execute(text("UPDATE jobs SET caller = 'other' WHERE id = :id"), {"id": ids[1]})
    render._render(me, ids[0])
    told = stage.job(ids[1]).acceleration
    assert told is not None
    assert (told["microbatch"], told["pass_of"]) == (2, None)


def test_a_job_that_gives_no_picture_ends_alone_and_keeps_nobody_from_theirs(stage: Stage, me: Child) -> None:
    good, bad, other = ids = submit(stage, PAINT, "refuse NaN", PAINT)
    render._render(me, good)
    assert states(stage, ids) == [JobState.COMPLETED, JobState.QUEUED, JobState.COMPLETED]
    assert stage.outcomes(bad) == ["handed_back"]
    assert stage.job(bad).counted_attempts == 0
    waiting = submit(stage, PAINT)
    assert render._render(me, bad) == "retried: output_not_finite"
    assert render._render(me, bad) == "failed: output_not_finite"
    assert sizes_of(me) == [3, 1, 1], "it takes nobody along any more"
    assert states(stage, waiting) == [JobState.QUEUED]
    assert stage.outcomes(other) == ["completed"]


def test_what_breaks_a_pass_costs_its_jobs_no_attempt_and_each_is_tried_again_alone(
    stage: Stage, me: Child
) -> None:
    ids = submit(stage, PAINT, "refuse memory", PAINT)
    assert render._render(me, ids[0]) == "handed_back: out_of_memory, with 2 others in its pass"
    assert states(stage, ids) == [JobState.QUEUED] * 3
    assert [stage.job(job_id).counted_attempts for job_id in ids] == [0, 0, 0]
    assert stage.messages() == 3, "they are sent again at once"
    assert [render._render(me, job_id) for job_id in ids] == [
        "completed",
        "retried: out_of_memory",
        "completed",
    ]
    assert sizes_of(me) == [3, 1, 1, 1]


def test_the_end_of_the_process_hands_every_job_back(
    stage: Stage, me: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = submit(stage, PAINT, PAINT)

    def stop(*_: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(me.engine, "render_together", stop)
    with pytest.raises(SystemExit):
        render._render(me, ids[0])
    assert states(stage, ids) == [JobState.QUEUED] * 2
    assert [stage.job(job_id).counted_attempts for job_id in ids] == [0, 0]
    assert stage.messages() == 2


def test_a_job_whose_time_is_over_leaves_and_has_its_time_again_alone(stage: Stage, me: Child) -> None:
    late = stage.submit(send=False, prompt=STEPS, run_timeout_s=0.3)
    other = stage.submit(send=False, prompt=STEPS)
    assert render._render(me, late) == "handed_back, with 1 other in its pass"
    assert states(stage, [late, other]) == [JobState.QUEUED, JobState.COMPLETED]
    with stage.database.reading() as session:
        (attempt,) = store.get_attempts(session, late)
    assert (attempt.outcome, attempt.error_code) == ("handed_back", "run_timeout")
    assert stage.messages() == 1, "it is sent again when the pass is over"
    assert render._render(me, late) == "failed: run_timeout"
    assert sizes_of(me) == [2, 1]


def test_a_pass_without_jobs_left_stops(stage: Stage, me: Child) -> None:
    ids = [stage.submit(send=False, prompt=STEPS, run_timeout_s=seconds) for seconds in (0.2, 0.3)]
    render._render(me, ids[0])
    assert states(stage, ids) == [JobState.QUEUED] * 2
    with stage.database.reading() as session:
        steps = [store.get_attempts(session, job_id)[0].step or 0 for job_id in ids]
    assert max(steps) < 100


def test_a_picture_that_cannot_be_kept_costs_the_others_nothing(
    stage: Stage, me: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = submit(stage, PAINT, PAINT, PAINT)
    put = stage.artifacts.put

    def refuse(key: str, content: bytes) -> None:
        if ids[1] in key:
            raise ValueError(key)
        put(key, content)

    monkeypatch.setattr(me.artifacts, "put", refuse)
    render._render(me, ids[0])
    assert states(stage, ids) == [JobState.COMPLETED, JobState.QUEUED, JobState.COMPLETED]
    assert stage.outcomes(ids[1]) == ["retried"]


@pytest.mark.parametrize(
    "others", [{"quality": "high"}, {"num_inference_steps": 12}, {"n": 2}, {"max_attempts": 1}]
)
def test_jobs_that_are_not_alike_are_left_in_the_queue(
    stage: Stage, me: Child, others: dict[str, Any]
) -> None:
    (first,) = submit(stage, PAINT)
    (unlike,) = submit(stage, PAINT, **others)
    assert render._render(me, first) == "completed"
    assert stage.job(unlike).state == JobState.QUEUED
    assert render._render(me, unlike) == "completed"


def test_a_worker_that_stops_takes_nobody_along(stage: Stage, me: Child) -> None:
    first, second = submit(stage, PAINT, PAINT)
    with stage.database.transaction() as session:
        job = store.claim(session, first, me.setup.worker_id, 60)
    assert job is not None
    me.setup.board.drain(60)
    assert mates.take_along(me, job) == ()
    assert stage.job(second).state == JobState.QUEUED


def test_an_idle_worker_is_left_its_share(stage: Stage, me: Child) -> None:
    with stage.database.transaction() as session:
        workers.register_worker(
            session,
            worker_id=new_id(),
            name="other@test",
            host="host",
            pid=2,
            model="tiny",
            queue="render.tiny",
            policy={},
            device={},
        )
        other = workers.list_workers(session)[0].id
        workers.update_worker(session, other, state=WorkerState.READY)
    ids = submit(stage, *[PAINT] * 4)
    render._render(me, ids[0])
    assert sizes_of(me) == [2]


def test_a_database_that_refuses_the_mates_lets_the_leader_go_alone(stage: Stage, me: Child) -> None:
    ids = submit(stage, PAINT, PAINT)
    with stage.database.transaction() as session:
        job = store.claim(session, ids[0], me.setup.worker_id, 60)
        session.execute(text("ALTER TABLE attempts RENAME TO attempts_away"))
    assert job is not None
    assert mates.take_along(me, job) == ()
    with stage.database.transaction() as session:
        session.execute(text("ALTER TABLE attempts_away RENAME TO attempts"))
    assert stage.job(ids[1]).state == JobState.QUEUED, "nothing of it was kept"


def test_a_database_that_is_away_as_an_id_is_sent_again_leaves_it_to_upkeep(stage: Stage, me: Child) -> None:
    job = stage.job(submit(stage, PAINT)[0])
    away = Database(stage.database.url.set(database="/nowhere/jobs.db").render_as_string())
    child = Child(me.setup, me.engine, away, me.artifacts)
    ends.send_again(child, job)
    assert stage.messages() == 0
    ends.send_again(me, job)
    assert stage.messages() == 1

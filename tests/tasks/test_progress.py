from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event, text, update

from core import store
from core.clock import now
from core.ids import new_id
from core.tables import Job
from tasks.board import Board
from tasks.progress import Heartbeat, Progress, Stop
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import Stage


@contextmanager
def running(
    stage: Stage, board: Board | None = None, lease_s: float = 3.0, **fields: Any
) -> Iterator[Progress]:
    """A claimed job that is being watched."""
    job_id = stage.submit(send=False, **fields)
    with stage.database.transaction() as session:
        job = store.claim(session, job_id, new_id(), lease_s)
    assert job is not None
    board = board or Board()
    with Progress(job, stage.database, board, lease_s=lease_s, heartbeat_s=0.3, kill_grace_s=5) as progress:
        yield progress


def lease(stage: Stage, progress: Progress) -> Any:
    return stage.job(progress.job.id).lease_until


def test_the_lease_is_extended_though_no_step_ends(stage: Stage) -> None:
    with running(stage) as progress:
        first = lease(stage, progress)
        wait_until(lambda: lease(stage, progress) > first, what="a longer lease")


def test_progress_is_kept_without_making_the_steps_wait(stage: Stage) -> None:
    with running(stage) as progress:
        for step in range(1, 21):
            assert progress.on_step(step, 50)
        wait_until(lambda: stage.job(progress.job.id).progress_step == 20, what="progress")
        assert stage.job(progress.job.id).progress_steps == 50


def test_a_wish_to_cancel_ends_the_job_at_its_next_step(stage: Stage) -> None:
    board = Board()
    with running(stage, board) as progress:
        assert progress.on_step(1, 50)
        stage.cancel(progress.job.id)
        wait_until(lambda: not progress.on_step(2, 50), timeout_s=2, what="the wish")
        assert progress.stop is Stop.CANCELED
        wait_until(lambda: board.cells.kill_at > 0, what="the parent is told")
    assert (board.busy, board.cells.kill_at) == (False, 0)


def test_a_lost_lease_ends_the_job_at_its_next_step(stage: Stage) -> None:
    with running(stage) as progress:
        with stage.database.transaction() as session:
            session.execute(update(Job).where(Job.id == progress.job.id).values(lease_until=now(-60)))
            store.rescue(session)
        wait_until(lambda: not progress.on_step(1, 50), timeout_s=2, what="the loss")
        assert progress.stop is Stop.LOST


def test_a_job_that_runs_too_long_ends_at_its_next_step_or_by_the_parent(stage: Stage) -> None:
    board = Board()
    with running(stage, board, run_timeout_s=1) as progress:
        assert progress.on_step(1, 50)
        wait_until(lambda: board.cells.kill_at > 0, what="the parent is told")
        assert not progress.on_step(2, 50)
        assert progress.stop is Stop.RUN_TIMEOUT


def test_a_short_rest_is_finished_when_the_worker_stops_and_a_long_one_is_not(stage: Stage) -> None:
    board = Board()
    with running(stage, board) as progress:
        assert progress.on_step(1, 50)
        board.drain(60)
        assert progress.on_step(49, 50)
        wait_until(lambda: not progress.on_step(1, 100_000), what="a rest that is too long")
        assert progress.stop is Stop.DRAINING


def test_a_database_that_is_away_for_a_moment_does_not_stop_the_job(stage: Stage) -> None:
    with running(stage) as progress:
        rename(stage, "jobs", "jobs_away")
        assert progress.on_step(1, 50)
        wait_until(lambda: progress.failures > 0, what="a beat that fails")
        assert progress.on_step(2, 50)
        rename(stage, "jobs_away", "jobs")
        wait_until(lambda: stage.job(progress.job.id).progress_step == 2, what="progress again")
        assert progress.on_step(3, 50)


def test_jobs_that_share_a_pass_beat_in_one_transaction(stage: Stage) -> None:
    ids = [stage.submit(send=False) for _ in range(3)]
    with stage.database.transaction() as session:
        jobs = [store.claim(session, job_id, new_id(), 3.0) for job_id in ids]
    timing = {"lease_s": 30.0, "heartbeat_s": 0.0, "kill_grace_s": 5.0}
    shared = [Progress(job, stage.database, Board(), **timing) for job in jobs if job is not None]
    heartbeat = Heartbeat(shared)
    commits: list[object] = []

    def note(connection: object) -> None:
        commits.append(connection)

    event.listen(stage.database.db_engine, "commit", note)
    try:
        for progress in shared:
            progress.on_step(4, 50)
        heartbeat.look()
    finally:
        event.remove(stage.database.db_engine, "commit", note)
    assert len(commits) == 1
    assert [stage.job(job_id).progress_step for job_id in ids] == [4, 4, 4]
    if stage.database.db_engine.dialect.name == "postgresql":  # SQLite has one writer and no locks of rows
        with stage.database.transaction() as session:
            session.execute(update(Job).where(Job.id == ids[0]).values(hand_backs=0))
            shared[1].step = 5
            heartbeat.look()
        assert [stage.job(job_id).progress_step for job_id in ids] == [4, 5, 4]
    with stage.database.transaction() as session:
        session.execute(update(Job).where(Job.id == ids[1]).values(owner=new_id()))
    stage.cancel(ids[2])
    heartbeat.look()
    assert [progress.on_step(5, 50) for progress in shared] == [True, False, False]
    assert [progress.stop for progress in shared] == [None, Stop.LOST, Stop.CANCELED]


def rename(stage: Stage, old: str, new: str) -> None:
    with stage.database.transaction() as session:
        session.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))

"""A worker that lives and takes nothing: what it survives, and how it is found and started again."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cli.supervisor import Program, Signals, Supervisor
from core import workers
from core.hardware import detect
from core.ids import new_id
from policy.resolve import resolve
from tasks.app import make_app, queue_of
from tasks.board import Board
from tasks.child import Setup
from tasks.hearing import RECONNECTING, Hearing
from tests.fixtures.redis import Valkey
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import ROOT, Stage, WorkerProcess, on_quick_stage

ON_SQLITE = on_quick_stage("sqlite")


def do_a_job(stage: Stage) -> None:
    job_id = stage.submit(prompt="paint")
    stage.wait_job(job_id)
    assert stage.outcomes(job_id) == ["completed"]


def count_ready(stage: Stage) -> int:
    within_s = workers.taking_within_s(stage.settings.heartbeat_s)
    with stage.database.reading() as session:
        return workers.count_ready(session, "tiny", within_s=within_s)


DEAF_S = 0.2


@pytest.fixture
def board() -> Iterator[Board]:
    """The board of an idle worker whose event loop has never turned."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as child:
        board = Board()
        board.cells.child_pid = board.cells.warm_pid = child.pid
        yield board
        child.kill()


def hearing_of(stage: Stage, board: Board) -> Hearing:
    spec = stage.catalogue["tiny"]
    policy = resolve(spec, flags={}, env={}, hardware=detect())
    return Hearing(Setup(stage.settings, spec, policy, new_id(), "tiny@test", board, deaf_s=DEAF_S))


def is_deaf(hearing: Hearing) -> bool:
    hearing.look()
    return hearing.deaf


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
class TestHearing:
    def test_it_is_deaf_when_messages_wait_though_its_loop_turns(self, stage: Stage, board: Board) -> None:
        board.cells.turned_at = board.cells.listened_at = time.monotonic() + 3600
        hearing = hearing_of(stage, board)
        hearing.look()
        assert (hearing.trouble, hearing.connected) == ("", True)
        stage.submit()
        wait_until(lambda: is_deaf(hearing), what="deaf")
        assert not hearing.connected
        assert "(1)" in hearing.trouble

    def test_it_has_longer_while_its_loop_stands_as_it_does_to_reconnect(
        self, stage: Stage, board: Board
    ) -> None:
        hearing, begun = hearing_of(stage, board), time.monotonic()
        wait_until(lambda: is_deaf(hearing), what="deaf")
        assert time.monotonic() - begun > DEAF_S * 3
        board.turn()
        assert hearing.deaf

    def test_it_is_not_ready_and_not_to_blame_while_redis_is_away(
        self, stage_of_own_valkey: Stage, board: Board
    ) -> None:
        hearing = hearing_of(stage_of_own_valkey, board)
        hearing.look()
        stage_of_own_valkey.valkey.kill()
        end = time.monotonic() + 1.2 * DEAF_S * RECONNECTING
        wait_until(lambda: is_deaf(hearing) or time.monotonic() > end)
        assert (hearing.deaf, hearing.connected) == (False, False)

    def test_a_message_that_is_taken_in_between_ends_the_doubt(self, stage: Stage, board: Board) -> None:
        board.cells.turned_at = board.cells.listened_at = time.monotonic() + 3600
        hearing = hearing_of(stage, board)
        stage.submit()
        end = time.monotonic() + 3 * DEAF_S

        def take() -> bool:
            board.take()
            board.release()
            return is_deaf(hearing) or time.monotonic() > end

        wait_until(take)
        assert not hearing.deaf

    def test_a_busy_worker_leaves_messages_where_they_are(self, stage: Stage, board: Board) -> None:
        hearing = hearing_of(stage, board)
        stage.submit()
        board.take()
        end = time.monotonic() + 1.2 * DEAF_S * RECONNECTING
        wait_until(lambda: is_deaf(hearing) or time.monotonic() > end)
        assert (hearing.deaf, hearing.connected) == (False, True)


@ON_SQLITE
@pytest.mark.parametrize("command", ["FLUSHALL", "CLIENT KILL TYPE normal", "CLIENT KILL TYPE pubsub"])
def test_a_worker_takes_jobs_after_its_redis_was_reset(
    quick_stage: Stage, worker: WorkerProcess, command: str
) -> None:
    child, name = worker.child_pid(), command.replace(" ", "-")
    queued = quick_stage.submit(prompt=f"wait {name}")
    behind = quick_stage.submit(prompt="paint")
    quick_stage.wait_step(queued)
    with quick_stage.valkey.client() as client:
        client.execute_command(*command.split())
    (quick_stage.folder / name).touch()
    for job_id in (queued, behind):
        quick_stage.wait_job(job_id)
    do_a_job(quick_stage)
    worker.wait_state("ready")
    assert worker.child_pid() == child


@ON_SQLITE
def test_a_worker_is_not_ready_while_redis_is_away_and_takes_jobs_when_it_is_back_with_nothing(
    quick_stage: Stage, worker: WorkerProcess
) -> None:
    child = worker.child_pid()
    quick_stage.valkey.kill()
    worker.wait_state("disconnected", timeout_s=30)
    assert count_ready(quick_stage) == 0
    waiting = quick_stage.submit(prompt="paint", send=False)
    empty(quick_stage.valkey)
    quick_stage.valkey.start()
    worker.wait_state("ready", timeout_s=30)
    quick_stage.wait_job(waiting)
    do_a_job(quick_stage)
    assert worker.child_pid() == child


def empty(valkey: Valkey) -> None:
    """Remove what a stopped server would find again."""
    for kept in valkey.folder.glob("appendonlydir"):
        shutil.rmtree(kept)


@ON_SQLITE
def test_a_stopped_parent_is_not_counted_as_ready_and_comes_back(
    quick_stage: Stage, worker: WorkerProcess
) -> None:
    child = worker.child_pid()
    # A process that is stopped in the middle of a write would keep SQLite from everybody.
    with quick_stage.database.transaction() as session:
        session.execute(text("DELETE FROM workers WHERE id = 'nobody'"))
        worker.signal(signal.SIGSTOP)
    try:
        wait_until(lambda: count_ready(quick_stage) == 0, what="nobody is ready")
        wait_until(lambda: worker.state() == "gone", what="upkeep noticed")
    finally:
        worker.signal(signal.SIGCONT)
    worker.wait_state("ready")
    do_a_job(quick_stage)
    assert worker.child_pid() == child


class Kept:
    """A worker that the product's supervisor keeps, and which is found deaf after two seconds."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.said: list[str] = []
        self.supervisor = Supervisor(lambda _, line: self.said.append(line), lambda *_: None, Signals())
        options = '{"stand_in": true, "deaf_s": 2}'
        command = (sys.executable, "-m", "tests.fixtures.worker_process", "tiny", options)
        environment = {**stage.environment(), "PYTHONPATH": str(ROOT)}
        self.child = self.supervisor.add(
            Program("worker", command, environment, stage.folder / "kept.log", stops=1, grace_s=30)
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tick)
        self._thread.start()

    def _tick(self) -> None:
        while not self._stop.is_set():
            self.supervisor.tick()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self.supervisor.stop()

    def row(self) -> Any:
        """The row of the process that runs now."""
        process = self.child.process
        with self.stage.database.reading() as session:
            rows = workers.list_workers(session)
        return next((row for row in rows if process and row.pid == process.pid), None)

    def wait_ready(self) -> Any:
        wait_until(lambda: (row := self.row()) and row.state == "ready", 60, f"ready; {self.said}")
        return self.row()

    def cancel_consumer(self) -> None:
        """Have the worker forget its queue: all else of it goes on, also its connection."""
        app = make_app(self.stage.settings)
        with app.connection_for_write() as connection:
            replies = app.control.cancel_consumer(
                queue_of("tiny"), connection=connection, reply=True, timeout=5, limit=1
            )
        assert replies


@pytest.fixture(scope="module")
def kept(database_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    del database_kind
    folder = tmp_path_factory.mktemp("kept")
    with tempfile.TemporaryDirectory(prefix="rq-") as place:
        valkey = Valkey(Path(place))
        valkey.start()
        with Stage(folder, valkey, f"sqlite:///{folder}/renderq.db") as stage:
            kept = Kept(stage)
            yield kept
            kept.end()
        valkey.stop()


@ON_SQLITE
def test_a_worker_that_lost_its_queue_is_started_again_though_no_job_waits(kept: Kept) -> None:
    kept.said.clear()
    first = kept.wait_ready()
    kept.cancel_consumer()
    wait_until(lambda: kept.row() is None or kept.row().state == "disconnected", what="it is not ready")
    wait_until(lambda: "ended with exit code 75" in " ".join(kept.said), what=f"its end; {kept.said}")
    assert kept.wait_ready().id != first.id
    do_a_job(kept.stage)


@ON_SQLITE
def test_a_worker_whose_child_stands_still_is_started_again_for_what_waits(kept: Kept) -> None:
    kept.said.clear()
    first = kept.wait_ready()
    os.kill(first.child_pid, signal.SIGSTOP)
    # The first is read from Redis for a child that never looks at it, the second stays there.
    waiting = [kept.stage.submit(prompt="paint") for _ in range(2)]
    for job_id in waiting:
        kept.stage.wait_job(job_id)
        assert kept.stage.outcomes(job_id) == ["completed"]
    assert "ended with exit code 75" in " ".join(kept.said)
    assert kept.row().id != first.id

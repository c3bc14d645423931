import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from core import workers
from core.hardware import detect
from core.ids import new_id
from policy.resolve import resolve
from tasks.board import Board, lives
from tasks.child import Setup
from tasks.watch import Watch, tell
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import Stage


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing and dies by any signal."""
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def board(child: subprocess.Popen[bytes]) -> Board:
    """The board of a warm, idle worker, whose event loop runs for as long as a test may take."""
    board = Board()
    board.cells.turned_at = board.cells.listened_at = time.monotonic() + 3600
    board.cells.child_pid = board.cells.warm_pid = child.pid
    return board


@pytest.fixture
def codes() -> list[int]:
    """Exit codes with which the watch told the worker to end."""
    return []


@pytest.fixture
def setup(stage: Stage, board: Board) -> Setup:
    spec = stage.catalogue["tiny"]
    policy = resolve(spec, flags={}, env={}, hardware=detect())
    return Setup(stage.settings, spec, policy, new_id(), "tiny@test", board)


@pytest.fixture
def worker_id(stage: Stage, setup: Setup, codes: list[int]) -> Iterator[str]:
    """A registered worker whose watch is on."""
    with stage.database.transaction() as session:
        workers.register_worker(
            session,
            worker_id=setup.worker_id,
            name=setup.name,
            host="test",
            pid=os.getpid(),
            model="tiny",
            queue="render.tiny",
            policy={},
            device={},
        )
    watch = Watch(setup, codes.append, failed_code=70)
    watch.start()
    yield setup.worker_id
    watch.finish()


def state(stage: Stage, worker_id: str) -> str:
    with stage.database.reading() as session:
        return workers.get_worker(session, worker_id).state


def died_by(child: subprocess.Popen[bytes], timeout_s: float = 30.0) -> int:
    return -child.wait(timeout_s)


def test_a_process_that_died_does_not_live_though_nobody_reaped_it(child: subprocess.Popen[bytes]) -> None:
    assert lives(child.pid)
    child.kill()
    wait_until(lambda: not lives(child.pid), what="death")
    assert child.returncode is None
    child.wait()
    assert not lives(child.pid)


def test_the_gate_is_closed_once_the_warm_child_is_dead(board: Board, child: subprocess.Popen[bytes]) -> None:
    assert board.open
    child.kill()
    wait_until(lambda: not board.open, what="closed")


def test_a_warm_worker_is_ready_and_says_so_again_and_again(stage: Stage, worker_id: str) -> None:
    wait_until(lambda: state(stage, worker_id) == "ready", what="ready")

    def beat() -> object:
        with stage.database.reading() as session:
            return workers.get_worker(session, worker_id).heartbeat_at

    first = beat()
    wait_until(lambda: beat() != first, what="another beat")


def test_a_worker_wrongly_counted_as_gone_comes_back(stage: Stage, worker_id: str) -> None:
    wait_until(lambda: state(stage, worker_id) == "ready", what="ready")
    with stage.database.transaction() as session:
        workers.mark_gone(session, older_than_s=-60)
    assert state(stage, worker_id) == "gone"
    wait_until(lambda: state(stage, worker_id) == "ready", what="ready again")


def test_a_dead_child_turns_the_row_cold(
    stage: Stage, worker_id: str, child: subprocess.Popen[bytes]
) -> None:
    wait_until(lambda: state(stage, worker_id) == "ready", what="ready")
    child.kill()
    wait_until(lambda: state(stage, worker_id) == "loading", what="loading")


def test_a_failed_preparation_ends_the_worker_with_its_code(
    board: Board, worker_id: str, codes: list[int]
) -> None:
    board.cells.failed = 1
    wait_until(lambda: codes, what="the end")
    assert set(codes) == {70}


def test_a_look_that_fails_does_not_end_the_watch(setup: Setup, board: Board, codes: list[int]) -> None:
    def stop(code: int) -> None:
        codes.append(code)
        if len(codes) == 1:
            raise OSError("this look fails")

    watch = Watch(setup, stop, failed_code=70)
    watch.start()
    board.cells.failed = 1
    wait_until(lambda: len(codes) > 1, what="another look")
    watch.finish()


def test_a_signal_to_a_child_that_is_gone_is_no_error(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    tell(child.pid, signal.SIGQUIT)


def test_an_idle_worker_ends_at_once_when_told_to_stop(
    stage: Stage, board: Board, worker_id: str, codes: list[int], child: subprocess.Popen[bytes]
) -> None:
    board.drain(60)
    assert not board.open
    wait_until(lambda: codes, what="the end")
    wait_until(lambda: state(stage, worker_id) == "draining", what="draining")
    assert lives(child.pid)


def test_a_loading_child_is_killed_when_the_worker_stops(
    board: Board, worker_id: str, codes: list[int], child: subprocess.Popen[bytes]
) -> None:
    board.cells.warm_pid = 0
    board.drain(60)
    wait_until(lambda: codes, what="the end")
    assert died_by(child) == signal.SIGKILL


def test_a_busy_child_is_waited_for_and_interrupted_when_the_time_is_over(
    board: Board, worker_id: str, codes: list[int], child: subprocess.Popen[bytes]
) -> None:
    board.begin_job()
    board.drain(60)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(1)
    assert codes == []
    board.drain(60)  # the second signal
    assert died_by(child) == signal.SIGQUIT


def test_a_job_that_does_not_stop_when_it_has_to_costs_its_child(
    board: Board, worker_id: str, child: subprocess.Popen[bytes]
) -> None:
    board.begin_job()
    board.kill_after(0.1)
    assert died_by(child) == signal.SIGKILL


def test_a_child_whose_heartbeat_stands_still_is_killed(
    stage: Stage, board: Board, worker_id: str, child: subprocess.Popen[bytes]
) -> None:
    board.begin_job()
    board.cells.beat_at -= stage.settings.lease_s * 2
    assert died_by(child) == signal.SIGKILL


def test_a_job_over_its_time_whose_heartbeat_stands_still_ends_before_its_lease(
    stage: Stage, board: Board, worker_id: str, child: subprocess.Popen[bytes]
) -> None:
    board.begin_job(limit_s=0.1)
    board.cells.beat_at -= stage.settings.lease_s / 2
    assert died_by(child, stage.settings.lease_s) == signal.SIGKILL


@pytest.mark.parametrize(("limit_s", "asks"), [(3600, False), (0.1, True)])
def test_a_short_silence_is_no_reason_to_kill_a_job_that_has_time_or_waits_for_the_database(
    stage: Stage, board: Board, worker_id: str, child: subprocess.Popen[bytes], limit_s: float, asks: bool
) -> None:
    board.begin_job(limit_s)
    board.cells.asking = asks
    board.cells.beat_at -= stage.settings.lease_s / 2
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(1)


def test_an_idle_child_needs_no_heartbeat(
    stage: Stage, board: Board, worker_id: str, child: subprocess.Popen[bytes]
) -> None:
    board.begin_job()
    board.end_job()
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(1)

"""A child that can render no more says why to the next one, and ends no job that it can finish."""

import os

import pytest

from pipeline.errors import FollowerLost, LoadFailed, OutOfMemory, PipelineError
from tasks.board import Board
from tasks.child import COLD_DEATHS, _check_starts
from tasks.engine import DEVICE_LOST_EXIT, end_child

GONE = FollowerLost("rank 1 of the worker, process 7, ended")


def end(board: Board, lost: PipelineError, *, stuck: bool) -> int:
    """The exit code of a child that was told to give up; 0: it goes on."""
    pid = os.fork()
    if not pid:
        end_child(board, lost, stuck=stuck)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_job_whose_files_are_being_stored_is_not_cut_off() -> None:
    board = Board()
    board.begin_job()
    assert end(board, GONE, stuck=False) == 0
    assert board.take_words() is None


@pytest.mark.parametrize("stuck", [True, False])
def test_a_child_that_is_stuck_or_idle_ends_and_leaves_its_words_once(*, stuck: bool) -> None:
    board = Board()
    if stuck:
        board.begin_job()
    assert end(board, OutOfMemory("on rank 1: " + "ä" * 1000), stuck=stuck) == DEVICE_LOST_EXIT
    code, words = board.take_words() or ("", "")
    assert code == "out_of_memory"
    assert words.startswith("on rank 1: ää")
    assert board.take_words() is None


def test_a_worker_whose_children_end_while_they_load_says_why() -> None:
    board = Board()
    board.cells.cold_starts = COLD_DEATHS + 1
    with pytest.raises(LoadFailed, match="3 times before it was ready, at last because rank 1 of the worker"):
        _check_starts(board, (GONE.code, GONE.message))

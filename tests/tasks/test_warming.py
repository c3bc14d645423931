"""What may go wrong in a child that warms a shape: its device is lost, or the process is killed."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from core import workers
from core.hardware import detect
from core.ids import new_id
from pipeline.engine import Engine
from pipeline.rendering import ShapeReport
from policy.resolve import resolve
from tasks import child, idle
from tasks.app import queue_of
from tasks.attempt import DEVICE_LOST_EXIT
from tasks.board import Board
from tasks.child import Child, Setup
from tasks.shapes import tell_shapes
from tests.fixtures.workers import Stage

pytestmark = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)


class Wanting(Engine):
    """An engine that wants a shape warmed, and gives it up."""

    shapes = ShapeReport(warm=(), cold={"96x64": 1}, note="64x96: no such kernel")
    wants_warm_up = True

    def warm_next(self, _: Any) -> str | None:
        return "96x64"


@pytest.fixture
def living() -> Iterator[int]:
    """The pid of a child of this process."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def me(stage: Stage, monkeypatch: pytest.MonkeyPatch, living: int) -> Child:
    spec = stage.catalogue["tiny"]
    policy = resolve(spec, flags={}, env={}, hardware=detect())
    setup = Setup(stage.settings, spec, policy, new_id(), "tiny@test", Board())
    me = Child(setup, Wanting(spec, policy), stage.database, stage.artifacts)
    with stage.database.transaction() as session:
        workers.register_worker(
            session,
            worker_id=setup.worker_id,
            name=setup.name,
            host="test",
            pid=1,
            model="tiny",
            queue=queue_of("tiny"),
            policy={},
            device={},
        )
    monkeypatch.setattr(child, "_child", me)
    warm(setup.board, living)
    return me


def warm(board: Board, pid: int) -> None:
    """A child is there, and wants to warm a shape."""
    board.begin_child()
    board.say_warm()
    board.cells.warm_pid = pid
    board.cells.wanted = 1


def test_a_device_that_is_lost_while_a_shape_is_warmed_closes_the_gate_and_ends_the_child(
    me: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    board = me.setup.board
    board.offer()
    with pytest.raises(SystemExit) as stop:
        idle.warm()
    assert stop.value.code == DEVICE_LOST_EXIT
    assert (board.open, board.offered, board.cells.warming) == (False, False, 0)


def test_a_worker_whose_children_are_killed_while_they_warm_a_shape_leaves_it_and_says_so(
    stage: Stage, me: Child, living: int
) -> None:
    board = me.setup.board
    board.offer()
    assert idle.warm() == "warmed"
    warm(board, living)  # a child that ends in another way does not count
    for _ in range(2):
        assert board.may_warm(idle_s=-1)
        board.cells.warming = 1
        warm(board, living)
    assert not board.may_warm(idle_s=-1)
    tell_shapes(me)
    with stage.database.reading() as session:
        note = workers.get_worker(session, me.setup.worker_id).shapes_note or ""
    assert "killed 2 times" in note
    assert "64x96: no such kernel" in note

"""What a warm worker does while no job is there: it warms shapes that requests had and that ran uncompiled.

The parent knows that nothing waits, the child has the model. So the parent gives the child a call of its own
through Celery's pool, in the place of a task: no message, nothing that Flower shows, and a job that comes
meanwhile is kept until the child is free. That is within a moment: the parent calls the child back with a
signal, whose handler raises an exception in the middle of the compiler. The worker is ``ready`` all the time.
A worker whose children die of it stops doing so.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

from core.log import get_logger
from pipeline.errors import CompilerUnsound
from pipeline.interruption import Interrupted, Interruption
from tasks import child
from tasks.board import tell
from tasks.engine import DEVICE_LOST_EXIT, LearnsShapes
from tasks.shapes import tell_shapes

if TYPE_CHECKING:
    from tasks.board import Board

#: A worker that had nothing to do for so long may have nothing to do for a while.
IDLE_S = 1.0
#: Exit code of a child whose compiler did not come to rest; its parent forks another.
UNSOUND_EXIT = 73
CALL_BACK = signal.SIGUSR2

_log = get_logger()


class Offers:
    """The parent's part; all of it runs in the event loop of the parent."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._given: Any = None

    def offer(self, consumer: Any) -> None:  # noqa: ANN401 - Celery publishes no types
        """Have the child warm a shape, if it wants to and has nothing to do."""
        controller = consumer.controller
        if self._board.may_warm(IDLE_S) and controller.semaphore.value > 0:
            self._board.offer()
            _log.debug("shape.offered")
            # The pool frees this place at the end of every call, so it is to be taken before.
            controller.semaphore.acquire(self._apply, consumer.pool)

    def _apply(self, pool: Any) -> None:  # noqa: ANN401
        self._given = pool.apply_async(warm, callback=self._over, error_callback=self._over)

    def _over(self, *_: object, **__: object) -> None:
        self._board.withdraw()

    def reconnected(self) -> None:
        """Take back what was lost with the connection: Celery's pool forgets a call that was not begun."""
        given = self._given
        if self._board.offered and not (given and given._job in given._cache):  # noqa: SLF001 - no other way
            self._board.withdraw()

    def call_back(self, **_: object) -> None:
        """A message has come: have the child leave what it warms."""
        if self._board.offered or self._board.cells.warming:
            self._board.call_back()
            if self._board.cells.warming:
                tell(self._board.cells.child_pid, CALL_BACK)


def warm() -> str:
    """The child's part: warm the shape that is most wanted, until it is warm or the parent calls back."""
    me = child.current()
    engine, board = me.engine, me.setup.board
    if not isinstance(engine, LearnsShapes) or not board.offered:
        return "nothing to warm"  # or what was taken back comes late
    interruption = Interruption(at_once=lambda: board.called_back or board.ends)
    # Set at each call: billiard sets its own handlers after the child's preparation.
    signal.signal(CALL_BACK, lambda _, frame: interruption.strike(frame))
    board.cells.warming = 1  # from here on the parent sends the signal
    started = time.monotonic()
    try:
        shape = engine.warm_next(interruption)
    except Interrupted:
        _log.info("shape.warming_interrupted", seconds=round(time.monotonic() - started, 3))
        return "interrupted"
    except CompilerUnsound as error:
        board.close()
        _log.exception("worker.compiler_unsound", error=error.message)
        raise SystemExit(UNSOUND_EXIT) from None
    finally:
        board.cells.warming = 0
        _check_device(board)
        board.withdraw()  # the parent does not hear of the end when the connection was lost meanwhile
        tell_shapes(me)
    _log.info("shape.warmed", shape=shape, seconds=round(time.monotonic() - started, 3))
    return "warmed"


def _check_device(board: Board) -> None:
    """End this child, as after a job, when its device does not work any more: whatever it took would fail."""
    from pipeline.memory import device_is_sound

    if not device_is_sound():
        board.close()
        board.withdraw()
        _log.error("worker.device_lost")
        raise SystemExit(DEVICE_LOST_EXIT)

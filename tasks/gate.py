"""The gate: no message is read from Redis unless the living child is warm and the worker is not draining.

It also tells the board that the event loop turns and that Redis is asked, which is how the watch knows of a
consumer that is stuck.

A closed gate leaves messages in Redis, where a warm worker of the same model takes them. Celery builds a new
consumer after each reconnect and runs ``start`` again, so the gate holds then too.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.signals import task_received

from tasks.app import eviction_policy, tell_eviction
from tasks.board import lives
from tasks.idle import Offers

if TYPE_CHECKING:
    from tasks.board import Board

#: Seconds between two looks of the event loop, so that an opened gate is noticed while nothing else happens.
LOOK_S = 0.25


def make_gate(board: Board) -> type[bootsteps.StartStopStep]:
    """Build the consumer step that asks ``board`` before each read, and looks after its child."""
    offers = Offers(board)
    # Sent for each message before the pool is asked for a place for it.
    task_received.connect(offers.call_back, weak=False)

    class Gate(bootsteps.StartStopStep):
        requires = ("celery.worker.consumer.tasks:Tasks",)
        timer: Any = None

        def start(self, c: Any) -> None:  # noqa: ANN401
            channel = c.task_consumer.channel
            with channel.conn_or_acquire() as client:
                tell_eviction(eviction_policy(client))
            qos = channel.qos
            may_consume = qos.can_consume

            def can_consume(_: object) -> bool:
                may = board.open and may_consume()
                if may:
                    board.listen()
                return may

            qos.can_consume = MethodType(can_consume, qos)
            offers.reconnected()
            self.timer = c.hub.call_repeatedly(LOOK_S, self.look, c)

        def look(self, c: Any) -> None:  # noqa: ANN401
            """Replace a dead child now, or give an idle one work; the turn that this takes asks the gate."""
            board.turn()
            pid = board.cells.child_pid
            if pid and not lives(pid):
                # Celery hears of the death a moment before the process can be reaped, and then not for 5 s.
                c.pool.maintain_pool()
            offers.offer(c)

        def stop(self, c: Any) -> None:  # noqa: ANN401, ARG002
            if self.timer is not None:  # a connection may be lost before this step has started
                self.timer.cancel()

    return Gate

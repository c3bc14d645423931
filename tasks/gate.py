"""The gate: no message is read from Redis unless the living child is warm and the worker is not draining.

A closed gate leaves messages in Redis, where a warm worker of the same model takes them. Celery builds a new
consumer after each reconnect and runs ``start`` again, so the gate holds then too.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from celery import bootsteps

if TYPE_CHECKING:
    from tasks.board import Board

#: Seconds between two looks of the event loop, so that an opened gate is noticed while nothing else happens.
LOOK_S = 0.25


def make_gate(board: Board) -> type[bootsteps.StartStopStep]:
    """Build the consumer step that asks ``board`` before each read."""

    class Gate(bootsteps.StartStopStep):
        requires = ("celery.worker.consumer.tasks:Tasks",)

        def start(self, c: Any) -> None:  # noqa: ANN401
            qos = c.task_consumer.channel.qos
            may_consume = qos.can_consume
            qos.can_consume = MethodType(lambda _: board.open and may_consume(), qos)
            self._timer = c.hub.call_repeatedly(LOOK_S, _wake)

        def stop(self, c: Any) -> None:  # noqa: ANN401, ARG002
            self._timer.cancel()

    return Gate


def _wake() -> None:
    """Do nothing: the turn of the event loop that this causes asks the gate."""

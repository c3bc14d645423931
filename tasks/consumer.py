"""Celery's consumer and pool, made to outlive what Redis does and what is no message of ours.

Out of the box these end the whole worker, and with it the model that its child has loaded: a server whose
memory or disk is full, or that has become a replica, refuses the writes that come with reading a message; a
text that somebody else has put into a queue cannot be read as one; a message is acknowledged after its
connection was lost; the first child was killed before Redis was reached. The first two cost a new connection
here, the others nothing. The text is gone then, as Redis has handed it out.

Out of the box a try to reach Redis also comes later with each that failed, up to 30 s. To be imported late:
billiard reads ``REMAP_SIGTERM`` when Celery's worker is imported.
"""

from __future__ import annotations

import heapq
import time
from typing import TYPE_CHECKING, Any

from celery.concurrency.prefork import TaskPool
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown
from redis.exceptions import ResponseError

from core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What kombu meets while it takes a message apart that is none; ``KeyError`` counts as a lost connection.
UNREADABLE = (ValueError, TypeError)
#: Between two tries to connect to a server that answers and refuses.
REFUSED_PAUSE_S = 1.0
#: Between two tries to reach a server that does not answer: the first pause, by which each is longer, ...
FIRST_PAUSE_S = 0.2
#: ... and the longest.
LAST_PAUSE_S = 1.0
#: Between two looks for what a timer keeps in vain.
FORGET_S = 10.0

_log = get_logger()


class SteadyPool(TaskPool):
    """Leaves a child that was killed early to the gate, which replaces it up to the limit of cold starts."""

    _pool: Any

    def did_start_ok(self) -> bool:
        return True

    def register_with_event_loop(self, loop: Any) -> None:  # noqa: ANN401 - Celery's
        """Called once per connection, with which Celery ends what is registered here."""
        super().register_with_event_loop(loop)
        forget_lost(self._pool._cache)  # noqa: SLF001 - there is no other way to it
        loop.call_repeatedly(FORGET_S, forget_cancelled, loop.timer)


class SteadyConsumer(Consumer):
    """Connects again instead of ending the worker, and a second after Redis is there."""

    hub: Any
    task_consumer: Any
    _ticks: frozenset[Any] = frozenset()
    _away = False

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - Celery's
        super().__init__(*args, **options)
        me: Any = self  # the attribute has no type
        me.channel_errors = (*me.channel_errors, *UNREADABLE)

    def connect(self) -> Any:  # noqa: ANN401
        """Connect, and let go of what the event loop was to do for the connection before."""
        before = frozenset(self.hub.on_tick)
        self.hub.on_tick -= self._ticks
        connection = super().connect()
        self._ticks = frozenset(self.hub.on_tick) - before
        return connection

    def ensure_connected(self, conn: Any) -> Any:  # noqa: ANN401
        """Try until Redis answers, or a stop is asked for."""
        conn.ensure_connection(
            self._tell_away,
            interval_start=FIRST_PAUSE_S,
            interval_step=FIRST_PAUSE_S,
            interval_max=LAST_PAUSE_S,
            callback=maybe_shutdown,
        )
        if self._away:
            _log.info("redis.found_again")
        self._away = self.first_connection_attempt = False
        return conn

    def create_task_handler(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """Called once per connection, before the first message is read from it."""
        forgive_late_ack(self.task_consumer.channel)
        return super().create_task_handler(*args, **options)

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """Celery pauses between tries to reach a server, but not for one that answers with a refusal."""
        super().on_connection_error_before_connected(exc)
        _rest_if_refused(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Say what has come, and leave a server that refuses alone for a moment."""
        if isinstance(exc, UNREADABLE):
            _log.warning("redis.message_unreadable", error=f"{type(exc).__name__}: {exc}")
        super().on_connection_error_after_connected(exc)
        _rest_if_refused(exc)

    def _tell_away(self, error: Exception, pause_s: float) -> None:
        tell = _log.debug if self._away else _log.warning
        tell("redis.away", error=str(error), pause_s=pause_s)
        self._away = True


def forget_cancelled(timer: Any) -> None:  # noqa: ANN401
    """Take out of a timer what was cancelled.

    It would be kept until its time has come, and Celery's limit of each job that has ended is hours away.
    """
    queue = timer._queue  # noqa: SLF001 - there is no other way to it
    queue[:] = [entry for entry in queue if not entry.entry.canceled]
    heapq.heapify(queue)


def forget_lost(calls: Mapping[int, Any]) -> None:
    """Take out of Celery's account the requests that its pool no longer works on.

    A child that was killed as it took a request may be heard to have taken it after it was heard to be dead.
    The request then counts as running for ever, and after the next connection nothing else would be taken.

    Args:
        calls: What the pool works on.
    """
    running = {call.correlation_id for call in calls.values() if not call.ready()}
    for request in tuple(state.active_requests):
        if request.id not in running:
            _log.warning("worker.request_forgotten", job_id=request.id)
            state.task_ready(request)


def forgive_late_ack(channel: Any) -> None:  # noqa: ANN401
    """Have a channel take an acknowledgement after it was closed as one that came too late.

    The message then comes again, if it was kept at all, and its job's row says that it was taken.

    kombu notes each acknowledged message until the next one is kept, and of a queue without acknowledgements
    none is kept: it would note them for ever.
    """
    qos = channel.qos
    acknowledge = qos.ack

    def ack(delivery_tag: str) -> None:
        if channel.connection is not None:
            acknowledge(delivery_tag)
            qos._flush()  # noqa: SLF001 - there is no other way to it

    qos.ack = ack


def _rest_if_refused(error: Exception) -> None:
    if isinstance(error, ResponseError):
        time.sleep(REFUSED_PAUSE_S)

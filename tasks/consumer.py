"""Celery's consumer, made to outlive what Redis says no to and what is no message of ours.

Out of the box both end the whole worker, and with it the model that its child has loaded: a server whose
memory or disk is full, or that has become a replica, refuses the writes that come with reading a message; a
text that somebody else has put into a queue cannot be read as one. Here both cost a new connection. The text
is gone then, as Redis has handed it out.
"""

from __future__ import annotations

import time
from typing import Any

from celery.worker.consumer import Consumer
from redis.exceptions import ResponseError

from core.log import get_logger

#: What kombu meets while it takes a message apart that is none; ``KeyError`` counts as a lost connection.
UNREADABLE = (ValueError, TypeError)
#: Between two tries to connect to a server that answers and refuses.
REFUSED_PAUSE_S = 1.0

_log = get_logger()


class SteadyConsumer(Consumer):
    """Connects again instead of ending the worker."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - Celery's
        super().__init__(*args, **options)
        me: Any = self  # the attribute has no type
        me.channel_errors = (*me.channel_errors, *UNREADABLE)

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


def _rest_if_refused(error: Exception) -> None:
    if isinstance(error, ResponseError):
        time.sleep(REFUSED_PAUSE_S)

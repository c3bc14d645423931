"""Celery Beat for upkeep's duties: a static schedule, kept in memory, that does not pile up messages.

A message of a duty expires before the next one is due, but in Redis a message is only dropped by a worker
that reads it. So nothing is added to a queue that nobody reads. Several Beats do no harm: the duty is done
once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.beat import EmbeddedService, ScheduleEntry, Scheduler, SchedulingError
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from core.log import get_logger
from tasks.app import CONTROL, PUBLISH_ACQUIRE_S, make_app
from tasks.upkeep import DUTIES

if TYPE_CHECKING:
    from core.settings import Settings
    from tasks.upkeep import Duty

#: A message is dropped unread after this part of the time to the next one.
FRESH = 0.9
#: So many messages in the queue mean that no worker reads it.
MOST_WAITING = 50

_log = get_logger()


class ControlScheduler(Scheduler):
    """Sends what is due; what cannot be sent is dropped, since the next turn is never far."""

    #: Each entry takes one from the pool, so that a lost connection costs one entry.
    producer = None  # type: ignore[assignment]
    refused = False

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:  # noqa: ANN401 - kombu's
        """Send one duty's message if there is room for it, and tell when sending begins or ceases to fail."""
        del producer
        try:
            with self.app.producer_pool.acquire(block=True, timeout=PUBLISH_ACQUIRE_S) as pooled:
                channel: Any = pooled.channel
                if channel.client.llen(CONTROL) < MOST_WAITING:
                    self.apply_async(entry, producer=pooled, advance=False)
        except (SchedulingError, KombuError, RedisError, OSError) as error:
            if not self.refused:
                _log.warning("beat.not_sent", duty=entry.name, error=str(error))
            self.refused = True
        else:
            if self.refused:
                _log.info("beat.sends_again")
            self.refused = False


def task_of(duty: Duty) -> str:
    """Name the task of a duty."""
    return f"tasks.control.{duty.name}"


def make_beat(settings: Settings) -> Any:  # noqa: ANN401 - celery hides the type of its thread
    """A thread, not yet started, that sends the duties' messages; it keeps nothing on disk."""
    app = make_app(settings)
    app.conf.update(
        beat_schedule={duty.name: _entry(duty, settings) for duty in DUTIES},
        task_send_sent_event=False,  # Flower shows renders, not housekeeping
    )
    return EmbeddedService(app, thread=True, scheduler_cls=ControlScheduler)


def _entry(duty: Duty, settings: Settings) -> dict[str, object]:
    every_s = duty.every_s or settings.upkeep_interval_s
    options = {"queue": CONTROL, "expires": FRESH * every_s, "retry": False, "ignore_result": True}
    return {"task": task_of(duty), "schedule": every_s, "options": options}

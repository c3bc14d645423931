"""Feeds the queue from the batches: a few jobs of each at a time, the next ones as they end.

So a batch of thousands stands in SQL, where pause, resume and cancel are one statement, and a single job
never waits behind more of it than is under way. Upkeep feeds all batches; a worker that has ended a job of a
batch feeds that one at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from core import batches, workers
from core.clock import now
from core.errors import DatabaseUnavailable
from core.lifecycle import BatchState
from core.log import get_logger
from policy.windows import Window
from tasks.outbox import send

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy.orm import Session

    from core.db import Database
    from core.settings import Settings
    from core.tables import Batch
    from tasks.upkeep import Upkeep

#: Jobs of a batch under way for each place of a ready worker: what it has in hand, and the next.
AHEAD = 2

_log = get_logger()


def feed(upkeep: Upkeep) -> int:
    """Release and send what is due of each batch, end those that are through; returns how many were sent."""
    with upkeep.database.reading() as session:
        live = batches.live_batches(session)
    return _feed(upkeep.database, upkeep.settings, live)


def feed_batch(database: Database, settings: Settings, batch_id: str) -> int:
    """The same for one batch, by a worker that has just ended one of its jobs."""
    with database.reading() as session:
        live = batches.live_batches(session, batch_id)
    return _feed(database, settings, live)


def _feed(database: Database, settings: Settings, live: Sequence[Batch]) -> int:
    sent = sum(_feed_alone(database, settings, batch) for batch in live)
    _close(database, [batch.id for batch in live])
    return sent


def _feed_alone(database: Database, settings: Settings, batch: Batch) -> int:
    """Feed one batch; what is wrong with it is told and does not keep the others waiting."""
    try:
        return _feed_one(database, settings, batch)
    except DatabaseUnavailable:
        raise
    except Exception:  # noqa: BLE001 - one batch must not keep the others waiting
        # Such as a window in a zone that the installed time zone database no longer has.
        _log.exception("batch.not_fed", batch=batch.id)
        return 0


def _feed_one(database: Database, settings: Settings, batch: Batch) -> int:
    with database.transaction() as session:
        if not _may_start(session, batch):
            if batches.hold(session, batch.id):
                _log.info("batch.held", batch=batch.id, state=batch.state)
            return 0
        room = {model: _room(session, settings, model) for model in batches.waiting_models(session, batch.id)}
        jobs = batches.release(session, batch.id, room) if room else ()
    sent = 0
    for job in jobs:
        if not send(database, settings, job):
            break  # Redis is away: upkeep sends the rest when it is back
        sent += 1
    return sent


def _may_start(session: Session, batch: Batch) -> bool:
    """Whether jobs of the batch may start now: it is not paused, and its window is open."""
    if batch.state != BatchState.RUNNING:
        return False
    at: datetime = session.scalars(select(now())).one()
    return batch.window is None or Window.model_validate(batch.window).is_open(at)


def _room(session: Session, settings: Settings, model: str) -> int:
    places = workers.count_places(session, model, within_s=workers.heard_within_s(settings.heartbeat_s))
    return AHEAD * max(1, places)  # without a worker, what the first one will find


def _close(database: Database, batch_ids: list[str]) -> None:
    if not batch_ids:
        return
    with database.transaction() as session:
        ended = batches.close_finished(session, batch_ids)
    for batch in ended:
        _log.info("batch.ended", batch=batch.id, state=batch.state)

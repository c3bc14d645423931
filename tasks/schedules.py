"""The tick: fires every schedule whose slot has come.

Any number of tickers may run: the guarded UPDATE in ``core.firing`` lets one of them fire each slot.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from core.errors import DatabaseUnavailable, NotFound
from core.firing import fire_due
from core.log import get_logger
from core.schedules import due_schedules
from policy.catalogue import Catalogue

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from core.db import Database
    from core.tables import Firing
    from tasks.upkeep import Upkeep

_log = get_logger()


def tick(upkeep: Upkeep) -> int:
    """Fire what has come due; returns how many schedules did."""
    settings = upkeep.settings
    catalogue = _catalogue(settings.catalogue_dir)
    return len(fire_all(upkeep.database, catalogue, settings.max_attempts))


def fire_all(
    database: Database, catalogue: Catalogue, max_attempts: int, at: datetime | None = None
) -> list[Firing]:
    """Fire what has come due by ``at`` (default: the database's now); returns what came of it.

    One schedule that cannot be fired does not keep the others from their turn.
    """
    with database.reading() as session:
        due = due_schedules(session, at)
    fired = [_fire(database, catalogue, schedule_id, max_attempts, at) for schedule_id in due]
    for firing in filter(None, fired):
        _log.info(
            "schedule.fired",
            schedule=firing.schedule_id,
            outcome=firing.outcome,
            due_at=firing.due_at.isoformat(),
            missed=firing.missed,
            batch=firing.batch_id,
            error=firing.error,
        )
    return [firing for firing in fired if firing is not None]


def _fire(
    database: Database, catalogue: Catalogue, schedule_id: str, max_attempts: int, at: datetime | None
) -> Firing | None:
    try:
        return fire_due(database, catalogue, schedule_id, max_attempts, at)
    except NotFound:  # removed just now
        return None
    except DatabaseUnavailable:
        raise
    except Exception:  # noqa: BLE001 - one schedule must not keep the others from their turn
        # Such as a zone that the installed time zone database no longer has. The slot stays due.
        _log.exception("schedule.not_fired", schedule=schedule_id)
        return None


@cache
def _catalogue(folder: Path | None) -> Catalogue:
    """As in the API, a changed catalogue is read by the next start of the process."""
    return Catalogue.load(*([folder] if folder else []))

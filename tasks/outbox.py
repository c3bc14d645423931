"""Sends a queued job's id and notes on its row that it went out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import store
from core.queries import NEXT
from tasks.app import publish

if TYPE_CHECKING:
    from core.db import Database
    from core.settings import Settings
    from core.tables import Job


def send(database: Database, settings: Settings, job: Job) -> bool:
    """Publish the job as it was read; False when Redis did not take it, and upkeep will.

    A job that was claimed and queued again since then stays marked as not sent.
    """
    # A job that lost its worker has waited once: it goes next, not behind all that came meanwhile.
    priority = NEXT if job.attempt else job.priority
    if not publish(job.id, job.model, priority, settings=settings):
        return False
    with database.transaction() as session:
        store.mark_published(session, job.id, job.attempt)
    return True

"""The event rows: one with each change of a job, in the same transaction as the change."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from core.tables import Event


def append(session: Session, job_id: str, type_: str, payload: Mapping[str, Any]) -> Event:
    """Add one event; it leaves with the transaction that caused it."""
    event = Event(job_id=job_id, type=type_, payload=dict(payload))
    session.add(event)
    session.flush()
    return event

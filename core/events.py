"""The event rows: one with each change of a job, in the same transaction as the change."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.tables import Event


def append(session: Session, job_id: str, type_: str, payload: Mapping[str, Any]) -> Event:
    """Add one event; it leaves with the transaction that caused it."""
    event = Event(job_id=job_id, type=type_, payload=dict(payload))
    session.add(event)
    session.flush()
    return event


def events_after(session: Session, job_id: str, after: int = 0, limit: int = 100) -> Sequence[Event]:
    """Return the job's events whose id is greater than ``after``, oldest first."""
    statement = select(Event).where(Event.job_id == job_id, Event.id > after).order_by(Event.id).limit(limit)
    return session.scalars(statement).all()

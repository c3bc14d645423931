"""Fires schedules: each slot once, however many tickers look at the same time.

A firing is one guarded UPDATE that moves ``next_at`` on, in the transaction that creates the batch and writes
the firing. Two tickers, or a restart in between, find the slot taken or not taken, never half of it. The
orders are made before, outside of the transaction, and used only if the schedule is still the same.

Missed slots: what was not fired within ``misfire_grace_s`` is missed. ``once`` fires the latest missed slot,
for all of them; ``skip`` passes over all of them. Either way the slots to come are not touched.
"""

import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.batches import create_batch
from core.clock import now
from core.db import Database
from core.files import find_pictures
from core.ids import new_id
from core.lifecycle import FiringKind, FiringOutcome, Misfire
from core.recurrence import Recurrence
from core.schedules import get_schedule, recurrence_of
from core.tables import Firing, Schedule
from policy.bulk import Order, make_orders
from policy.catalogue import Catalogue
from policy.errors import InvalidRequest
from policy.references import references_in
from policy.request import DRAWN_SEED_LIMIT

MOST_COUNTED = 50_000
RECENT = timedelta(days=7)
"""After an outage of that many slots of a cron only the last days are looked at: each takes some 10 us."""
SHOWN_ERRORS = 10
"""Problems of an order that a firing tells; they are those of one template, so the rest is alike."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What a ticker found due.

    Attributes:
        due_at: The slot that the firing stands for.
        found_at: The ``next_at`` that was read; the firing happens only if it is still this one.
        next_at: The slot to come, None when there is none.
        missed: Earlier slots that this firing stands for, or that are passed over with it.
        skipped: Whether the slot itself is passed over, too.
    """

    due_at: datetime
    found_at: datetime
    next_at: datetime | None
    missed: int
    skipped: bool


@dataclass(frozen=True, slots=True)
class _Outcome:
    kind: FiringKind
    outcome: FiringOutcome
    due_at: datetime
    missed: int = 0
    batch_id: str | None = None
    error: str | None = None


def find_slot(schedule: Schedule, at: datetime) -> Slot | None:
    """Return the slot of ``schedule`` to fire at the time ``at``; None when none has come."""
    if not schedule.enabled or schedule.next_at is None or schedule.next_at > at:
        return None
    rule = recurrence_of(schedule)
    found_at = schedule.next_at
    missed, latest = _walk(rule, found_at, at)
    late_s = (at - latest).total_seconds()
    skipped = schedule.misfire == Misfire.SKIP and late_s > schedule.misfire_grace_s
    return Slot(latest, found_at, rule.next_after(max(at, latest)), missed, skipped)


def _walk(rule: Recurrence, first: datetime, at: datetime) -> tuple[int, datetime]:
    """Return how many slots lie from ``first`` to before the latest one by ``at``, and that one."""
    if rule.every_s is not None:
        missed = rule.count_between(first, at)
        return missed, first + timedelta(seconds=missed * rule.every_s)
    missed, latest = _last_of(rule, first, at)
    if missed == MOST_COUNTED:
        latest = _last_of(rule, max(latest, at - RECENT), at)[1]
    return missed, latest


def _last_of(rule: Recurrence, after: datetime, until: datetime) -> tuple[int, datetime]:
    """Return how many slots follow ``after``, and the last of them; no more are counted than is quick."""
    number, latest = 0, after
    for latest in islice(rule.slots(after, until), MOST_COUNTED):  # noqa: B007 - wanted after the loop
        number += 1
    return number, latest


def fire_due(
    database: Database,
    catalogue: Catalogue,
    schedule_id: str,
    max_attempts: int,
    at: datetime | None = None,
) -> Firing | None:
    """Fire the slot of the schedule that has come by ``at`` (default: the database's now).

    Returns:
        What came of it; None when there was nothing to fire, or another ticker fired it.
    """
    with database.reading() as session:
        schedule = get_schedule(session, schedule_id, with_order=True)
        slot = find_slot(schedule, at or session.scalars(select(now())).one())
    if slot is None:
        return None
    orders, error = (None, None) if slot.skipped else _orders(database, schedule, catalogue)
    with database.transaction() as session:
        if not _take(session, schedule, slot):
            return None
        result = _Outcome(FiringKind.DUE, FiringOutcome.SKIPPED, slot.due_at, slot.missed)
        return _write(session, schedule, result, orders, error, max_attempts)


def fire_now(
    database: Database, catalogue: Catalogue, schedule_id: str, caller: str | None, max_attempts: int
) -> Firing:
    """Fire the schedule by hand, whatever its slots are; those stay as they are."""
    with database.reading() as session:
        schedule = get_schedule(session, schedule_id, caller, with_order=True)
        at = session.scalars(select(now())).one()
    orders, error = _orders(database, schedule, catalogue)
    with database.transaction() as session:
        get_schedule(session, schedule_id, caller, kept=True)  # it may have been removed meanwhile
        result = _Outcome(FiringKind.MANUAL, FiringOutcome.SKIPPED, at)
        return _write(session, schedule, result, orders, error, max_attempts)


def window_of(schedule: Schedule) -> dict[str, Any] | None:
    """Return the window for a batch of the schedule, in the schedule's zone unless it names its own."""
    if schedule.window is None:
        return None
    return {"timezone": schedule.timezone, **schedule.window}


def _orders(
    database: Database, schedule: Schedule, catalogue: Catalogue
) -> tuple[list[Order] | None, str | None]:
    """Check the order against the catalogue of today; seeds that it leaves open are drawn for each firing."""
    order = schedule.order
    try:
        text_cells = bool(order.get("text_cells"))
        with database.reading() as session:
            pictures = find_pictures(session, schedule.caller, references_in(order))
        return make_orders(order, catalogue, _draw_seed, text_cells=text_cells, pictures=pictures), None
    except InvalidRequest as refused:
        told = [error.message for error in refused.errors[:SHOWN_ERRORS]]
        more = len(refused.errors) - len(told)
        return None, "; ".join(told) + (f"; and {more} more" if more else "")


def _take(session: Session, schedule: Schedule, slot: Slot) -> bool:
    """Move the schedule on to its next slot, unless somebody did or changed it since it was read."""
    same = [
        Schedule.id == schedule.id,
        Schedule.next_at == slot.found_at,
        Schedule.version == schedule.version,
    ]
    statement = update(Schedule).where(*same).values(next_at=slot.next_at).returning(Schedule.id)
    taken = session.scalars(statement, execution_options={"synchronize_session": False})
    return taken.one_or_none() is not None


def _write(
    session: Session,
    schedule: Schedule,
    result: _Outcome,
    orders: list[Order] | None,
    error: str | None,
    max_attempts: int,
) -> Firing:
    if error is not None:
        result = replace(result, outcome=FiringOutcome.FAILED, error=error)
    elif orders is not None:
        batch, _ = create_batch(
            session,
            caller=schedule.caller,
            name=schedule.name,
            orders=orders,
            template=schedule.order.get("template") or {},
            window=window_of(schedule),
            max_attempts=max_attempts,
            schedule_id=schedule.id,
            due_at=result.due_at,
        )
        result = replace(result, outcome=FiringOutcome.FIRED, batch_id=batch.id)
    firing = Firing(
        id=new_id(),
        schedule_id=schedule.id,
        kind=result.kind,
        outcome=result.outcome,
        due_at=result.due_at,
        missed=result.missed,
        batch_id=result.batch_id,
        error=result.error,
    )
    session.add(firing)
    session.flush()
    return firing


def _draw_seed() -> int:
    return secrets.randbelow(DRAWN_SEED_LIMIT)

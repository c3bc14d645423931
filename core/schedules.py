"""Schedules: rules that create a batch at given times, kept in rows and changed at run time.

``next_at`` is the only thing that decides when one fires: ``core.firing`` moves it on in the transaction that
creates the batch. Functions take a session first and never commit.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.orm import Session, undefer

from core.clock import now
from core.errors import Conflict, NotFound
from core.files import link_schedule
from core.ids import new_id
from core.lifecycle import FiringKind, Misfire
from core.pages import Page, read_page
from core.recurrence import Recurrence
from core.tables import Firing, Schedule

GRACE_S = 60
"""How late a slot may be found and still fire under ``skip``: a restart of upkeep takes less."""
RULE = ("cron", "at", "every_s", "timezone")
"""Columns that say when."""


def recurrence_of(schedule: Schedule) -> Recurrence:
    """Return when the schedule comes due; an interval counts from its creation."""
    return Recurrence(
        cron=schedule.cron,
        at=schedule.at,
        every_s=schedule.every_s,
        timezone=schedule.timezone,
        start=schedule.created_at,
    )


def create_schedule(
    session: Session,
    *,
    caller: str,
    name: str,
    rule: Mapping[str, Any],
    order: Mapping[str, Any],
    total: int,
    window: Mapping[str, Any] | None = None,
    misfire: Misfire = Misfire.ONCE,
    misfire_grace_s: int = GRACE_S,
    enabled: bool = True,
    file_ids: Collection[str] = (),
) -> Schedule:
    """Insert a schedule that was checked.

    Args:
        session: The unit of work.
        caller: Whose it is.
        name: The caller's word for it; its batches are called so.
        rule: ``cron``, ``at`` or ``every_s``, and ``timezone``.
        order: What each firing orders: ``{template, rows, grid, text_cells}``.
        total: How many jobs that makes.
        window: Daily times in which the jobs may start.
        misfire: What becomes of missed slots.
        misfire_grace_s: A slot found later than this is missed.
        enabled: Whether it fires by itself.
        file_ids: The files that its order names; they are kept as long as it is.
    """
    schedule = Schedule(
        id=new_id(),
        caller=caller,
        name=name,
        **{column: rule.get(column) for column in RULE},
        window=None if window is None else dict(window),
        misfire=misfire,
        misfire_grace_s=misfire_grace_s,
        enabled=enabled,
        order=dict(order),
        total=total,
    )
    session.add(schedule)
    session.flush()
    link_schedule(session, schedule.id, file_ids)
    schedule.next_at = _first(session, schedule) if enabled else None
    session.flush()
    return get_schedule(session, schedule.id)


def get_schedule(
    session: Session,
    schedule_id: str,
    caller: str | None = None,
    *,
    with_order: bool = False,
    kept: bool = False,
) -> Schedule:
    """Return the schedule; NotFound when there is none, or it is another caller's.

    ``with_order`` reads what it orders, too; ``kept`` keeps it from being removed in this transaction.
    """
    statement = _one(schedule_id, caller)
    if kept:
        statement = statement.with_for_update(read=True, key_share=True)
    if with_order:
        statement = statement.options(undefer(Schedule.order))
    schedule = session.scalars(statement).one_or_none()
    if schedule is None:
        raise NotFound(f"There is no schedule {schedule_id}.")
    return schedule


def list_schedules(
    session: Session, *, caller: str | None = None, limit: int = 20, after: str | None = None
) -> Page[Schedule]:
    """Return up to ``limit`` schedules, newest first, that are older than the schedule ``after``."""
    within = [] if caller is None else [Schedule.caller == caller]
    return read_page(session, Schedule, Schedule.created_at, within=within, limit=limit, after=after)


def update_schedule(
    session: Session,
    schedule_id: str,
    caller: str | None = None,
    *,
    expected_version: int | None = None,
    file_ids: Collection[str] | None = None,
    **changes: object,
) -> Schedule:
    """Write checked columns; a change of the rule starts anew from now, slots missed before are forgotten.

    ``file_ids``: those that its order names, when that changes.

    Raises:
        Conflict: It would be enabled although it can never come due any more; or it is not at
            ``expected_version`` any more, since another call changed it.
    """
    locked = session.scalars(_one(schedule_id, caller).with_for_update()).one_or_none()
    if locked is None:
        raise NotFound(f"There is no schedule {schedule_id}.")
    if expected_version not in (None, locked.version):
        raise Conflict(f"The schedule {schedule_id} was changed by another call meanwhile.")
    if file_ids is not None:
        link_schedule(session, schedule_id, file_ids)
    before = _when(locked)
    for column, value in changes.items():
        setattr(locked, column, value)
    if _when(locked) != before:  # the same rule again must not drop a slot that has just come due
        locked.next_at = _first(session, locked) if locked.enabled else None
        if locked.enabled and locked.next_at is None:
            raise Conflict(f"The schedule {schedule_id} cannot be enabled: its time has passed.")
    locked.version += 1
    session.flush()
    session.execute(update(Schedule).where(Schedule.id == schedule_id).values(updated_at=now()))
    return get_schedule(session, schedule_id)


def set_enabled(session: Session, schedule_id: str, caller: str | None = None, *, enabled: bool) -> Schedule:
    """Let the schedule fire by itself, or not; one that is so already stays as it is."""
    schedule = get_schedule(session, schedule_id, caller)
    if schedule.enabled == enabled:
        return schedule
    return update_schedule(session, schedule_id, caller, enabled=enabled)


def delete_schedule(session: Session, schedule_id: str, caller: str | None = None) -> None:
    """Remove the schedule and its history; the batches that it created stay."""
    get_schedule(session, schedule_id, caller)
    session.execute(delete(Schedule).where(Schedule.id == schedule_id))


def due_schedules(session: Session, at: datetime | None = None, limit: int = 100) -> Sequence[str]:
    """Return ids of the schedules whose slot has come, the one that waited longest first."""
    due = select(Schedule.id).where(Schedule.next_at <= (at or now()))
    return session.scalars(due.order_by(Schedule.next_at).limit(limit)).all()


def list_firings(
    session: Session, schedule_id: str, *, limit: int = 20, after: str | None = None
) -> Page[Firing]:
    """Return up to ``limit`` firings of the schedule, newest first, that are older than ``after``."""
    within = [Firing.schedule_id == schedule_id]
    return read_page(session, Firing, Firing.fired_at, within=within, limit=limit, after=after)


def last_firings(session: Session, schedule_ids: Sequence[str]) -> dict[str, Firing]:
    """Return the latest firing of each schedule that has fired."""
    newest = (
        select(
            Firing.id,
            func.row_number()
            .over(partition_by=Firing.schedule_id, order_by=(Firing.fired_at.desc(), Firing.id.desc()))
            .label("place"),
        )
        .where(Firing.schedule_id.in_(schedule_ids))
        .subquery()
    )
    found = session.scalars(select(Firing).join(newest, Firing.id == newest.c.id).where(newest.c.place == 1))
    return {firing.schedule_id: firing for firing in found}


def _when(schedule: Schedule) -> tuple[object, ...]:
    return tuple(getattr(schedule, column) for column in ("enabled", *RULE))


def _first(session: Session, schedule: Schedule) -> datetime | None:
    """Return the first slot from now on that has not fired, also when the clock was set back since."""
    due = (Firing.schedule_id == schedule.id, Firing.kind == FiringKind.DUE)
    fired = session.scalars(select(Firing.due_at).where(*due).order_by(Firing.due_at.desc()).limit(1))
    at = session.scalars(select(now())).one()
    return recurrence_of(schedule).next_after(max(at, fired.one_or_none() or at))


def _one(schedule_id: str, caller: str | None) -> Select[Schedule]:
    statement = select(Schedule).where(Schedule.id == schedule_id)
    if caller is not None:
        statement = statement.where(Schedule.caller == caller)
    return statement.execution_options(populate_existing=True)

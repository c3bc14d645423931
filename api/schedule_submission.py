"""Makes and changes schedules: the rule, the window, and every row of what each firing will order."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from api.bulk_requests import (
    ScheduleChange,
    ScheduleHead,
    ScheduleOrder,
    check_head,
    check_nothing_wrong,
    gather,
)
from api.bulk_schemas import ScheduleView
from api.bulk_submission import check_rows, read_window
from api.bulk_views import view_schedule
from api.deps import LOCAL_CALLER, Services
from api.upload import Order, Upload
from core import schedules
from core.lifecycle import Misfire
from core.recurrence import check_recurrence
from core.schedules import RULE
from core.tables import Schedule
from policy.bulk import Order as JobOrder
from policy.errors import FieldError
from policy.gaps import find_gaps

Body = Mapping[str, Any]
WHEN = ("cron", "at", "every_s")
CONTENT = ("template", "rows", "grid")


def make_schedule(services: Services, upload: Upload, base_url: str) -> ScheduleView:
    """Store the schedule that ``upload`` orders. Checks every row: call it in a thread.

    Raises:
        InvalidRequest: With the problems of the rule, the window and all rows; nothing was written.
    """
    order = upload.parse()
    body = order.body
    errors = list(check_head(body, ScheduleHead, ScheduleOrder))
    rule = _read_rule(body, errors)
    _check_window(body, rule, errors)
    orders = check_rows(services, order, errors)
    head = ScheduleHead.model_validate(
        {name: body[name] for name in ScheduleHead.model_fields if name in body}
    )
    with services.database.transaction() as session:
        schedule = schedules.create_schedule(
            session,
            caller=LOCAL_CALLER,
            name=head.name,
            rule=rule,
            order=_content(body) | {"text_cells": bool(order.text_cells)},
            total=len(orders),
            window=body.get("window"),
            misfire=Misfire(head.misfire),
            misfire_grace_s=head.misfire_grace_s,
            enabled=head.enabled,
            file_ids=_files_of(orders),
        )
        view = read_schedule(session, schedule.id, base_url)
    view.warnings += find_gaps(body.get("template") or {}, orders)
    return view


def change_schedule(services: Services, schedule_id: str, upload: Upload, base_url: str) -> ScheduleView:
    """Change the fields that ``upload`` names and check the schedule as it would then be.

    One of ``cron``, ``at`` and ``every_s`` takes the place of the others.

    Raises:
        InvalidRequest: With every problem; nothing was written.
        NotFound: There is no such schedule.
        Conflict: It would be enabled although it can never come due, or another call changed it meanwhile.
    """
    with services.database.reading() as session:
        kept = schedules.get_schedule(session, schedule_id, LOCAL_CALLER, with_order=True)
    change = upload.parse()
    errors = list(check_head(change.body, ScheduleHead, ScheduleChange, partial=True))
    new = {name: change.body[name] for name in ScheduleHead.model_fields if name in change.body}
    new |= _new_rule(kept, change.body, errors)
    new |= _new_window(kept, change.body, new, errors)
    content, gaps = _new_content(services, kept, change, errors)
    new |= content
    if "misfire" in new:
        new["misfire"] = Misfire(new["misfire"])
    with services.database.transaction() as session:
        schedules.update_schedule(session, schedule_id, LOCAL_CALLER, expected_version=kept.version, **new)
        view = read_schedule(session, schedule_id, base_url)
    view.warnings += gaps
    return view


def read_schedule(session: Session, schedule_id: str, base_url: str) -> ScheduleView:
    """Return the whole schedule as callers see it."""
    schedule = schedules.get_schedule(session, schedule_id, LOCAL_CALLER, with_order=True)
    last = schedules.last_firings(session, [schedule_id]).get(schedule_id)
    return view_schedule(schedule, last, base_url, schedule.order)


# --- the parts ------------------------------------------------------------------------------------------


def _read_rule(body: Body, errors: list[FieldError]) -> dict[str, Any]:
    """Return the columns of the rule in ``body``; nothing but problems when it is none."""
    with gather(errors):
        found = check_recurrence({name: body[name] for name in RULE if body.get(name) is not None})
        return {name: getattr(found, name) for name in RULE}
    return {}


def _check_window(body: Body, rule: Body, errors: list[FieldError]) -> None:
    with gather(errors):
        read_window(body.get("window"), rule.get("timezone"))


def _content(body: Body) -> dict[str, Any]:
    return {name: body[name] for name in CONTENT if body.get(name) is not None}


def _new_rule(kept: Schedule, body: Body, errors: list[FieldError]) -> dict[str, Any]:
    """Return the columns of the rule when ``body`` changes it; a time of its own kind replaces the others."""
    if not any(name in body for name in RULE):
        return {}
    replaced = any(body.get(name) is not None for name in WHEN)
    old = {"timezone": kept.timezone} if replaced else {name: getattr(kept, name) for name in RULE}
    return _read_rule({**old, **{name: body[name] for name in RULE if name in body}}, errors)


def _new_window(kept: Schedule, body: Body, rule: Body, errors: list[FieldError]) -> dict[str, Any]:
    """Check the window that will be in force in the zone that will be; return it when ``body`` changes it."""
    window = body.get("window", kept.window)
    _check_window({"window": window}, {"timezone": rule.get("timezone", kept.timezone)}, errors)
    return {"window": window} if "window" in body else {}


def _new_content(
    services: Services, kept: Schedule, change: Order, errors: list[FieldError]
) -> tuple[dict[str, Any], list[str]]:
    """Check every row as it will be, also when only the template changes; raise all ``errors``.

    Returns:
        The columns that change, and warnings of what the rows leave open.
    """
    if not any(name in change.body for name in CONTENT):
        check_nothing_wrong(errors)
        return {}, []
    body = {**_content(kept.order), **{name: change.body[name] for name in CONTENT if name in change.body}}
    text_cells = change.text_cells if "rows" in change.body else kept.order.get("text_cells", False)
    orders = check_rows(services, Order(body, text_cells, change.said), errors)
    columns = {
        "order": _content(body) | {"text_cells": bool(text_cells)},
        "total": len(orders),
        "file_ids": _files_of(orders),
    }
    return columns, list(find_gaps(body.get("template") or {}, orders))


def _files_of(orders: Sequence[JobOrder]) -> set[str]:
    return {file_id for order in orders for file_id in order.inputs.values()}

"""Rules that make batches: order, read, list, change, remove, enable, disable, fire, look ahead and back."""

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import select

from api.bulk_requests import SCHEDULE_PARTS
from api.bulk_schemas import FiredView, FiringView, ScheduleView, Slots
from api.bulk_views import view_firing, view_schedule, view_whole_batch
from api.deps import (
    LOCAL_CALLER,
    BaseUrl,
    HeavyWorkDep,
    PathId,
    Services,
    ServicesDep,
    UploadPlacesDep,
)
from api.heavy import run_heavy
from api.openapi_parts import json_or_form, problems, with_headers
from api.queries import After, Limit, check_ids, naming_after
from api.schedule_submission import change_schedule, make_schedule, read_schedule
from api.schemas import Page
from api.serving import Serving
from api.upload import receive_order
from api.views import view_page
from core import batches, firing, schedules
from core.clock import now
from core.recurrence import Recurrence

router = APIRouter(tags=["schedules"])
MOST_SLOTS = 100


@router.post(
    "/v1/schedules",
    status_code=201,
    summary="Make a schedule",
    responses={
        201: with_headers("The schedule.", ScheduleView, "Location"),
        **problems(400, 403, 408, 413, 415, 422, 503),
    },
    openapi_extra={"requestBody": json_or_form("ScheduleOrder", SCHEDULE_PARTS)},
)
async def create_schedule(
    request: Request,
    response: Response,
    services: ServicesDep,
    base_url: BaseUrl,
    heavy: HeavyWorkDep,
    places: UploadPlacesDep,
) -> ScheduleView:
    """Check the rule and every row, and keep them; each firing makes a batch of them."""
    async with receive_order(request, SCHEDULE_PARTS, places) as upload:
        schedule = await run_heavy(heavy.rows, make_schedule, services, upload, base_url)
    response.headers["Location"] = schedule.urls.self
    return schedule


@router.get("/v1/schedules", summary="List schedules, newest first", responses=problems(422, 503))
def list_schedules(
    services: ServicesDep, base_url: BaseUrl, limit: Limit = 20, after: After = None
) -> Page[ScheduleView]:
    """Return a page of schedules, each with its latest firing."""
    check_ids(after=after)
    with services.database.reading() as session:
        with naming_after():
            page = schedules.list_schedules(session, caller=LOCAL_CALLER, limit=limit, after=after)
        last = schedules.last_firings(session, [schedule.id for schedule in page.rows])
        views = [view_schedule(schedule, last.get(schedule.id), base_url) for schedule in page.rows]
    return view_page(views, has_more=page.has_more)


@router.get("/v1/schedules/{schedule_id}", summary="Read a schedule", responses=problems(404, 422, 503))
def get_schedule(schedule_id: PathId, services: ServicesDep, base_url: BaseUrl) -> ScheduleView:
    """Return the schedule with what it orders, its rows only counted."""
    with services.database.reading() as session:
        return read_schedule(session, schedule_id, base_url)


@router.patch(
    "/v1/schedules/{schedule_id}",
    summary="Change a schedule",
    responses=problems(400, 403, 404, 408, 409, 413, 415, 422, 503),
    openapi_extra={"requestBody": json_or_form("ScheduleChange", SCHEDULE_PARTS, file_required=False)},
)
async def patch_schedule(
    request: Request,
    schedule_id: PathId,
    services: ServicesDep,
    base_url: BaseUrl,
    heavy: HeavyWorkDep,
    places: UploadPlacesDep,
) -> ScheduleView:
    """Change the named fields; a new rule counts from now on. Batches that were made stay as they are."""
    async with receive_order(request, SCHEDULE_PARTS, places, file_required=False) as upload:
        return await run_heavy(heavy.rows, change_schedule, services, schedule_id, upload, base_url)


@router.delete(
    "/v1/schedules/{schedule_id}",
    status_code=204,
    summary="Remove a schedule",
    responses=problems(403, 404, 422, 503),
)
def delete_schedule(schedule_id: PathId, services: ServicesDep) -> None:
    """Remove the schedule and its history; the batches that it made stay."""
    with services.database.transaction() as session:
        schedules.delete_schedule(session, schedule_id, LOCAL_CALLER)


@router.post(
    "/v1/schedules/{schedule_id}/enable",
    summary="Let a schedule fire",
    responses=problems(403, 404, 409, 422, 503),
)
def enable_schedule(schedule_id: PathId, services: ServicesDep, base_url: BaseUrl) -> ScheduleView:
    """Let the schedule fire by itself, from its next slot on."""
    return _switch(services, schedule_id, base_url, enabled=True)


@router.post(
    "/v1/schedules/{schedule_id}/disable", summary="Stop a schedule", responses=problems(403, 404, 422, 503)
)
def disable_schedule(schedule_id: PathId, services: ServicesDep, base_url: BaseUrl) -> ScheduleView:
    """Keep the schedule from firing by itself; it can still be fired by hand."""
    return _switch(services, schedule_id, base_url, enabled=False)


def _switch(services: Services, schedule_id: str, base_url: str, *, enabled: bool) -> ScheduleView:
    with services.database.transaction() as session:
        schedules.set_enabled(session, schedule_id, LOCAL_CALLER, enabled=enabled)
        return read_schedule(session, schedule_id, base_url)


@router.post(
    "/v1/schedules/{schedule_id}/fire",
    status_code=202,
    summary="Fire a schedule now",
    responses=problems(403, 404, 422, 503),
)
async def fire_schedule(
    schedule_id: PathId, services: ServicesDep, base_url: BaseUrl, heavy: HeavyWorkDep
) -> FiredView:
    """Make its batch now; the slots to come stay as they are."""
    return await run_heavy(heavy.rows, _fire, services, schedule_id, base_url)


def _fire(services: Services, schedule_id: str, base_url: str) -> FiredView:
    fired = firing.fire_now(
        services.database, services.catalogue, schedule_id, LOCAL_CALLER, services.settings.max_attempts
    )
    view, batch = view_firing(fired), None
    if fired.batch_id is not None:
        with services.database.reading() as session:
            made = batches.get_batch(session, fired.batch_id, LOCAL_CALLER)
            batch = view_whole_batch(session, made, base_url, Serving(services.heard_within_s))
    return FiredView(**view.model_dump(), batch=batch)


@router.get("/v1/schedules/{schedule_id}/next", summary="The next slots", responses=problems(404, 422, 503))
def get_slots(
    schedule_id: PathId,
    services: ServicesDep,
    count: Annotated[int, Query(ge=1, le=MOST_SLOTS)] = 5,
) -> Slots:
    """Return when the schedule comes due next; fewer times when its rule has no more."""
    with services.database.reading() as session:
        schedule = schedules.get_schedule(session, schedule_id, LOCAL_CALLER)
        at = session.scalars(select(now())).one()
    rule = schedules.recurrence_of(schedule)
    slots = list(islice(_slots(rule, at), count))
    return Slots(data=slots, timezone=schedule.timezone, enabled=schedule.enabled)


def _slots(rule: Recurrence, after: datetime) -> Iterator[datetime]:
    while (following := rule.next_after(after)) is not None:
        yield following
        after = following


@router.get(
    "/v1/schedules/{schedule_id}/firings",
    summary="The history of a schedule, newest first",
    responses=problems(404, 422, 503),
)
def list_firings(
    schedule_id: PathId, services: ServicesDep, limit: Limit = 20, after: After = None
) -> Page[FiringView]:
    """Return a page of firings, each with its batch or the reason why there is none."""
    check_ids(after=after)
    with services.database.reading() as session:
        schedules.get_schedule(session, schedule_id, LOCAL_CALLER)
        with naming_after():
            page = schedules.list_firings(session, schedule_id, limit=limit, after=after)
        views = [view_firing(found) for found in page.rows]
    return view_page(views, has_more=page.has_more)

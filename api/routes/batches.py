"""Many jobs in one call: order, read, list, pause, resume, cancel, retry."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.orm import Session

from api.bulk_requests import BATCH_PARTS
from api.bulk_schemas import BatchStatus, BatchView
from api.bulk_submission import submit_batch
from api.bulk_views import view_batch, view_whole_batch
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
from api.idempotency import REPLAYED, read_key, tell_made
from api.openapi_parts import IDEMPOTENCY_KEY, json_or_form, problems, with_headers
from api.queries import After, Limit, check_ids, naming_after
from api.schemas import Page
from api.serving import Serving
from api.upload import receive_order
from api.views import view_page
from core import batches
from core.lifecycle import ENDED_BATCH, BatchState
from core.tables import Batch

router = APIRouter(tags=["batches"])
LOOK_AGAIN_S = 2


@router.post(
    "/v1/batches",
    status_code=202,
    summary="Submit a batch",
    responses={
        202: with_headers("The stored batch.", BatchView, "Location", "Retry-After", REPLAYED),
        **problems(400, 403, 408, 413, 415, 422, 503),
    },
    openapi_extra={"requestBody": json_or_form("BatchOrder", BATCH_PARTS), "parameters": [IDEMPOTENCY_KEY]},
)
async def create_batch(
    request: Request,
    response: Response,
    services: ServicesDep,
    base_url: BaseUrl,
    heavy: HeavyWorkDep,
    places: UploadPlacesDep,
) -> BatchView:
    """Check every row, then store all of them or none. Single jobs get through while the batch goes on."""
    key = read_key(request)
    async with receive_order(request, BATCH_PARTS, places) as upload:
        batch, replayed = await run_heavy(heavy.rows, submit_batch, services, upload, key, base_url)
    tell_made(response, batch.urls.self, replayed=replayed)
    _hint(response, batch)
    return batch


@router.get("/v1/batches", summary="List batches, newest first", responses=problems(422, 503))
def list_batches(
    *,
    services: ServicesDep,
    base_url: BaseUrl,
    status: BatchStatus | None = None,
    schedule: Annotated[str | None, Query(description="Id of the schedule that made them.")] = None,
    limit: Limit = 20,
    after: After = None,
) -> Page[BatchView]:
    """Return a page of batches; batches that are made meanwhile do not shift the next one."""
    check_ids(after=after, schedule=schedule)
    state = None if status is None else BatchState(status)
    with services.database.reading() as session:
        with naming_after():
            page = batches.list_batches(
                session, caller=LOCAL_CALLER, status=state, schedule=schedule, limit=limit, after=after
            )
        counts = batches.count_jobs(session, [batch.id for batch in page.rows])
        views = [view_batch(batch, counts[batch.id], base_url) for batch in page.rows]
    return view_page(views, has_more=page.has_more)


@router.get(
    "/v1/batches/{batch_id}",
    summary="Read a batch",
    responses={200: with_headers("The batch.", BatchView, "Retry-After"), **problems(404, 422, 503)},
)
def get_batch(batch_id: PathId, response: Response, services: ServicesDep, base_url: BaseUrl) -> BatchView:
    """Return the batch as it stands; ``Retry-After`` says when it makes sense to look again."""
    with services.database.reading() as session:
        batch = batches.get_batch(session, batch_id, LOCAL_CALLER)
        view = view_whole_batch(session, batch, base_url, Serving(services.heard_within_s))
    _hint(response, view)
    return view


_MOVED = {200: with_headers("The batch.", BatchView, "Retry-After"), **problems(403, 404, 409, 422, 503)}


@router.post("/v1/batches/{batch_id}/pause", summary="Pause a batch", responses=_MOVED)
def pause_batch(batch_id: PathId, response: Response, services: ServicesDep, base_url: BaseUrl) -> BatchView:
    """Let no further job of the batch start; those that run go on to their end."""
    return _move(batches.pause, batch_id, response, services, base_url)


@router.post("/v1/batches/{batch_id}/resume", summary="Resume a batch", responses=_MOVED)
def resume_batch(batch_id: PathId, response: Response, services: ServicesDep, base_url: BaseUrl) -> BatchView:
    """Let a paused batch go on; one that runs stays as it is."""
    return _move(batches.resume, batch_id, response, services, base_url)


@router.post("/v1/batches/{batch_id}/cancel", summary="Cancel a batch", responses=_MOVED)
def cancel_batch(batch_id: PathId, response: Response, services: ServicesDep, base_url: BaseUrl) -> BatchView:
    """Cancel every queued job at once and ask the running ones to stop; what is made stays."""
    return _move(batches.cancel, batch_id, response, services, base_url)


@router.post("/v1/batches/{batch_id}/retry", summary="Order the failed rows again", responses=_MOVED)
def retry_batch(batch_id: PathId, response: Response, services: ServicesDep, base_url: BaseUrl) -> BatchView:
    """Make new jobs of the rows that failed or expired; the batch runs again, also when it had ended."""
    return _move(_retry, batch_id, response, services, base_url)


def _retry(session: Session, batch_id: str, caller: str) -> Batch:
    return batches.retry_failed(session, batch_id, caller)[0]


def _move(
    move: Callable[[Session, str, str], Batch],
    batch_id: str,
    response: Response,
    services: Services,
    base_url: str,
) -> BatchView:
    with services.database.transaction() as session:
        batch = move(session, batch_id, LOCAL_CALLER)
    with services.database.reading() as session:  # what it looks up must not keep other writers waiting
        view = view_whole_batch(session, batch, base_url, Serving(services.heard_within_s))
    _hint(response, view)
    return view


def _hint(response: Response, batch: BatchView) -> None:
    if BatchState(batch.status) not in ENDED_BATCH:
        response.headers["Retry-After"] = str(LOOK_AGAIN_S)

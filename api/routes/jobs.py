"""Submit, read, list, cancel and requeue jobs."""

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from api.body import read_json
from api.deps import LOCAL_CALLER, BaseUrl, PathId, Services, ServicesDep
from api.idempotency import REPLAYED, read_key, tell_made
from api.openapi_parts import IDEMPOTENCY_KEY, PREFER, RENDER_REQUEST, problems, with_headers
from api.prefer import wait_seconds
from api.queries import After, Limit, check_ids, naming_after
from api.schemas import Attempts, JobStatus, JobView, Page
from api.serving import Serving
from api.submission import requeue, submit
from api.views import view_attempt, view_job, view_page
from api.waiting import wait_for_end
from core import store
from core.errors import Unavailable
from core.lifecycle import JobState
from policy.request import RunSeconds, Seconds

router = APIRouter(tags=["jobs"])
HINT_LIMIT_S = 10


@router.post(
    "/v1/jobs",
    status_code=202,
    summary="Submit a job",
    responses={
        200: with_headers(
            "With Prefer: wait, the job that ended in time.", JobView, "Location", "Preference-Applied"
        ),
        202: with_headers(
            "The stored job.", JobView, "Location", "Retry-After", REPLAYED, "Preference-Applied"
        ),
        **problems(400, 403, 408, 413, 415, 422, 503),
    },
    openapi_extra={"requestBody": RENDER_REQUEST, "parameters": [IDEMPOTENCY_KEY, PREFER]},
)
async def create_job(
    request: Request, response: Response, services: ServicesDep, base_url: BaseUrl
) -> JobView:
    """Store the order and answer at once; the job goes on without the caller.

    Once this has answered, the job ends in a terminal state whatever fails in between.
    """
    body = await read_json(request)
    job, replayed = await run_in_threadpool(submit, services, body, read_key(request), base_url)
    tell_made(response, job.urls.self, replayed=replayed)
    # It is stored: whatever fails while its caller waits, the answer is not that it was refused.
    with suppress(Unavailable):
        if await _wait(request, response, services, job.id):
            job = await run_in_threadpool(_read, services, job.id, base_url)
            response.status_code = 200 if JobState(job.status).is_terminal else 202
    _hint(response, job)
    return job


@router.get("/v1/jobs", summary="List jobs, newest first", responses=problems(422, 503))
def list_jobs(
    *,
    services: ServicesDep,
    base_url: BaseUrl,
    status: JobStatus | None = None,
    model: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9._-]{1,200}$")] = None,
    batch: Annotated[str | None, Query(description="Id of the batch whose rows they are.")] = None,
    parked: Annotated[
        bool | None, Query(description="Whether they failed because their attempts were used up.")
    ] = None,
    requeued: Annotated[bool | None, Query(description="Whether they were ordered again.")] = None,
    limit: Limit = 20,
    after: After = None,
) -> Page[JobView]:
    """Return a page of jobs; jobs that are submitted meanwhile do not shift the next one."""
    check_ids(after=after, batch=batch)
    state = None if status is None else JobState(status)
    serving = Serving(services.heard_within_s)
    with services.database.reading() as session:
        with naming_after():
            page = store.list_jobs(
                session,
                caller=LOCAL_CALLER,
                status=state,
                model=model,
                batch=batch,
                parked=parked,
                requeued=requeued,
                limit=limit,
                after=after,
            )
        jobs = [view_job(session, job, base_url, serving, place=False) for job in page.rows]
    return view_page(jobs, has_more=page.has_more)


@router.get(
    "/v1/jobs/{job_id}",
    summary="Read a job",
    responses={
        200: with_headers("The job.", JobView, "Retry-After", "Preference-Applied"),
        **problems(404, 422, 503),
    },
    openapi_extra={"parameters": [PREFER]},
)
async def get_job(
    request: Request, job_id: PathId, response: Response, services: ServicesDep, base_url: BaseUrl
) -> JobView:
    """Return the job as it stands; ``Retry-After`` says when it makes sense to look again."""
    await _wait(request, response, services, job_id)
    job = await run_in_threadpool(_read, services, job_id, base_url)
    _hint(response, job)
    return job


@router.post(
    "/v1/jobs/{job_id}/cancel",
    summary="Cancel a job",
    responses={
        200: with_headers("It was queued and is canceled.", JobView),
        202: with_headers("It runs and will stop at its next step.", JobView, "Retry-After"),
        **problems(403, 404, 409, 422, 503),
    },
)
def cancel_job(job_id: PathId, response: Response, services: ServicesDep, base_url: BaseUrl) -> JobView:
    """Cancel a queued job at once, or ask a running one to stop."""
    with services.database.transaction() as session:
        row = store.request_cancel(session, job_id, LOCAL_CALLER)
        job = view_job(session, row, base_url, Serving(services.heard_within_s))
    response.status_code = 200 if row.state.is_terminal else 202
    _hint(response, job)
    return job


@router.post(
    "/v1/jobs/{job_id}/requeue",
    status_code=202,
    summary="Order a failed job again",
    responses={
        200: with_headers("The job that an earlier call has made.", JobView, "Location", "Retry-After"),
        202: with_headers("The new job.", JobView, "Location", "Retry-After"),
        **problems(403, 404, 409, 422, 503),
    },
)
def requeue_job(
    *,
    job_id: PathId,
    response: Response,
    services: ServicesDep,
    base_url: BaseUrl,
    queue_timeout_s: Annotated[
        Seconds | None, Query(description="The new job's; default: as long as the old one could wait.")
    ] = None,
    run_timeout_s: Annotated[
        RunSeconds | None, Query(description="The new job's; default: that of the old one.")
    ] = None,
) -> JobView:
    """Make a new job with the same plan and seed of one that failed or expired, once per job."""
    asked = {"queue_timeout_s": queue_timeout_s, "run_timeout_s": run_timeout_s}
    limits = {name: seconds for name, seconds in asked.items() if seconds is not None}
    job, earlier = requeue(services, job_id, base_url, limits)
    response.status_code = 200 if earlier else 202
    response.headers["Location"] = job.urls.self
    _hint(response, job)
    return job


@router.get("/v1/jobs/{job_id}/attempts", summary="List a job's attempts", responses=problems(404, 422, 503))
def list_attempts(job_id: PathId, services: ServicesDep) -> Attempts:
    """Return every try at the job, the first one first, with its worker, its times and what came of it."""
    with services.database.reading() as session:
        store.get_job(session, job_id, LOCAL_CALLER)
        return Attempts(data=[view_attempt(attempt) for attempt in store.get_attempts(session, job_id)])


async def _wait(request: Request, response: Response, services: Services, job_id: str) -> bool:
    """Wait as long as the caller prefers, and say so in the answer."""
    wait_s = wait_seconds(request.headers.getlist("prefer"))
    if not wait_s or not await wait_for_end(request, services, job_id, wait_s):
        return False
    response.headers["Preference-Applied"] = f"wait={wait_s}"
    return True


def _read(services: Services, job_id: str, base_url: str) -> JobView:
    with services.database.reading() as session:
        return view_job(
            session, store.get_job(session, job_id, LOCAL_CALLER), base_url, Serving(services.heard_within_s)
        )


def _hint(response: Response, job: JobView) -> None:
    """Say when to look again, in seconds; later for a job that others go before or its batch holds back."""
    if not JobState(job.status).is_terminal:
        place = job.queue_position or (HINT_LIMIT_S if JobState(job.status) == JobState.QUEUED else 1)
        response.headers["Retry-After"] = str(min(place, HINT_LIMIT_S))

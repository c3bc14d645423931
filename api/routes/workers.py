"""Who renders, how it was prepared and what it does now."""

from fastapi import APIRouter

from api.deps import PathId, ServicesDep
from api.openapi_parts import problems
from api.schemas import Page, WorkerView
from api.views import view_page, view_worker
from core import workers
from core.lifecycle import ENDED_WORKER

router = APIRouter(tags=["workers"])
ENDED_SHOWN = 50
"""A worker that cannot start leaves a row at each try."""


@router.get("/v1/workers", summary="List workers, newest first", responses=problems(422, 503))
def list_workers(services: ServicesDep) -> Page[WorkerView]:
    """Return the workers that are there, and the latest of those that failed or are gone."""
    with services.database.reading() as session:
        every = workers.list_workers(session)
        ended = [worker.id for worker in every if worker.state in ENDED_WORKER]
        hidden = frozenset(ended[ENDED_SHOWN:])
        found = [view_worker(worker) for worker in every if worker.id not in hidden]
    return view_page(found)


@router.get("/v1/workers/{worker_id}", summary="Read a worker", responses=problems(404, 422, 503))
def get_worker(worker_id: PathId, services: ServicesDep) -> WorkerView:
    """Return one worker with its resolved policy and the record of its preparation."""
    with services.database.reading() as session:
        return view_worker(workers.get_worker(session, worker_id))

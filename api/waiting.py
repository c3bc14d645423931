"""Waits for the end of a job without holding a thread or a transaction."""

import asyncio
from typing import TYPE_CHECKING, Final

from anyio import CapacityLimiter, WouldBlock
from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from api.deps import LOCAL_CALLER, Services
from core import store

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_WAITING: Final = 100
"""Callers that may wait at one time; more are answered at once, as without the preference."""
FIRST_LOOK_S = 0.05
LAST_LOOK_S = 0.5


async def wait_for_end(request: Request, services: Services, job_id: str, limit_s: float) -> bool:
    """Look at the job until it ends, ``limit_s`` passes, the caller leaves or the server stops.

    Returns:
        Whether it waited at all: False when too many wait already.
    """
    places: CapacityLimiter = request.app.state.waiting_places
    try:
        places.acquire_on_behalf_of_nowait(request)
    except WouldBlock:
        return False
    try:
        async with asyncio.timeout(limit_s):
            await _look(request, services, job_id)
    except TimeoutError:
        pass
    finally:
        places.release_on_behalf_of(request)
    return True


async def _look(request: Request, services: Services, job_id: str) -> None:
    is_stopping: Callable[[], bool] = request.app.state.is_stopping
    pause_s = FIRST_LOOK_S
    while not await run_in_threadpool(_has_ended, services, job_id):
        if is_stopping() or await request.is_disconnected():
            return
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, LAST_LOOK_S)


def _has_ended(services: Services, job_id: str) -> bool:
    with services.database.reading() as session:
        return store.get_job(session, job_id, LOCAL_CALLER).state.is_terminal

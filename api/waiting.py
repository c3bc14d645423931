"""Waits for the end of a job without holding a thread or a transaction."""

import asyncio
from typing import Final

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from api.deps import LOCAL_CALLER, Services
from core import store

MOST_WAITING: Final = 100
"""Callers that may wait at one time; more are answered at once, as without the preference."""
FIRST_LOOK_S = 0.05
LAST_LOOK_S = 0.5


class WaitingRoom:
    """Counts the callers that wait; used on the event loop only, so it needs no lock."""

    def __init__(self) -> None:
        self.taken = 0

    def enter(self) -> bool:
        """Take a place, if one is left."""
        if self.taken >= MOST_WAITING:
            return False
        self.taken += 1
        return True

    def leave(self) -> None:
        """Give the place back."""
        self.taken -= 1


async def wait_for_end(request: Request, services: Services, job_id: str, limit_s: float) -> bool:
    """Look at the job until it ends, ``limit_s`` passes, the caller leaves or the server stops.

    Returns:
        Whether it waited at all: False when too many wait already.
    """
    room: WaitingRoom = request.app.state.waiting_room
    if not room.enter():
        return False
    try:
        async with asyncio.timeout(limit_s):
            await _look(request, services, job_id)
    except TimeoutError:
        pass
    finally:
        room.leave()
    return True


async def _look(request: Request, services: Services, job_id: str) -> None:
    pause_s = FIRST_LOOK_S
    while not await run_in_threadpool(_has_ended, services, job_id):
        if request.app.state.is_stopping() or await request.is_disconnected():
            return
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, LAST_LOOK_S)


def _has_ended(services: Services, job_id: str) -> bool:
    with services.database.reading() as session:
        return store.get_job(session, job_id, LOCAL_CALLER).state.is_terminal

"""Runs what takes seconds and memory in a thread, a few at a time: parsing large tables, drawing sheets."""

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request

AT_ONCE: Final = 2
"""More would only share the processor, and each may hold a table of 32 MiB or a picture of 30 MB."""

P = ParamSpec("P")
T = TypeVar("T")


def make_limiter() -> CapacityLimiter:
    """Return the places that the calls of one application share."""
    return CapacityLimiter(AT_ONCE)


async def run_heavy(request: Request, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what ``work`` returns; waits for a place first, without holding a thread."""
    limiter: CapacityLimiter = request.app.state.heavy_limiter
    return await to_thread.run_sync(lambda: work(*args, **kwargs), limiter=limiter)

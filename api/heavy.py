"""Runs what takes seconds and memory in a thread, a few at a time: checking large tables, drawing sheets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeavyWork:
    """The places that the calls of one application share; more would only share the processor."""

    rows: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(2))
    """Each may hold a table of 32 MiB and what it becomes."""
    uploads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(2))
    """Each may decode a picture of 110 MB."""
    pictures: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))
    """Each holds a picture of 30 MB. Nobody who orders waits for one who looks at a sheet."""


async def run_heavy(place: CapacityLimiter, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what ``work`` returns; waits for ``place`` first, without holding a thread."""
    return await to_thread.run_sync(lambda: work(*args, **kwargs), limiter=place)

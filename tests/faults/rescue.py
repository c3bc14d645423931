"""How long a job of a killed worker waited until it ran again."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import select

from core.db import Database
from core.lifecycle import Outcome
from core.tables import Attempt, Worker
from tests.faults.strike import Hit


def rescue_times(database: Database, hits: Iterable[Hit]) -> list[float]:
    """Seconds from the kill -9 of a worker, its parent or its child, to the start of its job's next attempt.

    Jobs that were lost to another fault, as to a line that was cut for longer than a lease, are not in it.
    """
    killed = [hit for hit in hits if hit.fault.kind == "kill"]
    with database.reading() as session:
        parents = {worker.id: worker.pid for worker in session.scalars(select(Worker))}
        tries = defaultdict(list)
        for attempt in session.scalars(select(Attempt).order_by(Attempt.job_id, Attempt.number)):
            tries[attempt.job_id].append(attempt)
    times = []
    for attempts in tries.values():
        for lost, following in itertools.pairwise(attempts):
            at = _killed_at(lost, parents.get(lost.worker_id), killed)
            if at is not None:
                times.append(following.started_at.timestamp() - at)
    return times


def _killed_at(lost: Attempt, parent: int | None, killed: Sequence[Hit]) -> float | None:
    """When the worker of an attempt was killed in the middle of it; None when it was not."""
    if lost.outcome != Outcome.LOST or lost.finished_at is None:
        return None
    began, ended = lost.started_at.timestamp(), lost.finished_at.timestamp()
    times = [hit.at for hit in killed if hit.parent == parent and began <= hit.at <= ended]
    return times[0] if times else None


def summarise(times: Sequence[float]) -> dict[str, float | None]:
    """The value that 50 and 99 % do not exceed, and the largest; None when there is none."""
    ordered = sorted(times)
    if not ordered:
        return {"p50": None, "p99": None, "max": None}
    at = {f"p{p}": ordered[math.ceil(len(ordered) * p / 100) - 1] for p in (50, 99)}
    return {name: round(seconds, 2) for name, seconds in {**at, "max": ordered[-1]}.items()}

"""`renderq workers`: who renders on the server at RENDERQ_URL."""

from typing import Annotated, Any

import typer

from cli.table import print_fitted
from cli.terminal import print_json, say
from cli.times import shown_time

ENDED = frozenset({"gone", "failed"})
COLUMNS = ("name", "model", "state", "started", "heard", "jobs done", "shapes", "job")
DROP = ("started", "heard", "jobs done", "shapes")
ID_CELLS = 36
"""A job's id is never cut."""


def workers(
    *,
    every: Annotated[bool, typer.Option("--all", help="Also those that failed or are gone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """List the live workers: model, state, what they render and how many jobs they did.

    Each says every few seconds that it is there. One killed outright keeps its last state for half a minute,
    while the time at which it was heard stands still.
    """
    from cli.client import connect

    found = [worker for worker in connect().workers() if every or worker["state"] not in ENDED]
    if as_json:
        print_json(found)
    elif found:
        print_fitted(COLUMNS, [_row(worker) for worker in found], drop=DROP, least=_least(found))
    else:
        say("no worker" if every else "no live worker; --all shows those that ended")


def _least(found: list[dict[str, Any]]) -> int:
    return ID_CELLS if any(worker["current_job_id"] for worker in found) else len(COLUMNS[-1])


def _row(worker: dict[str, Any]) -> tuple[object, ...]:
    return (
        worker["name"],
        worker["model"],
        worker["state"],
        shown_time(worker["started_at"]),
        shown_time(worker["heartbeat_at"]),
        worker["jobs_done"],
        _shapes(worker),
        worker["current_job_id"],
    )


def _shapes(worker: dict[str, Any]) -> str:
    """How many shapes are warm; where nothing is compiled, a worker is as ready for any."""
    warm, cold = worker.get("warm_shapes"), worker.get("cold_requests")
    if warm is None:
        return "any"
    return f"{len(warm)} warm, {len(cold)} cold" if cold else f"{len(warm)} warm"

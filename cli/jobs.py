"""`renderq get | list | cancel | requeue | attempts`: jobs on the server at RENDERQ_URL."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.interrupts import heard_once
from cli.paging import PAGE, say_more
from cli.saving import check_output, end_with, finish
from cli.table import print_fitted
from cli.terminal import print_json, print_line, print_pairs, printable, say, say_all
from cli.times import shown_time

if TYPE_CHECKING:
    from cli.client import Job

AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]
ATTEMPT_COLUMNS = ("try", "worker", "outcome", "step", "started", "ended", "error")
REPEATS = ("requeued_from", "requeued_as")
JobId = Annotated[str, typer.Argument(help="Id of the job.")]


def get(
    job_id: JobId,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Wait for its end and save the pictures here; - is standard output.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a job; with --output also save its pictures. The exit code tells how it ended."""
    from cli.client import TERMINAL, connect

    client = connect()
    job = client.get(job_id)
    if output is not None:
        check_output(output, job["request"].get("n") or 1)
        finish(client, job, output, as_json=as_json)
        return
    if wait:
        from cli.progress import show_progress

        with heard_once():
            job = show_progress(client.follow(job_id), quiet=as_json)
    show_job(job, as_json=as_json)
    if job["status"] in TERMINAL:
        end_with(job)


def show_job(job: "Job", *, as_json: bool = False) -> None:
    """Print a job."""
    from cli.progress import describe
    from cli.rendered import describe_rendering

    if as_json:
        print_json(job)
        return
    rows: list[tuple[str, object]] = [
        ("id", job["id"]),
        ("status", describe(job)),
        ("model", job["model"]),
        ("prompt", job["request"].get("prompt")),
        ("created", shown_time(job["created_at"])),
        ("finished", shown_time(job["finished_at"])),
        ("attempt", f"{job['attempt']} of {job['max_attempts']}"),
    ]
    if rendered := describe_rendering(job):
        rows.append(("rendered", rendered))
    if job.get("error"):
        rows.append(("error", f"{job['error']['code']}: {job['error']['message']}"))
    rows += [(name.replace("_", " "), job[name]) for name in REPEATS if job.get(name)]
    if may_be_requeued(job):
        rows.append(("again", f"renderq requeue {job['id']}"))
    rows += [("picture", artifact["url"]) for artifact in job["artifacts"]]
    rows += [("note", warning) for warning in job.get("warnings", [])]
    print_pairs(rows)


def may_be_requeued(job: "Job") -> bool:
    """Whether ordering it again is what comes next: another try may do, and nobody asked for one."""
    lost = job["status"] == "expired" or job.get("parked") or (job.get("error") or {}).get("retryable")
    return bool(lost) and not job.get("requeued_as")


def list_jobs(
    *,
    status: Annotated[
        str | None, typer.Option(help="queued, in_progress, completed, failed, canceled, expired.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only jobs of this model.")] = None,
    batch: Annotated[str | None, typer.Option(help="Only jobs of this batch.")] = None,
    parked: Annotated[
        bool, typer.Option("--parked", help="Only jobs that failed because their attempts were used up.")
    ] = False,
    requeued: Annotated[
        bool | None,
        typer.Option(
            "--requeued/--not-requeued",
            help="Only jobs that were ordered again, or were not.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most this many.")] = PAGE,
    after: Annotated[str | None, typer.Option(help="Id of the last job of the page before.")] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    from cli.client import connect
    from cli.progress import describe

    wanted = {"status": status, "model": model, "batch": batch, "parked": "true" if parked else None}
    wanted["requeued"] = None if requeued is None else str(requeued).lower()
    page = connect().list_jobs(**wanted, limit=limit, after=after)
    if as_json:
        print_json(page)
        return
    columns = ("id", "status", "model", "created", *(("row",) if batch else ()), "prompt")
    rows = [_row(job, describe(job), of_batch=batch is not None) for job in page["data"]]
    print_fitted(columns, rows, drop=("model", "created"))
    flags = {"requeued": requeued is True, "not_requeued": requeued is False}
    say_more("renderq list", page, limit=limit, **wanted | {"parked": parked} | flags)


def _row(job: "Job", state: str, *, of_batch: bool) -> tuple[object, ...]:
    number = (job.get("batch_row"),) if of_batch else ()
    return (
        job["id"],
        state,
        job["model"],
        shown_time(job["created_at"]),
        *number,
        job["request"].get("prompt"),
    )


def cancel(job_id: JobId, *, as_json: AsJson = False) -> None:
    """Stop a job: at once when it is queued, at the next step when it is rendering."""
    from cli.client import connect
    from cli.progress import describe

    job = connect().cancel(job_id)
    if as_json:
        print_json(job)
    else:
        print_line(describe(job))


def requeue(
    job_id: JobId,
    *,
    queue_timeout_s: Annotated[
        float | None,
        typer.Option(help="Seconds that the new one may wait. Default: as the old one.", show_default=False),
    ] = None,
    run_timeout_s: Annotated[
        float | None,
        typer.Option(help="Seconds that a try of it may take. Default: as the old one.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Order a failed or expired job again, with the same seed: prints the id of the new one.

    Asked again, it is the same new one.
    """
    from cli.client import connect
    from cli.progress import describe

    job = connect().requeue(job_id, queue_timeout_s=queue_timeout_s, run_timeout_s=run_timeout_s)
    if as_json:
        print_json(job)
        return
    print_line(printable(job["id"]))
    say(describe(job))
    say_all(job.get("warnings"))


def attempts(job_id: JobId, *, as_json: AsJson = False) -> None:
    """List every try at a job: which worker, how far, what came of it."""
    from cli.client import connect

    client = connect()
    found = client.attempts(job_id)
    if as_json:
        print_json(found)
    elif found:
        names = {worker["id"]: worker["name"] for worker in client.workers()}
        rows = [_tried(attempt, names) for attempt in found]
        print_fitted(ATTEMPT_COLUMNS, rows, drop=("started", "ended"))
    else:
        say("no worker has taken it yet")


def _tried(attempt: dict[str, Any], names: dict[str, str]) -> tuple[object, ...]:
    error = attempt["error"]
    return (
        attempt["number"],
        names.get(attempt["worker"], attempt["worker"]),
        attempt["outcome"] or "running",
        attempt["step"],
        shown_time(attempt["started_at"]),
        shown_time(attempt["finished_at"]),
        f"{error['code']}: {error['message']}" if error else None,
    )

"""`renderq get | list | cancel | requeue`: jobs on the server at RENDERQ_URL."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.saving import check_output, end_with, finish
from cli.table import print_fitted, short_time
from cli.terminal import print_json, print_line, print_pairs, printable, say

if TYPE_CHECKING:
    from cli.client import Job

AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]
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

        job = show_progress(client.follow(job_id), quiet=as_json)
    show_job(job, as_json=as_json)
    if job["status"] in TERMINAL:
        end_with(job)


def show_job(job: "Job", *, as_json: bool = False) -> None:
    """Print a job."""
    from cli.progress import describe

    if as_json:
        print_json(job)
        return
    rows: list[tuple[str, object]] = [
        ("id", job["id"]),
        ("status", describe(job)),
        ("model", job["model"]),
        ("prompt", job["request"].get("prompt")),
        ("created", job["created_at"]),
        ("finished", job["finished_at"]),
        ("attempt", f"{job['attempt']} of {job['max_attempts']}"),
    ]
    if job.get("error"):
        rows.append(("error", f"{job['error']['code']}: {job['error']['message']}"))
    rows += [(name.replace("_", " "), job[name]) for name in REPEATS if job.get(name)]
    rows += [("picture", artifact["url"]) for artifact in job["artifacts"]]
    rows += [("note", warning) for warning in job.get("warnings", [])]
    print_pairs(rows)


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
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most this many.")] = 20,
    after: Annotated[str | None, typer.Option(help="Id of the last job of the page before.")] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    from cli.client import connect
    from cli.progress import describe

    wanted = {"status": status, "model": model, "batch": batch, "parked": "true" if parked else None}
    page = connect().list_jobs(**wanted, limit=limit, after=after)
    if as_json:
        print_json(page)
        return
    rows = [
        (
            job["id"],
            describe(job),
            job["model"],
            short_time(job["created_at"]),
            job["request"].get("prompt"),
        )
        for job in page["data"]
    ]
    print_fitted(("id", "status", "model", "created", "prompt"), rows, drop=("model", "created"))
    if page["has_more"]:
        say(f"more: renderq list --after {printable(page['last_id'])}")


def cancel(job_id: JobId, *, as_json: AsJson = False) -> None:
    """Stop a job: at once when it is queued, at the next step when it is rendering."""
    from cli.client import connect
    from cli.progress import describe

    job = connect().cancel(job_id)
    if as_json:
        print_json(job)
    else:
        print_line(describe(job))


def requeue(job_id: JobId, *, as_json: AsJson = False) -> None:
    """Order a failed or expired job again, with the same seed: prints the id of the new one."""
    from cli.client import connect
    from cli.progress import describe

    job = connect().requeue(job_id)
    if as_json:
        print_json(job)
    else:
        print_line(f"{printable(job['id'])}  {describe(job)}")

"""Shows how a job goes while the command waits for it: a bar on a terminal, a line per change elsewhere."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cli.terminal import err, printable, say

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from cli.client import Job


def show_progress(jobs: Iterable["Job"], *, quiet: bool = False) -> "Job":
    """Consume the states of one job and return the last."""
    if quiet:
        return _last(jobs)
    return _bar(jobs) if err().is_terminal else _lines(jobs)


def describe(job: "Job") -> str:
    """The state of a job in a few words."""
    status = job["status"]
    progress = job.get("progress")
    if status == "queued":
        return _describe_queued(job)
    if status == "in_progress":
        where = f", step {printable(progress['step'])} of {printable(progress['steps'])}" if progress else ""
        return f"rendering{where}" + (", stopping" if job.get("cancel_requested_at") else "")
    return ", ".join([printable(status), *_aftermath(job)])


def _aftermath(job: "Job") -> list[str]:
    """What became of a job that failed or expired: ordered again, or its attempts used up and left so."""
    if job.get("requeued_as"):
        return ["requeued"]
    return ["parked"] if job.get("parked") else []


def _describe_queued(job: "Job") -> str:
    position = job.get("queue_position")
    if position is None:
        return "queued"
    return "queued, next" if position == 1 else f"queued, place {position}"


def _last(jobs: Iterable["Job"]) -> "Job":
    job: Job = {}
    for state in jobs:
        job = state
    return job


def _lines(jobs: Iterable["Job"]) -> "Job":
    job: Job = {}
    said = ""
    for state in jobs:
        job = state
        words = describe(state).partition(", step")[0]
        if words != said:
            say(words)
            said = words
    return job


def _bar(jobs: Iterable["Job"]) -> "Job":
    job: Job = {}
    with make_bar() as bar:
        task = bar.add_task("starting", total=None)
        for state in jobs:
            job = state
            _update(bar, task, state)
    return job


def make_bar() -> "Progress":
    """A progress bar on standard error."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=err())


def _update(bar: "Progress", task: "TaskID", job: "Job") -> None:
    progress = job.get("progress") or {}
    done = job["status"] == "completed"
    total = progress.get("steps") or (1 if done else None)
    bar.update(
        task, description=describe(job), total=total, completed=total if done else progress.get("step", 0)
    )

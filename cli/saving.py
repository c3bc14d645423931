"""Waiting for a job's end, writing its pictures to files, and the exit code that tells how it went."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.exits import CliError, ExitCode
from cli.terminal import print_json, say

if TYPE_CHECKING:
    from cli.client import Client, Job

SHORT = 8
"""Characters of a job's id that tell it from others; the first ones are the time."""
STDOUT = Path("-")
OUTCOMES = {
    "completed": ExitCode.OK,
    "failed": ExitCode.FAILED,
    "canceled": ExitCode.NOT_RENDERED,
    "expired": ExitCode.NOT_RENDERED,
}


def finish(client: "Client", job: "Job", output: Path | None, *, as_json: bool) -> None:
    """Wait for the end of a job, save its pictures, and end the command with the job's exit code."""
    from cli.client import PATIENCE_S
    from cli.progress import show_progress

    client.patience_s = PATIENCE_S
    try:
        job = show_progress(client.follow(job["id"]), quiet=as_json)
    except KeyboardInterrupt:
        say(
            f"\njob {job['id']} goes on: "
            f"`renderq get {job['id']}` has it later, `renderq cancel {job['id']}` stops it"
        )
        raise
    saved = save(client, job, output) if job["status"] == "completed" else []
    if as_json and output != STDOUT:
        print_json(job | {"saved": [str(path) for path in saved]})
    elif saved:
        print("\n".join(map(str, saved)))
    end_with(job)


def end_with(job: "Job") -> None:
    """End the command with the code of a job that has ended; return when it went well."""
    code = OUTCOMES.get(job["status"], ExitCode.FAILED)
    if code == ExitCode.OK:
        return
    error = job.get("error")
    raise CliError(f"job {job['id']} {job['status']}" + (f": {error['message']}" if error else ""), code)


def save(client: "Client", job: "Job", output: Path | None) -> list[Path]:
    """Write every picture of the job and return the files."""
    artifacts = job["artifacts"]
    if output == STDOUT:
        for artifact in artifacts:
            sys.stdout.buffer.write(client.content(job["id"], artifact["index"]))
        return []
    paths = [file_name(job, artifact, output, len(artifacts)) for artifact in artifacts]
    for artifact, path in zip(artifacts, paths, strict=True):
        write_file(path, client.content(job["id"], artifact["index"]))
    return paths


def file_name(job: "Job", artifact: dict[str, Any], output: Path | None, count: int) -> Path:
    """Where a picture goes: as asked, else ``renderq-<end of the id>``; numbered when there are several."""
    ending = "." + artifact["media_type"].partition("/")[2]
    path = output or Path(f"renderq-{job['id'][-SHORT:]}{ending}")
    return path if count == 1 else path.with_stem(f"{path.stem}-{artifact['index']}")


def write_file(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error

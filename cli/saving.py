"""Waiting for a job's end, writing its pictures to files, and the exit code that tells how it went."""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.exits import CliError, ExitCode
from cli.interrupts import heard_once
from cli.terminal import print_json, print_line, printable, say, writing

if TYPE_CHECKING:
    from cli.client import Client, Job

SHORT = 8
"""Characters of a job's id that tell it from others; the first ones are the time."""
STDOUT = Path("-")
FORMATS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp", ".mp4": "mp4"}
OUTCOMES = {
    "completed": ExitCode.OK,
    "failed": ExitCode.FAILED,
    "canceled": ExitCode.NOT_RENDERED,
    "expired": ExitCode.NOT_RENDERED,
}


def finish(client: "Client", job: "Job", output: Path | None, *, as_json: bool) -> None:
    """Wait for the end of a job, save its pictures, and end the command with the job's exit code."""
    from cli.lost import PATIENCE_S
    from cli.progress import show_progress

    client.patience_s = PATIENCE_S
    try:
        with heard_once():
            job = show_progress(client.follow(job["id"]), quiet=as_json)
    except KeyboardInterrupt:
        shown = printable(job["id"])
        say(f"\nthe job goes on. See it: renderq get {shown}\n  stop it: renderq cancel {shown}")
        raise
    saved = save(client, job, output) if job["status"] == "completed" else []
    if as_json and output != STDOUT:
        print_json(job | {"saved": [str(path) for path in saved]})
    elif saved:
        tell_saved(job, saved)
    end_with(job)


def tell_saved(job: "Job", saved: Sequence[Path]) -> None:
    """Name each file with its seed; the seeds are beside the result where a script reads it."""
    from cli.rendered import describe_rendering

    if rendered := describe_rendering(job):
        say(rendered)
    seeds = [f"seed {printable(artifact['seed'])}" for artifact in job["artifacts"]]
    for path, seed in zip(map(printable, saved), seeds, strict=True):
        if sys.stdout.isatty():
            print_line(f"{path}  {seed}")
        else:
            print_line(path)
            say(f"{path}: {seed}")


def end_with(job: "Job") -> None:
    """End the command with the code of a job that has ended; return when it went well."""
    code = OUTCOMES.get(job["status"], ExitCode.FAILED)
    if code == ExitCode.OK:
        return
    error = job.get("error")
    raise CliError(
        f"job {printable(job['id'])} {printable(job['status'])}"
        + (f": {printable(error['message'])}" if error else ""),
        code,
    )


def save(client: "Client", job: "Job", output: Path | None) -> list[Path]:
    """Write every picture of the job and return the files."""
    artifacts = job["artifacts"]
    if output == STDOUT:
        require_one(len(artifacts))
        for artifact in artifacts:
            content = client.content(job["id"], artifact["index"])
            with writing():
                sys.stdout.buffer.write(content)
        return []
    paths = [file_name(job, artifact, output, len(artifacts)) for artifact in artifacts]
    for artifact, path in zip(artifacts, paths, strict=True):
        content = client.content(job["id"], artifact["index"])
        try:
            write_file(path, content)
        except CliError as error:
            again = f"`renderq get {job['id']} --output FILE` saves it elsewhere"
            raise CliError(f"{error.message}. The job is done: {again}", error.code) from error
    return paths


def file_name(job: "Job", artifact: dict[str, Any], output: Path | None, count: int) -> Path:
    """Where a picture goes: as asked, else ``renderq-<end of the id>``; numbered when there are several."""
    ending = "." + artifact["media_type"].partition("/")[2]
    path = output or Path(f"renderq-{job['id'][-SHORT:]}{ending}")
    return path if count == 1 else path.with_stem(f"{path.stem}-{artifact['index']}")


def check_output(output: Path | None, count: int) -> None:
    """Refuse before anything is ordered what could not be written afterwards."""
    if output == STDOUT:
        require_one(count)
        return
    path = output or Path("renderq.png")
    number = _obstacle(path, path.exists() and count == 1 and output is not None)
    if number:
        raise CliError(f"cannot write {output or 'to this folder'}: {os.strerror(number)}")


def _obstacle(path: Path, exists: bool) -> int:
    """The errno that writing would end with; 0 when nothing is in the way."""
    if exists:
        return errno.EISDIR if path.is_dir() else 0 if os.access(path, os.W_OK) else errno.EACCES
    if not path.parent.is_dir():
        return errno.ENOTDIR if path.parent.exists() else errno.ENOENT
    return 0 if os.access(path.parent, os.W_OK | os.X_OK) else errno.EACCES


def require_one(count: int) -> None:
    if count > 1:
        raise CliError(f"--output - takes one picture, and there are {count}: give a file name")


def format_for(output: Path | None, output_format: str | None) -> str | None:
    """The format that a file's suffix names; raise `CliError` where ``output_format`` is another."""
    named = FORMATS.get(output.suffix.lower()) if output else None
    if output_format and named and output_format != named:
        raise CliError(f"--output {output} and --output-format {output_format} disagree: leave one out")
    return output_format or named


def write_file(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error

"""What stays behind of many jobs on one worker: memory, open handles, threads, files.

    python -m benchmarks.endurance [--jobs 1000] [--steps 4] [--stand-in] [--json]

The real API, Valkey, SQLite, upkeep and one worker with the bundled model, or, with ``--stand-in``, with an
engine that renders nothing. No two jobs have the same prompt and seed; they differ in format, guidance and
number of pictures, and some are cancelled as soon as they are sent. Every 50 jobs, when all have ended, each
process is looked at. After a warm-up (the first fifth) a line is fitted to the resident memory by least
squares: KiB for each further job, with its standard error.

Ends with 1 when a file was left, the worker's child was replaced, or handles or threads became more.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.noop_worker import MODEL
from benchmarks.procfs import children, open_files, resident_kib, thread_count
from benchmarks.queue_overhead import (
    DRAIN_S,
    HOST,
    LOOK_S,
    START_S,
    python_program,
    start_valkey,
)
from cli import programs
from cli.client import TERMINAL, Client, Refusal
from cli.datafolder import DataFolder, hold_folder, socket_in
from cli.stack import choose_port, get_json
from cli.supervisor import Signals, Supervisor

EVERY = 50
WARM_UP = 0.2
CANCEL_EVERY = 25
PLAY = 3
"""Handles or threads that may be more at the end: a further connection to SQLite has three files."""
COLOURS = ("white", "yellow", "pink", "gray", "red", "blue", "green")
FORMATS = ("png", "jpeg", "webp")
PROGRAMS = ("worker", "api", "upkeep")
CHILD = "worker's child"


@dataclass(frozen=True, slots=True)
class Look:
    """One process after so many jobs."""

    jobs: int
    pid: int
    resident_kib: int
    handles: int
    threads: int


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=4, help="steps of each job")
    parser.add_argument("--stand-in", action="store_true", help="an engine that renders nothing")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="renderq-bench-") as folder:
        report = measure(Path(folder), asked.jobs, asked.steps, stand_in=asked.stand_in)
    print(json.dumps(report, indent=2)) if asked.json else show(report)
    return 0 if report["clean"] else 1


def measure(root: Path, jobs: int, steps: int, *, stand_in: bool) -> dict[str, Any]:
    temporary = root / "tmp"
    temporary.mkdir()
    supervisor = Supervisor(lambda *_: None, lambda *_: None, Signals())
    with hold_folder(root / "data") as folder, socket_in(folder) as socket_path:
        environment = programs.child_environment(folder, f"redis+socket://{socket_path}", os.environ)
        environment["TMPDIR"] = str(temporary)
        try:
            start_valkey(supervisor, folder, socket_path)
            client = start_renderq(supervisor, folder, environment, stand_in=stand_in)
            report = run_jobs(supervisor, client, jobs, steps)
            report["temporary_files"] = count_files(temporary)
            report["artifacts_without_job"] = count_files(folder.root / "artifacts") - report.pop("pictures")
        finally:
            supervisor.stop()
    left = report["temporary_files"] or report["artifacts_without_job"]
    report["clean"] = not left and all(is_steady(seen) for seen in report["processes"].values())
    return {"engine": "stand-in" if stand_in else f"{MODEL}, {steps} steps", **report}


def start_renderq(
    supervisor: Supervisor, folder: DataFolder, environment: Mapping[str, str], *, stand_in: bool
) -> Client:
    supervisor.run_once(programs.migration_program(folder, environment))
    port = choose_port(HOST, 0)
    supervisor.add(programs.api_program(folder, environment, HOST, port, trusted=False))
    supervisor.add(programs.upkeep_program(folder, environment))
    supervisor.add(
        python_program(folder, environment, "worker", "-m", "benchmarks.noop_worker")
        if stand_in
        else programs.worker_program(folder, environment, MODEL, ())
    )
    url = f"http://{HOST}:{port}"
    supervisor.wait(lambda: get_json(url, "/readyz") is not None, "the worker", START_S)
    return Client(url)


def run_jobs(supervisor: Supervisor, client: Client, jobs: int, steps: int) -> dict[str, Any]:
    """Send the jobs a few dozen at a time and look at every process when each lot has ended."""
    began, load = time.monotonic(), os.getloadavg()[0]
    looks: dict[str, list[Look]] = {name: [] for name in (*PROGRAMS, CHILD)}
    ended: list[Mapping[str, Any]] = []
    for first in range(0, jobs, EVERY):
        numbers = range(first, min(first + EVERY, jobs))
        ended += run_lot(supervisor, client, [order(number, steps) for number in numbers], first)
        for name, pid in processes(supervisor).items():
            looks[name].append(look(pid, len(ended)))
    return {
        "jobs": jobs,
        "canceled": sum(job["status"] == "canceled" for job in ended),
        "pictures": sum(len(job["artifacts"]) for job in ended),
        "seconds": round(time.monotonic() - began, 1),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "processes": {name: describe(seen, jobs * WARM_UP) for name, seen in looks.items()},
    }


def order(number: int, steps: int) -> dict[str, Any]:
    """A job that no other is like."""
    return {
        "model": MODEL,
        "prompt": f"a {COLOURS[number % len(COLOURS)]} house on a meadow, number {number}",
        "seed": number,
        "num_inference_steps": steps,
        "n": 2 if number % 10 == 0 else 1,
        "output_format": FORMATS[number % len(FORMATS)],
        **({"negative_prompt": "a tree", "guidance_scale": 2.0} if number % 5 == 0 else {}),
    }


def run_lot(
    supervisor: Supervisor, client: Client, orders: Sequence[Mapping[str, Any]], first: int
) -> list[Mapping[str, Any]]:
    """Send some jobs, cancel a few of them, and return all when they have ended."""
    ids = [send(client, request, cancels=(first + n) % CANCEL_EVERY == 0) for n, request in enumerate(orders)]
    return [wait_end(supervisor, client, job_id) for job_id in ids]


def send(client: Client, request: Mapping[str, Any], *, cancels: bool) -> str:
    job_id = str(client.submit(request, str(uuid.uuid4()))["id"])
    if cancels:
        with suppress(Refusal):  # it has ended already
            client.cancel(job_id)
    return job_id


def wait_end(supervisor: Supervisor, client: Client, job_id: str) -> Mapping[str, Any]:
    deadline = time.monotonic() + DRAIN_S
    while (job := client.get(job_id))["status"] not in TERMINAL:
        if time.monotonic() > deadline:
            sys.exit(f"job {job_id} did not end within {DRAIN_S:g} s")
        supervisor.tick() if job["status"] == "queued" else time.sleep(LOOK_S)
    if job["status"] not in ("completed", "canceled"):
        sys.exit(f"job {job_id} {job['status']}: {job['error']}")
    return job


def processes(supervisor: Supervisor) -> dict[str, int]:
    running = {name: supervisor.children[name].process for name in PROGRAMS}
    pids = {name: process.pid for name, process in running.items() if process}
    return {**pids, CHILD: children(pids["worker"])[-1]}


def look(pid: int, jobs: int) -> Look:
    return Look(jobs, pid, resident_kib(pid), open_files(pid), thread_count(pid))


def describe(looks: Sequence[Look], warm_up: float) -> dict[str, Any]:
    """What came of one process after the warm-up; the first look of all where it was all warm-up."""
    warm = [seen for seen in looks if seen.jobs >= warm_up]
    slope, error = fit([seen.jobs for seen in warm], [seen.resident_kib for seen in warm])
    return {
        "kib_per_job": round(slope, 2),
        "standard_error": round(error, 2),
        "resident_mib": [round(seen.resident_kib / 1024, 1) for seen in (warm[0], warm[-1])],
        "handles": [warm[0].handles, warm[-1].handles],
        "threads": [warm[0].threads, warm[-1].threads],
        "replaced": len({seen.pid for seen in looks}) - 1,
        "looks": [asdict(seen) for seen in looks],
    }


def fit(jobs: Sequence[float], kib: Sequence[float]) -> tuple[float, float]:
    """Slope of the line of least squares and its standard error; zeros for fewer than three points."""
    if len(jobs) < 3:
        return 0.0, 0.0
    line = statistics.linear_regression(jobs, kib)
    rest = sum((y - line.slope * x - line.intercept) ** 2 for x, y in zip(jobs, kib, strict=True))
    middle = statistics.fmean(jobs)
    spread = sum((x - middle) ** 2 for x in jobs)
    return line.slope, math.sqrt(rest / (len(jobs) - 2) / spread)


def is_steady(process: Mapping[str, Any]) -> bool:
    more = [process[what][1] - process[what][0] for what in ("handles", "threads")]
    return not process["replaced"] and all(extra <= PLAY for extra in more)


def count_files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def show(report: Mapping[str, Any]) -> None:
    load = report["load"]
    print(f"{report['jobs']} jobs ({report['engine']}), {report['canceled']} of them cancelled,", end=" ")
    print(f"in {report['seconds']} s; load average {load[0]} before, {load[1]} after")
    print(f"{'':16}{'KiB per job':>16}{'resident MiB':>16}{'handles':>16}{'threads':>16}")
    for name, seen in report["processes"].items():
        slope = f"{seen['kib_per_job']:+.2f} ± {seen['standard_error']:.2f}"
        cells = (f"{seen[what][0]} > {seen[what][1]}" for what in ("resident_mib", "handles", "threads"))
        print(
            f"{name:16}{slope:>16}" + "".join(f"{c:>{w}}" for c, w in zip(cells, (18, 12, 12), strict=True))
        )
    print(f"temporary files left: {report['temporary_files']}")
    print(f"files of no job: {report['artifacts_without_job']}")


if __name__ == "__main__":
    sys.exit(main())

"""What the queue itself costs: jobs that render nothing, beside a bare Celery task on the same Valkey.

    python benchmarks/queue_overhead.py [--jobs 500] [--single 100] [--json]

renderq: one worker with an engine that returns a blank picture, the real API over HTTP, Valkey and SQLite.
Each job is checked, stored, sent, claimed, written as a file and finished. Celery: one prefork worker whose
task notes the time. Two ways each: a burst (all sent at once: rates) and one at a time (the next after the
last has ended: times of a queue that has nothing else to do). Both run on the same server in the same run,
so compare the two, and neither with another machine's.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.noop_worker import MODEL
from cli import programs, valkey
from cli.client import TERMINAL, Client
from cli.datafolder import DataFolder, hold_folder, socket_in
from cli.exits import ExitCode
from cli.stack import choose_port, get_json
from cli.supervisor import Program, Signals, Supervisor

HOST = "127.0.0.1"
START_S = 120.0
DRAIN_S = 600.0
LOOK_S = 0.02
FINAL: dict[int, str] = {ExitCode.LOAD_FAILED: "the engine that renders nothing no longer fits the worker"}
WARM_UP = 5
"""Jobs before measuring: first connections, first imports."""

Sample = tuple[float, float]
"""Seconds from just before sending to the start, and to the end."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=500, help="jobs of the burst")
    parser.add_argument("--single", type=int, default=100, help="jobs sent one at a time")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="renderq-bench-") as folder:
        report = measure(Path(folder), arguments.jobs, arguments.single)
    print(json.dumps(report, indent=2)) if arguments.json else show(report)
    return 0


def measure(root: Path, jobs: int, single: int) -> dict[str, Any]:
    """Both systems in turn on one Valkey."""
    report: dict[str, Any] = {"jobs": jobs, "single": single}
    supervisor = Supervisor(lambda *_: None, lambda *_: None, Signals())
    with hold_folder(root) as folder, socket_in(folder) as socket_path:
        environment = programs.child_environment(folder, f"redis+socket://{socket_path}", os.environ)
        try:
            start_valkey(supervisor, folder, socket_path)
            client = start_renderq(supervisor, folder, environment)
            report["renderq"] = measure_renderq(client, jobs, single)
            report["rss_mb"] = {name: rss_mb(supervisor, name) for name in ("api", "upkeep", "worker")}
            celery = start_celery(supervisor, folder, environment)
            report["celery"] = measure_celery(*celery, jobs, single)
        finally:
            supervisor.stop()
    return report


def start_valkey(supervisor: Supervisor, folder: DataFolder, socket_path: Path) -> None:
    supervisor.add(programs.valkey_program(folder, socket_path))
    supervisor.wait(lambda: valkey.answers(socket_path), "Valkey", START_S)


def start_renderq(supervisor: Supervisor, folder: DataFolder, environment: Mapping[str, str]) -> Client:
    """The product, but for the engine of its worker."""
    supervisor.run_once(programs.migration_program(folder, environment))
    port = choose_port(HOST, 0)
    supervisor.add(programs.api_program(folder, environment, HOST, port, trusted=False))
    supervisor.add(programs.upkeep_program(folder, environment))
    supervisor.add(python_program(folder, environment, "worker", "-m", "benchmarks.noop_worker"))
    url = f"http://{HOST}:{port}"
    supervisor.wait(lambda: get_json(url, "/readyz") is not None, "the worker", START_S)
    return Client(url)


def start_celery(
    supervisor: Supervisor, folder: DataFolder, environment: Mapping[str, str]
) -> tuple[Callable[[int], object], Path]:
    """A bare worker: what sends a number to it, and the file with its notes."""
    notes = folder.root / "notes.txt"
    notes.touch()
    more = {"RENDERQ_REDIS_URL": environment["RENDERQ_REDIS_URL"], "BARE_CELERY_FILE": str(notes)}
    os.environ.update(more)
    from benchmarks.bare_celery import QUEUE, noop

    arguments = ("-m", "celery", "-A", "benchmarks.bare_celery", "worker", "-c", "1", "-Q", QUEUE)
    supervisor.add(python_program(folder, {**environment, **more}, "celery", *arguments))
    return noop.delay, notes


def python_program(folder: DataFolder, environment: Mapping[str, str], name: str, *arguments: str) -> Program:
    log = folder.logs / f"{name}.log"
    return Program(
        name, (sys.executable, "-P", *arguments), environment, log, stops=2, grace_s=20.0, final=FINAL
    )


def measure_renderq(client: Client, jobs: int, single: int) -> dict[str, Any]:
    def send() -> str:
        request = {"model": MODEL, "prompt": "nothing", "seed": 1}
        return str(client.submit(request, str(uuid.uuid4()))["id"])

    def one() -> Sample:
        began = time.time()
        return renderq_sample(began, wait_end(client, send()))

    for _ in range(WARM_UP):
        check_nothing_ran(wait_end(client, send()))
    singles = [one() for _ in range(single)]
    began = time.time()
    ids = [send() for _ in range(jobs)]
    sent_s = time.time() - began
    last = max(ended(wait_end(client, job_id)) for job_id in ids)
    return summarise(singles, jobs, sent_s, last - began)


def wait_end(client: Client, job_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + DRAIN_S
    while (job := client.get(job_id))["status"] not in TERMINAL:
        if time.monotonic() > deadline:
            sys.exit(f"job {job_id} did not end within {DRAIN_S:g} s")
        time.sleep(LOOK_S)
    if job["status"] != "completed":
        sys.exit(f"job {job_id} {job['status']}: {job['error']}")
    return job


def check_nothing_ran(job: Mapping[str, Any]) -> None:
    if job["acceleration"]["steps"]:
        sys.exit(f"job {job['id']} was rendered: its worker has an engine of its own")


def renderq_sample(began: float, job: Mapping[str, Any]) -> Sample:
    started = datetime.fromisoformat(job["started_at"]).timestamp()
    return started - began, ended(job) - began


def ended(job: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(job["finished_at"]).timestamp()


def measure_celery(send: Callable[[int], object], notes: Path, jobs: int, single: int) -> dict[str, Any]:
    def one(number: int) -> Sample:
        began = time.time()
        send(number)
        took = wait_note(notes, number) - began
        return took, took

    for number in range(WARM_UP):
        one(number)
    singles = [one(WARM_UP + number) for number in range(single)]
    first = WARM_UP + single
    began = time.time()
    for number in range(first, first + jobs):
        send(number)
    sent_s = time.time() - began
    last = max(wait_note(notes, number) for number in range(first, first + jobs))
    return summarise(singles, jobs, sent_s, last - began)


def wait_note(notes: Path, number: int) -> float:
    """When the task of this number ran."""
    deadline = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline:
        lines = (line.split() for line in notes.read_text().splitlines() if line.startswith(f"{number} "))
        for _, when in lines:
            return float(when)
        time.sleep(LOOK_S / 10)
    sys.exit(f"Celery did not run task {number} within {DRAIN_S:g} s")


def summarise(singles: list[Sample], jobs: int, sent_s: float, done_s: float) -> dict[str, Any]:
    return {
        "submit_per_s": round(jobs / sent_s, 1),
        "jobs_per_s": round(jobs / done_s, 1),
        "submit_to_start_ms": percentiles_ms([start for start, _ in singles]),
        "whole_ms": percentiles_ms([end for _, end in singles]),
    }


def percentiles_ms(seconds: list[float]) -> dict[str, float]:
    """The value that 50 and 99 % of the samples do not exceed."""
    ordered = sorted(seconds)
    return {f"p{p}": round(1000 * ordered[math.ceil(len(ordered) * p / 100) - 1], 2) for p in (50, 99)}


def rss_mb(supervisor: Supervisor, name: str) -> float:
    """Resident memory of a process, without its children."""
    process = supervisor.children[name].process
    assert process
    status = Path(f"/proc/{process.pid}/status").read_text()
    return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1)


def show(report: Mapping[str, Any]) -> None:
    ours, theirs = report["renderq"], report["celery"]
    print(f"{'':24}{'renderq':>10}{'celery':>10}")
    for name in ("submit_per_s", "jobs_per_s"):
        print(f"{name:24}{ours[name]:>10}{theirs[name]:>10}")
    for name in ("submit_to_start_ms", "whole_ms"):
        for p in ours[name]:
            print(f"{name + ' ' + p:24}{ours[name][p]:>10}{theirs[name][p]:>10}")
    print("resident MB: " + ", ".join(f"{name} {mb}" for name, mb in report["rss_mb"].items()))


if __name__ == "__main__":
    sys.exit(main())

"""What a bulk render costs and what it costs others, beside a plain Celery group.

    python -m benchmarks.bulk [--rows 10000] [--waiting 1000] [--pace 0.05] [--json]

The real API, Valkey, SQLite, upkeep and one worker whose engine takes ``--pace`` seconds per job and renders
nothing. First a CSV of ``--rows`` is sent twice: good, then with a fault in every row; then a batch of
``--waiting`` rows runs, a single normal job is sent into it, and the rows that start before it are counted.
Celery gets a ``group`` of as many tasks of the same length on the same server in the same run.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.noop_worker import MODEL
from benchmarks.queue_overhead import (
    HOST,
    START_S,
    ended,
    python_program,
    start_celery,
    start_valkey,
    wait_end,
    wait_note,
)
from cli import programs
from cli.client import Client
from cli.datafolder import DataFolder, hold_folder, socket_in
from cli.stack import choose_port, get_json
from cli.supervisor import Signals, Supervisor

CALL_S = 120.0
TEMPLATE = {"model": MODEL, "prompt": "a {colour} house on a green meadow", "width": 64}
RUNNING_FIRST = 5
"""Rows that have ended before the single job is sent."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000, help="rows of the CSV file")
    parser.add_argument("--waiting", type=int, default=1000, help="rows before which the single job comes")
    parser.add_argument("--pace", type=float, default=0.05, help="seconds per job")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="renderq-bench-") as folder:
        report = measure(Path(folder), asked.rows, asked.waiting, asked.pace)
    print(json.dumps(report, indent=2)) if asked.json else show(report)
    return 0


def measure(root: Path, rows: int, waiting: int, pace_s: float) -> dict[str, Any]:
    """Both systems in turn on one Valkey."""
    report: dict[str, Any] = {"rows": rows, "waiting": waiting, "pace_s": pace_s}
    supervisor = Supervisor(lambda *_: None, lambda *_: None, Signals())
    with hold_folder(root) as folder, socket_in(folder) as socket_path:
        environment = programs.child_environment(folder, f"redis+socket://{socket_path}", os.environ)
        try:
            start_valkey(supervisor, folder, socket_path)
            url = start_renderq(supervisor, folder, environment, pace_s)
            report["csv"] = measure_csv(url, rows)
            report["renderq"] = measure_batch(url, waiting)
            send, notes = start_celery(supervisor, folder, environment)
            del send
            report["celery_group"] = measure_group(notes, waiting, pace_s)
        finally:
            supervisor.stop()
    return report


def start_renderq(
    supervisor: Supervisor, folder: DataFolder, environment: Mapping[str, str], pace_s: float
) -> str:
    supervisor.run_once(programs.migration_program(folder, environment))
    port = choose_port(HOST, 0)
    supervisor.add(programs.api_program(folder, environment, HOST, port, trusted=False))
    supervisor.add(programs.upkeep_program(folder, environment))
    worker = ("-m", "benchmarks.noop_worker", str(pace_s))
    supervisor.add(python_program(folder, environment, "worker", *worker))
    url = f"http://{HOST}:{port}"
    supervisor.wait(lambda: get_json(url, "/readyz") is not None, "the worker", START_S)
    return url


def measure_csv(url: str, rows: int) -> dict[str, Any]:
    good = "sku,colour\n" + "".join(f"A{number},white\n" for number in range(rows))
    bad = "sku,colour,width\n" + "".join(f"A{number},white,65\n" for number in range(rows))
    template = {**TEMPLATE, "metadata": {"sku": "{sku}"}}
    with httpx2.Client(base_url=url, timeout=CALL_S) as http:
        accepted, accept_s = send_csv(http, good, template)
        batch = accepted.raise_for_status().json()
        assert batch["total"] == rows, batch
        began = time.monotonic()
        http.post(f"/v1/batches/{batch['id']}/cancel").raise_for_status()
        cancel_s = time.monotonic() - began
        refused, refuse_s = send_csv(http, bad, template)
        assert refused.status_code == httpx2.codes.UNPROCESSABLE_CONTENT, refused.text[:1000]
    return {
        "accepted_s": round(accept_s, 2),
        "refused_s": round(refuse_s, 2),
        "errors": len(refused.json()["errors"]),
        "canceled_s": round(cancel_s, 2),
    }


def send_csv(http: httpx2.Client, text: str, template: Mapping[str, object]) -> tuple[httpx2.Response, float]:
    began = time.monotonic()
    answer = http.post(
        "/v1/batches",
        files={"file": ("products.csv", text.encode(), "text/csv")},
        data={"template": json.dumps(template), "name": "bench"},
    )
    return answer, time.monotonic() - began


def measure_batch(url: str, waiting: int) -> dict[str, Any]:
    with httpx2.Client(base_url=url, timeout=CALL_S) as http, cancelled_batch(http, waiting) as batch:
        wait_completed(http, batch["id"])
        client = Client(url)
        began = time.time()
        sent = client.submit({"model": MODEL, "prompt": "single"}, str(uuid.uuid4()))
        single = wait_end(client, str(sent["id"]))
        started = datetime.fromisoformat(single["started_at"]).timestamp()
        before = rows_started_between(http, batch["id"], began, started)
    return {
        "single_started_after_s": round(started - began, 3),
        "single_ended_after_s": round(ended(single) - began, 3),
        "rows_before_it": before,
    }


@contextmanager
def cancelled_batch(http: httpx2.Client, rows: int) -> Iterator[dict[str, Any]]:
    """A running batch, cancelled at the end."""
    body = {"template": TEMPLATE, "rows": [{"colour": "white"}] * rows}
    batch = http.post("/v1/batches", json=body).raise_for_status().json()
    yield batch
    http.post(f"/v1/batches/{batch['id']}/cancel").raise_for_status()


def wait_completed(http: httpx2.Client, batch_id: str) -> None:
    deadline = time.monotonic() + START_S
    while http.get(f"/v1/batches/{batch_id}").json()["counts"]["completed"] < RUNNING_FIRST:
        if time.monotonic() > deadline:
            sys.exit("the batch does not run")
        time.sleep(0.01)


def rows_started_between(http: httpx2.Client, batch_id: str, began: float, end: float) -> int:
    jobs: list[dict[str, Any]] = []
    for status in ("completed", "in_progress"):
        answer = http.get("/v1/jobs", params={"batch": batch_id, "status": status, "limit": 100})
        jobs += answer.raise_for_status().json()["data"]
    starts = [datetime.fromisoformat(job["started_at"]).timestamp() for job in jobs if job["started_at"]]
    return sum(began < start < end for start in starts)


def measure_group(notes: Path, waiting: int, pace_s: float) -> dict[str, Any]:
    from celery import group

    from benchmarks.bare_celery import noop

    group(noop.s(number, pace_s) for number in range(waiting)).apply_async()
    wait_note(notes, RUNNING_FIRST)
    began = time.time()
    noop.delay(waiting, pace_s)
    started = wait_note(notes, waiting)
    times = [float(line.split()[1]) for line in notes.read_text().splitlines()]
    return {
        "single_started_after_s": round(started - began, 3),
        "rows_before_it": sum(began < ran < started for ran in times),
    }


def show(report: Mapping[str, Any]) -> None:
    csv, ours, theirs = report["csv"], report["renderq"], report["celery_group"]
    print(f"CSV of {report['rows']} rows: accepted in {csv['accepted_s']} s,")
    print(f"cancelled in {csv['canceled_s']} s,")
    print(f"refused with {csv['errors']} errors in {csv['refused_s']} s")
    print(f"a single job sent into {report['waiting']} rows of {report['pace_s']} s each:")
    print(f"{'':24}{'renderq':>10}{'celery':>10}")
    for name in ("single_started_after_s", "rows_before_it"):
        print(f"{name:24}{ours[name]:>10}{theirs[name]:>10}")


if __name__ == "__main__":
    sys.exit(main())

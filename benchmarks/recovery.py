"""How soon a job of a killed worker runs again, and how often a healthy long job runs, beside plain Celery.

    python -m benchmarks.recovery [--tries 2] [--only WORDS] [--json]

Each line is a system of its own: Valkey, workers under the supervisor and, for renderq, API, upkeep, SQLite.
A long job begins, half a second later its whole worker or its worker's child alone gets kill -9, and the time
from there to the job's next run is taken. Lines with two workers have one standing by; with one, only the
worker that the supervisor starts again can take the job. What is started again loads no model here: the time
of a real load comes on top where nothing stands by, and on a busy machine that of the start itself. Then a
job that lasts two and a half times the lease, or the visibility timeout, runs with nothing killed, and its
runs are counted.

The times are those of timers, so some lines are measured side by side. Ends with 1 when a goal is missed, and
keeps that line's logs.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.killable import Killable, PlainCelery, Renderq, pause
from benchmarks.procfs import children
from benchmarks.queue_overhead import START_S, start_valkey
from cli import programs
from cli.datafolder import hold_folder, socket_in
from cli.supervisor import Signals, Supervisor

SIDE_BY_SIDE = 4
LONG_S = 600.0
"""A job that is to be killed: it never ends before."""
KILL_AFTER_S = 0.5
HEALTHY_TIMES = 2.5
AGREE_S = 0.5
VISIBILITY_S = 3600.0
"""Celery's default."""
PATIENCE_S = 45.0
"""Longer is not waited for what Celery holds for an hour."""
SWEEP_S = 100.0
"""Celery looks for what has become visible ten times as seldom as its interval of 10 s says."""
VICTIMS = ("worker", "child")

Outcome = float | str
"""Seconds until the job ran again; "waits": not within the patience; "lost": nobody knows it any more."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table.

    Attributes:
        limit_s: The lease, or the visibility timeout.
        patience_s: How long the next run is waited for.
        goal_s: Within which it has to come, where that is promised.
        variables: Settings of renderq.
        conf: Settings of Celery; None for renderq.
        counts_healthy: Whether a healthy job that lasts longer than the limit is tried too.
    """

    name: str
    workers: int
    limit_s: float
    patience_s: float
    goal_s: float | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, object] | None = None
    counts_healthy: bool = False


def renderq_case(
    name: str, workers: int, lease_s: float, beat_s: float, upkeep_s: float, goal_s: float | None
) -> Case:
    seconds = {"LEASE": lease_s, "HEARTBEAT": beat_s, "UPKEEP_INTERVAL": upkeep_s}
    variables = {f"RENDERQ_{what}_S": f"{value:g}" for what, value in seconds.items()}
    healthy = workers > 1 and goal_s is not None
    return Case(name, workers, lease_s, lease_s + 30, goal_s, variables, counts_healthy=healthy)


def celery_case(
    name: str, workers: int, visibility_s: float, *, rejects: bool = True, swept: bool = False
) -> Case:
    """Celery that sweeps by its defaults, or each second; ``rejects`` is reject_on_worker_lost."""
    options: dict[str, float] = {"visibility_timeout": visibility_s}
    if swept:
        options |= {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    conf = {"task_reject_on_worker_lost": rejects, "broker_transport_options": options}
    patience_s = (
        min(PATIENCE_S, visibility_s) if visibility_s == VISIBILITY_S else visibility_s + SWEEP_S + 30
    )
    return Case(name, workers, visibility_s, patience_s, conf=conf, counts_healthy=swept and workers > 1)


CASES = (
    renderq_case("renderq, lease 30 s (default)", 2, 30, 5, 5, 40),
    renderq_case("renderq, lease 30 s (default)", 1, 30, 5, 5, 40),
    renderq_case("renderq, lease 5 s, beat 1 s, upkeep 1 s", 2, 5, 1, 1, 10),
    renderq_case("renderq, lease 5 s, beat 1 s, upkeep 1 s", 1, 5, 1, 1, 10),
    renderq_case("renderq, lease 5 s, beat 1 s, upkeep 5 s", 2, 5, 1, 5, None),
    celery_case("Celery acks_late, visible after 1 h (default)", 2, VISIBILITY_S, rejects=False),
    celery_case("  and reject_on_worker_lost", 2, VISIBILITY_S),
    celery_case("  and reject_on_worker_lost", 1, VISIBILITY_S),
    celery_case("  and visible after 30 s", 2, 30),
    celery_case("  and visible after 30 s, swept each second", 2, 30, swept=True),
    celery_case("  and visible after 5 s, swept each second", 2, 5, swept=True),
    celery_case("  and visible after 5 s, swept each second", 1, 5, swept=True),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=2, help="kills of each kind in each line")
    parser.add_argument("--only", default="", metavar="WORDS", help="lines whose name has these words")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    report = measure_all([case for case in CASES if asked.only in case.name], asked.tries)
    print(json.dumps(report, indent=2)) if asked.json else show(report)
    return 0 if all(line["goal_met"] is not False for line in report["lines"]) else 1


def measure_all(cases: Sequence[Case], tries: int) -> dict[str, Any]:
    """Every line, a few at a time, those that take longest first."""
    load_before = os.getloadavg()[0]
    by_length = sorted(range(len(cases)), key=lambda number: -cases[number].patience_s)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        begun = {number: pool.submit(measure, cases[number], tries) for number in by_length}
        lines = [begun[number].result() for number in range(len(cases))]
    return {"tries": tries, "load": [round(load_before, 1), round(os.getloadavg()[0], 1)], "lines": lines}


def measure(case: Case, tries: int) -> dict[str, Any]:
    """One line; its folder with all logs is kept where the goal was missed."""
    root = Path(tempfile.mkdtemp(prefix="renderq-bench-"))
    kept = True
    try:
        line = describe(case, *try_case(root, case, tries))
        kept = line["goal_met"] is False
    finally:
        if kept:
            print(f"{case.name}, workers {case.workers}: everything is kept in {root}", file=sys.stderr)
        else:
            shutil.rmtree(root, ignore_errors=True)
    return line


def try_case(root: Path, case: Case, tries: int) -> tuple[dict[str, list[Outcome]], int | None]:
    """What came of each kill, by victim, and how often the healthy job ran."""
    supervisor = Supervisor(lambda *_: None, lambda *_: None, Signals())
    with hold_folder(root) as folder, socket_in(folder) as socket_path:
        environment = programs.child_environment(folder, f"redis+socket://{socket_path}", os.environ)
        environment |= case.variables
        try:
            start_valkey(supervisor, folder, socket_path)
            system: Killable = (
                Renderq(supervisor, folder, environment, case.workers)
                if case.conf is None
                else PlainCelery(supervisor, folder, environment, case.workers, case.conf)
            )
            killed = {who: [kill_one(system, who, case.patience_s) for _ in range(tries)] for who in VICTIMS}
            return killed, count_runs(system, case.limit_s) if case.counts_healthy else None
        finally:
            supervisor.stop()


def kill_one(system: Killable, victim: str, patience_s: float) -> Outcome:
    """Begin a job, kill its worker or that worker's child, and see when it runs again."""
    supervisor = system.supervisor
    supervisor.wait(system.is_ready, "every worker", START_S)
    job = system.begin(LONG_S)
    supervisor.wait(lambda: bool(system.runs(job)), "the first run", START_S)
    pause(supervisor, KILL_AFTER_S)
    holder = system.holder(job)
    assert holder, "nobody holds the job"
    end = partial(os.killpg, holder) if victim == "worker" else partial(os.kill, children(holder)[-1])
    killed_at = time.time()
    end(signal.SIGKILL)
    try:
        return next_run(system, job, killed_at, patience_s)
    finally:
        system.end(job)


def next_run(system: Killable, job: str, killed_at: float, patience_s: float) -> Outcome:
    while time.time() < killed_at + patience_s:
        later = [began - killed_at for began in system.runs(job) if began > killed_at]
        if later:
            return round(later[0], 1)
        if is_gone(system, job):
            return "lost"
        system.supervisor.tick()
    return "waits"


def is_gone(system: Killable, job: str) -> bool:
    """Whether two looks agree: between Valkey and a worker a message is nowhere for a moment."""
    if system.is_expected(job):
        return False
    pause(system.supervisor, AGREE_S)
    return not system.is_expected(job)


def count_runs(system: Killable, limit_s: float) -> int:
    """How often a job runs that lasts longer than the limit while nothing is killed."""
    seconds = HEALTHY_TIMES * limit_s
    system.supervisor.wait(system.is_ready, "every worker", START_S)
    job = system.begin(seconds)
    pause(system.supervisor, 3 * seconds, lambda: bool(system.runs(job)) and is_gone(system, job))
    runs = len(system.runs(job))
    system.end(job)
    return runs


def describe(case: Case, killed: Mapping[str, Sequence[Outcome]], runs: int | None) -> dict[str, Any]:
    outcomes = [outcome for victim in VICTIMS for outcome in killed[victim]]
    in_time = [isinstance(outcome, float) and outcome <= (case.goal_s or 0) for outcome in outcomes]
    return {
        "name": case.name,
        "workers": case.workers,
        **{f"{victim}_killed": list(killed[victim]) for victim in VICTIMS},
        "patience_s": case.patience_s,
        "healthy_runs": runs,
        "goal_s": case.goal_s,
        "goal_met": None if case.goal_s is None else all(in_time) and runs in (None, 1),
    }


def show(report: Mapping[str, Any]) -> None:
    print("seconds until a job of a killed worker runs again, the longest of all tries")
    heads = ("workers", "worker -9", "child -9", "healthy runs")
    print(f"{'':48}" + "".join(f"{head:>13}" for head in heads))
    for line in report["lines"]:
        words = [longest(line[f"{victim}_killed"], line["patience_s"]) for victim in VICTIMS]
        cells = [str(line["workers"]), *words, str(line["healthy_runs"] or "-")]
        print(f"{line['name']:48}" + "".join(f"{cell:>13}" for cell in cells))
    print(f"load average {report['load'][0]} before, {report['load'][1]} after")


def longest(outcomes: Sequence[Outcome], patience_s: float) -> str:
    """The worst of some outcomes in words."""
    rank: Callable[[Outcome], tuple[bool, bool, float]] = lambda o: (  # noqa: E731
        o == "lost",
        o == "waits",
        o if isinstance(o, float) else 0.0,
    )
    worst = max(outcomes, key=rank)
    if isinstance(worst, float):
        return f"{worst:.1f}"
    return "lost" if worst == "lost" else f"> {patience_s:g}"


if __name__ == "__main__":
    sys.exit(main())

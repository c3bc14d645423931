"""Whether each slot of each schedule fires exactly once, however many tickers look.

    python -m benchmarks.ticks [--tickers 4] [--schedules 20] [--slots 100] [--database URL] [--json]

Real processes, all of them looking at every slot at once, in time lapse: the time is given to them, a minute
later at each look. Default database: a new SQLite file. A database that is named must be empty and migrated.
It ends with 1 if a slot fired twice, late or never.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

from sqlalchemy import select

from core.db import Database
from core.lifecycle import FiringOutcome, Misfire
from core.log import configure_logging
from core.schedules import create_schedule
from core.tables import Firing, Job
from policy.catalogue import Catalogue
from tasks.schedules import fire_all

MINUTE = timedelta(minutes=1)
ORDER = {"template": {"model": "tiny", "prompt": "a {colour} house"}, "rows": [{"colour": "white"}]}
LOOK_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tickers", type=int, default=4)
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--slots", type=int, default=100)
    parser.add_argument("--database", help="URL of an empty database")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="renderq-bench-") as folder:
        url = asked.database or f"sqlite:///{Path(folder) / 'ticks.db'}"
        report = measure(url, asked.tickers, asked.schedules, asked.slots)
    print(json.dumps(report, indent=None if asked.json else 2))
    return 0 if report["right"] else 1


def measure(url: str, tickers: int, schedules: int, slots: int) -> dict[str, Any]:
    database = Database(url)
    database.upgrade()
    first = {}
    with database.transaction() as session:
        for number in range(schedules):
            made = create_schedule(
                session,
                caller="local",
                name=f"schedule {number}",
                rule={"every_s": int(MINUTE.total_seconds())},
                order=ORDER,
                total=1,
                misfire=Misfire.SKIP,
            )
            assert made.next_at
            first[made.id] = made.next_at
    database.dispose()  # before other processes are started
    began = time.monotonic()
    codes = run_tickers(url, tickers, [max(first.values()) + MINUTE * number for number in range(slots)])
    return {
        "database": database.url.get_backend_name(),
        "tickers": tickers,
        "schedules": schedules,
        "slots": slots,
        "exit_codes": codes,
        "seconds": round(time.monotonic() - began, 1),
        **judge(database, first, slots),
    }


def run_tickers(url: str, tickers: int, times: list[datetime]) -> list[int | None]:
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(tickers)
    processes = [context.Process(target=look, args=(url, together, times)) for _ in range(tickers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def look(url: str, together: Barrier, times: list[datetime]) -> None:
    """One ticker: all of them begin each look at once."""
    configure_logging("ticker", level="warning")  # a line for each firing would bury the report
    database, catalogue = Database(url), Catalogue.load()
    for at in times:
        together.wait(LOOK_S)
        fire_all(database, catalogue, 3, at)


def judge(database: Database, first: dict[str, datetime], slots: int) -> dict[str, Any]:
    expected = {(schedule, at + MINUTE * n) for schedule, at in first.items() for n in range(slots)}
    with database.reading() as session:
        firings = session.execute(
            select(Firing.schedule_id, Firing.due_at).where(Firing.outcome == FiringOutcome.FIRED)
        ).all()
        jobs = session.scalars(select(Job.batch_id)).all()
    fired = Counter((row[0], row[1]) for row in firings)
    twice = sum(count - 1 for count in fired.values())
    missing, extra = len(expected - set(fired)), len(set(fired) - expected)
    batches = len(set(jobs))
    right = not (twice or missing or extra) and batches == len(jobs) == len(expected)
    told = {"firings": len(firings), "twice": twice, "missing": missing, "extra": extra}
    return {**told, "batches": batches, "right": right}


if __name__ == "__main__":
    sys.exit(main())

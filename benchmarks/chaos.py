"""Breaks a whole renderq at random while it is used, then checks that no job was lost, doubled or changed.

    python -m benchmarks.chaos [--jobs 1000] [--minutes M] [--seed 1] [--json]
                               [--database sqlite|postgresql|URL] [--microbatch N]

Real processes: the API, two workers with a stand-in engine that takes 0.05 to 0.2 s for a job, upkeep, Valkey
(with its file for odd seeds, without for even ones) and SQLite or an embedded PostgreSQL. Every process
reaches its servers through a TCP proxy of its own. A plan drawn from the seed kills (-9), terminates, stops,
restarts and cuts off each of them in each phase of a job, while callers order, repeat and cancel. Then every
promise is checked, in SQL and files and through the API. The same seed gives the same plan and orders.

Exit code 1 when a promise was broken; what and where is said, and the folder with all logs is kept.
A URL names an empty PostgreSQL database, or one of an earlier run that is wanted no more: rows are added.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.plan import cells
from tests.faults.run import Result, Wish, run

MOST_SHOWN = 50
"""Lines about broken promises; ``findings.txt`` in the folder has all."""
JOBS_PER_MINUTE = 250.0
"""About two thirds of what two paced workers can do while they are being killed, on two cores."""


def main() -> int:
    asked = read_arguments()
    folder = Path(tempfile.mkdtemp(prefix="renderq-chaos-"))
    minutes = asked.minutes or asked.jobs / JOBS_PER_MINUTE
    wish = Wish(folder, asked.jobs, 60 * minutes, asked.seed, asked.database, microbatch=asked.microbatch)
    result = run(wish, lambda line: print(line, file=sys.stderr, flush=True))
    report = result.report()
    print(json.dumps(report, indent=2)) if asked.json else show(report)
    if asked.cells:
        asked.cells.write_text(json.dumps(dict(sorted(result.cells.items())), indent=2))
    return conclude(result, folder)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--minutes", type=float, help="how long orders come in; default: 250 jobs a minute")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", default="sqlite", help="sqlite, postgresql, or the URL of a PostgreSQL")
    parser.add_argument("--microbatch", type=int, default=1, help="most jobs that the workers draw at once")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cells", type=Path, help="file for how often each cell of the matrix was hit")
    return parser.parse_args()


def conclude(result: Result, folder: Path) -> int:
    """Say what was broken and keep the folder, or remove it."""
    broken = result.findings.all()
    say_verdict(result, broken)
    if not broken:
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    for words in broken[:MOST_SHOWN]:
        print(words, file=sys.stderr)
    (folder / "findings.txt").write_text("\n".join(broken))
    print(f"everything is kept in {folder}", file=sys.stderr)
    return 1


def say_verdict(result: Result, broken: Sequence[str]) -> None:
    """One sentence: whether every promise held, and how much was tried."""
    tried = sum(result.faults.values())
    all_cells = len(cells("sqlite" if result.wish.database.startswith("sqlite") else "postgresql"))
    words = f"{len(broken)} things were not as promised" if broken else "every promise held"
    print(f"{words}, for {result.told.accepted} accepted orders and {tried} faults", file=sys.stderr)
    print(
        f"faults met {len(result.cells)} of {all_cells} cells; {len(result.rescue_s)} jobs were rescued",
        file=sys.stderr,
    )
    if not result.rescue_s:
        print("no job had to be rescued: a longer run proves more", file=sys.stderr)


def show(report: Mapping[str, Any]) -> None:
    """The report as lines of name and value."""
    for name, value in report.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {number}" for key, number in value.items())  # noqa: PLW2901
        print(f"{name:18}{value}")


if __name__ == "__main__":
    sys.exit(main())

"""The benchmark of the queue's own cost runs against the system as it is."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.queue_overhead import percentiles_ms

ROOT = Path(__file__).parents[2]


def test_a_small_run_measures_both_queues() -> None:
    command = [sys.executable, "benchmarks/queue_overhead.py", "--jobs", "3", "--single", "2", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for system in ("renderq", "celery"):
        assert report[system]["submit_per_s"] > 0
        assert report[system]["jobs_per_s"] > 0
        assert 0 < report[system]["submit_to_start_ms"]["p50"] <= report[system]["whole_ms"]["p50"]
    assert report["rss_mb"]["api"] > 10


def test_percentiles_are_of_the_ordered_times() -> None:
    assert percentiles_ms([0.003, 0.001, 0.002]) == {"p50": 2.0, "p99": 3.0}
    assert percentiles_ms([number / 1000 for number in range(1, 101)]) == {"p50": 50.0, "p99": 99.0}

"""Every benchmark of the queue and the compiler can be called as its documentation says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = [
    *("queue_overhead", "bulk", "ticks", "chaos", "recovery", "endurance"),
    *("shapes", "cold_start", "first_request", "overhead", "shared_pass", "gpu"),
]
IMPORT_ALL = f"import importlib\nfor name in {NAMES}: importlib.import_module(f'benchmarks.{{name}}')"


def test_options_of_a_benchmark_do_not_disturb_what_it_imports() -> None:
    command = [sys.executable, "-c", IMPORT_ALL, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_is_named_with_its_command(name: str) -> None:
    readme = (ROOT / "benchmarks" / "README.md").read_text()
    assert f"benchmarks/{name}.py`" in readme or f"benchmarks.{name}" in readme
    assert f"## {name}" in readme

"""A whole system of its own for a benchmark, started and ended with it."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

RENDERQ = Path(sys.executable).with_name("renderq")
STOP_S = 90


class Running(NamedTuple):
    """Where it answers, and the process that started the others."""

    url: str
    pid: int


@contextmanager
def run_up(*flags: str) -> Iterator[Running]:
    """Run ``renderq up`` with the worker's flags in a temporary folder; yield when it is ready."""
    with tempfile.TemporaryDirectory(prefix="renderq-bench-") as folder:
        command = [sys.executable, str(RENDERQ), "up", "--data", folder, "--port", "0", "--json", *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout
        assert process.stderr
        line = process.stdout.readline()
        if not line:
            sys.exit(f"renderq up did not start: {process.stderr.read()}")
        try:
            yield Running(json.loads(line)["url"], process.pid)
        finally:
            process.terminate()
            process.wait(STOP_S)

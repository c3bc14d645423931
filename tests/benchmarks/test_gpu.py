import os
from functools import partial
from threading import Event

import pytest

from benchmarks.gpu import page
from benchmarks.gpu_checks import Check
from benchmarks.gpu_ways import Measured
from benchmarks.spare_process import CallFailed, SpareProcess


def test_each_call_has_a_process_of_its_own_and_none_holds_up_the_next() -> None:
    with SpareProcess(libraries=()) as processes:
        first = processes.run(os.getpid, 60)
        with pytest.raises(CallFailed, match="stopped after 1 s"):
            processes.run(partial(_wait_for_ever), 1)
        with pytest.raises(CallFailed, match="its process ended in the middle"):
            processes.run(partial(os._exit, 3), 60)
        with pytest.raises(CallFailed, match="ValueError: invalid literal"):
            processes.run(partial(int, "x"), 60)
        assert processes.run(os.getpid, 60) not in (first, os.getpid())


def _wait_for_ever() -> None:
    Event().wait()


def test_the_page_shows_figures_and_why_there_are_none() -> None:
    rows = [
        Measured("regional", "m", 12.0, 0.5, 0.4, 1.25, 3, 0, 4, 20, 900, repeats=True),
        Measured("fp8", "m", error="needs an NVIDIA GPU"),
    ]
    checks = [Check("parent", ok=False, seen="both"), Check("memory", ok=None, seen="not tried here")]
    lines = list(page({"command": "c", "device": "H200", "seconds": 100.0}, rows, checks))
    assert lines[0] == "`c` on H200, 100 s\n"
    assert "| m | regional | 12.0 | 0.500 | 0.400 | 1.25 | 3 + 0 | 4 of 20 | 900 | yes |" in lines
    columns = lines[1].count("|")
    assert [line.count("|") for line in lines[2:5]] == [columns] * 3
    assert lines[-2:] == ["| parent | NO | both |", "| memory | not tried | not tried here |"]

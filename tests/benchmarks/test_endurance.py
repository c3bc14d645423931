"""The parts of the endurance benchmark compute what its table says."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.endurance import Look, describe, fit, is_steady, order
from benchmarks.procfs import children, open_files, resident_kib, thread_count
from policy.catalogue import Catalogue
from policy.request import parse_request


def looks(*resident: int, pid: int = 7, handles: int = 20) -> list[Look]:
    return [Look(50 * (place + 1), pid, kib, handles, 2) for place, kib in enumerate(resident)]


def test_a_line_is_fitted_by_least_squares() -> None:
    slope, error = fit([1, 2, 3, 4], [10, 12, 14, 16])
    assert (slope, error) == (pytest.approx(2), pytest.approx(0, abs=1e-9))
    slope, error = fit([1, 2, 3], [0, 3, 0])  # rest 6, one degree of freedom, spread 2
    assert (slope, error) == (pytest.approx(0), pytest.approx(3**0.5))
    assert fit([1, 2], [5, 9]) == (0, 0)


def test_what_came_before_the_warm_up_does_not_count() -> None:
    seen = describe(looks(1024, 90_000, 102_400, 102_450, 102_500), warm_up=150)
    assert seen["kib_per_job"] == 1.0
    assert seen["resident_mib"] == [100.0, 100.1]
    assert is_steady(seen)


def test_a_process_that_was_replaced_or_keeps_handles_is_not_steady() -> None:
    replaced = describe(looks(10, 10) + looks(10, 10, pid=8), warm_up=0)
    assert replaced["replaced"] == 1
    assert not is_steady(replaced)
    assert not is_steady(describe(looks(10, 10) + looks(10, 10, handles=24), warm_up=0))


def test_every_order_is_valid_and_unlike_the_others() -> None:
    catalogue = Catalogue.load()
    requests = [parse_request(order(number, 4), catalogue) for number in range(60)]
    assert len({(request.prompt, request.seed) for request in requests}) == 60
    assert {request.output_format for request in requests} == {"png", "jpeg", "webp"}
    assert {request.n for request in requests} == {1, 2}


def test_a_process_is_seen_with_its_handles_threads_and_children(tmp_path: Path) -> None:
    me = os.getpid()
    handles, threads = open_files(me), thread_count(me)
    assert resident_kib(me) > 10_000
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    with (tmp_path / "file").open("w"):
        assert open_files(me) == handles + 1
    assert thread_count(me) == threads + 1
    done.set()
    thread.join()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in children(me)
        child.communicate(b"\n")
    assert child.pid not in children(me)
    assert children(child.pid) == []

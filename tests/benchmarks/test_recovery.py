"""The parts of the recovery benchmark compute what its table says."""

import time
from collections.abc import Iterator

import pytest

from benchmarks.killable import Killable
from benchmarks.recovery import CASES, describe, longest, next_run, renderq_case
from cli.supervisor import Signals, Supervisor

LEASE_5 = renderq_case("renderq", 2, 5, 1, 1, 10)


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor(lambda *_: None, lambda *_: None, Signals())
    yield supervisor
    supervisor.stop()


class Told(Killable):
    """A system that tells what it was given."""

    def __init__(self, supervisor: Supervisor, runs: list[float], *, expected: bool) -> None:
        self.supervisor = supervisor
        self._runs, self._expected = runs, expected

    def is_ready(self) -> bool:
        return True

    def begin(self, *_: object) -> str:
        return "job"

    def runs(self, *_: object) -> list[float]:
        return self._runs

    def holder(self, *_: object) -> int | None:
        return None

    def is_expected(self, *_: object) -> bool:
        return self._expected

    def end(self, *_: object) -> None:
        pass


def test_the_time_is_from_the_kill_to_the_first_run_after_it(supervisor: Supervisor) -> None:
    killed_at = time.time()
    runs = [killed_at - 2, killed_at + 1.25, killed_at + 9]
    assert next_run(Told(supervisor, runs, expected=True), "job", killed_at, 5) == pytest.approx(1.2, abs=0.1)


def test_a_job_that_nobody_knows_any_more_is_lost(supervisor: Supervisor) -> None:
    killed_at = time.time()
    assert next_run(Told(supervisor, [killed_at - 2], expected=False), "job", killed_at, 5) == "lost"


def test_a_job_that_is_held_for_later_waits(supervisor: Supervisor) -> None:
    killed_at = time.time()
    assert next_run(Told(supervisor, [killed_at - 2], expected=True), "job", killed_at, 0.2) == "waits"


def test_the_table_shows_the_worst_outcome() -> None:
    assert longest([0.4, 12.34], 45) == "12.3"
    assert longest([0.4, "waits"], 45) == "> 45"
    assert longest(["lost", "waits", 3.0], 45) == "lost"


@pytest.mark.parametrize(
    ("worker", "child", "runs", "met"),
    [
        ([5.4, 10.0], [0.4], 1, True),
        ([5.4, 10.1], [0.4], 1, False),
        ([5.4], [0.4, "lost"], 1, False),
        (["waits"], [0.4], 1, False),
        ([5.4], [0.4], 2, False),
    ],
)
def test_a_goal_is_met_by_every_try_and_by_one_run(
    worker: list[float | str], child: list[float | str], runs: int, met: bool
) -> None:
    line = describe(LEASE_5, {"worker": worker, "child": child}, runs)
    assert line["goal_met"] is met


def test_only_renderq_has_goals() -> None:
    goals = {case.goal_s for case in CASES if case.conf is None}
    assert goals == {40, 10, None}
    assert all(case.goal_s is None for case in CASES if case.conf is not None)
    assert LEASE_5.variables["RENDERQ_LEASE_S"] == "5"

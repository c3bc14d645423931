"""What a run of chaos says at its end."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.chaos import conclude
from tests.faults.callers import Told
from tests.faults.check import Findings
from tests.faults.run import Result, Wish


def result(folder: Path, *lost: str, rescue_s: tuple[float, ...] = ()) -> Result:
    return Result(
        wish=Wish(folder, jobs=40, seconds=1, seed=1),
        told=Told(),
        findings=Findings(lost=list(lost)),
        states=Counter(),
        faults=Counter({"api, kill": 3}),
        cells=Counter({"api, kill, queued": 3}),
        rescue_s=list(rescue_s),
        lost_attempts=0,
        duration_s=1,
        own_ends=Counter(),
    )


def test_a_run_without_a_broken_promise_says_so_and_how_much_it_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conclude(result(tmp_path / "run", rescue_s=(1.0,)), tmp_path / "run") == 0
    said = capsys.readouterr().err
    assert "every promise held, for 0 accepted orders and 3 faults" in said
    assert "met 1 of " in said
    assert "proves more" not in said
    conclude(result(tmp_path / "run"), tmp_path / "run")
    assert "no job had to be rescued: a longer run proves more" in capsys.readouterr().err


def test_a_broken_promise_is_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert conclude(result(tmp_path, "job 7 is gone"), tmp_path) == 1
    said = capsys.readouterr().err
    assert "1 things were not as promised" in said
    assert "job 7 is gone" in said
    assert (tmp_path / "findings.txt").read_text() == "job 7 is gone"

"""The evidence for the order of preparation; `pipeline.order`, which measures it, has its own tests."""

from pathlib import Path

import pytest

from cli import bench
from cli.exits import CliError, ExitCode
from tests.cli.conftest import Run


def figures(first_s: float) -> dict[str, float]:
    return {
        "first_denoise_s": first_s,
        "steady_denoise_s": 0.5,
        "first_over_steady": first_s / 0.5,
        "compiles_warmup": 3,
        "compiles_first_request": 0,
    }


def test_the_reduction_is_of_the_first_request_in_the_reversed_order() -> None:
    assert bench.reduction_percent({bench.OURS: figures(0.5), bench.REVERSED: figures(2.0)}) == 75.0
    assert bench.reduction_percent({bench.OURS: figures(2.0), bench.REVERSED: figures(1.0)}) == -100.0


def test_the_report_stands_beside_the_published_figure(capsys: pytest.CaptureFixture[str]) -> None:
    orders = {bench.OURS: figures(0.5), bench.REVERSED: figures(2.0)}
    bench.show({"orders": orders, "first_request_reduction_percent": 75.0})
    text = capsys.readouterr().out
    assert "75.0 % shorter in the order mount>compile>warmup" in text
    assert "43.77 %" in text


def test_an_unknown_model_is_refused_before_measuring(renderq: Run) -> None:
    result = renderq("bench", "first-request", "--model", "nonsense")
    assert result.exit_code == 2
    assert "measuring" not in result.stderr


def test_a_measurement_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The weights that are to be measured are not there."""
    (tmp_path / "tiny").mkdir()
    monkeypatch.setenv("RENDERQ_MODELS_DIR", str(tmp_path))
    with pytest.raises(CliError, match="could not be measured: ") as raised:
        bench.measure("tiny", bench.OURS, "regional")
    assert raised.value.code == ExitCode.FAILED

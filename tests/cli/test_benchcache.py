"""`renderq bench cache`: what is kept of a fit, and what is shown of it."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from cli import benchcache
from cli.maskfile import curve_of, write_curve
from core.settings import get_settings
from policy.catalogue import Catalogue
from policy.curve import read_curve
from policy.model_spec import ModelSpec
from tests.cli.conftest import Run

BUNDLED = Path(__file__).parents[2] / "policy" / "catalogue"
DAY = dt.date(2026, 12, 1)


def found(*masks: str) -> dict[str, Any]:
    """What a fit prints."""
    figures = {"fit_mean_db": 61.5, "fit_worst_db": 50.25, "check_mean_db": 60.0, "check_worst_db": 48.5}
    return {
        "model": "own",
        "device": 'a "device"',
        "prompts": 2,
        "check_prompts": 3,
        "seed": 7,
        "versions": {"torch": "2.13.0", "cache-dit": "1.5.3"},
        "masks": [{"mask": mask, "order": 2, **figures} for mask in masks],
    }


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    """A model of the operator's, in a folder of the operator's."""
    folder = tmp_path / "models"
    folder.mkdir()
    text = (BUNDLED / "tiny.toml").read_text().replace('id = "tiny"', 'id = "own"')
    (folder / "own.toml").write_text(text)
    monkeypatch.setenv("RENDERQ_CATALOGUE_DIR", str(folder))
    return Catalogue.load(folder)["own"]


def test_the_masks_of_the_bundled_model_are_shown(renderq: Run) -> None:
    result = renderq("bench", "cache", "tiny")
    assert result.exit_code == 0
    header, *rows = result.stdout.splitlines()
    assert header.split()[:4] == ["steps", "reused", "share", "order"]
    curve = Catalogue.load()["tiny"].curve
    assert curve is not None
    assert len(rows) >= sum(len(fit.masks) for fit in curve.fits)
    assert json.loads(renderq("bench", "cache", "tiny", "--json").stdout)["model"] == "tiny"


def test_a_model_without_masks_says_so(renderq: Run) -> None:
    assert "no masks were fitted to flux.1-dev" in renderq("bench", "cache", "flux.1-dev").stdout
    assert json.loads(renderq("bench", "cache", "flux.1-dev", "--json").stdout) is None


def test_what_is_kept_is_read_again_by_every_process(own: ModelSpec) -> None:
    assert own.curve is None
    curve = curve_of(own, found("11010101", "11011101"), "renderq bench cache own --fit", DAY)
    folder = benchcache.choose_folder()
    path = write_curve(curve, folder)
    assert path == folder / "masks" / "own.toml"
    assert Catalogue.load(folder)["own"].curve == curve
    assert [path.name for path in path.parent.iterdir()] == ["own.toml"]


def test_a_fit_of_other_step_counts_is_added_and_one_of_the_same_replaced(own: ModelSpec) -> None:
    folder = benchcache.choose_folder()
    write_curve(curve_of(own, found("110111", "11010101"), "first", DAY), folder)
    write_curve(curve_of(own, found("1101", "11001011"), "second", DAY), folder)
    curve = Catalogue.load(folder)["own"].curve
    assert curve is not None
    assert [(fit.steps, fit.command) for fit in curve.fits] == [(4, "second"), (6, "first"), (8, "second")]
    assert curve.fits[2].masks[0].mask == "11001011"


def test_masks_go_where_evidence_goes_to_the_operators_folder_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert benchcache.choose_folder() == BUNDLED
    monkeypatch.setenv("RENDERQ_CATALOGUE_DIR", str(tmp_path))
    get_settings.cache_clear()
    assert benchcache.choose_folder() == tmp_path


def test_masks_that_are_kept_elsewhere_leave_the_bundled_ones_where_they_are(tmp_path: Path) -> None:
    tiny = Catalogue.load()["tiny"]
    path = write_curve(curve_of(tiny, found("11010101"), "own", DAY), tmp_path)
    assert [fit.command for fit in read_curve(path).fits] == ["own"]
    curve = Catalogue.load(tmp_path)["tiny"].curve
    assert curve is not None
    assert tiny.curve is not None
    assert curve.fits[1:] == tiny.curve.fits


def test_a_folder_that_takes_no_files_is_told_of_before_anything_is_fitted(
    renderq: Run, own: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root, who runs some of these tests, may write anywhere.
    monkeypatch.setattr("cli.benchcache.os.access", lambda *_: False)
    result = renderq("bench", "cache", "own", "--fit", "--write", "--steps", "nonsense")
    assert result.exit_code == 2
    assert str(tmp_path / "models" / "masks") in result.stderr
    assert "RENDERQ_CATALOGUE_DIR" in result.stderr


def test_the_command_is_kept_as_it_would_be_typed() -> None:
    asked = {"--steps": "20,28", "--prompts": "my prompts.txt"}
    command = benchcache.command_of("tiny", asked)
    assert command == "renderq bench cache tiny --fit --steps 20,28 --prompts 'my prompts.txt'"


def test_a_wrong_call_is_told(renderq: Run) -> None:
    result = renderq("bench", "cache", "tiny", "--write")
    assert result.exit_code != 0
    assert "--write keeps what --fit finds" in result.stderr
    assert renderq("bench", "cache", "nonsense").exit_code != 0


def test_a_fit_that_fails_says_why(renderq: Run, capfd: pytest.CaptureFixture[str]) -> None:
    result = renderq("bench", "cache", "flux.1-dev", "--fit")
    assert result.exit_code == 1
    assert "no masks could be fitted to flux.1-dev" in result.stderr
    assert "name a file with --prompts" in capfd.readouterr().err

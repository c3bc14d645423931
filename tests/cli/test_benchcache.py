"""`renderq bench cache`: what is kept of a fit, and what is shown of it."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from cli import benchcache
from cli.exits import CliError
from cli.fitask import Asked
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
    result = renderq("bench", "cache", "own", "--fit", "--write", "--steps", "4", "--orders", "0")
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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--fit --steps 3", ['--steps for tiny must be an integer from 4 to 50, not "3"; nearest: 4']),
        ("--fit --steps 24,60", ['--steps for tiny must be an integer from 4 to 50, not "60"; nearest: 50']),
        ("--fit --steps abc", ['--steps for tiny must be an integer from 4 to 50, not "abc"; nearest: 24']),
        (
            "--fit --orders 3 --beam 0 --seed=-1",
            [
                '--orders must be an integer from 0 to 2, not "3"; nearest: 2',
                '--beam must be an integer from 1 to 100, not "0"; nearest: 1',
                '--seed must be an integer from 0 to 9007199254740991, not "-1"; nearest: 0',
            ],
        ),
        ("--steps 12", ["nothing is fitted without --fit: give it as well, or leave out --steps"]),
        ("--seed 1 --beam 2", ["or leave out --seed and --beam"]),
    ],
)
def test_what_cannot_be_fitted_is_told_before_anything_is_loaded(
    renderq: Run, monkeypatch: pytest.MonkeyPatch, words: str, told: list[str]
) -> None:
    monkeypatch.delattr(benchcache, "run_fit")
    result = renderq("bench", "cache", "tiny", *words.split())
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == len(told)
    for sentence in told:
        assert sentence in result.stderr


def test_a_file_of_prompts_that_cannot_be_used_is_told_with_its_neighbour(
    renderq: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(benchcache, "run_fit")
    (tmp_path / "prompts.txt").write_text("# ours\na house\n\na boat\n")
    (tmp_path / "one.txt").write_text("a house\n")
    (tmp_path / "none.txt").write_text("# nothing\n")

    def told(name: str, *words: str) -> str:
        result = renderq("bench", "cache", "tiny", "--fit", "--prompts", str(tmp_path / name), *words)
        assert result.exit_code == 2
        return result.stderr

    assert "No such file or directory; nearest: " + str(tmp_path / "prompts.txt") in told("prompt.txt")
    assert "it holds no prompt" in told("none.txt")
    assert "one.txt has 1" in told("one.txt")
    assert "Is a directory" in told("")
    few = told("prompts.txt", "--fit-prompts", "5")
    assert "--fit-prompts must be 1 (" in few
    assert 'has 2 prompts, and one at least is for the check), not "5"; nearest: 1' in few


def test_without_step_counts_those_are_fitted_that_the_model_takes() -> None:
    catalogue = Catalogue.load()
    assert Asked().words(catalogue["flux.1-dev"])["--steps"] == "20,28,50"
    assert Asked().words(catalogue["z-image-turbo"])["--steps"] == "20"
    assert Asked().words(catalogue["flux.1-schnell"])["--steps"] == "4"


def test_what_is_found_is_said_to_be_kept_or_not(own: ModelSpec, capsys: pytest.CaptureFixture[str]) -> None:
    folder = benchcache.choose_folder()
    words = Asked(steps="8").words(own)
    curve = benchcache.keep(own, found("11010101"), words, None)
    assert capsys.readouterr().err == "not kept: --write was not given\n"
    assert Catalogue.load(folder)["own"].curve is None
    assert benchcache.keep(own, found("11010101"), words, folder) == curve
    assert capsys.readouterr().err == f"kept in {folder / 'masks' / 'own.toml'}\n"
    assert Catalogue.load(folder)["own"].curve == curve


def test_a_step_count_without_a_mask_is_told(own: ModelSpec) -> None:
    with pytest.raises(CliError, match="no mask was found for 9 steps"):
        benchcache.keep(own, found("11010101"), {"--steps": "8,9"}, None)


def test_a_fit_that_fails_says_why(renderq: Run, capfd: pytest.CaptureFixture[str]) -> None:
    result = renderq("bench", "cache", "flux.1-dev", "--fit")
    assert result.exit_code == 1
    assert "no masks could be fitted to flux.1-dev" in result.stderr
    assert "name a file with --prompts" in capfd.readouterr().err

"""`renderq bench model` in fresh processes, the row that it keeps, and `renderq policy evidence`."""

import json
from pathlib import Path

import pytest

from cli import benchmodel
from cli.evidencefile import write_row
from pipeline.fingerprint import hash_bundled
from policy.evidence import load_evidence, read_evidence
from tests.cli.conftest import Run
from tests.policy.test_evidence import OPTED_IN, WIN


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The operator's folder of model files."""
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("RENDERQ_CATALOGUE_DIR", str(folder))
    return folder


def test_each_way_is_measured_in_a_fresh_process_and_the_row_is_kept_and_shown(
    renderq: Run, own: Path
) -> None:
    command = ("bench", "model", "tiny", "--matrix", "cache", "--rounds", "1", "--requests", "1")
    done = renderq(*command, "--json", "--write")
    assert done.exit_code == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("round")]
    assert said == ["round 1 of 1: eager/off ...", "round 1 of 1: eager/balanced ..."]
    report = json.loads(done.stdout)
    plain, cached = report["figures"]
    assert (plain["cache"], plain["psnr_db"], plain["psnr_worst_db"]) == ("off", None, None)
    assert 20 < cached["psnr_worst_db"] <= cached["psnr_db"] < 90
    assert (plain["compiles_warmup"], plain["compiles_requests"]) == (0, 0)
    assert plain["adherence"] in (0.0, 0.5, 1.0)
    assert len(report["processes"]["eager/balanced"]) == 1
    assert report["processes"]["eager/balanced"][0]["cached_steps"][0] > 0
    assert report["device"] == "cpu"
    (row,) = read_evidence(own / "evidence" / "tiny.toml")
    assert row.weights == hash_bundled("bundled:tiny")
    assert row.command == "renderq " + " ".join(command)
    assert row.model_dump(mode="json") == {name: report[name] for name in row.model_dump()}
    shown = json.loads(renderq("policy", "evidence", "tiny", "--json").stdout)
    kept = shown["models"][0]["rows"][-1]
    told = "measured on a CPU, where an opt-in has no effect"
    assert (kept["does_not_count"], kept["comparisons"]) == (told, [])
    assert report["does_not_count"] == told
    assert "nothing measured" not in renderq("policy", "evidence", "tiny").stdout


def test_a_row_is_read_as_it_was_written_and_takes_the_place_of_its_like(tmp_path: Path) -> None:
    write_row(WIN, tmp_path)
    other = WIN.model_copy(update={"device_name": "NVIDIA L4", "failed": ('whole/off: it broke "so"',)})
    write_row(other, tmp_path)
    assert load_evidence(tmp_path) == (WIN, other)
    again = WIN.model_copy(update={"load": 2.0})
    path = write_row(again, tmp_path)
    assert load_evidence(tmp_path) == (other, again)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_end_of_a_measurement_says_whether_the_row_may_back_an_opt_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for change, last in (
        ({}, "this row may back an opt-in to compile"),
        ({"device": "cpu"}, "this row backs no opt-in: measured on a CPU, where an opt-in has no effect"),
        ({"rounds": 1}, "this row backs no opt-in: 1 of 3 rounds"),
    ):
        row = WIN.model_copy(update=change)
        benchmodel.show(row, benchmodel.why_not(row, OPTED_IN))
        shown = capsys.readouterr().out.splitlines()
        assert shown[-1] == last
        assert any(line.startswith("compiling wins (regional") for line in shown)


def test_the_bundled_rows_of_a_cpu_are_shown_and_do_not_count(renderq: Run) -> None:
    done = renderq("policy", "evidence", "tiny")
    lines = done.stdout.splitlines()[1:]
    assert lines
    assert all("no: measured on a CPU, where an opt-in has no effect" in line for line in lines)


def test_the_table_names_who_opts_in_who_won_and_what_no_longer_counts(renderq: Run, own: Path) -> None:
    bundled = Path("policy/catalogue/flux.1-dev.toml").read_text(encoding="utf-8")
    (own / "flux.1-dev.toml").write_text(bundled + "\n[policy]\ncompile = true\n", encoding="utf-8")
    (own / "evidence").mkdir()
    old = WIN.model_copy(update={"device_name": "L4", "versions": {**WIN.versions, "torch": "2.9.1"}})
    write_row(old, own / "evidence")
    refused = renderq("policy", "evidence", OPTED_IN.id)
    assert refused.exit_code == 1
    assert "old: torch was 2.9.1" in refused.stdout
    assert "flux.1-dev opts in to compile, and no row counts (L4: old" in refused.stderr
    write_row(WIN, own / "evidence")
    backed = renderq("policy", "evidence", OPTED_IN.id)
    assert backed.exit_code == 0
    line = next(line for line in backed.stdout.splitlines() if "H200" in line)
    assert line.split() == [
        *("flux.1-dev", "yes", "NVIDIA", "H200", "2026-12-01", "regional/balanced"),
        *("-25.0", "%", "-28.6", "%", "wins", "yes"),
    ]
    everybody = renderq("policy", "evidence")
    assert everybody.exit_code == 0
    assert "nothing measured" in everybody.stdout


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("nonsense",), 2, 'model "nonsense" is not offered'),
        (("tiny", "--matrix", "cach"), 2, "did you mean cache?"),
        (("tiny", "--prompts", "absent.txt"), 2, "--prompts must be a file with a prompt a line, not "),
        (("tiny", "--rounds", "0"), 2, '--rounds must be an integer from 1 to 1000, not "0"; nearest: 1'),
        (("tiny", "--requests", "x"), 2, '--requests must be an integer from 1 to 1000, not "x"; nearest: 7'),
    ],
)
def test_bad_input_is_told_before_anything_is_measured(
    renderq: Run, words: tuple[str, ...], code: int, told: str
) -> None:
    done = renderq("bench", "model", *words)
    assert done.exit_code == code
    assert told in done.stderr
    assert "round 1" not in done.stderr


def test_missing_weights_are_told_with_the_code_of_a_worker_that_cannot_load(
    renderq: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.setenv("RENDERQ_MODELS_DIR", str(tmp_path))
    done = renderq("bench", "model", "tiny", "--matrix", "cache", "--rounds", "1")
    assert done.exit_code == 70
    assert "tiny could not be measured: " in done.stderr
    assert "model_index.json" in done.stderr


def test_where_no_row_can_be_kept_nothing_is_measured(renderq: Run, own: Path) -> None:
    (own / "evidence").write_text("a file in the way")
    done = renderq("bench", "model", "tiny", "--write")
    assert done.exit_code == 2
    assert "no row can be kept in" in done.stderr

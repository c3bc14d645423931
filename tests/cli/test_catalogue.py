"""What the command line tells of the catalogue's files."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cli.processes import warn_of
from policy.catalogue import BUNDLED
from tests.cli.conftest import Run

TINY = (BUNDLED / "tiny.toml").read_text(encoding="utf-8")
LOST = "not taken over from the model that it replaces: the step masks"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An operator's empty folder of model files."""
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("RENDERQ_CATALOGUE_DIR", str(folder))
    return folder


def test_what_a_file_loses_of_the_model_that_it_replaces_is_told(renderq: Run, folder: Path) -> None:
    (folder / "tiny.toml").write_text(TINY.replace('"bundled:tiny"', '"/models/other"'))
    assert LOST in renderq("policy", "explain", "tiny").stderr
    assert LOST in renderq("bench", "cache", "tiny").stderr
    (note,) = json.loads(renderq("policy", "explain", "tiny", "--json").stdout)["notes"]
    assert LOST in note
    with capture_logs() as logs:
        warn_of([note])
    assert [(line["log_level"], line["note"]) for line in logs] == [("warning", note)]


def test_the_file_of_a_model_is_printed_to_be_copied(renderq: Run, folder: Path) -> None:
    bundled = renderq("policy", "catalogue", "tiny")
    assert (bundled.stdout, bundled.stderr) == (TINY, f"{BUNDLED / 'tiny.toml'}\n")
    (folder / "tiny.toml").write_text("")  # as the shell leaves it that is to write there
    assert renderq("policy", "catalogue", "tiny").stdout == TINY
    (folder / "tiny.toml").write_text('id = "tiny"\nfamily = "flx"\n')
    assert renderq("policy", "catalogue", "tiny").stdout == 'id = "tiny"\nfamily = "flx"\n'
    refused = renderq("policy", "catalogue", "tinny")
    assert (refused.exit_code, 'did you mean "tiny"?' in refused.stderr) == (2, True)


def test_a_slip_is_told_with_file_field_and_nearest(renderq: Run, folder: Path) -> None:
    (folder / "tiny.toml").write_text(TINY.replace('family = "flux"', 'family = "flx"'))
    result = renderq("policy", "explain", "tiny")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"renderq: {folder / 'tiny.toml'}: family must be flux, ")
    assert result.stderr.endswith('not "flx"; nearest: flux\n')

"""inspect, the picture on the terminal, and what the demo says about unknown words."""

import json
from io import StringIO
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from cli.demo import PROMPT, make_plan, unknown_words
from cli.halfblocks import as_text, show_picture
from pipeline.encode import encode
from pipeline.rendering import Picture
from tests.cli.conftest import Run

PROVENANCE = {"job": "1", "plan": {"seed": 7, "prompt": "ein Boot – 船"}}


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    image = Image.new("RGB", (64, 64), (255, 0, 0))
    image.paste((0, 0, 255), (0, 1, 64, 2))
    path = tmp_path / "boat.png"
    path.write_bytes(encode(Picture(index=0, seed=7, image=image, frames=None), "png", PROVENANCE))
    return path


def test_inspect_reads_back_what_was_written(renderq: Run, picture: Path) -> None:
    assert json.loads(renderq("inspect", str(picture), "--json").stdout) == PROVENANCE
    lines = [line.split(maxsplit=1) for line in renderq("inspect", str(picture)).stdout.splitlines()]
    assert ["plan.seed", "7"] in lines
    assert ["plan.prompt", "ein Boot – 船"] in lines


@pytest.mark.parametrize("name", ["missing.png", "folder", "text.png"])
def test_inspect_of_anything_else_is_refused_in_words(renderq: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.png").write_text("no picture")
    result = renderq("inspect", str(tmp_path / name))
    assert result.exit_code == 2
    assert name in result.stderr


def test_a_picture_is_shown_two_pixels_to_a_cell(picture: Path) -> None:
    with Image.open(picture) as image:
        text = as_text(image.convert("RGB"))
    lines = text.plain.splitlines()
    assert len(lines) == 32
    assert lines[0] == "▀" * 64
    assert str(text.spans[0].style) == "#ff0000 on #0000ff"


def test_a_picture_is_shown_on_a_terminal_only(picture: Path) -> None:
    for is_terminal, shown in ((True, True), (False, False)):
        console = Console(file=StringIO(), force_terminal=is_terminal, color_system="truecolor", width=80)
        show_picture(picture, console)
        assert ("▀" in console.file.getvalue()) is shown  # type: ignore[attr-defined]


def test_the_demo_names_the_words_that_its_model_does_not_know() -> None:
    assert unknown_words("A Castle with a dragon, and a dragon on a beach at dusk") == ["Castle", "dragon"]
    assert unknown_words(PROMPT) == []


def test_the_demo_cannot_reach_a_database_or_queue_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RENDERQ_DATABASE_URL", "postgresql://production/jobs")
    environment = make_plan(tmp_path).environment
    assert "PATH" in environment
    assert not [name for name in environment if name.startswith("RENDERQ_")]

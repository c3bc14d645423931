"""inspect, the picture on the terminal, and what the demo says about unknown words."""

import json
from io import StringIO
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from cli.demo import PROMPT, make_plan, tell, unknown_words
from cli.halfblocks import as_text, show_picture
from cli.provenance import grouped
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
    assert ["seed", "7"] in lines
    assert ["prompt", "ein Boot – 船"] in lines


def test_inspect_starts_with_the_picture_and_ends_with_the_policy() -> None:
    option = {"value": True, "source": "flag"}
    said: dict[str, object] = {
        "policy": {"compile": option, "warmup_sizes": {"value": ["64x64", "32x32"], "source": "env"}},
        "acceleration": {"compiled": False},
        "versions": {"torch": "2"},
        "model": {"id": "tiny", "revision": None},
        "request": {"prompt": "a boat", "cache": "off"},
        "plan": {"prompt": "a boat", "seed": 7, "width": 64, "height": 48, "num_inference_steps": 9, "n": 2},
        "seed": 8,
        "index": 1,
    }
    assert [group for group in grouped(said) if group] == [
        [("prompt", "a boat"), ("seed", "8"), ("size", "64 x 48"), ("steps", "9")],
        [("n", "2"), ("request.cache", "off")],
        [("model.id", "tiny"), ("model.revision", "-")],
        [("versions.torch", "2")],
        [("ran.compiled", "false")],
        [("compile", "true (flag)"), ("warmup_sizes", "64x64, 32x32 (env)")],
        [("index", "1")],
    ]


def test_the_help_of_inspect_promises_no_job(renderq: Run) -> None:
    assert "job" not in renderq("inspect", "--help").stdout


@pytest.mark.parametrize("said", [{}, {"plan": 1, "seed": [], "policy": {"a": {}}, "request": {"b": {}}}])
def test_inspect_bears_a_file_that_says_anything(said: dict[str, object]) -> None:
    assert all(isinstance(value, str) for group in grouped(said) for _, value in group)


def test_inspect_shows_what_a_file_says_without_obeying_it(renderq: Run, tmp_path: Path) -> None:
    said = {"a\x1bb": "\x1b[31m\nrow \u202e \x9b \ud800"}
    path = tmp_path / "boat.png"
    image = Image.new("RGB", (64, 64))
    path.write_bytes(encode(Picture(index=0, seed=7, image=image, frames=None), "png", said))
    assert renderq("inspect", str(path)).stdout == "a\\x1bb  \\x1b[31m⏎row \\u202e \\x9b \\ud800\n"
    result = renderq("inspect", str(path), "--json")
    assert result.stdout.isascii()
    assert json.loads(result.stdout) == said


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


def test_the_demo_ends_with_the_full_path_and_the_size(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(picture.parent)
    plan = {"seed": 7, "width": 64, "height": 64}
    tell({"plan": plan, "timings_ms": None, "acceleration": None}, Path(picture.name))
    said = capsys.readouterr()
    assert said.out == f"{picture}\n"
    assert said.err.startswith("64 x 64, enlarge to look; seed 7")

"""A run is the same computation whether or not it was interrupted, and its export renders."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from training import checkpoint, evaluate, export, train
from training.examples import held_out_landscapes
from training.scenes import Landscape
from training.train import Recipe, Run

BUNDLED = Path(__file__).parents[2] / "pipeline" / "tiny"
SMALL = Recipe(steps=4, batch=4, warmup=2)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run = Run(SMALL)
    list(train.train(run, folder, save_every=100))
    return folder


def test_steps_resumed_equal_steps_straight_through(finished: Path, tmp_path: Path) -> None:
    broken_off = Run(SMALL)
    broken_off.take_step()
    broken_off.take_step()
    checkpoint.save(tmp_path, broken_off.state())
    resumed = Run(SMALL, start=BUNDLED)  # other weights, which the checkpoint replaces
    state = checkpoint.load(tmp_path)
    assert state is not None
    resumed.restore(state)
    list(train.train(resumed, tmp_path, save_every=100))
    torch.testing.assert_close(
        checkpoint.load(tmp_path), checkpoint.load(finished), rtol=0, atol=0, msg="resumed differs"
    )


def test_training_lowers_the_loss() -> None:
    run = Run(Recipe(steps=40, batch=4, lr=4e-3, warmup=5, decay=0))
    losses = [float(run.take_step()) for _ in range(40)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_the_rate_rises_stays_and_falls() -> None:
    recipe = Recipe(steps=100, lr=1.0, warmup=10, decay=0.5)
    assert [recipe.rate(step) for step in (0, 9, 50, 75)] == [0.1, 1.0, 1.0, 0.5]
    assert 0 < recipe.rate(99) < 0.05


def test_the_command_goes_on_from_its_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--run", str(tmp_path), "--from", str(BUNDLED), "--batch", "2"]
    train.main([*arguments, "--steps", "1"])
    train.main([*arguments, "--steps", "2"])
    assert "resumed at step 1" in capsys.readouterr().out
    state = checkpoint.load(tmp_path)
    assert state is not None
    assert state["step"] == 2


def test_an_exported_folder_loads_and_renders(finished: Path, tmp_path: Path) -> None:
    export.main([str(finished), str(tmp_path)])
    pipeline = evaluate.load_pipeline(tmp_path)
    (picture,) = evaluate.render(pipeline, ["a boat with a red sail on the sea"], steps=2)
    assert picture.size == (64, 64)
    kinds = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert kinds == {".json", ".safetensors"}


def test_an_exported_folder_names_no_path_of_this_machine(finished: Path, tmp_path: Path) -> None:
    export.export(finished, tmp_path)
    texts = [path.read_text() for path in tmp_path.rglob("*.json")]
    assert not [text for text in texts if str(BUNDLED.parent) in text or "_name_or_path" in text]


def test_an_exported_folder_holds_the_average(finished: Path, tmp_path: Path) -> None:
    export.export(finished, tmp_path)
    state = checkpoint.load(finished)
    assert state is not None
    loaded = dict(Run(SMALL, start=tmp_path).model.named_parameters())
    for name, weight in state["average"].items():
        torch.testing.assert_close(loaded[name].detach(), weight, rtol=1e-3, atol=1e-4)


def test_exporting_needs_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no checkpoint"):
        export.export(tmp_path, tmp_path / "folder")


def test_the_evaluation_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.main([str(BUNDLED), "--captions", "2", "--steps", "2", "--guidance", "2", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["captions"] == 2
    assert 0 <= report["correct"] <= 1
    assert report["by_detail"].keys() >= {"sky", "ground"}


def test_wrong_pictures_are_counted_and_named() -> None:
    examples = held_out_landscapes(2, seed=1)
    blank = [Image.new("RGB", (64, 64), "black") for _ in examples]
    report = evaluate.judge_all(examples, blank)
    assert report.correct == 0
    assert report.wrong.keys() == dict(examples).keys()
    assert all(isinstance(scene, Landscape) for _, scene in examples)

"""The model inside the package is complete, small and draws what it is asked for."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from training import evaluate
from training.examples import held_out_landscapes

BUNDLED = Path(__file__).parents[2] / "pipeline" / "tiny"


def test_the_folder_holds_weights_configurations_a_card_and_prompts_only() -> None:
    kinds = {path.suffix for path in BUNDLED.rglob("*") if path.is_file()}
    assert kinds == {".json", ".safetensors", ".md", ".txt"}


def test_the_weights_are_half_precision() -> None:
    kinds = {tensor.dtype for path in BUNDLED.rglob("*.safetensors") for tensor in load_file(path).values()}
    assert kinds == {torch.float16}


def test_held_out_captions_are_drawn_right() -> None:
    torch.set_num_threads(1)
    examples = held_out_landscapes(16, seed=30_000)
    pipeline = evaluate.load_pipeline(BUNDLED)
    report = evaluate.judge_all(examples, evaluate.render(pipeline, [caption for caption, _ in examples]))
    assert report.correct >= 14 / 16, report.wrong


@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_the_same_seed_gives_the_same_picture(guidance: float) -> None:
    torch.set_num_threads(1)
    pipeline = evaluate.load_pipeline(BUNDLED)
    prompts = ["a boat with a red sail on the sea"]
    first, again = (next(evaluate.render(pipeline, prompts, steps=4, guidance=guidance)) for _ in range(2))
    assert first.tobytes() == again.tobytes()

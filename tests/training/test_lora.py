"""The bundled LoRA takes the colours away, and its training moves nothing but its own matrices."""

from pathlib import Path

import torch

from training.lora import LoraRun, black_and_white
from training.train import Recipe

BUNDLED = Path(__file__).parents[2] / "pipeline" / "tiny"


def test_colours_become_their_luminance() -> None:
    red, gray = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.5, 0.5, 0.5])
    pixels = torch.stack([red, gray]).view(2, 3, 1, 1)
    drawn = black_and_white(pixels)
    assert torch.allclose(drawn[0].flatten(), torch.full((3,), 0.2126))
    assert torch.allclose(drawn[1], pixels[1])


def test_a_step_changes_the_loras_matrices_alone() -> None:
    run = LoraRun(Recipe(2, batch=2), BUNDLED)
    before = {name: weight.detach().clone() for name, weight in run.model.named_parameters()}
    run.take_step()
    changed = {name for name, weight in run.model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    assert all(key.startswith("transformer.") for key in run.matrices())

"""Trains a LoRA of the bundled model: the same scenes, in black and white.

    python -m training.lora --steps 1000 --write pipeline/tiny/loras/mono.safetensors

The loss, the noise and the scenes are those of `training.train`; only the colours of the pictures are taken
away, and only the LoRA's matrices learn.
"""

import argparse
from pathlib import Path
from typing import Final

import torch
from peft import LoraConfig, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor

from training.train import Recipe, Run

RANK: Final = 4
_LAYERS: Final = ["to_q", "to_k", "to_v", "to_out.0", "proj_mlp", "proj_out", "net.0.proj", "net.2"]
# Rec. 709: what red, green and blue add to how bright a colour looks.
_LUMINANCE: Final = (0.2126, 0.7152, 0.0722)
_LOG_EVERY: Final = 50


class LoraRun(Run):
    """A model whose weights stand still while the matrices of a LoRA learn."""

    def __init__(self, recipe: Recipe, start: Path) -> None:
        """Begin with the weights of a pipeline folder and a LoRA that changes nothing yet."""
        super().__init__(recipe, start)
        self.model.requires_grad_(False)
        torch.manual_seed(recipe.seed)
        self.model.transformer.add_adapter(
            LoraConfig(r=RANK, lora_alpha=RANK, target_modules=_LAYERS, init_lora_weights="gaussian")
        )
        learning = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimisers = [torch.optim.AdamW(learning, lr=recipe.lr, weight_decay=0.0)]
        self.average = {
            name: weight.detach().clone()
            for name, weight in self.model.named_parameters()
            if weight.requires_grad
        }

    def _picture(self, pixels: Tensor) -> Tensor:
        return black_and_white(pixels)

    def matrices(self) -> dict[str, Tensor]:
        """The LoRA in diffusers' naming, half precision."""
        state = get_peft_model_state_dict(self.model.transformer)
        return {f"transformer.{name}": value.half().contiguous() for name, value in state.items()}


def black_and_white(pixels: Tensor) -> Tensor:
    """(batch, 3, height, width) in any range -> the same shape, each pixel its luminance."""
    weights = torch.tensor(_LUMINANCE).view(1, 3, 1, 1)
    return (pixels * weights).sum(1, keepdim=True).expand_as(pixels).contiguous()


def main(arguments: list[str] | None = None) -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m training.lora", description=__doc__.splitlines()[0])
    parser.add_argument("--from", type=Path, dest="start", default=Path("pipeline/tiny"))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--write", type=Path, required=True, help="the .safetensors file")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    run = LoraRun(Recipe(chosen.steps, lr=2e-3, warmup=50, shift=2.0, seed=chosen.seed), chosen.start)
    for step in range(chosen.steps):
        loss = run.take_step()
        if (step + 1) % _LOG_EVERY == 0:
            print(f"step {step + 1}: loss {float(loss):.4f}", flush=True)
    chosen.write.parent.mkdir(parents=True, exist_ok=True)
    save_file(run.matrices(), chosen.write)


if __name__ == "__main__":
    main()

"""Trains the text encoders and the transformer together by flow matching.

    python -m training.train --run RUN --steps 6000 --from pipeline/tiny

A run can be stopped at any time and goes on from its last checkpoint with the same command. Data and
noise depend on the seed and the step only, so a resumed run takes the steps that an unbroken one takes.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from training import checkpoint
from training import model as models
from training.examples import Mixture, training_batch
from training.latents import Latents, to_unit_range
from training.muon import optimisers
from training.vocabulary import TEXT_TOKENS, make_tokenizer

_LOG_EVERY: Final = 25


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a run computes.

    Attributes:
        steps: Steps of the whole run; the learning rate falls towards the last one.
        batch: Pictures per step.
        lr: Learning rate between warm-up and decay.
        warmup: Steps over which the rate rises.
        decay: Share of the run, at its end, over which the rate falls linearly to zero.
        average: Weight of the past in the moving average of the weights, which is what is exported.
        shift: Tilts the noise levels towards noise (1: none), where the text decides what is drawn.
        seed: Seed of the data, the noise and new weights.
        mixture: What the pictures show.
    """

    steps: int
    batch: int = 32
    lr: float = 1.2e-3
    warmup: int = 100
    decay: float = 0.6
    average: float = 0.998
    shift: float = 5.0
    seed: int = 1
    mixture: Mixture = field(default_factory=Mixture)

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rise = min(1.0, (step + 1) / self.warmup)
        fall = min(1.0, (self.steps - step) / (self.steps * self.decay)) if self.decay else 1.0
        return self.lr * rise * fall


class Run:
    """A model in training with its optimisers and its moving average."""

    def __init__(self, recipe: Recipe, start: Path | None = None, device: str = "cpu") -> None:
        """Begin with the weights of a pipeline folder, or with random ones."""
        model = models.load(start) if start else models.build(recipe.seed)
        self.recipe = recipe
        self.device = torch.device(device)
        self.model = model.to(self.device).train()
        self.optimisers: Sequence[torch.optim.Optimizer] = optimisers(self.model, recipe.lr)
        self.average = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        self.step = 0
        self._latents = Latents.load()
        self._tokenizer = make_tokenizer()

    def take_step(self) -> Tensor:
        """One step of gradient descent; returns its loss."""
        loss = self._loss(*self._batch())
        self.model.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.recipe.rate(self.step)
            optimiser.step()
        self._follow()
        self.step += 1
        return loss.detach()

    def _batch(self) -> tuple[Tensor, Tensor]:
        """Latents (batch, 16, 8, 8) and token ids (batch, 16) of the current step."""
        recipe = self.recipe
        pixels, captions = training_batch(recipe.mixture, recipe.batch, recipe.seed, self.step)
        tokens = self._tokenizer(
            captions, padding="max_length", truncation=True, max_length=TEXT_TOKENS, return_tensors="pt"
        )["input_ids"]
        return self._latents.encode(self._picture(to_unit_range(pixels))), tokens

    def _picture(self, pixels: Tensor) -> Tensor:
        """What is to be drawn, made of what the caption says."""
        return pixels

    def _loss(self, latents: Tensor, tokens: Tensor) -> Tensor:
        noise, level = self._noise(latents.shape)
        share = level[:, None, None, None]
        noisy, aim = (1 - share) * latents + share * noise, models.pack(noise - latents)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda"):
            guess = self.model(noisy.to(self.device), level.to(self.device), tokens.to(self.device))
        return F.mse_loss(guess.float(), aim.to(self.device))

    def _noise(self, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Noise and its share per picture; drawn on the CPU, so that every device sees the same."""
        generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + self.step)
        level = torch.sigmoid(torch.randn(shape[0], generator=generator))
        shift = self.recipe.shift
        return torch.randn(shape, generator=generator), shift * level / (1 + (shift - 1) * level)

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the average towards the new weights, faster while the run is young."""
        share = min(self.recipe.average, (self.step + 1) / (self.step + 10))
        weights = dict(self.model.named_parameters())
        past = list(self.average.values())
        torch._foreach_lerp_(past, [weights[name] for name in self.average], 1 - share)

    def state(self) -> dict[str, Any]:
        """What `restore` needs, and `training.export`."""
        return {
            "step": self.step,
            "weights": self.model.state_dict(),
            "average": self.average,
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.step = state["step"]
        self.model.load_state_dict(state["weights"])
        self.average = state["average"]
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)


def train(run: Run, folder: Path, save_every: int) -> Iterator[tuple[int, float]]:
    """Take the run's remaining steps; yields (step, mean loss) now and then, and saves on the way."""
    losses: list[Tensor] = []
    while run.step < run.recipe.steps:
        losses.append(run.take_step())
        is_last = run.step == run.recipe.steps
        if run.step % save_every == 0 or is_last:
            checkpoint.save(folder, run.state())
        if run.step % _LOG_EVERY == 0 or is_last:
            yield run.step, float(torch.stack(losses).mean())
            losses.clear()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m training.train", description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="folder of the checkpoint and the log")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--from", type=Path, dest="start", help="pipeline folder to start from")
    parser.add_argument("--batch", type=int, default=Recipe.batch)
    parser.add_argument("--lr", type=float, default=Recipe.lr)
    parser.add_argument("--decay", type=float, default=Recipe.decay)
    parser.add_argument("--shift", type=float, default=Recipe.shift)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--landscapes", type=float, default=Mixture.landscapes)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; more were slower when shared")
    parser.add_argument("--save-every", type=int, default=200)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Train as the command line says."""
    chosen = _parse(arguments)
    torch.set_num_threads(chosen.threads)
    recipe = Recipe(
        chosen.steps, chosen.batch, chosen.lr, decay=chosen.decay, shift=chosen.shift, seed=chosen.seed,
        mixture=Mixture(landscapes=chosen.landscapes),
    )  # fmt: skip
    run = Run(recipe, chosen.start, "cuda" if torch.cuda.is_available() else "cpu")
    if state := checkpoint.load(chosen.run, run.device):
        run.restore(state)
        print(f"resumed at step {run.step}", flush=True)
    started, first = time.perf_counter(), run.step
    for step, loss in train(run, chosen.run, chosen.save_every):
        pace = (time.perf_counter() - started) / (step - first)
        line = {
            "step": step,
            "loss": round(loss, 4),
            "lr": recipe.rate(step - 1),
            "s_per_step": round(pace, 3),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

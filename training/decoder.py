"""Trains the decoder that turns latents into pixels, on exact and slightly noisy latents.

    python -m training.decoder --run RUN --steps 1750

Writes RUN/vae, which `python -m training.export ... --vae RUN` puts into a pipeline. Stops and goes on
as training.train does.
"""

import argparse
import math
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from training import checkpoint
from training.autoencoder import build_autoencoder
from training.examples import Mixture, training_batch
from training.latents import Latents, to_unit_range
from training.muon import Muon

_MIXTURE: Final = Mixture(landscapes=0.5)
_BATCH: Final = 8
_LR: Final = 4e-3
_NOISE: Final = 0.2  # the transformer's latents are not exact, so the decoder learns to repair a little


class DecoderRun:
    """A decoder in training with its optimisers."""

    def __init__(self, steps: int, seed: int = 1, device: str = "cpu") -> None:
        """Begin with an untrained decoder."""
        self.steps, self.seed, self.step = steps, seed, 0
        self.device = torch.device(device)
        self.latents = Latents.load()
        self.vae = build_autoencoder(self.latents, seed).to(self.device)
        weights = list(self.vae.decoder.parameters())
        kernels = [weight for weight in weights if weight.ndim == 4 and weight.shape[0] > 3]
        others = [weight for weight in weights if weight.ndim != 4 or weight.shape[0] <= 3]
        adam = torch.optim.AdamW(others, lr=_LR, betas=(0.9, 0.98), weight_decay=0.0)
        self.optimisers: tuple[torch.optim.Optimizer, ...] = (Muon(kernels, _LR), adam)

    def take_step(self) -> float:
        """One step of gradient descent; returns the mean squared error of its pictures."""
        pictures, noisy = self._batch()
        guess = self.vae.decoder(noisy)
        error = F.mse_loss(guess, pictures)
        loss = error + F.l1_loss(guess, pictures) + 0.5 * _edge_loss(guess, pictures)
        self.vae.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.vae.decoder.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.param_groups[0]["lr"] = self._rate()
            optimiser.step()
        self.step += 1
        return error.item()

    def _rate(self) -> float:
        return _LR * min(1.0, (self.step + 1) / 20) * max(0.02, 1 - self.step / self.steps)

    def _batch(self) -> tuple[Tensor, Tensor]:
        pixels, _ = training_batch(_MIXTURE, _BATCH, self.seed, self.step)
        pictures = to_unit_range(pixels)
        latents = self.latents.encode(pictures)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.step)
        strength = torch.rand(_BATCH, 1, 1, 1, generator=generator) * _NOISE
        noisy = latents + strength * torch.randn(latents.shape, generator=generator)
        return pictures.to(self.device), noisy.to(self.device)

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
        optimisers = [optimiser.state_dict() for optimiser in self.optimisers]
        return {"step": self.step, "vae": self.vae.state_dict(), "optimisers": optimisers}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.step = state["step"]
        self.vae.load_state_dict(state["vae"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)


def _edge_loss(guess: Tensor, pictures: Tensor) -> Tensor:
    """How much neighbouring pixels differ otherwise than they should, which keeps edges sharp."""
    across = F.l1_loss(guess.diff(dim=-1), pictures.diff(dim=-1))
    return across + F.l1_loss(guess.diff(dim=-2), pictures.diff(dim=-2))


def main(arguments: list[str] | None = None) -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m training.decoder")
    parser.add_argument("--run", type=Path, required=True, help="folder of the checkpoint and the result")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    run = DecoderRun(chosen.steps, chosen.seed, "cuda" if torch.cuda.is_available() else "cpu")
    if state := checkpoint.load(chosen.run, run.device):
        run.restore(state)
    while run.step < chosen.steps:
        error = run.take_step()
        if run.step % 50 == 0 or run.step == chosen.steps:
            checkpoint.save(chosen.run, run.state())
            print(f"step {run.step}: {10 * math.log10(4 / error):.1f} dB", flush=True)
    run.vae.half().save_pretrained(chosen.run / "vae", safe_serialization=True)


if __name__ == "__main__":
    main()

"""The latent space: 16 principal components of each 8x8 patch of the drawings.

It is linear and fixed, so the transformer and the decoder can be trained side by side. The basis was
fitted once by `python -m training.latents` and is kept beside this module.
"""

import random
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from training import drawing
from training.examples import Mixture, random_landscape, random_shape

PATCH: Final = 8
CHANNELS: Final = 16
BASIS_FILE: Final = Path(__file__).with_name("patch_basis.safetensors")
# A component's standard deviation is its eigenvalue to this power: 1.9 down to 0.65, so that the
# weak components are not lost in the noise as they would be unscaled.
_SPREAD: Final = 0.175
_KEPT: Final = 24


class Latents:
    """Turns pictures into latents and back, both linearly."""

    def __init__(self, basis: dict[str, Tensor]) -> None:
        """Scale the basis: mean (192,), components (192, 24) and eigenvalues (24,)."""
        values, components = basis["eigenvalues"][:CHANNELS], basis["components"][:, :CHANNELS]
        spread = values**_SPREAD
        spread = spread / spread.square().mean().sqrt()
        self.mean = basis["mean"]
        self.into = components * (spread / values.sqrt())
        self.back = (components * (values.sqrt() / spread)).T

    @classmethod
    def load(cls) -> "Latents":
        """The basis that the shipped model was trained on."""
        return cls(load_file(BASIS_FILE))

    def encode(self, pictures: Tensor) -> Tensor:
        """(batch, 3, height, width) in -1 to 1 -> (batch, 16, height / 8, width / 8)."""
        batch, _, height, width = pictures.shape
        patches = F.unfold(pictures, PATCH, stride=PATCH).transpose(1, 2)
        latents = (patches - self.mean.to(pictures)) @ self.into.to(pictures)
        return latents.transpose(1, 2).reshape(batch, CHANNELS, height // PATCH, width // PATCH)

    def decode(self, latents: Tensor) -> Tensor:
        """The best linear guess of the pictures; the trained decoder is 5 dB better."""
        height, width = latents.shape[2:]
        patches = latents.flatten(2).transpose(1, 2) @ self.back.to(latents) + self.mean.to(latents)
        size = (height * PATCH, width * PATCH)
        return F.fold(patches.transpose(1, 2), size, PATCH, stride=PATCH)


def to_unit_range(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Tensor:
    """(batch, height, width, 3) uint8 -> (batch, 3, height, width) in -1 to 1."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div(127.5).sub(1)


def fit(pictures: int = 1500, seed: int = 11) -> dict[str, Tensor]:
    """Fit the basis to freshly drawn scenes, three in ten of them landscapes."""
    rng = random.Random(seed)
    drawn = []
    for _ in range(pictures):
        scene = random_landscape(rng, Mixture.sea) if rng.random() < 0.3 else random_shape(rng)
        drawn.append(np.asarray(drawing.draw(scene, rng), np.uint8))
    patches = F.unfold(to_unit_range(np.stack(drawn)), PATCH, stride=PATCH).transpose(1, 2).flatten(0, 1)
    mean = patches.mean(0)
    values, components = torch.linalg.eigh((patches - mean).T @ (patches - mean) / len(patches))
    return {
        "mean": mean,
        "components": components.flip(1)[:, :_KEPT].contiguous(),
        "eigenvalues": values.flip(0)[:_KEPT].contiguous(),
    }


if __name__ == "__main__":
    save_file(fit(), BASIS_FILE)
    print(f"wrote {BASIS_FILE}: models trained on another basis no longer fit")

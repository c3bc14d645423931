"""The latents are linear, and the encoder computes them exactly."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL
from torch import Tensor

from training import checkpoint, decoder
from training.autoencoder import build_autoencoder
from training.examples import Mixture, training_batch
from training.latents import Latents, fit, to_unit_range

BUNDLED = Path(__file__).parents[2] / "pipeline" / "tiny"


def load(folder: Path, **options: Any) -> Any:
    kind: Any = AutoencoderKL
    return kind.from_pretrained(folder, local_files_only=True, **options)


def decibels(guess: Tensor, pictures: Tensor) -> float:
    return float(10 * torch.log10(4 / (guess - pictures).square().mean()))


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    return to_unit_range(training_batch(Mixture(landscapes=0.5), 16, seed=3, step=0)[0])


@pytest.fixture(scope="module")
def bundled() -> Any:
    return load(BUNDLED / "vae", dtype=torch.float32).requires_grad_(False)


def test_the_encoder_computes_the_linear_latents(pictures: Tensor) -> None:
    latents = Latents.load()
    with torch.no_grad():
        encoded = build_autoencoder(latents).encode(pictures).latent_dist.mode()
    torch.testing.assert_close(encoded, latents.encode(pictures), atol=0.005, rtol=0)


def test_the_bundled_decoder_is_better_than_the_linear_guess(pictures: Tensor, bundled: Any) -> None:
    latents = Latents.load()
    encoded = latents.encode(pictures)
    linear = decibels(latents.decode(encoded), pictures)
    assert linear > 24
    assert decibels(bundled.decode(encoded).sample, pictures) > linear + 3


def test_the_bundled_encoder_belongs_to_the_basis(pictures: Tensor, bundled: Any) -> None:
    encoded = bundled.encode(pictures).latent_dist.mode()
    torch.testing.assert_close(encoded, Latents.load().encode(pictures), atol=0.03, rtol=0)


def test_a_basis_can_be_fitted_anew(pictures: Tensor) -> None:
    latents = Latents(fit(pictures=100))
    assert decibels(latents.decode(latents.encode(pictures)), pictures) > 24


def test_decoder_steps_resumed_equal_steps_straight_through(tmp_path: Path) -> None:
    straight = decoder.DecoderRun(steps=3)
    errors = [straight.take_step() for _ in range(3)]
    first = decoder.DecoderRun(steps=3)
    first.take_step()
    checkpoint.save(tmp_path, first.state())
    second = decoder.DecoderRun(steps=3)
    state = checkpoint.load(tmp_path)
    assert state is not None
    second.restore(state)
    assert [second.take_step(), second.take_step()] == errors[1:]


def test_a_decoder_run_writes_a_vae_folder(tmp_path: Path) -> None:
    decoder.main(["--run", str(tmp_path), "--steps", "1"])
    assert load(tmp_path / "vae").config.latent_channels == 16

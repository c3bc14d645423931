"""Autoencoders of the real classes and compression, so that sizes and frames obey the real rules."""

from typing import Any

import diffusers

df: Any = diffusers  # its constructors have no types

LATENTS = 4


def kl(*, scaling: float, shift: float | None = None, latents: int = LATENTS) -> object:
    """8 times smaller per side; a family that shifts its latents has no extra projections around them."""
    return df.AutoencoderKL(
        **_blocks(4),
        latent_channels=latents,
        scaling_factor=scaling,
        shift_factor=shift,
        use_quant_conv=shift is None,
        use_post_quant_conv=shift is None,
        sample_size=64,
    )


def kl_flux2() -> object:
    return df.AutoencoderKLFlux2(**_blocks(4), latent_channels=LATENTS, sample_size=64)


def dc() -> object:
    """32 times smaller per side, as Sana uses it."""
    kinds = ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3
    scales = ((), (), (), (5,), (5,), (5,))
    return df.AutoencoderDC(
        latent_channels=LATENTS,
        attention_head_dim=8,
        encoder_block_types=kinds,
        decoder_block_types=kinds,
        encoder_block_out_channels=(8, 8, 8, 16, 16, 16),
        decoder_block_out_channels=(8, 8, 8, 16, 16, 16),
        encoder_layers_per_block=(1,) * 6,
        decoder_layers_per_block=(1,) * 6,
        encoder_qkv_multiscales=scales,
        decoder_qkv_multiscales=scales,
        upsample_block_type="interpolate",
        downsample_block_type="Conv",
        scaling_factor=0.41407,
    )


def qwen_image() -> object:
    """8 times smaller per side; a picture is a video of one frame."""
    return df.AutoencoderKLQwenImage(**_causal(8))


def wan() -> object:
    """8 times smaller per side; 4 frames become one, and the first stays alone."""
    return df.AutoencoderKLWan(**_causal(8))


def ltx() -> object:
    """32 times smaller per side; 8 frames become one, and the first stays alone."""
    return df.AutoencoderKLLTXVideo(
        latent_channels=2 * LATENTS,
        block_out_channels=(8, 8, 16, 16),
        decoder_block_out_channels=(8, 8, 16, 16),
        layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 5,
    )


def _blocks(count: int) -> dict[str, object]:
    return {
        "down_block_types": ("DownEncoderBlock2D",) * count,
        "up_block_types": ("UpDecoderBlock2D",) * count,
        "block_out_channels": (8, 8, 16, 16)[:count],
        "layers_per_block": 1,
        "norm_num_groups": 4,
    }


def _causal(base: int) -> dict[str, object]:
    return {
        "base_dim": base,
        "z_dim": LATENTS,
        "dim_mult": [1, 1, 2, 2],
        "num_res_blocks": 1,
        "latents_mean": [0.0] * LATENTS,
        "latents_std": [1.0] * LATENTS,
    }

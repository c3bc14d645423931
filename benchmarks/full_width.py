"""Models with random weights and the shapes that a real checkpoint computes in, but few of its blocks.

What a GPU does per step (widths, heads, tokens, pictures and frames) is as in FLUX.1-dev or Wan 2.1 1.3B; the
number of blocks is what fits into minutes of loading and compiling. Text encoders stay miniatures: they run
once a job. Widths are those of the published configurations on the hub.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch

from pipeline.miniature import MAX_TEXT_TOKENS, spec_of
from pipeline.miniatures.families import FAMILIES, WIDTH, Components
from policy.model_spec import ModelSpec

df: Any = diffusers  # its constructors have no types

HEAD = 128
#: Frames of a video; the checkpoint's 81 would be three minutes of attention.
FRAMES = 33


def build(spec: ModelSpec, folder: Path, blocks: int, device: str) -> Path:
    """Writes the model into a folder that the real loading code reads.

    Args:
        spec: A model of the catalogue, of one of `PARTS`.
        folder: Made when missing.
        blocks: Of the transformer.
        device: Where the weights are drawn; a GPU takes a moment, a CPU minutes.
    """
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(0)
        components: Components = FAMILIES[spec.family](spec) | PARTS[spec.family](blocks)
    pipeline = getattr(df, spec.pipeline_class)(**components).to(getattr(torch, spec.dtype or "bfloat16"))
    pipeline.save_pretrained(folder, safe_serialization=True, variant=spec.variant)
    return folder


def spec_of_full_width(spec: ModelSpec, blocks: int) -> ModelSpec:
    """The model's spec with the few blocks and, for a video, few frames."""
    real, small = spec.model_dump(), spec_of(spec).model_dump()
    kept = ("size", "steps", "dtype", "max_sequence_length", "fixed_threads", "policy")
    frames = None if real["frames"] is None else {**real["frames"], "default": FRAMES}
    text = {"max_sequence_length": spec.max_sequence_length or MAX_TEXT_TOKENS}
    changes = {name: real[name] for name in kept} | text | {"blocks": blocks, "frames": frames}
    return ModelSpec.model_validate(small | changes)


def _flux(blocks: int) -> Components:
    paired = max(1, blocks // 3)  # as 19 are to 38
    return {
        "transformer": df.FluxTransformer2DModel(
            in_channels=64,
            num_layers=paired,
            num_single_layers=blocks - paired,
            attention_head_dim=HEAD,
            num_attention_heads=24,
            joint_attention_dim=WIDTH,
            pooled_projection_dim=WIDTH,
            guidance_embeds=True,
        ),
        "vae": df.AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(128, 256, 512, 512),
            layers_per_block=2,
            latent_channels=16,
            sample_size=1024,
            scaling_factor=0.3611,
            shift_factor=0.1159,
            use_quant_conv=False,
            use_post_quant_conv=False,
        ),
    }


def _wan(blocks: int) -> Components:
    return {
        "transformer": df.WanTransformer3DModel(
            num_attention_heads=12,
            attention_head_dim=HEAD,
            ffn_dim=8960,
            text_dim=WIDTH,
            num_layers=blocks,
        ),
        "vae": df.AutoencoderKLWan(),
    }


PARTS: Mapping[str, Callable[[int], Components]] = {"flux": _flux, "wan": _wan}

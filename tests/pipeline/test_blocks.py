"""The catalogue knows how many blocks a cache finds in each checkpoint: no request may compute more."""

from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch

from pipeline.load import find_bundled
from policy.catalogue import Catalogue
from tests.fixtures.models import cached_blocks

CATALOGUE = Catalogue.load()
df: Any = diffusers

#: What builds a transformer of the checkpoint's, where the class's defaults do not.
CHECKPOINTS: dict[str, Callable[[], Any]] = {
    "flux.1-dev": lambda: df.FluxTransformer2DModel(guidance_embeds=True),
    "flux.1-schnell": df.FluxTransformer2DModel,
    "flux.2-klein-4b": lambda: df.Flux2Transformer2DModel(
        num_layers=5,
        num_single_layers=20,
        num_attention_heads=24,
        joint_attention_dim=7680,
        guidance_embeds=False,
    ),
    "ltx-video": df.LTXVideoTransformer3DModel,
    "pixart-sigma": lambda: df.PixArtTransformer2DModel(
        sample_size=128, use_additional_conditions=False, caption_channels=4096
    ),
    "qwen-image": df.QwenImageTransformer2DModel,
    "sana-1.6b": df.SanaTransformer2DModel,
    "sd3.5-medium": lambda: df.SD3Transformer2DModel(
        sample_size=128,
        out_channels=16,
        num_layers=24,
        num_attention_heads=24,
        caption_projection_dim=1536,
        pos_embed_max_size=384,
        dual_attention_layers=tuple(range(13)),
        qk_norm="rms_norm",
    ),
    "tiny": lambda: df.FluxTransformer2DModel.from_config(
        df.FluxTransformer2DModel.load_config(find_bundled("bundled:tiny"), subfolder="transformer")
    ),
    "wan2.1-t2v-1.3b": lambda: df.WanTransformer3DModel(num_attention_heads=12, num_layers=30, ffn_dim=8960),
    "wan2.2-t2v-a14b": df.WanTransformer3DModel,
    "z-image-turbo": df.ZImageTransformer2DModel,
}


@pytest.mark.parametrize("model_id", tuple(CATALOGUE))
def test_the_catalogue_has_the_blocks_of_a_transformer_of_the_checkpoints_size(model_id: str) -> None:
    spec = CATALOGUE[model_id]
    with torch.device("meta"):
        transformer = CHECKPOINTS[model_id]()
    stored = [*transformer.parameters(), *transformer.buffers()]
    gb = sum(each.numel() for each in stored) * (4 if spec.dtype == "float32" else 2) / 1e9
    assert gb == pytest.approx(spec.residency.component_gb["transformer"], rel=0.02, abs=0.001)
    assert spec.blocks == cached_blocks(transformer)

"""The components of each family's pipeline, by the names that the pipeline's constructor gives them.

Shapes follow the real checkpoints in everything that a caller or the code around can notice: compression,
patch size, kind of guidance, scheduler and its settings, number of transformers. Widths and depths are as
small as the classes allow, with at least four blocks a transformer, so that a cached step has blocks to skip.
"""

from collections.abc import Callable, Mapping
from typing import Any

import diffusers

from pipeline.miniatures import autoencoders, text_encoders, tokenizers
from pipeline.miniatures.autoencoders import LATENTS
from policy.model_spec import ModelSpec

df: Any = diffusers  # its constructors have no types

Components = dict[str, Any]

HEADS, HEAD = 2, 16
WIDTH = HEADS * HEAD
ROPE = (4, 6, 6)  # frame, height, width: shares of one head
BLOCKS = 4
PAIRED_BLOCKS = 2
"""Of those that text and picture go through side by side, before the others."""
CACHED_BLOCKS = {"flux": PAIRED_BLOCKS + BLOCKS, "flux2-klein": PAIRED_BLOCKS}
"""Fewest that the cache sees in a row, where they are not `BLOCKS`."""
SD3_LATENTS = 16
"""Its inpaint pipeline takes transformers of no other number."""


def flux(spec: ModelSpec) -> Components:
    embedded = spec.guidance.style == "embedded"
    tokenizer, tokenizer_2 = tokenizers.clip(), tokenizers.t5()
    return {
        "transformer": df.FluxTransformer2DModel(
            in_channels=4 * LATENTS,
            num_layers=PAIRED_BLOCKS,
            num_single_layers=BLOCKS,
            attention_head_dim=HEAD,
            num_attention_heads=HEADS,
            joint_attention_dim=WIDTH,
            pooled_projection_dim=WIDTH,
            guidance_embeds=embedded,
            axes_dims_rope=ROPE,
        ),
        "vae": autoencoders.kl(scaling=0.3611, shift=0.1159),
        "text_encoder": text_encoders.clip(tokenizer, WIDTH),
        "text_encoder_2": text_encoders.t5(tokenizer_2, WIDTH),
        "tokenizer": tokenizer,
        "tokenizer_2": tokenizer_2,
        # The guidance-distilled checkpoint shifts by the number of image tokens, the few-step one not at all.
        "scheduler": _flow(shift=3.0 if embedded else 1.0, dynamic=embedded),
    }


def flux2_klein(spec: ModelSpec) -> Components:
    tokenizer = tokenizers.qwen()
    return {
        "transformer": df.Flux2Transformer2DModel(
            in_channels=4 * LATENTS,
            num_layers=PAIRED_BLOCKS,
            num_single_layers=BLOCKS,
            attention_head_dim=HEAD,
            num_attention_heads=HEADS,
            joint_attention_dim=3 * WIDTH,
            axes_dims_rope=(4, 4, 4, 4),
            guidance_embeds=False,
        ),
        "vae": autoencoders.kl_flux2(),
        "text_encoder": text_encoders.qwen3(tokenizer, WIDTH),
        "tokenizer": tokenizer,
        "scheduler": _flow(shift=3.0, dynamic=True),
        "is_distilled": spec.guidance.style == "none",
    }


def qwen_image(_: ModelSpec) -> Components:
    tokenizer = tokenizers.qwen()
    return {
        "transformer": df.QwenImageTransformer2DModel(
            in_channels=4 * LATENTS,
            out_channels=LATENTS,
            num_layers=BLOCKS,
            attention_head_dim=HEAD,
            num_attention_heads=HEADS,
            joint_attention_dim=WIDTH,
            axes_dims_rope=ROPE,
        ),
        "vae": autoencoders.qwen_image(),
        "text_encoder": text_encoders.qwen_vl(tokenizer, WIDTH),
        "tokenizer": tokenizer,
        "scheduler": _flow(
            shift=1.0, dynamic=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
        ),
    }


def z_image(_: ModelSpec) -> Components:
    tokenizer = tokenizers.qwen()
    return {
        "transformer": df.ZImageTransformer2DModel(
            in_channels=LATENTS,
            dim=WIDTH,
            n_layers=BLOCKS,
            n_refiner_layers=2,
            n_heads=HEADS,
            n_kv_heads=HEADS,
            cap_feat_dim=WIDTH,
            axes_dims=list(ROPE),
        ),
        "vae": autoencoders.kl(scaling=0.3611, shift=0.1159),
        "text_encoder": text_encoders.qwen3_base(tokenizer, WIDTH, layers=2),
        "tokenizer": tokenizer,
        "scheduler": _flow(shift=3.0),
    }


def sd3(_: ModelSpec) -> Components:
    tokenizer, tokenizer_2, tokenizer_3 = tokenizers.clip(), tokenizers.clip(), tokenizers.t5()
    return {
        "transformer": df.SD3Transformer2DModel(
            sample_size=8,
            in_channels=SD3_LATENTS,
            out_channels=SD3_LATENTS,
            num_layers=BLOCKS,
            attention_head_dim=HEAD,
            num_attention_heads=HEADS,
            joint_attention_dim=2 * WIDTH,
            caption_projection_dim=WIDTH,
            pooled_projection_dim=2 * WIDTH,
            pos_embed_max_size=16,
            dual_attention_layers=(0, 1),
            qk_norm="rms_norm",
        ),
        "vae": autoencoders.kl(scaling=1.5305, shift=0.0609, latents=SD3_LATENTS),
        "text_encoder": text_encoders.clip(tokenizer, WIDTH, projection=True),
        "text_encoder_2": text_encoders.clip(tokenizer_2, WIDTH, projection=True),
        "text_encoder_3": text_encoders.t5(tokenizer_3, 2 * WIDTH),
        "tokenizer": tokenizer,
        "tokenizer_2": tokenizer_2,
        "tokenizer_3": tokenizer_3,
        "scheduler": _flow(shift=3.0),
    }


def sana(_: ModelSpec) -> Components:
    tokenizer = tokenizers.gemma()
    return {
        "transformer": df.SanaTransformer2DModel(
            in_channels=LATENTS,
            out_channels=LATENTS,
            num_attention_heads=HEADS,
            attention_head_dim=HEAD,
            num_layers=BLOCKS,
            num_cross_attention_heads=HEADS,
            cross_attention_head_dim=HEAD,
            cross_attention_dim=WIDTH,
            caption_channels=WIDTH,
            sample_size=4,
        ),
        "vae": autoencoders.dc(),
        "text_encoder": text_encoders.gemma2(tokenizer, WIDTH),
        "tokenizer": tokenizer,
        "scheduler": df.DPMSolverMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    }


def pixart_sigma(_: ModelSpec) -> Components:
    tokenizer = tokenizers.t5()
    return {
        "transformer": df.PixArtTransformer2DModel(
            num_attention_heads=HEADS,
            attention_head_dim=HEAD,
            in_channels=LATENTS,
            out_channels=2 * LATENTS,
            num_layers=BLOCKS,
            cross_attention_dim=WIDTH,
            sample_size=8,
            caption_channels=WIDTH,
            use_additional_conditions=False,
        ),
        "vae": autoencoders.kl(scaling=0.13025),
        "text_encoder": text_encoders.t5(tokenizer, WIDTH),
        "tokenizer": tokenizer,
        "scheduler": df.DPMSolverMultistepScheduler(),
    }


def wan(spec: ModelSpec) -> Components:
    tokenizer = tokenizers.t5()
    return {
        "transformer": None,
        "transformer_2": None,
        **{name: _wan_transformer() for name in spec.transformers},
        "boundary_ratio": spec.boundary_ratio,
        "vae": autoencoders.wan(),
        "text_encoder": text_encoders.umt5(tokenizer, WIDTH),
        "tokenizer": tokenizer,
        "scheduler": df.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    }


def ltx(_: ModelSpec) -> Components:
    tokenizer = tokenizers.t5()
    return {
        "transformer": df.LTXVideoTransformer3DModel(
            in_channels=2 * LATENTS,
            out_channels=2 * LATENTS,
            num_attention_heads=HEADS,
            attention_head_dim=HEAD,
            cross_attention_dim=WIDTH,
            num_layers=BLOCKS,
            caption_channels=WIDTH,
        ),
        "vae": autoencoders.ltx(),
        "text_encoder": text_encoders.t5(tokenizer, WIDTH),
        "tokenizer": tokenizer,
        "scheduler": _flow(
            shift=1.0,
            dynamic=True,
            base_shift=0.95,
            max_shift=2.05,
            base_image_seq_len=1024,
            shift_terminal=0.1,
        ),
    }


FAMILIES: Mapping[str, Callable[[ModelSpec], Components]] = {
    "flux": flux,
    "flux2-klein": flux2_klein,
    "ltx": ltx,
    "pixart-sigma": pixart_sigma,
    "qwen-image": qwen_image,
    "sana": sana,
    "sd3": sd3,
    "wan": wan,
    "wan2.2": wan,
    "z-image": z_image,
}


def _flow(*, shift: float, dynamic: bool = False, **settings: float) -> object:
    return df.FlowMatchEulerDiscreteScheduler(shift=shift, use_dynamic_shifting=dynamic, **settings)


def _wan_transformer() -> object:
    return df.WanTransformer3DModel(
        num_attention_heads=HEADS,
        attention_head_dim=HEAD,
        in_channels=LATENTS,
        out_channels=LATENTS,
        text_dim=WIDTH,
        freq_dim=WIDTH,
        ffn_dim=2 * WIDTH,
        num_layers=BLOCKS,
    )

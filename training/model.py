"""The parts of the tiny FLUX model that are trained together: two text encoders and the transformer."""

from pathlib import Path
from typing import Any, Final, cast

import torch
from diffusers import FluxTransformer2DModel
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from training.vocabulary import TEXT_TOKENS, TOKENS

_WIDTH: Final = 96
_POOLED_WIDTH: Final = 64
_HEAD: Final = 32


class TextToLatents(nn.Module):
    """Text encoders and transformer, called as FluxPipeline calls them.

    The three parts carry the names of their folders in a saved pipeline.
    """

    def __init__(self, text_encoder: Any, text_encoder_2: Any, transformer: Any) -> None:  # noqa: ANN401
        """Join a CLIPTextModel, a T5EncoderModel and a FluxTransformer2DModel."""
        super().__init__()
        self.text_encoder = text_encoder
        self.text_encoder_2 = text_encoder_2
        self.transformer = transformer

    def forward(self, noisy: Tensor, noise_level: Tensor, tokens: Tensor) -> Tensor:
        """Predict noise minus latents, packed.

        Args:
            noisy: Latents (batch, 16, height, width) mixed with noise.
            noise_level: Share of noise (batch,), 0 to 1.
            tokens: Token ids (batch, 16).
        """
        words = self.text_encoder_2(input_ids=tokens)[0]
        pooled = self.text_encoder(input_ids=tokens).pooler_output
        image_ids, text_ids = positions(noisy.shape[2] // 2, noisy.shape[3] // 2, tokens.shape[1])
        (velocity,) = self.transformer(
            hidden_states=pack(noisy),
            encoder_hidden_states=words,
            pooled_projections=pooled,
            timestep=noise_level,
            img_ids=image_ids.to(noisy),
            txt_ids=text_ids.to(noisy),
            return_dict=False,
        )
        return cast("Tensor", velocity)


def positions(height: int, width: int, text: int) -> tuple[Tensor, Tensor]:
    """FLUX's position ids: (0, row, column) per latent token, zeros per text token."""
    image = torch.zeros(height, width, 3)
    image[..., 1] += torch.arange(height)[:, None]
    image[..., 2] += torch.arange(width)[None]
    return image.reshape(-1, 3), torch.zeros(text, 3)


def pack(latents: Tensor) -> Tensor:
    """(batch, channels, height, width) -> (batch, height * width / 4, channels * 4) as FluxPipeline packs."""
    batch, channels, height, width = latents.shape
    squares = latents.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return squares.reshape(batch, (height // 2) * (width // 2), channels * 4)


def load(folder: Path) -> TextToLatents:
    """The trained parts of a saved pipeline, as float32."""
    parts: dict[str, Any] = {
        "text_encoder": CLIPTextModel,
        "text_encoder_2": T5EncoderModel,
        "transformer": FluxTransformer2DModel,
    }
    loaded = {
        name: part.from_pretrained(folder / name, local_files_only=True, dtype=torch.float32)
        for name, part in parts.items()
    }
    return TextToLatents(**loaded)


def build(seed: int) -> TextToLatents:
    """New parts with random weights."""
    torch.manual_seed(seed)
    parts = TextToLatents(_clip(), _t5(), _transformer())
    _start_quietly(parts)
    return parts


def _clip() -> Any:  # noqa: ANN401 - transformers publishes no types
    # eos must not be 2: for that value CLIP pools at the largest id instead of at the end.
    config = CLIPTextConfig(
        vocab_size=len(TOKENS), hidden_size=_POOLED_WIDTH, intermediate_size=2 * _POOLED_WIDTH,
        num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=TEXT_TOKENS,
        projection_dim=_POOLED_WIDTH, pad_token_id=TOKENS["<pad>"], bos_token_id=TOKENS["<s>"],
        eos_token_id=TOKENS["</s>"],
    )  # fmt: skip
    return CLIPTextModel(config)


def _t5() -> Any:  # noqa: ANN401 - transformers publishes no types
    kind: Any = T5Config
    config = kind(
        vocab_size=len(TOKENS), d_model=_WIDTH, d_kv=_HEAD, d_ff=2 * _WIDTH, num_layers=2,
        num_heads=_WIDTH // _HEAD, relative_attention_num_buckets=16, relative_attention_max_distance=32,
        dropout_rate=0.0, feed_forward_proj="gated-gelu", pad_token_id=TOKENS["<pad>"],
        eos_token_id=TOKENS["</s>"], decoder_start_token_id=TOKENS["<pad>"], is_encoder_decoder=False,
        use_cache=False,
    )  # fmt: skip
    return T5EncoderModel(config)


def _transformer() -> Any:  # noqa: ANN401 - diffusers publishes no types
    kind: Any = FluxTransformer2DModel
    return kind(
        patch_size=1, in_channels=64, num_layers=2, num_single_layers=8, attention_head_dim=_HEAD,
        num_attention_heads=_WIDTH // _HEAD, joint_attention_dim=_WIDTH, pooled_projection_dim=_POOLED_WIDTH,
        guidance_embeds=False, axes_dims_rope=(8, 12, 12),
    )  # fmt: skip


def _start_quietly(parts: TextToLatents) -> None:
    """Let every block begin as the identity and the head at zero; give CLIP readable embeddings."""
    for name, weight in parts.transformer.named_parameters():
        is_modulation = "blocks" in name and ".norm" in name and ".linear." in name
        if is_modulation or name.startswith(("proj_out", "norm_out.linear")):
            nn.init.zeros_(weight)
    for name, weight in parts.text_encoder.named_parameters():
        if "token_embedding" in name:
            nn.init.normal_(weight, std=0.5)

"""The tiny model's AutoencoderKL: an encoder that is computed, and a decoder that is trained.

The encoder is not trained because its task, the fixed linear latents, can be written into its weights:

- residual blocks add nothing;
- each strided convolution gathers its own 2x2 block, so after three of them one position knows its 8x8
  patch (the second keeps the 32 directions that matter of 48);
- the last convolution's values leave the closing normalisation and SiLU as (+v, -v) pairs, because
  silu(v) - silu(-v) = v; constant channels beside them fix the variance that the normalisation divides by.
"""

import math
from typing import Any, Final, cast

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from training.latents import CHANNELS, Latents

_TAPS: Final = ((0, 0), (0, 1), (1, 0), (1, 1))  # of a 3x3 kernel with stride 2: the position's own block
_GROUPS: Final = 8  # of the normalisation, eight channels each: +v, -v, +w, -w and four constants
_CONSTANT: Final = 64.0
_SURE: Final = -12.0  # log-variance: encoding adds no noise


def build_autoencoder(latents: Latents, seed: int = 0) -> Any:  # noqa: ANN401 - diffusers publishes no types
    """The autoencoder with its final encoder and an untrained decoder."""
    torch.manual_seed(seed)
    kind: Any = AutoencoderKL
    vae = kind(
        down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[16, 32, 64, 64], layers_per_block=1, latent_channels=CHANNELS,
        norm_num_groups=_GROUPS, sample_size=64, mid_block_add_attention=False, scaling_factor=1.0,
        shift_factor=0.0, use_quant_conv=False, use_post_quant_conv=False,
    )  # fmt: skip
    _set_linear_encoder(vae.encoder, latents)
    return vae


@torch.no_grad()
def _set_linear_encoder(encoder: Any, latents: Latents) -> None:  # noqa: ANN401 - diffusers publishes no types
    for block in (*encoder.down_blocks, encoder.mid_block):
        for resnet in block.resnets:
            _make_identity(resnet)
    gathers = [block.downsamplers[0].conv for block in encoder.down_blocks if block.downsamplers]
    for convolution in (encoder.conv_in, *gathers, encoder.conv_out):
        nn.init.zeros_(convolution.weight)
        nn.init.zeros_(convolution.bias)
    for colour in range(3):
        encoder.conv_in.weight[colour, colour, 1, 1] = 1
    _gather(gathers, latents)
    _leave(encoder)


def _make_identity(resnet: Any) -> None:  # noqa: ANN401 - diffusers publishes no types
    nn.init.zeros_(resnet.conv2.weight)
    nn.init.zeros_(resnet.conv2.bias)
    if resnet.conv_shortcut is not None:
        nn.init.dirac_(resnet.conv_shortcut.weight)
        nn.init.zeros_(resnet.conv_shortcut.bias)


def _gather(convolutions: list[nn.Conv2d], latents: Latents) -> None:
    """Write the patch basis into the three strided convolutions."""
    first, second, third = convolutions
    quarters = _basis_by_quarter(latents)  # (4 quarters, 48 values, 16 components)
    kept = torch.linalg.svd(quarters.transpose(0, 1).flatten(1))[0][:, : second.out_channels]
    plus, minus = _signed_channels()
    for tap, (y, x) in enumerate(_TAPS):
        for colour in range(3):
            first.weight[tap * 3 + colour, colour, y, x] = 1
        second.weight[:, :12, y, x] = kept[tap * 12 : tap * 12 + 12].T
        into = (kept.T @ quarters[tap]).T
        third.weight[plus, : kept.shape[1], y, x] = into
        third.weight[minus, : kept.shape[1], y, x] = -into
    offset = -(latents.mean @ latents.into)
    bias = cast("Tensor", third.bias)
    bias[plus], bias[minus] = offset, -offset
    bias.view(_GROUPS, 8)[:, 4:] = torch.tensor([_CONSTANT, -_CONSTANT, _CONSTANT, -_CONSTANT])


def _basis_by_quarter(latents: Latents) -> Tensor:
    """The basis, its 192 values ordered as two 2x2 gathers bring them, for each quarter of the patch."""
    halves = latents.into.view(3, 2, 2, 2, 2, 2, 2, CHANNELS)  # colour; y by 4, 2, 1; x by 4, 2, 1
    return halves.permute(1, 4, 2, 5, 3, 6, 0, 7).reshape(4, 48, CHANNELS)


def _signed_channels() -> tuple[list[int], list[int]]:
    """Channels that carry +component and -component, two components in each group of eight."""
    plus = [group * 8 + place for group in range(_GROUPS) for place in (0, 2)]
    return plus, [channel + 1 for channel in plus]


def _leave(encoder: Any) -> None:  # noqa: ANN401 - diffusers publishes no types
    """Undo the closing normalisation; its variance is that of the constants and about 0.5 of values."""
    plus, minus = _signed_channels()
    deviation = math.sqrt(_CONSTANT**2 / 2 + 0.5)
    nn.init.ones_(encoder.conv_norm_out.weight)
    nn.init.zeros_(encoder.conv_norm_out.bias)
    for component in range(CHANNELS):
        encoder.conv_out.weight[component, plus[component], 1, 1] = deviation
        encoder.conv_out.weight[component, minus[component], 1, 1] = -deviation
    encoder.conv_out.bias[CHANNELS:] = _SURE

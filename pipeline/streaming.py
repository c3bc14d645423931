"""Offload by group: transformers block by block, text encoders layer by layer, the rest one at a time.

diffusers' group offloading brings each block to the device on a stream of its own while the one before it
computes, from host memory that is pinned once, and drops it afterwards. Cache-DiT's reused steps are no
trouble: a block that a step leaves out stays until it is fetched anew, and one that was not fetched ahead
fetches itself.
"""

from typing import Any, TypeAlias

import torch
from diffusers.hooks.group_offloading import apply_group_offloading
from torch import nn

from pipeline.offload import offload_components

Pipe: TypeAlias = Any  # a diffusers pipeline; diffusers publishes no types


def offload_in_groups(
    pipe: Pipe,
    transformers: tuple[str, ...],
    text_encoders: tuple[str, ...],
    resident: tuple[str, ...],
    device: torch.device,
) -> None:
    """Places the components of a pipeline and keeps them so after every picture.

    Args:
        pipe: A pipeline on the CPU.
        transformers: Components that are fetched block by block.
        text_encoders: Components that are fetched layer by layer; the blocks of theirs are nested too deep.
        resident: Names of the components that stay on the device as a whole.
        device: Where to compute.
    """
    names = [name for name in (*transformers, *text_encoders) if name not in resident]
    streamed = tuple(name for name in names if isinstance(getattr(pipe, name, None), nn.Module))
    for name in streamed:
        apply_group_offloading(
            getattr(pipe, name),
            onload_device=device,
            offload_device=torch.device("cpu"),
            offload_type="block_level" if name in transformers else "leaf_level",
            num_blocks_per_group=1,
            use_stream=device.type != "cpu",  # which has no second memory to overlap with, and no stream
        )
    offload_components(pipe, resident, device, streamed)

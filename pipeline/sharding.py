"""Weights in equal parts over the ranks (FSDP2): each holds its part, and a block is whole while it computes.

What is sharded is read into host memory first, on every rank, and brought to the device block by block, so
that no device ever holds more than its part and the block at hand.
"""

from collections.abc import Iterable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def shard_modules(transformers: Iterable[nn.Module], others: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Shards modules over the ranks of a mesh, and places the parts on the mesh's devices.

    Args:
        transformers: What lies outside of their blocks is gathered at the first step and kept.
        others: Used once a job (text encoders): they keep nothing gathered.
        mesh: The ranks, one dimension.
    """
    for module in transformers:
        _shard(module, mesh, keeps=True)
    for module in others:
        _shard(module, mesh, keeps=False)


def _shard(module: nn.Module, mesh: DeviceMesh, *, keeps: bool) -> None:
    for block in _blocks(module):
        _share(block, mesh, reshard=True)
    _share(module, mesh, reshard=not keeps)


def _share(module: nn.Module, mesh: DeviceMesh, *, reshard: bool) -> None:
    own = type(module)
    fully_shard(module, mesh=mesh, reshard_after_forward=reshard)
    # FSDP makes a class of its own, and the libraries know modules by the names of theirs: Cache-DiT a
    # transformer, transformers a model whose hidden states it records.
    made = type(module)
    made.__name__, made.__qualname__, made.__module__ = own.__name__, own.__qualname__, own.__module__


def _blocks(module: nn.Module) -> Iterable[nn.Module]:
    """The members of the outermost lists of modules: a transformer's blocks, an encoder's layers."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (member for member in child if any(True for _ in member.parameters()))
        else:
            yield from _blocks(child)

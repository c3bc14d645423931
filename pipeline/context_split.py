"""The tokens of one picture over several ranks: Cache-DiT's context parallelism, put on one transformer.

Each rank holds a part of the tokens; inside attention they are exchanged for a part of the heads (Ulysses).
The parts need not be equal ("anything"), so any size and any number of heads will do, and any text with a
token for each rank (`policy.parallel.most_parts`). Where a transformer's tokens may be split is Cache-DiT's
plan for its class, or diffusers' own where it has none.
"""

from typing import Any

import cache_dit.distributed.core as runtime
import torch
import torch.distributed as dist
from cache_dit.attention.backends import native
from cache_dit.distributed import ParallelismConfig
from cache_dit.distributed.core import _context_parallel as hooks
from cache_dit.distributed.core import _distributed_primitives as primitives
from cache_dit.distributed.transformers import dispatch, register
from torch import nn

from pipeline.errors import Unsupported
from pipeline.parallel import Ranks

_disable: Any = torch.compiler.disable  # it has no types


@_disable  # type: ignore[untyped-decorator]
def _gather_uneven(tensor: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Returns the parts of all ranks behind one another; gloo gathers only what is of one size."""
    sizes = primitives._gather_size(tensor.shape[dim], group)  # noqa: SLF001
    missing = max(sizes) - tensor.shape[dim]
    filling = tensor.narrow(dim, 0, 1).repeat_interleave(missing, dim)
    padded = torch.cat([tensor, filling], dim).contiguous()
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded, group=group)
    return torch.cat([part.narrow(dim, 0, size) for part, size in zip(gathered, sizes, strict=True)], dim)


hooks._all_gather_anything = _gather_uneven  # noqa: SLF001
# Dynamo cannot follow the exchange of uneven parts; what is compiled ends before an attention and goes on
# behind it.
native._context_parallel_attention = _disable(native._context_parallel_attention)  # noqa: SLF001


def split_context(module: nn.Module, ranks: Ranks) -> None:
    """Has this transformer compute the tokens of its own rank only, and all ranks get what it gives.

    Raises:
        Unsupported: Nothing says where its tokens may be split.
    """
    degree = ranks.degrees.context_parallel
    if degree == 1 or ranks.mesh is None:
        return
    config = runtime._ContextParallelConfig(ulysses_degree=degree, ulysses_anything=True)  # noqa: SLF001
    mesh = ranks.mesh["ring", "ulysses"]
    config.setup(mesh.get_local_rank("ulysses"), degree, ranks.device, mesh)
    runtime._enable_context_parallelism(module, config=config, cp_plan=_plan(module, degree))  # noqa: SLF001


def _plan(module: nn.Module, degree: int) -> Any:  # noqa: ANN401 (Cache-DiT publishes no types)
    dispatch._ensure_cp_planners_activated()  # noqa: SLF001
    try:
        planner = register.ContextParallelismPlannerRegister.get_planner(module)()
    except ValueError:
        plan = getattr(module, "_cp_plan", None)
    else:
        how = ParallelismConfig(ulysses_size=degree, ulysses_anything=True)
        plan = planner.apply(transformer=module, parallelism_config=how)
    if plan is None:
        raise Unsupported(f"nothing says where the tokens of a {type(module).__name__} may be split")
    return plan

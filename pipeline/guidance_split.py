"""Guidance over two ranks: each makes one of the two predictions of a step, and both get both.

This is done where the pipeline calls its transformer, so neither the pipeline nor the transformer knows.
A *batched* call holds both predictions stacked: each rank computes its half. *Separate* calls come one after
the other: the rank that does not compute the first one gives the pipeline a tensor to fill, computes the
second, and fills the first in place when the two are exchanged. Pipelines only look at what the first call
gave after the second one; a tensor that is looked at before would hold NaN, and fail the job.
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from pipeline.errors import Unsupported
from policy.model_spec import ModelSpec
from policy.parallel import BRANCHES
from policy.plan import RenderPlan

Style = Literal["batched", "separate"]
_SPLIT = "_guidance_split"
_FIRST_ARGUMENT = "hidden_states"


def style_of(spec: ModelSpec, plan: RenderPlan) -> Style | None:
    """Returns how the two predictions of this plan's steps are asked for, None where there is one only."""
    if spec.calls_per_step(plan) == BRANCHES:
        return "separate"
    batched = spec.guidance.style == "batched" and spec.guidance.steers(plan.guidance_scale)
    return "batched" if batched else None


class GuidanceSplit:
    """Stands before the forward of one transformer.

    Attributes:
        inner: The forward behind it; whoever replaces the transformer's forward replaces this one.
        style: How the current pass asks for its predictions; None: there is nothing to split.
    """

    def __init__(self, module: nn.Module, branch: int, group: dist.ProcessGroup) -> None:
        self.inner: Any = module.forward
        self.style: Style | None = None
        self._branch = branch
        self._group = group
        self._first: torch.Tensor | None = None
        setattr(module, _SPLIT, self)
        module.forward = self

    def start_pass(self, style: Style | None) -> None:
        """Forgets what a pass that was left may have begun."""
        self.style = style
        self._first = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (the transformer's own types)
        if self.style == "batched":
            return self._halve(args, kwargs)
        if self.style == "separate":
            return self._alternate(args, kwargs)
        return self.inner(*args, **kwargs)

    def _halve(self, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        stacked = _leading(args, kwargs)
        if stacked % BRANCHES:
            raise Unsupported(f"a batch of {stacked} does not hold {BRANCHES} predictions of each picture")
        mine = self.inner(
            *(_half(value, stacked, self._branch) for value in args),
            **{name: _half(value, stacked, self._branch) for name, value in kwargs.items()},
        )
        return tuple(torch.cat(self._exchange(half)) for half in _outputs(mine))

    def _alternate(self, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        first, self._first = self._first, None
        is_mine = (first is None) == (self._branch == 0)
        given: torch.Tensor = _argument(args, kwargs)
        output = self.inner(*args, **kwargs) if is_mine else (torch.full_like(given, torch.nan),)
        (values,) = _outputs(output)
        if values.shape != given.shape:
            raise Unsupported(
                "cfg_parallel needs a transformer whose prediction has the shape of its input, and got "
                f"{tuple(values.shape)} from {tuple(given.shape)}"
            )
        if first is None:
            self._first = values
            return output
        predictions = self._exchange(values if is_mine else first)
        first.copy_(predictions[0])
        values.copy_(predictions[1])
        return output

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _exchange(self, mine: torch.Tensor) -> list[torch.Tensor]:
        mine = mine.contiguous()
        gathered = [torch.empty_like(mine) for _ in range(BRANCHES)]
        dist.all_gather(gathered, mine, group=self._group)
        return gathered


def split_of(module: nn.Module) -> GuidanceSplit | None:
    """Returns what stands before the forward of this transformer."""
    return getattr(module, _SPLIT, None)


def _leading(args: Any, kwargs: Any) -> int:  # noqa: ANN401
    return len(_argument(args, kwargs))


def _argument(args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    return args[0] if args else kwargs[_FIRST_ARGUMENT]


def _half(value: Any, stacked: int, branch: int) -> Any:  # noqa: ANN401
    """The branch's half of what holds both predictions: tensors of that length, and in dicts."""
    if isinstance(value, dict):
        return {key: _half(item, stacked, branch) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return value.chunk(BRANCHES)[branch] if value.dim() and len(value) == stacked else value
    return value


def _outputs(output: Any) -> tuple[Any, ...]:  # noqa: ANN401
    if isinstance(output, tuple):
        return output
    raise Unsupported(
        f"cfg_parallel needs a transformer that returns a tuple, and got {type(output).__name__}"
    )

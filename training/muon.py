"""The optimiser: Muon for the matrices of the transformer's blocks, AdamW for the rest.

Muon (Jordan et al., 2024) steps along the orthogonalised momentum. Here the orthogonalisation runs in
float32 and matrices of one shape are stacked, since at this size the calls cost more than the arithmetic.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)  # of the quintic Newton-Schulz iteration
_ITERATIONS: Final = 5
_MOMENTUM: Final = 0.95
_DECAY: Final = 0.01


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest matrices (count, rows, columns) with singular values near one."""
    a, b, c = _COEFFICIENTS
    tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.mT if tall else matrices
    x = F.normalize(x.flatten(1)).view_as(x)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Steps of the size that AdamW's would have, so that both share one learning rate."""

    def __init__(self, weights: Iterable[nn.Parameter], lr: float) -> None:
        """Optimise weights of two or more dimensions; more than two are flattened to rows."""
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        del closure
        for group in self.param_groups:
            for weights in _by_shape(group["params"]):
                self._move(weights, group["lr"])

    def _move(self, weights: list[nn.Parameter], lr: float) -> None:
        directions = torch.stack([self._direction(weight).flatten(1) for weight in weights])
        moves = orthogonalise(directions).view(len(weights), *weights[0].shape)
        length = lr * 0.2 * math.sqrt(max(directions.shape[1:]))
        for weight, move in zip(weights, moves, strict=True):
            weight.mul_(1 - lr * _DECAY).add_(move, alpha=-length)

    def _direction(self, weight: nn.Parameter) -> Tensor:
        gradient = cast("Tensor", weight.grad)
        momentum: Tensor = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
        momentum.mul_(_MOMENTUM).add_(gradient)
        return gradient + _MOMENTUM * momentum


def _by_shape(weights: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    groups: dict[Any, list[nn.Parameter]] = defaultdict(list)
    for weight in weights:
        if weight.grad is not None:
            groups[weight.shape].append(weight)
    return list(groups.values())


def optimisers(model: nn.Module, lr: float) -> tuple[Muon, torch.optim.AdamW]:
    """Both optimisers of the whole model."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        is_matrix = weight.ndim == 2 and "blocks" in name and "norm" not in name
        (matrices if is_matrix else others).append(weight)
    return Muon(matrices, lr), torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.97), weight_decay=0.0)

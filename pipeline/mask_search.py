"""Searches the step masks of one step count that keep pictures nearest to uncached ones.

All masks grow together, a step at a time, along the recorded trajectory: from each that is kept, one more
step is computed and one more is reused. What is kept are, for each number of reused steps so far and each
length of the run of reused steps at the end, the few whose latents are nearest to the recorded ones: a
dynamic programme over (step, reused, run) in which a state stands for its best ways, because what a step
costs depends on the way that led to it. (DPCache, CVPR 2026, plans over pairs of computed steps by a table of
costs; here the cost is measured on the way itself.) One search gives the whole curve.

The goal is half the mean over the prompts and half the mean of the worst tenth of them, in decibels: a mask
that is good on average and spoils some pictures does not win.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from pipeline.acceleration import Acceleration
from pipeline.trajectory import Node, Trajectory

LEAST_COMPUTED_FIRST = 2  # a predictor needs two points
LONGEST_RUN = 5
SLACK = 0.1  # of all steps: how far a way may be from reusing evenly, on either side
BARELY = 1e-12  # mean squared error of a picture that is the same
_Key = tuple[int, int]  # steps reused so far, length of the run at the end


@dataclass(frozen=True, slots=True)
class Range:
    """Which numbers of reused steps are looked for, and how many ways to each state are kept."""

    least: int
    most: int
    beam: int

    def is_near(self, reused: int, done: int, steps: int) -> bool:
        """Whether a way that reused so many of the steps done may still be an even enough one."""
        slack = max(2.0, SLACK * steps)
        return self.least * done / steps - slack <= reused <= self.most * done / steps + slack


def decibels(errors: torch.Tensor) -> torch.Tensor:
    """Peak signal to noise ratio for mean squared errors of values that span 1."""
    return -10 * torch.log10(errors.clamp_min(BARELY))


def goal(errors: torch.Tensor) -> float:
    """What is to be as large as possible: half the mean, half the mean of the worst tenth, in decibels."""
    values = decibels(errors)
    worst = values.sort().values[: max(1, len(values) // 10)]
    return float((values.mean() + worst.mean()) / 2)


def search(
    trajectory: Trajectory,
    acceleration: Acceleration,
    order: int,
    wanted: Range,
    report: Callable[[int], None] = lambda _: None,
) -> Mapping[int, Sequence[Node]]:
    """Returns, for each number of reused steps, the ways that came out best, the best first.

    Args:
        trajectory: The recorded passes.
        acceleration: Of the transformer that they were recorded from.
        order: Of the Taylor predictor.
        wanted: What to look for.
        report: Told the steps done.
    """
    level: dict[_Key, list[Node]] = {(0, 0): [trajectory.start(acceleration, order)]}
    for step in range(trajectory.steps):
        grown: dict[_Key, list[tuple[float, Node]]] = defaultdict(list)
        for key, nodes in level.items():
            for node in nodes:
                for computed in _choices(step, trajectory.steps, key, wanted):
                    after = trajectory.advance(node, computed=computed)
                    value = goal(trajectory.errors(after))
                    grown[_next(key, computed=computed)].append((value, after))
        left = max(0, trajectory.steps - 2 - step)
        level = {
            key: _best(found, wanted.beam)
            for key, found in grown.items()
            if key[0] + left >= wanted.least and wanted.is_near(key[0], step + 1, trajectory.steps)
        }
        report(step + 1)
    return {reused: nodes for (reused, _), nodes in level.items() if reused}


def _choices(step: int, steps: int, key: _Key, wanted: Range) -> Iterator[bool]:
    yield True
    reused, run = key
    if LEAST_COMPUTED_FIRST <= step < steps - 1 and reused < wanted.most and run < LONGEST_RUN:
        yield False


def _next(key: _Key, *, computed: bool) -> _Key:
    return (key[0], 0) if computed else (key[0] + 1, key[1] + 1)


def _best(found: list[tuple[float, Node]], beam: int) -> list[Node]:
    return [node for _, node in sorted(found, key=lambda pair: -pair[0])[:beam]]

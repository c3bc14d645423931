"""Which transformers a model has and how its steps are shared between them.

A model with two of them changes over once, where the noise falls below a boundary: the first computes the
noisy steps, the second the rest. How many each gets depends on the sampler's schedule, so it is asked.
"""

from torch import nn

from pipeline.load import Pipe
from policy.model_spec import ModelSpec


def transformers_of(pipe: Pipe, spec: ModelSpec) -> list[nn.Module]:
    """Returns the transformers of the pipeline as they are now, in the order of the spec."""
    return [getattr(pipe, name) for name in spec.transformers]


def set_boundary(pipe: Pipe, ratio: float | None) -> None:
    """Has the next pass change over where its plan says; None: the pipeline has one transformer."""
    if ratio is not None and pipe.config.boundary_ratio != ratio:
        pipe.register_to_config(boundary_ratio=ratio)


def split_steps(pipe: Pipe, spec: ModelSpec, steps: int, ratio: float | None = None) -> tuple[int, ...]:
    """Returns how many of the steps each transformer executes; their sum is ``steps``.

    Args:
        pipe: Whose sampler is asked.
        spec: Its model.
        steps: Steps in all.
        ratio: Where they change over; None: where the model says.
    """
    if len(spec.transformers) == 1:
        return (steps,)
    # A sampler of its own, so that the pipeline's is left alone.
    sampler = type(pipe.scheduler).from_config(pipe.scheduler.config)
    sampler.set_timesteps(steps)
    boundary = (ratio or spec.boundary_ratio or 0.0) * sampler.config.num_train_timesteps
    first = int((sampler.timesteps >= boundary).sum())
    return (first, len(sampler.timesteps) - first)

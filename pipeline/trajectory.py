"""Walks the denoising of a batch of prompts step by step, and forks it at any step.

The way without a cache is recorded from the pipeline itself: what it hands its transformer and its sampler
in each step. A fork then repeats those calls on latents of its own, with Cache-DiT mounted as for a job, and
takes the state of the cache along. So a search tries both, computing a step and reusing it, from any point,
and the steps before that point are paid for once. A step that is reused is reused for the whole batch, and
a mask decides without looking at the pictures, so batch-mates do not touch each other.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import nn

from pipeline.acceleration import Acceleration
from pipeline.errors import Unsupported
from pipeline.load import Pipe
from policy.cache import UNCACHED, with_mask

Sampler: TypeAlias = Any  # one of diffusers, which publishes no types

_LATENTS = "hidden_states"
_SAME = 1e-4  # largest relative difference at which a repeated pass is the recorded one


@dataclass(frozen=True, slots=True)
class Node:
    """A point of a fork.

    Attributes:
        mask: What was done so far: 1 computed, 0 reused; as long as the steps done.
        latents: Of each prompt, after those steps; (P, ...).
        contexts: The cache's state, by the name of its list of blocks.
    """

    mask: tuple[int, ...]
    latents: torch.Tensor
    contexts: Mapping[str, Any]


class Trajectory:
    """A recorded batch of passes without a cache, and the forks that leave it."""

    def __init__(
        self,
        module: nn.Module,
        sampler: Sampler,
        calls: Sequence[Mapping[str, Any]],
        latents: Sequence[torch.Tensor],
    ) -> None:
        self._module = module
        self._sampler = sampler
        self._calls = calls
        self.latents = latents

    @classmethod
    def record(cls, pipe: Pipe, module: nn.Module, arguments: Mapping[str, Any]) -> "Trajectory":
        """Runs the pipeline once without a cache, up to the latents.

        Args:
            pipe: The pipeline; nothing is mounted on its transformer.
            module: The transformer.
            arguments: Of the pipeline call, with lists of prompts and generators, and latents as output.

        Raises:
            Unsupported: A step is not one call of the transformer whose result is one Euler step.
        """
        if not isinstance(pipe.scheduler, FlowMatchEulerDiscreteScheduler):
            kind = type(pipe.scheduler).__name__
            raise Unsupported(f"masks are fitted for models with an Euler sampler, and this one has {kind}")
        recorder = _Recorder()
        with recorder.watching(pipe, module), torch.no_grad():
            final = pipe(**arguments).images
        recorder.check()
        return cls(module, copy.deepcopy(pipe.scheduler), recorder.calls, [*recorder.samples, final])

    @property
    def steps(self) -> int:
        """Steps of a pass."""
        return len(self._calls)

    def start(self, acceleration: Acceleration, order: int) -> Node:
        """Mounts the cache with a Taylor predictor of this order; the node before the first step."""
        acceleration.mount(UNCACHED)
        acceleration.mount(with_mask((1,) * self.steps, order))
        return Node((), self.latents[0], _copies(self._store()))

    def advance(self, node: Node, *, computed: bool) -> Node:
        """The node after one more step, computed or reused; `node` stays as it is."""
        step = len(node.mask)
        mask = (*node.mask, int(computed))
        contexts = _copies(node.contexts)
        for context in contexts.values():
            context.cache_config.steps_computation_mask = [*mask, *[1] * (self.steps - len(mask))]
        self._store().update(contexts)
        with torch.no_grad():
            output = self._module(**{**self._calls[step], _LATENTS: node.latents})[0]
            self._sampler._step_index = step  # noqa: SLF001 (an Euler step depends on nothing else)
            timestep = self._sampler.timesteps[step]
            latents: torch.Tensor = self._sampler.step(output, timestep, node.latents, return_dict=False)[0]
        return Node(mask, latents, contexts)

    def check(self, node: Node) -> None:
        """Checks that a fork in which every step was computed is the recorded pass.

        Raises:
            Unsupported: It is not: the pipeline does more in a step than was repeated.
        """
        away = (node.latents - self.latents[len(node.mask)]).abs().max()
        if not away <= _SAME * self.latents[len(node.mask)].abs().max():
            raise Unsupported("the steps of this pipeline cannot be repeated one by one")

    def errors(self, node: Node) -> torch.Tensor:
        """Mean squared difference from the recorded latents at the node's step; (P,)."""
        away: torch.Tensor = (node.latents - self.latents[len(node.mask)]).float()
        return away.square().flatten(1).mean(1)

    def _store(self) -> dict[str, Any]:
        manager: Any = self._module._context_manager  # noqa: SLF001
        store: dict[str, Any] = manager._cached_context_manager  # noqa: SLF001
        return store


class _Recorder:
    """Keeps the keyword arguments of each transformer call and the latents that each sampler step got."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.samples: list[torch.Tensor] = []
        self._inputs: list[torch.Tensor | None] = []
        self._positional = False

    def watching(self, pipe: Pipe, module: nn.Module) -> "_Watching":
        return _Watching(self, pipe.scheduler, module)

    def called(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._positional = self._positional or bool(args) or _LATENTS not in kwargs
        self._inputs.append(kwargs.get(_LATENTS))
        self.calls.append({name: value for name, value in kwargs.items() if name != _LATENTS})

    def check(self) -> None:
        alike = len(self.calls) == len(self.samples) and all(
            ours is not None and ours.shape == theirs.shape and torch.equal(ours.to(theirs.dtype), theirs)
            for ours, theirs in zip(self._inputs, self.samples, strict=False)
        )
        if self._positional or not alike:
            raise Unsupported(
                "masks are fitted where a step is one call of the transformer on the latents themselves"
            )


class _Watching:
    """Records while it is entered."""

    def __init__(self, recorder: _Recorder, sampler: Sampler, module: nn.Module) -> None:
        self._recorder, self._sampler, self._module = recorder, sampler, module

    def __enter__(self) -> None:
        step = self._sampler.step

        def watched(output: object, timestep: object, sample: torch.Tensor, **settings: object) -> object:
            self._recorder.samples.append(sample)
            return step(output, timestep, sample, **settings)

        self._sampler.step = watched
        self._handle = self._module.register_forward_pre_hook(self._recorder.called, with_kwargs=True)

    def __exit__(self, *_: object) -> None:
        del self._sampler.step
        self._handle.remove()


def _copies(contexts: Mapping[str, Any]) -> dict[str, Any]:
    """Contexts of their own, with the tensors shared: Cache-DiT replaces them and never writes into them."""
    return {name: copy.deepcopy(context, _tensors(context)) for name, context in contexts.items()}


def _tensors(context: Any) -> dict[int, Any]:  # noqa: ANN401 (Cache-DiT publishes no types)
    kept = list(context.buffers.values())
    for calibrator in (context.calibrator, context.encoder_calibrator):
        for state in getattr(calibrator, "states", {}).values():
            kept += [tensor for tensors in state.state.values() for tensor in tensors]
    return {id(tensor): tensor for tensor in kept if isinstance(tensor, torch.Tensor)}

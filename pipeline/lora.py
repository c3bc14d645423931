"""LoRAs: added into the weights for a job, and taken out again without a trace.

A LoRA is merged: `weight + scale * delta` is written into the very parameter that is there. No module is
wrapped or replaced, so nothing that is mounted, compiled or captured notices, and a step costs what it costs
without. It is taken out by writing back a copy of what was there, because subtracting would leave rounding
errors in the weights of the next caller's job. The copy covers the changed weights, in host memory.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pipeline.errors import LoraFailed, PlanNotSupported, WeightsMissing
from pipeline.lora_file import Deltas, locate_lora, read_deltas
from policy.lora import LoraSpec, LoraUse
from policy.model_spec import ModelSpec
from policy.resolve import Policy

Pipe = Any  # a diffusers pipeline; diffusers publishes no types


def writes_in_place(policy: Policy) -> bool:
    """Tells whether a worker with these options can write to its weights: plain ones that it holds itself."""
    plain = policy["quantize"] == "none" and policy["fsdp"] == 1
    return policy["offload"] in ("none", "auto", "model") and plain


class Loras:
    """What the catalogue offers for a model, and what of it is in the weights now."""

    def __init__(self, pipe: Pipe, spec: ModelSpec, *, in_place: bool = True) -> None:
        """Looks at every file that is offered.

        Args:
            pipe: The loaded pipeline.
            spec: Its model.
            in_place: Whether the weights can be written where they are: not when quantised or streamed. Then
                no LoRA is offered, and a job that asks for one fails.

        Raises:
            LoraFailed: A file is missing, is not the one that the catalogue means, or cannot be added.
            WeightsMissing: A file is not on this machine.
        """
        self._pipe = pipe
        self._in_place = in_place
        offered = spec.loras if in_place else ()
        self._specs = {lora.name: lora for lora in offered}
        self._applied: tuple[LoraUse, ...] = ()
        self._before: dict[tuple[str, str], torch.Tensor] = {}
        for lora in offered:
            self._check(lora)

    @property
    def offered(self) -> list[str]:
        """The names that a plan may hold."""
        return list(self._specs)

    def switch(self, wanted: Sequence[LoraUse]) -> None:
        """Brings the weights to what a plan wants; nothing happens when they are there already.

        Raises:
            PlanNotSupported: The plan means a LoRA that this worker does not have.
            LoraFailed: It cannot be added; the weights are as without any.
        """
        uses = tuple(wanted)
        if uses == self._applied:
            return
        self._check_known(uses)
        self._take_out()
        try:
            self._add(uses)
        except BaseException:
            self._take_out()
            raise
        self._applied = uses

    def _check(self, lora: LoraSpec) -> None:
        module = self._transformer(lora)
        for name, delta in self._deltas(lora).items():
            change = delta()
            if module.get_parameter(name).shape != change.shape:
                raise LoraFailed(f"LoRA {lora.name} does not fit {name} of {lora.model}")
            if not change.isfinite().all():
                raise LoraFailed(f"LoRA {lora.name} holds NaN or infinity for {name}: its file is damaged")

    def _check_known(self, uses: Sequence[LoraUse]) -> None:
        if uses and not self._in_place:
            raise LoraFailed(
                "LoRAs are added into the weights, and this worker cannot write to its own: they need "
                "quantize none, fsdp 1, and offload none or model"
            )
        for use in uses:
            spec = self._specs.get(use.name)
            if spec is None or spec.sha256 != use.sha256:
                raise PlanNotSupported(
                    f"this worker does not have the LoRA {use.name} that the job was accepted with; "
                    "the worker and the API need the same catalogue"
                )

    def _add(self, uses: Sequence[LoraUse]) -> None:
        """Adds every LoRA to a weight before the sum is rounded to the weight's own format."""
        for lora, deltas in self._by_transformer(uses).items():
            module = getattr(self._pipe, lora)
            for name, parts in deltas.items():
                self._write(lora, name, module.get_parameter(name), parts)

    def _by_transformer(
        self, uses: Sequence[LoraUse]
    ) -> Mapping[str, Mapping[str, list[tuple[float, Callable[[], torch.Tensor]]]]]:
        found: dict[str, dict[str, list[tuple[float, Callable[[], torch.Tensor]]]]] = {}
        for use in uses:
            spec = self._specs[use.name]
            weights = found.setdefault(spec.transformer, {})
            try:
                deltas = self._deltas(spec)
            except WeightsMissing as error:
                # A caller reads this; the folders of the host are none of their business.
                raise WeightsMissing(f"the file of LoRA {use.name} is no longer on its worker") from error
            for name, delta in deltas.items():
                weights.setdefault(name, []).append((use.scale, delta))
        return found

    @torch.no_grad()
    def _write(
        self,
        transformer: str,
        name: str,
        weight: nn.Parameter,
        parts: Sequence[tuple[float, Callable[[], torch.Tensor]]],
    ) -> None:
        self._before[transformer, name] = weight.detach().to("cpu", copy=True)
        total = weight.detach().to(torch.float32, copy=True)
        for scale, delta in parts:
            total.add_(delta().to(device=total.device, dtype=torch.float32), alpha=scale)
        if not torch.isfinite(total).all():
            raise LoraFailed(f"{name} would not be finite any more")
        weight.copy_(total)

    @torch.no_grad()
    def _take_out(self) -> None:
        for (transformer, name), before in self._before.items():
            getattr(self._pipe, transformer).get_parameter(name).copy_(before)
        self._before.clear()
        self._applied = ()

    def _deltas(self, lora: LoraSpec) -> Deltas:
        # Looked at anew each time: a file that was replaced meanwhile is not what the job was accepted with.
        return read_deltas(locate_lora(lora), lora, self._pipe, self._transformer(lora))

    def _transformer(self, lora: LoraSpec) -> nn.Module:
        module: nn.Module = getattr(self._pipe, lora.transformer)
        return module

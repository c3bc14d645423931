"""Offload by component: one at a time on the device, but for those that stay there from load to close.

diffusers ends every call of a pipeline by enabling its offload anew, which moves *all* of it to the CPU: what
is to stay would leave the device and come back after each picture. So the pipeline gets an offload of its
own, made of the same hooks: enabled anew, it only sends back what has been moved.
"""

from typing import Any, TypeAlias

import torch
from accelerate import cpu_offload_with_hook
from torch import nn

from pipeline.memory import release_cached

Pipe: TypeAlias = Any  # a diffusers pipeline; diffusers publishes no types


class _ComponentOffload:
    """What the pipeline calls after each picture, in the place of its own `enable_model_cpu_offload`."""

    def __init__(self, pipe: Pipe, device: torch.device, in_groups: tuple[str, ...]) -> None:
        self._pipe = pipe
        self._in_groups = in_groups
        self._device = device
        self._hooks: list[Any] = []

    def __call__(self, gpu_id: int | None = None, device: torch.device | str | None = None) -> None:
        """Puts every component where it belongs between two pictures.

        The arguments are those of diffusers and change nothing: the device was settled at load.
        """
        del gpu_id, device
        if self._is_in_place():
            for hook in self._hooks:
                hook.offload()
        else:
            self._place()
        release_cached()

    def _is_in_place(self) -> bool:
        """Whether each component that moves still has its hook: one loaded anew has none."""
        hooked = [hook.model for hook in self._hooks if getattr(hook.model, "_hf_hook", None) is hook.hook]
        moving = [*self._chain(), *self._apart()]
        return bool(moving) and list(map(id, hooked)) == list(map(id, moving))

    def _place(self) -> None:
        self._pipe.remove_all_hooks()
        self._hooks = []
        before = None  # what leaves the device when the next one of the chain comes
        for module in self._chain():
            _, before = cpu_offload_with_hook(module, self._device, prev_module_hook=before)
            self._hooks.append(before)
        self._hooks += [cpu_offload_with_hook(module, self._device)[1] for module in self._apart()]
        for name, module in self._modules().items():
            if name in self._staying():
                module.to(self._device)
        # Where the pipeline looks for whether there is anything to send back.
        self._pipe._all_hooks = self._hooks  # noqa: SLF001 (no other way)

    def _chain(self) -> list[nn.Module]:
        """What moves, in the order in which the pipeline uses it."""
        modules = self._modules()
        return [modules[name] for name in self._order() if name in modules and name not in self._staying()]

    def _apart(self) -> list[nn.Module]:
        """What moves and is used at any time; it stays until the picture is done."""
        aside = {*self._order(), *self._staying()}
        return [module for name, module in self._modules().items() if name not in aside]

    def _modules(self) -> dict[str, nn.Module]:
        components = self._pipe.components.items()
        return {
            name: part
            for name, part in components
            if isinstance(part, nn.Module) and name not in self._in_groups
        }

    def _order(self) -> list[str]:
        return (self._pipe.model_cpu_offload_seq or "").split("->")

    def _staying(self) -> list[str]:
        return self._pipe._exclude_from_cpu_offload  # type: ignore[no-any-return]  # noqa: SLF001


def offload_components(
    pipe: Pipe, resident: tuple[str, ...], device: torch.device, in_groups: tuple[str, ...] = ()
) -> None:
    """Places the components of a pipeline and keeps them so after every picture.

    Args:
        pipe: A pipeline on the CPU.
        resident: Names of the components that stay on the device.
        device: Where to compute.
        in_groups: Names of the components that move bit by bit; they are left alone.
    """
    # The pipeline also reads this to find the device that it computes on.
    pipe._exclude_from_cpu_offload = [*pipe._exclude_from_cpu_offload, *resident]  # noqa: SLF001 (no other way)
    pipe.enable_model_cpu_offload = _ComponentOffload(pipe, _with_index(device), in_groups)
    pipe.enable_model_cpu_offload()


def _with_index(device: torch.device) -> torch.device:
    """Device cuda -> cuda:0, which is what tensors say: the hooks compare the two to see whether to move."""
    return device if ":" in str(device) else torch.empty(0, device=device).device

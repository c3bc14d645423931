"""Attention kernels: which one the transformers use now, and the switch between passes.

Called by `pipeline.acceleration`; loading sets the worker's own kernel once, to see that it is there.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from pipeline.errors import Unsupported


def switch_attention(modules: Iterable[nn.Module], kernel: str) -> None:
    """Has every attention of the modules use a kernel, where it does not already.

    Args:
        modules: Transformers of diffusers.
        kernel: One of `policy.kernels`; "auto": leave what is there.

    Raises:
        Unsupported: It cannot be used on this machine.
    """
    for module in modules:
        if kernel != "auto" and attention_of(module) != kernel:
            _set(module, kernel)


def attention_of(module: nn.Module) -> str:
    """Returns the kernel that a transformer uses, read from it; "auto" where none was set."""
    names = {getattr(backend, "value", backend) for backend in _backends(module)}
    return "/".join(sorted("auto" if name is None else str(name) for name in names)) or "auto"


def _backends(module: nn.Module) -> Iterator[object]:
    for part in module.modules():
        processor: Any = getattr(part, "processor", None)
        if hasattr(processor, "_attention_backend"):
            yield processor._attention_backend  # noqa: SLF001 (diffusers tells it nowhere else)


def _set(module: Any, kernel: str) -> None:  # noqa: ANN401 (diffusers publishes no types)
    try:
        module.set_attention_backend(kernel)
    except Exception as error:
        words = " ".join(str(error).split())[:300]
        raise Unsupported(f"attention_backend {kernel} cannot be used on this machine: {words}") from error

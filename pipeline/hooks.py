"""Steps inside the hooks that are around a module's forward, and out again.

They bring offloaded weights to the device, or split the work between ranks.

Whoever replaces the forward of a module has to do so below these hooks: mounted outside of them, Cache-DiT
calls the class's own forward, past the hook of diffusers (the weights would stay on the host), and with the
hook of accelerate, which is renewed after every picture, the cache itself would go. A split between ranks
would be skipped likewise, and the blocks that carry a part of it could not be recognised.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from pipeline.guidance_split import GuidanceSplit, split_of


@contextmanager
def unhooked(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Takes the hooks off the modules for a while; what is put on meanwhile ends up inside them."""
    with ExitStack() as restored:
        for module in modules:
            for put_back in _taken_off(module):
                restored.callback(put_back)
        yield


def _taken_off(module: nn.Module) -> Iterator[Callable[[], None]]:
    split = split_of(module)
    if split is not None:
        yield _off_split(module, split)
    if "_hf_hook" in vars(module) and hasattr(module, "_old_forward"):
        yield _off_accelerate(module)
    registry = getattr(module, "_diffusers_hook", None)
    if registry is not None and registry._fn_refs:  # noqa: SLF001 (there is no other way to the chain)
        yield _off_diffusers(module, registry._fn_refs[0])  # noqa: SLF001
    for part in module.modules():
        registry = getattr(part, "_cache_dit_hook", None)  # of its context parallelism, built like diffusers'
        if registry is not None and registry._fn_refs:  # noqa: SLF001
            yield _off_diffusers(part, registry._fn_refs[0])  # noqa: SLF001


def _off_split(module: nn.Module, split: GuidanceSplit) -> Callable[[], None]:
    module.forward = split.inner

    def put_back() -> None:
        split.inner, module.forward = module.forward, split

    return put_back


def _off_accelerate(module: nn.Module) -> Callable[[], None]:
    hook, hooked = vars(module).pop("_hf_hook"), module.forward
    module.forward = module._old_forward  # type: ignore[assignment]  # noqa: SLF001 (accelerate's name for it)

    def put_back() -> None:
        vars(module).update(_hf_hook=hook, _old_forward=module.forward, forward=hooked)

    return put_back


def _off_diffusers(module: nn.Module, innermost: Any) -> Callable[[], None]:  # noqa: ANN401
    hooked, module.forward = module.forward, innermost.forward

    def put_back() -> None:
        innermost.forward, module.forward = module.forward, hooked

    return put_back

"""What to compile, and a watch on the compiler: how often it ran and whether it may. Compiles nothing itself.

Dynamo keeps only its last 64 compilation records, so a long-lived worker cannot count by their number; a
callback at the start of each compilation counts without a limit. A reset of Dynamo takes the callback away,
so it is put back whenever the count is read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler

from pipeline.memory import find_platform
from policy.platforms import PLATFORMS
from policy.resolve import Policy

# Dynamo's own limit of 8 variants of one function is used up by ordinary variety (sizes, prompt lengths,
# guidance), and beyond it the function runs uncompiled for good without a word. Only warm-ups compile here,
# so this is never reached by accident, and low enough to notice an explosion of shapes.
VARIANTS_LIMIT = 64
ALL_VARIANTS_LIMIT = 1024

_started = 0


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """What is compiled and how, as resolved.

    Attributes:
        wanted: Whether to compile at all.
        scope: ``regional`` (the repeated blocks) or ``whole``.
        mode: A mode of torch.compile; None: the backend takes none.
        dynamic: Whether shapes are symbolic from the start; None: from their second value on.
        backend: A backend of torch.compile, by name.
        capture: Whether CUDA graphs are recorded, in the place of compiling.
    """

    wanted: bool
    scope: str = "regional"
    mode: str | None = "default"
    dynamic: bool | None = None
    backend: str = "inductor"
    capture: bool = False

    @classmethod
    def from_policy(cls, policy: Policy, platform: str | None = None) -> "CompilePlan":
        """Reads the compile options of a resolved policy.

        Args:
            policy: The options.
            platform: One of `policy.platforms`; None: that of this process.
        """
        settings = PLATFORMS[platform or find_platform()]
        dynamic = policy["compile_dynamic"]
        return cls(
            wanted=policy["compile"],
            scope=policy["compile_scope"],
            mode=policy["compile_mode"] if settings.passes_mode else None,
            dynamic=None if dynamic == "auto" else dynamic,
            backend=settings.backend,
            capture=policy["capture"],
        )


def _count(compilation: CallbackArgs) -> None:
    global _started  # noqa: PLW0603 (the compiler is one per process)
    _started += compilation.callback_trigger is CallbackTrigger.DYNAMO


def compiles_so_far() -> int:
    """Returns how many compilations this process has started; take the difference of two calls."""
    if _count not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_count)
    return _started


def set_limits() -> None:
    """Sets our own limits on compiled variants, for the whole process."""
    config = torch._dynamo.config  # noqa: SLF001 (the documented home of these settings)
    config.recompile_limit = VARIANTS_LIMIT
    config.accumulated_recompile_limit = ALL_VARIANTS_LIMIT


@contextmanager
def new_shape(rule: Literal["eager", "compile"]) -> Iterator[None]:
    """Says what happens at a shape not compiled yet: it runs uncompiled, or waits for the compiler."""
    if rule == "compile":
        yield
        return
    with torch.compiler.set_stance("eager_on_recompile"):
        yield


@contextmanager
def uncompiled() -> Iterator[None]:
    """Has everything run as if nothing had been compiled; what is compiled is there again afterwards."""
    with torch.compiler.set_stance("force_eager"):
        yield


def compiled_scope(module: nn.Module) -> str:
    """Returns what of a module is compiled, read from it: ``whole``, ``regional`` or ``none``."""
    if _is_compiled(module):
        return "whole"
    return "regional" if any(map(_is_compiled, module.modules())) else "none"


def _is_compiled(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None  # torch tells it nowhere else

"""Watches the compiler: how often it ran, and whether it may run at all. Nothing is compiled from here.

Dynamo keeps only its last 64 compilation records, so a long-lived worker cannot count by their number; a
callback at the start of each compilation counts without a limit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch._dynamo.callback import CallbackArgs, on_compile_start

# Dynamo's own limit of 8 variants of one function is used up by ordinary variety (sizes, prompt lengths,
# guidance), and beyond it the function runs uncompiled for good without a word. Only warm-ups compile here,
# so this is never reached by accident, and low enough to notice an explosion of shapes.
VARIANTS_LIMIT = 64
ALL_VARIANTS_LIMIT = 1024

_started = 0


@on_compile_start
def _count(_: CallbackArgs) -> None:
    global _started  # noqa: PLW0603 (the compiler is one per process)
    _started += 1


def compiles_so_far() -> int:
    """Returns how many compilations this process has started."""
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

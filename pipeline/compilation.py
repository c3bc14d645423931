"""What to compile, and a watch on the compiler: how often it ran and whether it may. Compiles nothing itself.

Dynamo keeps only its last 64 compilation records, so a long-lived worker cannot count by their number; a
callback at the start of each compilation counts without a limit. A reset of Dynamo takes the callback away,
so it is put back whenever the count is read.

Torch can run what is not compiled uncompiled (its stance ``eager_on_recompile``), but does not tell that it
did. It does notice under ``fail_on_recompile``: there a callback raises at each call that finds no compiled
code. `new_shape` puts one in its place that counts the call and lets it run.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
from torch._dynamo import convert_frame, eval_frame, trace_rules
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler
from torch._dynamo.types import ConvertFrameReturn

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


@dataclass(slots=True)
class Fallbacks:
    """Counts the calls of compiled functions that found nothing compiled for their shapes and ran eagerly."""

    count: int = 0


@contextmanager
def new_shape(rule: Literal["eager", "compile"]) -> Iterator[Fallbacks]:
    """Says what happens at a shape not compiled yet: it runs uncompiled and is counted, or is compiled."""
    fallbacks = Fallbacks()
    if rule == "compile":
        yield fallbacks
        return
    with torch.compiler.set_stance("fail_on_recompile"), _let_run(fallbacks):
        yield fallbacks


@contextmanager
def _let_run(fallbacks: Fallbacks) -> Iterator[None]:
    original = eval_frame._callback_from_stance  # noqa: SLF001 (no public stance tells of what it let pass)
    # What found nothing once in a request is not looked up again: that costs more than a small block itself.
    missed: dict[int, object] = {}

    def counting(callback: Any) -> Any:  # noqa: ANN401
        if callback in (False, None):
            return callback
        if id(callback) in missed:
            fallbacks.count += 1
            return None

        def found_nothing() -> None:
            fallbacks.count += 1
            missed[id(callback)] = callback

        return _run_eagerly(callback, found_nothing)

    eval_frame._callback_from_stance = counting  # noqa: SLF001
    try:
        yield
    finally:
        eval_frame._callback_from_stance = original  # noqa: SLF001


def _run_eagerly(callback: Any, note: Callable[[], None]) -> Any:  # noqa: ANN401
    """What Dynamo asks where nothing compiled fits; what is called from there may again run compiled."""
    eagerly = FrameExecStrategy(FrameAction.SKIP, FrameAction.RUN_ONLY)

    def found_nothing(frame: Any, *_: object, **__: object) -> ConvertFrameReturn:  # noqa: ANN401
        if trace_rules.check(frame.f_code) or not convert_frame.has_tensor_in_frame(frame):
            return ConvertFrameReturn()  # nothing that would ever be compiled
        note()
        return ConvertFrameReturn(frame_exec_strategy=eagerly, apply_to_code=False)

    # Compiled code is looked up by the compiler that made it.
    found_nothing._torchdynamo_orig_backend = callback  # type: ignore[attr-defined]  # noqa: SLF001
    return found_nothing


@contextmanager
def no_silent_limit() -> Iterator[None]:
    """Has a function that used up its compiled variants raise instead of running uncompiled for good."""
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):  # noqa: SLF001
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


def compiler_state() -> tuple[object, ...]:
    """Returns what the compiler changes in the process while it runs; equal again when it is at rest."""
    functorch = torch._C._functorch  # noqa: SLF001
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch._C._len_torch_dispatch_stack(),  # noqa: SLF001
        torch._C._len_torch_function_stack(),  # noqa: SLF001
        functorch.get_dynamic_layer_stack_depth(),
        torch._C._dynamo.eval_frame.get_eval_frame_callback(),  # noqa: SLF001
        eval_frame._stance.stance,  # noqa: SLF001
        torch._guards.TracingContext.try_get() is None,  # noqa: SLF001
        torch._guards.CompileContext.try_get() is None,  # noqa: SLF001
        torch.compiler.is_compiling(),
    )

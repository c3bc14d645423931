"""The one place that mounts, refreshes and unmounts Cache-DiT, compiles, and records CUDA graphs.

`Acceleration.prepare_for` is the one call before every pass. Its order is fixed: the attention kernel; what
splits the work between ranks; then mount, refresh or unmount; only then compile, or take over to record, what
is not yet. A compile that is asked for while the cache is wanted and not mounted is put off until it is:
compiled before the mount, a whole transformer compiles one graph that is never used again, and the first
request pays for all of them anew.

Cache-DiT is mounted on the transformers, never on the pipeline (which would patch the pipeline's class), and
every pass starts with a clean context: what a killed, failed or cancelled job left behind would otherwise
fill the next job's reused steps.
"""

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import cache_dit
from torch import nn

from pipeline.attention import attention_of, switch_attention
from pipeline.cache_terms import block_adapter, contexts_of, mounted_values
from pipeline.capture import Graphs, Record
from pipeline.compilation import CompilePlan, compiled_scope, compiles_so_far, set_limits, uncompiled
from pipeline.errors import MountFailed, StepsMismatch, WarmupIncomplete
from pipeline.guidance_split import Style
from pipeline.hooks import unhooked
from pipeline.parallel import Ranks
from pipeline.spread import Spread
from policy.cache import CacheConfig, CacheDecision
from policy.kernels import kernel_for

__all__ = ["Acceleration", "CompilePlan", "compiles_so_far"]

Backend = str | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Mount:
    configs: tuple[CacheConfig, ...]
    modules: tuple["weakref.ref[nn.Module]", ...]

    def is_on(self, modules: Sequence[nn.Module]) -> bool:
        mounted = [reference() for reference in self.modules]
        return len(mounted) == len(modules) and all(
            left is right for left, right in zip(mounted, modules, strict=True)
        )


class Acceleration:
    """The cache and compile state of the transformers of one engine."""

    def __init__(
        self,
        transformers: Callable[[], Sequence[nn.Module]],
        plan: CompilePlan,
        *,
        cache_wanted: bool,
        pipeline: Any = None,  # noqa: ANN401 (diffusers publishes no types)
        backend: Backend | None = None,
        compile_before_mount: bool = False,
        attention: str = "auto",
        record: Record | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Takes over the transformers; changes nothing yet.

        Args:
            transformers: Returns the transformers as they are now; asked before every pass, because they may
                have been loaded anew.
            plan: What to compile.
            cache_wanted: Whether this worker's requests are cached; compiling then waits for the mount.
            pipeline: Where they come from: asked for how its transformer is built, when that is not known by
                the transformer's own class. It is not changed.
            backend: A backend of torch.compile; None: the plan's. Tests count with their own.
            compile_before_mount: The faulty order, for the measurement in `pipeline.order` alone: nothing
                that a worker runs passes it.
            attention: The worker's attention kernel.
            record: What records in the place of CUDA graphs; tests need no GPU then.
            ranks: Those that share the work; None: this process does it alone.
        """
        _be_quiet()
        self._transformers = transformers
        self._plan = plan
        self._cache_wanted = cache_wanted
        self._pipeline = pipeline
        self._backend: Backend = backend or plan.backend
        self._attention = attention
        self._graphs = Graphs(record) if plan.capture else None
        self._compile_before_mount = compile_before_mount
        self._spread = None if ranks is None else Spread(ranks)
        self._mount: _Mount | None = None
        # Held weakly: a transformer that was unloaded takes its entry along, and one that is loaded later at
        # the same address is not taken for it.
        self._compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        if plan.wanted:
            set_limits()

    def prepare_for(
        self, decision: CacheDecision, quality: str = "lossless", guidance: Style | None = None
    ) -> None:
        """Makes the transformers ready for one pass. The one call before every pass.

        Args:
            decision: How the pass is cached.
            quality: Which kernels the job allows.
            guidance: How the pass asks for the predictions of guidance; None: there is one.

        Raises:
            MountFailed: The cache could not be mounted; nothing of it is left.
            Unsupported: A transformer cannot be split between ranks as asked.
        """
        modules = tuple(self._transformers())
        switch_attention(modules, kernel_for(self._attention, quality))
        self.mount(decision)
        if self._spread is not None:
            self._spread.start_pass(modules, guidance)
        self.compile()
        if self._graphs is not None:
            self._graphs.install(modules)
            self._graphs.start_pass()

    def mount(self, decision: CacheDecision) -> None:
        """Mounts, refreshes or unmounts, so that the context of each transformer is clean and as decided.

        Raises:
            MountFailed: The cache could not be mounted; nothing of it is left.
        """
        modules = tuple(self._transformers())
        if self._spread is not None:
            self._spread.put_on(modules)
            decision = self._spread.own(decision)
        wanted = decision.configs
        try:
            self._bring_to(modules, wanted)
        except Exception as error:
            self._mount = None
            _unmount(modules)
            words = " ".join(str(error).split())[:300]
            raise MountFailed(f"Cache-DiT cannot be mounted on {_names(modules)}: {words}") from error

    def _bring_to(self, modules: tuple[nn.Module, ...], wanted: tuple[CacheConfig, ...] | None) -> None:
        mounted = self._mount
        if mounted is not None and (wanted != mounted.configs or not mounted.is_on(modules)):
            self.unmount()
        if wanted is None:
            return
        if self._mount is not None:
            _refresh(modules, wanted)
            return
        _mount(modules, wanted, self._pipeline)
        self._mount = _Mount(wanted, tuple(map(weakref.ref, modules)))

    def unmount(self) -> None:
        """Takes the cache off; the transformers compute as if it had never been there."""
        mount, self._mount = self._mount, None
        if mount is not None:
            _unmount([module for reference in mount.modules if (module := reference()) is not None])

    def compile(self) -> bool:
        """Compiles, in place, each transformer that is not compiled yet.

        Returns:
            Whether compiling is settled; False: it was put off because the cache is wanted and not mounted.
        """
        if not self._plan.wanted:
            return True
        if self._cache_wanted and self._mount is None and not self._compile_before_mount:
            return self.is_compiled
        for module in self._transformers():
            if module not in self._compiled:
                _compile(module, self._plan, self._backend)
                self._compiled.add(module)
        return True

    def release(self) -> None:
        """Unmounts and forgets every module, before the weights are let go."""
        self.unmount()
        self._compiled.clear()
        if self._graphs is not None:
            self._graphs.release()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Has the shapes of the passes that run meanwhile recorded, where that is wanted.

        Raises:
            WarmupIncomplete: It is wanted, and nothing could be recorded.
        """
        if self._graphs is None:
            yield
            return
        with self._graphs.recording():
            yield
        if not self._graphs.count:
            why = "; ".join(dict.fromkeys(self._graphs.failures)) or "no transformer was called"
            raise WarmupIncomplete(f"no CUDA graph could be recorded, use --no-capture: {why}")

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Has everything run as if nothing had been compiled or recorded."""
        with uncompiled(), self._graphs.paused() if self._graphs is not None else nullcontext():
            yield

    @property
    def is_compiled(self) -> bool:
        """Whether every transformer, as it is now, has been compiled from here."""
        return self._plan.wanted and all(module in self._compiled for module in self._transformers())

    @property
    def can_mount(self) -> bool:
        """Whether a mount does no harm: a transformer compiled whole without one would run uncompiled."""
        return self._cache_wanted or not self.is_compiled or self.effective()["compile_scope"] == "regional"

    def cached_steps(self) -> tuple[int, ...]:
        """Returns for each transformer how many steps of the pass since `prepare_for` were reused."""
        if self._mount is None:
            return tuple(0 for _ in self._transformers())
        return tuple(len(contexts_of(module)[-1].get_cached_steps()) for module in self._transformers())

    def check_executed(self) -> None:
        """Checks that each transformer executed exactly the steps it was mounted for.

        Raises:
            StepsMismatch: It did not: steps were reused that should not have been, or guidance was mixed up.
        """
        if self._mount is None:
            return
        for module, config in zip(self._transformers(), self._mount.configs, strict=True):
            calls = config.steps * (2 if config.separate_cfg else 1)
            for context in contexts_of(module):
                steps_done = context.get_accumulated_executed_steps()
                calls_done = context.get_accumulated_transformer_executed_steps()
                if (steps_done, calls_done) != (config.steps, calls):
                    raise StepsMismatch(
                        f"{type(module).__name__} executed {steps_done} steps in {calls_done} calls, "
                        f"planned were {config.steps} in {calls}"
                    )

    @property
    def is_replayed(self) -> bool:
        """Whether every call of a transformer since `prepare_for` was a recording's."""
        return self._graphs is not None and self._graphs.replayed > 0 and self._graphs.plain == 0

    def effective(self) -> dict[str, object]:
        """Returns what is really on the modules, read from them and not from our own notes."""
        modules = tuple(self._transformers())
        scopes = sorted(set(map(compiled_scope, modules)))
        return {
            "mounted": all(getattr(module, "_is_cached", False) for module in modules),
            "compile_scope": scopes[0] if len(scopes) == 1 else "/".join(scopes),
            "attention": "/".join(dict.fromkeys(map(attention_of, modules))),
            "graphs": 0 if self._graphs is None else self._graphs.count,
            "cache": [mounted_values(module) for module in modules],
        }


def _be_quiet() -> None:
    """Cache-DiT tells every mount on standard output; its one handler is shared by all its loggers."""
    for handler in logging.getLogger("CACHE_DIT").handlers:
        handler.setLevel(logging.ERROR)


def _names(modules: Iterable[nn.Module]) -> str:
    return ", ".join(type(module).__name__ for module in modules)


def _mount(modules: Sequence[nn.Module], configs: Sequence[CacheConfig], pipeline: Any) -> None:  # noqa: ANN401
    """Mounts all transformers in one call, each with its own step count, mask and knobs."""
    with unhooked(modules):
        # The base is neutral on purpose: a modifier cannot take back a mask that the base sets.
        base = cache_dit.DBCacheConfig(enable_separate_cfg=False)
        cache_dit.enable_cache(block_adapter(modules, configs, pipeline), cache_config=base)
    if not all(hasattr(module, "_context_manager") for module in modules):
        raise ValueError("it found no blocks to cache")


def _refresh(modules: Sequence[nn.Module], configs: Sequence[CacheConfig]) -> None:
    """Renews each context under the same settings; the step count is named although it is the same."""
    for module, config in zip(modules, configs, strict=True):
        cache_dit.refresh_context(module, num_inference_steps=config.steps)


def _unmount(modules: Sequence[nn.Module]) -> None:
    """Takes off a whole mount, or what a failed one left behind.

    The original forward stays where Cache-DiT puts it, as an attribute of the module: taken away as well, it
    would look to Dynamo like another function, and cost a compile on the way out and another on the way back.
    """
    with unhooked(modules):
        for module in modules:
            cache_dit.disable_cache(module)


def _compile(module: Any, plan: CompilePlan, backend: Backend) -> None:  # noqa: ANN401
    """Compiles in place: the repeated blocks, or all where that is asked for or the class declares none."""
    arguments = {"backend": backend, "mode": plan.mode, "dynamic": plan.dynamic}
    if plan.scope == "regional" and getattr(module, "_repeated_blocks", None):
        module.compile_repeated_blocks(**arguments)
    else:
        module.compile(**arguments)

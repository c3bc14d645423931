"""The engine: the only owner of a model's weights. A plan in, pictures out; no queue, no database.

    engine = Engine(spec, policy)
    engine.prepare()                  # load -> mount -> compile -> warm up
    rendering = engine.render(plan)
    engine.close()

One engine runs one job at a time: Cache-DiT has one current context per transformer.
"""

import time
from collections.abc import Callable, Sequence
from textwrap import shorten
from typing import ClassVar

import torch

from pipeline.acceleration import Acceleration, Backend
from pipeline.compile_facts import compile_facts
from pipeline.errors import LoadFailed, MountFailed, NotFinite, PipelineError, WarmupIncomplete
from pipeline.inputs import Inputs, fit
from pipeline.interruption import Interruption
from pipeline.load import Pipe
from pipeline.loaded import Loaded
from pipeline.memory import catching_out_of_memory, find_device, free_memory
from pipeline.parallel import Ranks
from pipeline.rendering import Picture, PreparationStep, Rendering, ShapeReport, StepName
from policy.cache import CacheDecision
from policy.microbatch import Sizes
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan
from policy.resolve import Policy

__all__ = ["Engine", "Picture", "PreparationStep", "Rendering"]

# What a failure of another kind is called in each step.
_FAILED: dict[StepName, type[PipelineError]] = {
    "load": LoadFailed,
    "mount": MountFailed,
    "compile": LoadFailed,
    "warmup": WarmupIncomplete,
}

_SAFER = CacheDecision(None, None, "off for another try, in case that it caused the failure of the last one")


def _ignore(_: PreparationStep) -> None:
    pass


def _go_on(_done: int, _total: int) -> bool:
    return True


class Engine:
    """Holds the weights of one model and runs plans on them."""

    load_kind: ClassVar[type[Loaded]] = Loaded

    def __init__(
        self,
        spec: ModelSpec,
        policy: Policy,
        *,
        source: str | None = None,
        device: str | None = None,
        report: Callable[[PreparationStep], None] = _ignore,
        backend: Backend | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Remembers what to prepare; loads nothing yet.

        Args:
            spec: The model.
            policy: Its resolved options.
            source: A folder or hub id that replaces the spec's own.
            device: A torch device; None: the accelerator of this process, or the CPU.
            report: Told each preparation step when it starts and when it is done.
            backend: A backend of torch.compile; None: the platform's.
            ranks: Those that share the work or the weights, this process among them; None: it is alone.
        """
        self.spec = spec
        self.policy = policy
        self.device = torch.device(device) if device else find_device()
        self.preparation: list[PreparationStep] = []
        self._source = source
        self._report = report
        self._backend = backend
        self._ranks = ranks
        self._loaded: Loaded | None = None

    def prepare(self) -> list[PreparationStep]:
        """Loads, mounts, compiles and warms up, in this order and no other.

        Returns:
            The steps as they were reported when done.

        Raises:
            PipelineError: In words to act on; the engine then holds no weights.
        """
        self.preparation = []
        work: Sequence[tuple[StepName, Callable[[], dict[str, object]]]] = (
            ("load", self._load),
            ("mount", self._mount),
            ("compile", self._compile),
            ("warmup", self._warm_up),
        )
        try:
            for name, do in work:
                self._do_step(name, do)
        except BaseException:
            self.close()
            raise
        return self.preparation

    def render(
        self,
        plan: RenderPlan,
        on_step: Callable[[int, int], bool] = _go_on,
        *,
        safer: bool = False,
        inputs: Inputs | None = None,
    ) -> Rendering:
        """Renders every picture of a plan, in passes of as many as `shared_sizes` allows.

        Args:
            plan: What to render.
            on_step: Told the steps done and the steps in all, over all pictures, after each step; returning
                False stops the job. Whatever it raises leaves the job at once; the next one is not affected.
            safer: Without cache, whatever the plan says, and with nothing compiled: for another try at what
                the acceleration may have broken.
            inputs: The pictures that the plan draws from, as they were sent.

        Raises:
            Stopped: ``on_step`` said so.
            OutOfMemory: Memory ran out, and is free again.
            NotFinite: A result is not a picture.
            MountFailed: The cache could not be mounted.
            StepsMismatch: Another number of steps was run than planned.
            Unsupported: The model draws from no such pictures, or they are not those of the plan.
        """
        given = fit(inputs, plan)
        decision = _SAFER if safer else self.decide(plan)
        return self._ready().passes.draw(plan, decision, given, on_step, safer=safer)

    def shared_sizes(self, plan: RenderPlan) -> Sizes:
        """Returns how many pictures of this plan, or of it and plans alike, one pass may hold."""
        loaded = self._ready()
        return loaded.warmer.sizes(plan, loaded.decide(plan))

    def render_together(
        self, plans: Sequence[RenderPlan], on_step: Callable[[int, int], bool] = _go_on
    ) -> list[Rendering | NotFinite]:
        """Renders one picture of each of several plans in one pass.

        Args:
            plans: As many as `shared_sizes` allows, and such as `policy.microbatch.one_pass` allows together.
            on_step: Told the steps done and the steps of the pass after each; returning False stops all.

        Returns:
            For each plan what came of it; one that gave no picture does not keep the others from theirs.

        Raises:
            Stopped: ``on_step`` said so.
            OutOfMemory: Memory ran out, and is free again; a pass of this size is not allowed any more.
            MountFailed: The cache could not be mounted.
            StepsMismatch: Another number of steps was run than planned.
        """
        return self._ready().passes.draw_together(plans, self.decide(plans[0]), on_step)

    def compile_facts(self) -> dict[str, object] | None:
        """What decides whether it can use what another one's compiler made; None: nothing is compiled."""
        return compile_facts(self.spec, self.policy, self.device) if self.policy["compile"] else None

    @property
    def shapes(self) -> ShapeReport:
        """Which shapes run compiled and which do not, although requests had them."""
        return self._ready().warmer.report()

    @property
    def wants_warm_up(self) -> bool:
        """Whether requests had shapes that can be warmed while there is nothing else to do."""
        return self._ready().warmer.wants

    def warm_next(self, interruption: Interruption) -> str | None:
        """Warms the shape that most requests had and that ran uncompiled.

        Args:
            interruption: A signal's handler may strike it; this is then left within a moment, the shape is
                still wanted, and the next job is not affected.

        Returns:
            The shape, warm now or given up; None when there was none.

        Raises:
            Interrupted: It was left.
            CompilerUnsound: The compiler did not come to rest after that; this process can render no more.
        """
        return self._ready().warmer.next(interruption)

    def close(self) -> None:
        """Lets go of the weights and frees their memory. The engine can be prepared again."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.acceleration.release()
        del loaded
        free_memory()

    def decide(self, plan: RenderPlan) -> CacheDecision:
        """Returns how this plan is cached, from the steps that each transformer will execute."""
        return self._ready().decide(plan)

    def effective(self) -> dict[str, object]:
        """Returns what is really on the modules now: compile scope, mount and its settings."""
        return self._ready().acceleration.effective()

    @property
    def reference_plan(self) -> RenderPlan:
        """The typical request that it was prepared for; one like it finds the cache mounted as it is."""
        return self._ready().reference_plan()

    @property
    def parts(self) -> tuple[Pipe, Acceleration]:
        """The pipeline and its acceleration, for measurements that run them in ways of their own."""
        loaded = self._ready()
        return loaded.pipe, loaded.acceleration

    def _ready(self) -> Loaded:
        if self._loaded is None:
            raise LoadFailed(f"{self.spec.id} is not loaded: prepare() comes first, and close() last")
        return self._loaded

    def _do_step(self, name: StepName, do: Callable[[], dict[str, object]]) -> None:
        self._report(PreparationStep(name, "started"))
        started = time.perf_counter()
        try:
            detail = catching_out_of_memory(do, f"in step {name}")
        except PipelineError:
            raise
        except Exception as error:
            words = f"{name} of {self.spec.id} failed: {type(error).__name__}: {' '.join(str(error).split())}"
            raise _FAILED[name](shorten(words, 500, placeholder=" [...]")) from error
        done = PreparationStep(name, "done", round(time.perf_counter() - started, 3), detail)
        self.preparation.append(done)
        self._report(done)

    def _load(self) -> dict[str, object]:
        if self.spec.fixed_threads is not None:
            torch.set_num_threads(self.spec.fixed_threads)
        self._loaded = self.load_kind(
            self.spec, self.policy, self.device, self._source, self._backend, self._ranks
        )
        return self._loaded.facts()

    def _mount(self) -> dict[str, object]:
        loaded = self._ready()
        decision = loaded.decide_reference()
        loaded.acceleration.mount(decision)
        return {"mounted": decision.configs is not None, "cache": decision.preset, "reason": decision.reason}

    def _compile(self) -> dict[str, object]:
        acceleration = self._ready().acceleration
        settled = acceleration.compile()
        detail: dict[str, object] = {
            "compiled": acceleration.is_compiled,
            "scope": acceleration.effective()["compile_scope"],
            "reason": self.policy.options["compile"].reason,
        }
        if not settled:
            raise WarmupIncomplete("compiling was put off, although the cache is mounted")
        if acceleration.is_compiled and detail["scope"] != self.policy["compile_scope"]:
            detail["reason"] = "the transformer declares no repeated blocks, so all of it is compiled"
        return detail

    def _warm_up(self) -> dict[str, object]:
        loaded = self._ready()
        with loaded.acceleration.recording():
            detail = loaded.warmer.warm_up()
        if self.policy["warmup"]:
            self._mount()
            free_memory()  # what compiling left behind is collected now and not in the first request
        return detail

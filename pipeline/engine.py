"""The engine: the only owner of a model's weights. A plan in, pictures out; no queue, no database.

    engine = Engine(spec, policy)
    engine.prepare()                  # load -> mount -> compile -> warm up
    rendering = engine.render(plan)
    engine.close()

One engine runs one job at a time: Cache-DiT has one current context per transformer.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import shorten
from typing import cast

import torch
from PIL import Image

from pipeline.acceleration import Acceleration, Backend
from pipeline.boundary import split_steps, transformers_of
from pipeline.compilation import CompilePlan, new_shape
from pipeline.compile_facts import compile_facts
from pipeline.errors import (
    LoadFailed,
    MountFailed,
    OutOfMemory,
    PipelineError,
    Stopped,
    WarmupIncomplete,
)
from pipeline.inputs import Fitted, Inputs, fit, stand_in
from pipeline.interruption import Interruption
from pipeline.load import Pipe, load_pipeline
from pipeline.lora import Loras, writes_in_place
from pipeline.memory import catching_out_of_memory, find_device, free_memory
from pipeline.record import Record
from pipeline.render import Pass, render_pass
from pipeline.rendering import Picture, PreparationStep, Rendering, ShapeReport, StepName
from pipeline.siblings import Siblings
from pipeline.warmer import Warmer
from policy.cache import CacheDecision, decide_cache
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan, make_plan
from policy.request import RenderRequest
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
_NO_MOUNT = "this worker compiled the whole transformer without a cache; with one it would run uncompiled"


def _ignore(_: PreparationStep) -> None:
    pass


def _call(render: Callable[[], Pass]) -> Pass:
    return render()


def _each_step(_done: int) -> None:
    pass


def _go_on(_done: int, _total: int) -> bool:
    return True


class Engine:
    """Holds the weights of one model and runs plans on them."""

    def __init__(
        self,
        spec: ModelSpec,
        policy: Policy,
        *,
        source: str | None = None,
        device: str | None = None,
        report: Callable[[PreparationStep], None] = _ignore,
        backend: Backend | None = None,
    ) -> None:
        """Remembers what to prepare; loads nothing yet.

        Args:
            spec: The model.
            policy: Its resolved options.
            source: A folder or hub id that replaces the spec's own.
            device: A torch device; None: the accelerator of this process, or the CPU.
            report: Told each preparation step when it starts and when it is done.
            backend: A backend of torch.compile; None: the platform's.
        """
        self.spec = spec
        self.policy = policy
        self.device = torch.device(device) if device else find_device()
        self.preparation: list[PreparationStep] = []
        self._source = source
        self._report = report
        self._backend = backend
        self._pipe: Pipe | None = None
        self._siblings: Siblings | None = None
        self._acceleration: Acceleration | None = None
        self._loras: Loras | None = None
        self._reference_steps: int | None = None
        self._warmer: Warmer | None = None

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
        """Renders every picture of a plan, one after the other.

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
        record = Record(plan, decision)
        stance = self._ready()[1].plain() if safer else new_shape(self.policy["new_shape"])
        with self._tidy_after_failure(), stance as fallbacks:
            for index, seed in enumerate(plan.seeds):
                each_step = _stopping(on_step, index * plan.executed_steps, record.total_steps)
                done = catching_out_of_memory(
                    functools.partial(self._run, plan, decision, seed, each_step, given),
                    f"at {plan.width}x{plan.height}",
                )
                record.add(_picture(plan, index, seed, done), done, self._ready()[1].cached_steps())
        facts = self._warm().note(plan, decision, fallbacks)
        acceleration = self._ready()[1]
        effective = acceleration.effective()
        facts |= {name: effective[name] for name in ("compile_scope", "attention")}
        return record.rendering(facts | {"replayed": acceleration.is_replayed})

    def compile_facts(self) -> dict[str, object] | None:
        """What decides whether it can use what another one's compiler made; None: nothing is compiled."""
        return compile_facts(self.spec, self.policy, self.device) if self.policy["compile"] else None

    @property
    def shapes(self) -> ShapeReport:
        """Which shapes run compiled and which do not, although requests had them."""
        return self._warm().report()

    @property
    def wants_warm_up(self) -> bool:
        """Whether requests had shapes that can be warmed while there is nothing else to do."""
        return self._warm().wants

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
        return self._warm().next(interruption)

    def close(self) -> None:
        """Lets go of the weights and frees their memory. The engine can be prepared again."""
        if self._acceleration is not None:
            self._acceleration.release()
        self._acceleration = self._pipe = self._siblings = self._loras = self._warmer = None
        free_memory()

    def decide(self, plan: RenderPlan) -> CacheDecision:
        """Returns how this plan is cached, from the steps that each transformer will execute."""
        pipe, acceleration = self._ready()
        if plan.cache not in ("default", "off") and not acceleration.can_mount:
            return CacheDecision(None, None, _NO_MOUNT)
        steps = split_steps(pipe, self.spec, plan.executed_steps)
        return decide_cache(plan, self.spec, self.policy, steps)

    def effective(self) -> dict[str, object]:
        """Returns what is really on the modules now: compile scope, mount and its settings."""
        return self._ready()[1].effective()

    @property
    def parts(self) -> tuple[Pipe, Acceleration]:
        """The pipeline and its acceleration, for measurements that run them in ways of their own."""
        return self._ready()

    def _ready(self) -> tuple[Pipe, Acceleration]:
        if self._pipe is None or self._acceleration is None:
            raise LoadFailed(f"{self.spec.id} is not loaded: prepare() comes first, and close() last")
        return self._pipe, self._acceleration

    def _warm(self) -> Warmer:
        self._ready()
        return cast("Warmer", self._warmer)

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
        self._pipe = pipe = load_pipeline(self.spec, self.policy, self.device, self._source)
        parameter = next(transformers_of(pipe, self.spec)[0].parameters())
        self._reference_steps = self._steps_that_cache(pipe)
        self._acceleration = self._accelerate(pipe)
        self._siblings = Siblings(pipe, self.spec)
        self._loras = Loras(pipe, self.spec, in_place=writes_in_place(self.policy))
        self._warmer = self._make_warmer(pipe, self._acceleration)
        return {
            "device": str(self.device),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "offload": self.policy["offload"],
            "quantize": self.policy["quantize"],
            "loras": self._loras.offered,
        }

    def _accelerate(self, pipe: Pipe) -> Acceleration:
        return Acceleration(
            functools.partial(transformers_of, pipe, self.spec),
            CompilePlan.from_policy(self.policy),
            cache_wanted=self._reference_steps is not None,
            pipeline=pipe,
            backend=self._backend,
            attention=self.policy["attention_backend"],
        )

    def _steps_that_cache(self, pipe: Pipe) -> int | None:
        """A step count at which this worker's requests are cached, or None when none is."""
        limits = self.spec.steps
        candidates: Sequence[int] = (limits.default, *range(limits.minimum, limits.maximum + 1))
        for steps in candidates:
            split = split_steps(pipe, self.spec, steps)
            if decide_cache(self._plan(steps), self.spec, self.policy, split).configs is not None:
                return steps
        return None

    def _plan(self, steps: int) -> RenderPlan:
        request = RenderRequest(model=self.spec.id, prompt="a house", num_inference_steps=steps, seed=0)
        return make_plan(request, self.spec, lambda: 0)

    def _mount(self) -> dict[str, object]:
        decision = self.decide(self._plan(self._reference_steps or self.spec.steps.default))
        acceleration = self._ready()[1]
        acceleration.mount(decision)
        return {"mounted": decision.configs is not None, "cache": decision.preset, "reason": decision.reason}

    def _compile(self) -> dict[str, object]:
        acceleration = self._ready()[1]
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

    def _make_warmer(self, pipe: Pipe, acceleration: Acceleration) -> Warmer:
        return Warmer(
            self.spec,
            self.policy,
            acceleration,
            split=functools.partial(split_steps, pipe, self.spec),
            decide=self.decide,
            run=self._run_warming,
            reference_steps=self._reference_steps,
        )

    def _warm_up(self) -> dict[str, object]:
        with self._ready()[1].recording():
            detail = self._warm().warm_up()
        if self.policy["warmup"]:
            self._mount()
            free_memory()  # what compiling left behind is collected now and not in the first request
        return detail

    def _run_warming(
        self,
        plan: RenderPlan,
        decision: CacheDecision,
        *,
        each_step: Callable[[int], None] = _each_step,
        around: Callable[[Callable[[], Pass]], Pass] = _call,
    ) -> None:
        with self._tidy_after_failure():
            self._run(plan, decision, plan.seed, each_step, stand_in(plan), around)

    def _run(
        self,
        plan: RenderPlan,
        decision: CacheDecision,
        seed: int,
        each_step: Callable[[int], None],
        given: Fitted | None,
        around: Callable[[Callable[[], Pass]], Pass] = _call,
    ) -> Pass:
        pipe, acceleration = self._ready()
        pipe = pipe if self._siblings is None else self._siblings.of(plan)
        if self._loras is not None:
            self._loras.switch(plan.lora)
        acceleration.prepare_for(decision, plan.quality)
        render = functools.partial(
            render_pass, pipe, self.spec, plan, seed, device=self.device, each_step=each_step, given=given
        )
        done = around(render)
        acceleration.check_executed()
        return done

    @contextmanager
    def _tidy_after_failure(self) -> Iterator[None]:
        """Sends back the weights that an abandoned pass left on the device, and drops what it cached."""
        try:
            yield
        except BaseException as error:
            pipe, acceleration = self._ready()
            if isinstance(error, OutOfMemory):
                acceleration.unmount()
                free_memory()
            if self.policy["offload"] in ("model", "group"):
                pipe.maybe_free_model_hooks()
            raise


def _stopping(on_step: Callable[[int, int], bool], before: int, total: int) -> Callable[[int], None]:
    def each_step(done: int) -> None:
        if not on_step(before + done, total):
            raise Stopped(before + done)

    return each_step


def _picture(plan: RenderPlan, index: int, seed: int, done: Pass) -> Picture:
    if plan.kind == "video":
        return Picture(index, seed, image=None, frames=done.pixels)
    return Picture(index, seed, image=Image.fromarray(done.pixels), frames=None)

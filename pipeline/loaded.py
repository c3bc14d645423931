"""What loading makes of a model: its pipeline, and all that works on the pipeline's modules.

It runs single passes; which passes, and in which order, is the engine's to say.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from pipeline.acceleration import Acceleration, Backend
from pipeline.boundary import set_boundary, split_steps, transformers_of
from pipeline.compilation import CompilePlan
from pipeline.errors import OutOfMemory
from pipeline.guidance_split import style_of
from pipeline.inputs import Fitted, stand_in
from pipeline.load import load_pipeline
from pipeline.lora import Loras, writes_in_place
from pipeline.memory import catching_out_of_memory, free_memory
from pipeline.parallel import Ranks
from pipeline.passes import Passes
from pipeline.render import Pass, render_pass
from pipeline.siblings import Siblings
from pipeline.warmer import Warmer
from policy.cache import CacheDecision, decide_cache
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan, make_plan
from policy.request import RenderRequest
from policy.resolve import Policy

_NO_MOUNT = "this worker compiled the whole transformer without a cache; with one it would run uncompiled"


def _call(render: Callable[[], Pass]) -> Pass:
    return render()


def _each_step(_done: int) -> None:
    pass


class Loaded:
    """A model's weights on their device, with their acceleration.

    Attributes:
        pipe: The pipeline that was loaded.
        siblings: The pipelines of other tasks over the same modules.
        acceleration: The cache and compile state of the transformers.
        loras: Those that the worker offers.
        warmer: What warms them, and knows which shapes are warm.
        passes: What draws jobs with them.
        reference_steps: A step count at which this worker's requests are cached; None: they are not.
    """

    def __init__(
        self,
        spec: ModelSpec,
        policy: Policy,
        device: torch.device,
        source: str | None,
        backend: Backend | None,
        ranks: Ranks | None = None,
    ) -> None:
        """Loads the weights.

        Args:
            spec: The model.
            policy: Its resolved options.
            device: Where it computes.
            source: A folder or hub id that replaces the spec's own.
            backend: A backend of torch.compile; None: the platform's.
            ranks: Those that share the work or the weights; None: this process is alone.

        Raises:
            PipelineError: They could not be loaded.
        """
        self.spec = spec
        self.policy = policy
        self.device = device
        self.ranks = ranks
        self.pipe = load_pipeline(spec, policy, device, source, ranks)
        self.reference_steps = self._steps_that_cache()
        self.acceleration = self._accelerate(backend)
        self.siblings = Siblings(self.pipe, spec)
        self.loras = Loras(self.pipe, spec, in_place=writes_in_place(policy))
        self.warmer = self._make_warmer()
        self.passes = Passes(policy, self.acceleration, self.warmer, self.run, self.tidy_after_failure)

    def facts(self) -> dict[str, object]:
        """Returns what is worth telling of the loaded weights."""
        parameter = next(transformers_of(self.pipe, self.spec)[0].parameters())
        return {
            "device": str(self.device),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "offload": self.policy["offload"],
            "quantize": self.policy["quantize"],
            "loras": self.loras.offered,
        }

    def decide(self, plan: RenderPlan) -> CacheDecision:
        """Returns how this plan is cached, from the steps that each transformer will execute."""
        if plan.cache not in ("default", "off") and not self.acceleration.can_mount:
            return CacheDecision(None, None, _NO_MOUNT)
        return decide_cache(
            plan, self.spec, self.policy, self._split(plan.executed_steps, plan.boundary_ratio)
        )

    def decide_reference(self) -> CacheDecision:
        """Returns how a typical request is cached."""
        return self.decide(self.reference_plan())

    def reference_plan(self) -> RenderPlan:
        """Returns a typical request: the default one, or one with the fewest steps that are cached."""
        return self._plan(self.reference_steps or self.spec.steps.default)

    def run(
        self,
        plans: Sequence[RenderPlan],
        decision: CacheDecision,
        *,
        seeds: Sequence[int],
        each_step: Callable[[int], None],
        given: Fitted | None,
        around: Callable[[Callable[[], Pass]], Pass] = _call,
    ) -> Pass:
        """Runs one pass: one picture of each plan, which may share one (`policy.microbatch`)."""
        plan = plans[0]
        pipe = self.siblings.of(plan)
        set_boundary(pipe, plan.boundary_ratio or self.spec.boundary_ratio)
        self.loras.switch(plan.lora)
        self.acceleration.prepare_for(decision, plan.quality, style_of(self.spec, plan))
        render = functools.partial(
            render_pass, pipe, self.spec, plans, seeds, device=self.device, each_step=each_step, given=given
        )
        done = around(render)
        self.acceleration.check_executed()
        return done

    @contextmanager
    def tidy_after_failure(self) -> Iterator[None]:
        """Sends back the weights that an abandoned pass left on the device, and drops what it cached."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, OutOfMemory):
                self.acceleration.unmount()
                free_memory()
            if self.policy["offload"] in ("model", "group"):
                self.pipe.maybe_free_model_hooks()
            raise

    def _run_warming(
        self,
        plans: Sequence[RenderPlan],
        decision: CacheDecision,
        *,
        each_step: Callable[[int], None] = _each_step,
        around: Callable[[Callable[[], Pass]], Pass] = _call,
    ) -> Pass:
        seeds, given = [plan.seed for plan in plans], stand_in(plans[0])
        run = functools.partial(
            self.run, plans, decision, seeds=seeds, each_step=each_step, given=given, around=around
        )
        with self.tidy_after_failure():
            return catching_out_of_memory(run, f"to warm {plans[0].width}x{plans[0].height}")

    def _make_warmer(self) -> Warmer:
        return Warmer(
            self.spec,
            self.policy,
            self.acceleration,
            split=self._split,
            decide=self.decide,
            run=self._run_warming,
            reference_steps=self.reference_steps,
        )

    def _accelerate(self, backend: Backend | None) -> Acceleration:
        return Acceleration(
            functools.partial(transformers_of, self.pipe, self.spec),
            CompilePlan.from_policy(self.policy),
            cache_wanted=self.reference_steps is not None,
            pipeline=self.pipe,
            backend=backend,
            attention=self.policy["attention_backend"],
            ranks=self.ranks,
        )

    def _steps_that_cache(self) -> int | None:
        limits = self.spec.steps
        candidates: Sequence[int] = (limits.default, *range(limits.minimum, limits.maximum + 1))
        for steps in candidates:
            decision = decide_cache(self._plan(steps), self.spec, self.policy, self._split(steps))
            if decision.configs is not None:
                return steps
        return None

    def _split(self, steps: int, boundary_ratio: float | None = None) -> tuple[int, ...]:
        return split_steps(self.pipe, self.spec, steps, boundary_ratio)

    def _plan(self, steps: int) -> RenderPlan:
        request = RenderRequest(model=self.spec.id, prompt="a house", num_inference_steps=steps, seed=0)
        return make_plan(request, self.spec, lambda: 0)

"""Warms one engine: before its first job what was declared, later, while it is idle, what requests had.

It also keeps the account of shapes: what each job found compiled and what not.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

from pipeline.acceleration import Acceleration
from pipeline.compilation import Fallbacks
from pipeline.errors import NotFinite, WarmupIncomplete
from pipeline.idle import warm_shape
from pipeline.interruption import Interruption
from pipeline.render import Drawn, Pass
from pipeline.rendering import ShapeReport
from pipeline.shapes import Shape, Shapes
from pipeline.together import Together, Way, look, warm
from pipeline.warmup import OTHER_LENGTHS, PROMPT, count_steps, plan_each_way, plan_warm_up, run_warm_up
from policy.cache import CacheDecision, forced
from policy.kernels import kernel_for
from policy.microbatch import Likeness, Sizes, may_share
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan
from policy.request import Quality
from policy.resolve import Policy

# Of two that run on the same kernel one is looked at.
QUALITIES: tuple[Quality, ...] = ("high", "lossless")


class RunWarming(Protocol):
    """Runs one pass, a picture for each plan; ``around`` is given the pipeline's own work and calls it."""

    def __call__(
        self,
        plans: Sequence[RenderPlan],
        decision: CacheDecision,
        *,
        each_step: Callable[[int], None] = ...,
        around: Callable[[Callable[[], Pass]], Pass] = ...,
    ) -> Pass: ...


class Warmer:
    """Warms the passes that an engine gives it to run."""

    def __init__(
        self,
        spec: ModelSpec,
        policy: Policy,
        acceleration: Acceleration,
        *,
        split: Callable[[int], Sequence[int]],
        decide: Callable[[RenderPlan], CacheDecision],
        run: RunWarming,
        reference_steps: int | None,
    ) -> None:
        """Takes over what it needs of the engine; runs nothing yet.

        Args:
            spec: The model.
            policy: Its resolved options.
            acceleration: The state of its transformers.
            split: Steps of a job -> executed steps of each transformer.
            decide: How a plan is cached.
            run: Runs a pass.
            reference_steps: A step count at which this worker's requests are cached; None: they are not.
        """
        self._spec = spec
        self._policy = policy
        self._acceleration = acceleration
        self._split = split
        self._decide = decide
        self._run = run
        self._reference_steps = reference_steps
        self._shapes = Shapes(matter=False)
        self._together = Together()

    def warm_up(self) -> dict[str, object]:
        """Warms everything that was declared.

        Returns:
            Facts for the preparation record.

        Raises:
            WarmupIncomplete: Something that requests will run was not reached.
        """
        compiled, cached = self._acceleration.is_compiled, self._reference_steps is not None
        self._shapes = Shapes(matter=compiled)
        if not self._policy["warmup"]:
            return {"skipped": self._policy.options["warmup"].reason}
        sizes = _sizes(self._policy["warmup_sizes"]) or (self._spec.size.default,)
        steps = count_steps(self._split, cached=cached)
        warm_up = plan_warm_up(self._spec, sizes, steps=steps, compiled=compiled, cached=cached)
        detail = run_warm_up(warm_up, self._pass)
        for plan in warm_up.plans:
            self._shapes.add_warm(self._shape(plan, cached=cached))
        if self._policy["microbatch"] > 1:
            detail["shared_passes"] = self._look_at_shared_passes(sizes, steps)
        return detail

    def _look_at_shared_passes(
        self, sizes: Sequence[tuple[int, int]], steps: int
    ) -> dict[str, dict[str, str]]:
        self._together = Together()
        most, compiled = self._policy["microbatch"], self._acceleration.is_compiled
        prompts = [prompt[: self._spec.limits.prompt_characters] for prompt in (PROMPT, *OTHER_LENGTHS)]
        kernels = {kernel_for(self._policy["attention_backend"], quality): quality for quality in QUALITIES}
        plans = [
            plan
            for quality in kernels.values()
            for plan in plan_each_way(self._spec, sizes, steps=steps, quality=quality)
        ]
        warmed = [warm(self._draw, plan, prompts, most) if compiled else None for plan in plans]
        for plan, unfit in zip(plans, warmed, strict=True):
            way = self._way(plan, self._as_requested(plan))
            high = way == self._way(plan.model_copy(update={"quality": "high"}), self._as_requested(plan))
            in_full = self._draw_in_full if high else None  # close ones serve quality high alone
            found = look(self._draw, plan, prompts, most, warmed=unfit, in_full=in_full)
            self._together.note(way, found)
            for size in found.drawn:
                self._shapes.add_warm(way.shape._replace(pictures=size))
        return self._together.in_words()

    def sizes(self, plan: RenderPlan, decision: CacheDecision) -> Sizes:
        """Returns how many pictures of this plan, or of it and others, one pass may hold: warm ones alone."""
        way = self._way(plan, decision)
        if not may_share(plan):
            return Sizes()
        found = self._together.sizes(way, plan.quality)
        if not self._acceleration.is_compiled:
            return found
        return found.only(lambda size: way.shape._replace(pictures=size) in self._shapes)

    def likeness(self, plans: Sequence[RenderPlan], decision: CacheDecision) -> Likeness | None:
        """Returns how the pictures of a pass compare with single ones; None: it has a single one."""
        if len(plans) == 1:
            return None
        alike = len({(plan.prompt, plan.negative_prompt) for plan in plans}) == 1
        return self._together.likeness(self._way(plans[0], decision), len(plans), alike=alike)

    def forbid(self, plan: RenderPlan, decision: CacheDecision, size: int) -> None:
        """Notes that a pass of this plan with so many pictures did not fit into memory."""
        self._together.forbid(self._shape(plan, cached=decision.configs is not None), size)

    def note(
        self, plan: RenderPlan, decision: CacheDecision, fallbacks: Fallbacks | None, pictures: int = 1
    ) -> dict[str, object]:
        """Notes what a job found compiled.

        Args:
            plan: The job's.
            decision: How it was cached.
            fallbacks: Counted while it ran; None: it ran uncompiled on purpose.
            pictures: Most pictures of one of its passes.

        Returns:
            What is true of the job.
        """
        shape = self._shape(plan, cached=decision.configs is not None)._replace(pictures=pictures)
        compiled = self._acceleration.is_compiled and fallbacks is not None
        calls = fallbacks.count if fallbacks is not None else 0
        if compiled and calls:
            self._shapes.add_cold(shape, plan)
        elif compiled:
            self._shapes.add_warm(shape, plan)
        return {
            "compiled": compiled and not calls,
            "uncompiled_calls": calls,
            "warm_shape": shape in self._shapes,
        }

    def report(self) -> ShapeReport:
        """Which shapes run compiled and which do not, although requests had them."""
        return self._shapes.report()

    @property
    def wants(self) -> bool:
        """Whether there is a shape to warm while idle."""
        return self._shapes.most_wanted() is not None

    def next(self, interruption: Interruption) -> str | None:
        """Warms the shape that most requests had and that ran uncompiled; see `Engine.warm_next`."""
        wanted = self._shapes.most_wanted()
        if wanted is None:
            return None
        shape, plan = wanted
        problem = warm_shape(functools.partial(self._idle_pass, shape, plan, interruption), interruption)
        if problem is None:
            self._shapes.add_warm(shape)
        else:
            self._shapes.give_up(shape, problem)
        return str(shape)

    def _pass(self, plan: RenderPlan) -> Sequence[int]:
        # Where there is a kernel for those who allow it, that is the one with something to set up.
        for drawn in self._draw([plan.model_copy(update={"quality": "high"})]).drawn:
            _require_picture(drawn, plan)
        return self._acceleration.cached_steps()

    def _draw(self, plans: Sequence[RenderPlan]) -> Pass:
        """One pass, cached as a request is and with a step reused."""
        plan = plans[0]
        return self._run(plans, self._with_reuse(self._as_requested(plan), plan))

    def _draw_in_full(self, plans: Sequence[RenderPlan]) -> Pass:
        """One pass as a request of the model's default steps is drawn, or of the fewest that are cached."""
        steps = self._reference_steps or self._spec.steps.default
        whole = [plan.model_copy(update={"num_inference_steps": steps}) for plan in plans]
        return self._run(whole, self._decide(whole[0]))

    def _as_requested(self, plan: RenderPlan) -> CacheDecision:
        """How a request is cached that is like this plan, but for its few steps."""
        steps = self._reference_steps or plan.num_inference_steps
        return self._decide(plan.model_copy(update={"num_inference_steps": steps}))

    def _idle_pass(self, shape: Shape, plan: RenderPlan, interruption: Interruption) -> None:
        """A short pass in the shape of a request; only the pipeline's own work can be left in its middle."""
        steps = count_steps(self._split, cached=shape.cached)
        whole = None if plan.strength is None else 1.0  # every step is run
        # LoRAs change weights and no shape.
        changes = {"num_inference_steps": steps, "n": 1, "seed": 0, "strength": whole, "lora": ()}
        changes["boundary_ratio"] = self._spec.boundary_ratio  # both transformers have steps for certain
        short = plan.model_copy(update=changes)
        decision = self._with_reuse(self._decide(plan), short)
        interruption.check()
        pictures = [short] * shape.pictures
        self._run(pictures, decision, each_step=lambda _: interruption.check(), around=interruption.run)

    def _with_reuse(self, decision: CacheDecision, plan: RenderPlan) -> CacheDecision:
        """The cache as decided for a request, but with a step of this short pass reused."""
        if decision.configs is None:
            return decision
        configs = tuple(map(forced, decision.configs, self._split(plan.executed_steps)))
        return CacheDecision(configs, decision.preset, decision.reason)

    def _way(self, plan: RenderPlan, decision: CacheDecision) -> Way:
        shape = self._shape(plan, cached=decision.configs is not None)
        return Way(shape, kernel_for(self._policy["attention_backend"], plan.quality), decision.settings)

    def _shape(self, plan: RenderPlan, *, cached: bool) -> Shape:
        guided = self._spec.guidance.steers(plan.guidance_scale)
        start = "" if plan.image is None else "from a picture" if plan.mask is None else "in a mask"
        return Shape(plan.width, plan.height, plan.num_frames, guided, cached, start)


def _require_picture(drawn: Drawn, plan: RenderPlan) -> None:
    """A model that draws nothing now would fail every job."""
    if isinstance(drawn.result, NotFinite):
        raise WarmupIncomplete(
            f"no picture of {plan.width}x{plan.height} can be drawn: {drawn.result}. The weights may be "
            "damaged, or too large for this dtype: try bfloat16 or float32"
        )


def _sizes(texts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """`WxH` as the resolver has checked it -> (W, H)."""
    pairs = (text.lower().split("x") for text in texts)
    return tuple((int(width), int(height)) for width, height in pairs)

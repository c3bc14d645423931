"""The warm-up: the passes a worker runs before its first job, and the check that nothing is left to compile.

Every declared size is run in each way a request can run it: with guidance and without, and, when compiling,
with prompts of three lengths, so that the length becomes symbolic where it is not padded. Each pass has a
step that is certainly reused, on every transformer. When compiling, a model that draws from pictures is given
one as well, so that reading it into latents and what that changes in the transformer's calls is not new to a
request. The same passes are then run again, and others with a prompt of a length not seen before; they must
compile nothing.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipeline.compilation import compiles_so_far
from pipeline.errors import WarmupIncomplete
from policy.model_spec import ModelSpec
from policy.pictures import PlannedPicture
from policy.plan import RenderPlan, make_plan
from policy.request import Quality, RenderRequest
from policy.spec_tables import PictureInputs

# Computed, reused, computed again.
CACHED_STEPS = 3
# The first and the last step may run different kernels.
UNCACHED_STEPS = 2
_MOST_STEPS = 60
PROMPT = "a house"
# The second length makes it symbolic; Z-Image, which pads to a multiple, needs a third.
OTHER_LENGTHS = (
    "a white house with a blue roof and an orange tree on a beach, mountains far away, at sunset, and a boat",
    "a boat with a yellow sail on the sea",
)
_UNSEEN_LENGTH = "a red boat by night"

Result = TypeVar("Result")
RunPass = Callable[[RenderPlan], Sequence[int]]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What to run.

    Attributes:
        plans: One per pass.
        checks: The second round, which must compile nothing; empty when nothing is compiled at all.
        cached: Whether each pass must reuse a step on every transformer.
    """

    plans: tuple[RenderPlan, ...]
    checks: tuple[RenderPlan, ...]
    cached: bool


def plan_warm_up(
    spec: ModelSpec, sizes: Iterable[tuple[int, int]], *, steps: int, compiled: bool, cached: bool
) -> WarmUp:
    """Returns the passes to run for these sizes (W, H)."""
    every_size, scales = tuple(sizes), guidance_scales(spec)
    each_way = [(scale, PROMPT) for scale in scales]
    if compiled:
        each_way += [(scales[0], prompt) for prompt in OTHER_LENGTHS]
    plans = tuple(
        _plan(spec, size, prompt, scale, steps) for size in every_size for scale, prompt in each_way
    )
    if not compiled:
        return WarmUp(plans, (), cached)
    if spec.inputs is not None:
        plans += tuple(_from_picture(plan, spec.inputs) for plan in plans[:: len(each_way)])
    unseen = (_plan(spec, size, _UNSEEN_LENGTH, scale, steps) for size in every_size for scale in scales)
    return WarmUp(plans, (*plans, *unseen), cached)


def plan_each_way(
    spec: ModelSpec, sizes: Iterable[tuple[int, int]], *, steps: int, quality: Quality
) -> list[RenderPlan]:
    """Returns one plan for each size (W, H) and way of guidance."""
    scales = guidance_scales(spec)
    plans = [_plan(spec, size, PROMPT, scale, steps) for size in sizes for scale in scales]
    return [plan.model_copy(update={"quality": quality}) for plan in plans]


def _from_picture(plan: RenderPlan, inputs: PictureInputs) -> RenderPlan:
    """The same plan drawn over a picture; at full strength every step is run."""
    size = (plan.width, plan.height)
    picture = PlannedPicture.cut(sha256="0" * 64, size=size, result=size)
    mask = picture if inputs.image_to_image is None else None
    return plan.model_copy(update={"image": picture, "mask": mask, "strength": 1.0})


def guidance_scales(spec: ModelSpec) -> tuple[float, ...]:
    """Returns one scale for each way in which guidance changes what is computed; the default comes first."""
    limits = spec.guidance
    candidates = [limits.default, limits.with_negative, limits.off_at, limits.maximum, limits.minimum]
    chosen: dict[bool, float] = {}
    for scale in candidates:
        if scale is not None and limits.minimum <= scale <= limits.maximum:
            chosen.setdefault(limits.steers(scale), scale)
    return tuple(chosen.values())


def count_steps(split: Callable[[int], Sequence[int]], *, cached: bool) -> int:
    """Returns the fewest steps of a pass in which every transformer has enough of them.

    Args:
        split: Steps of a job -> executed steps of each transformer.
        cached: Whether one has to be reused on each.

    Raises:
        WarmupIncomplete: There is no such number.
    """
    least = CACHED_STEPS if cached else UNCACHED_STEPS
    for steps in range(least, _MOST_STEPS + 1):
        if min(split(steps)) >= least:
            return steps
    raise WarmupIncomplete(f"no pass of up to {_MOST_STEPS} steps gives every transformer {least} steps")


def run_warm_up(warm_up: WarmUp, run_pass: RunPass) -> dict[str, object]:
    """Runs the warm-up.

    Args:
        warm_up: What to run.
        run_pass: Runs one plan and returns the reused steps of each transformer.

    Returns:
        Facts for the preparation record.

    Raises:
        WarmupIncomplete: A pass reused no step where it had to, or the second round compiled something.
    """
    before = compiles_so_far()
    clock = _Clock()
    cached_steps = [clock.lap(_run(plan, run_pass, cached=warm_up.cached)) for plan in warm_up.plans]
    detail: dict[str, object] = {
        "passes": len(warm_up.plans),
        "sizes": sorted({f"{plan.width}x{plan.height}" for plan in warm_up.plans}),
        "cached_steps": cached_steps,
        "compiles": compiles_so_far() - before,
        "seconds_of_passes": clock.laps,
    }
    if warm_up.checks:
        clock = _Clock()
        detail["compiles_second_round"] = clock.lap(_check_nothing_left(warm_up, run_pass))
        detail["seconds_second_round"] = clock.laps[0]
    return detail


class _Clock:
    """Seconds of one thing after the other."""

    def __init__(self) -> None:
        self.laps: list[float] = []
        self._since = time.perf_counter()

    def lap(self, result: Result) -> Result:
        now = time.perf_counter()
        self.laps.append(round(now - self._since, 3))
        self._since = now
        return result


def _run(plan: RenderPlan, run_pass: RunPass, *, cached: bool) -> list[int]:
    reused = list(run_pass(plan))
    if cached and not all(reused):
        raise WarmupIncomplete(
            f"a warm-up pass at {plan.width}x{plan.height} reused {reused} steps; every transformer "
            "needs one, or its first reused step would be compiled in a request"
        )
    return reused


def _check_nothing_left(warm_up: WarmUp, run_pass: RunPass) -> int:
    before = compiles_so_far()
    for plan in warm_up.checks:
        _run(plan, run_pass, cached=warm_up.cached)
        compiled = compiles_so_far() - before
        if compiled:
            raise WarmupIncomplete(
                f"the second round of the warm-up still compiled ({compiled} times, "
                f"{plan.width}x{plan.height}, {plan.prompt!r}); requests like it would run uncompiled. "
                "compile_scope regional needs the fewest variants"
            )
    return 0


def _plan(spec: ModelSpec, size: tuple[int, int], prompt: str, guidance: float, steps: int) -> RenderPlan:
    width, height = size
    request = RenderRequest(
        model=spec.id,
        prompt=prompt[: spec.limits.prompt_characters],
        width=width,
        height=height,
        num_inference_steps=steps,
        guidance_scale=guidance,
        seed=0,
    )
    return make_plan(request, spec, lambda: 0)

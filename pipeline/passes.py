"""Draws jobs pass by pass: the pictures of one job, or one picture of each of several jobs at once.

How many pictures a pass holds is what the warm-up has found to be right (`pipeline.together`). When a pass of
several does not fit into memory, passes of that size are not drawn any more; the pictures of one job are then
drawn in smaller ones, and jobs that came together part.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from PIL import Image

from pipeline.acceleration import Acceleration
from pipeline.compilation import Fallbacks, new_shape
from pipeline.errors import NotFinite, OutOfMemory, Stopped
from pipeline.inputs import Fitted
from pipeline.memory import catching_out_of_memory
from pipeline.record import Record
from pipeline.render import Drawn, Pass
from pipeline.rendering import Picture, Rendering
from pipeline.warmer import Warmer
from policy.cache import CacheDecision
from policy.microbatch import Likeness, Sizes, worst
from policy.plan import RenderPlan
from policy.resolve import Policy

OnStep = Callable[[int, int], bool]


class RunPass(Protocol):
    """Runs one pass, a picture for each plan."""

    def __call__(
        self,
        plans: Sequence[RenderPlan],
        decision: CacheDecision,
        *,
        seeds: Sequence[int],
        each_step: Callable[[int], None],
        given: Fitted | None,
    ) -> Pass: ...


class Passes:
    """Draws with one engine's transformers."""

    def __init__(
        self,
        policy: Policy,
        acceleration: Acceleration,
        warmer: Warmer,
        run: RunPass,
        tidy_after_failure: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Takes over what it needs of the engine.

        Args:
            policy: Its resolved options.
            acceleration: The state of its transformers.
            warmer: Knows which passes are warm.
            run: Runs a pass.
            tidy_after_failure: Goes around it.
        """
        self._tidy_after_failure = tidy_after_failure
        self._rule = policy["new_shape"]
        self._acceleration = acceleration
        self._warmer = warmer
        self._run = run

    def draw(
        self, plan: RenderPlan, decision: CacheDecision, given: Fitted | None, on_step: OnStep, *, safer: bool
    ) -> Rendering:
        """Draws every picture of one job; see `Engine.render`."""
        record = Record(plan, decision)
        sizes = Sizes() if safer else self._warmer.sizes(plan, decision)
        most, likenesses = 1, list[Likeness | None]()
        with self._stance(safer=safer) as fallbacks:
            while (index := record.pictures) < plan.n:
                count = sizes.of_one_job(plan.n - index)
                each_step = _stopping(on_step, index * plan.executed_steps, record.total_steps, count)
                seeds = plan.seeds[index : index + count]
                try:
                    done = self._pass([plan] * count, decision, seeds, each_step, given)
                except OutOfMemory:
                    if count == 1:
                        raise
                    sizes = sizes.only(range(2, count).__contains__)
                    continue
                numbered = zip(range(index, index + count), seeds, done.drawn, strict=True)
                pictures = [_picture(plan, *one) for one in numbered]
                record.add(pictures, done, self._acceleration.cached_steps())
                most = max(most, count)
                likenesses.append(self._warmer.likeness([plan] * count, decision))
        facts = self._facts([plan] * most, decision, fallbacks, worst(likenesses))
        return record.rendering(facts)

    def draw_together(
        self, plans: Sequence[RenderPlan], decision: CacheDecision, on_step: OnStep
    ) -> list[Rendering | NotFinite]:
        """Draws one picture of each of several jobs in one pass; see `Engine.render_together`."""
        records = [Record(plan, decision) for plan in plans]
        seeds = [plan.seed for plan in plans]
        each_step = _stopping(on_step, 0, plans[0].executed_steps)
        with self._stance(safer=False) as fallbacks:
            done = self._pass(plans, decision, seeds, each_step, None)
        cached = self._acceleration.cached_steps()
        facts = self._facts(plans, decision, fallbacks, self._warmer.likeness(plans, decision))
        results: list[Rendering | NotFinite] = []
        for plan, record, drawn in zip(plans, records, done.drawn, strict=True):
            if isinstance(drawn.result, NotFinite):
                results.append(drawn.result)
                continue
            record.add([_picture(plan, 0, plan.seed, drawn)], done, cached)
            results.append(record.rendering(facts))
        return results

    def _stance(self, *, safer: bool) -> "AbstractContextManager[Fallbacks | None]":
        return self._acceleration.plain() if safer else new_shape(self._rule)

    def _pass(
        self,
        plans: Sequence[RenderPlan],
        decision: CacheDecision,
        seeds: Sequence[int],
        each_step: Callable[[int], None],
        given: Fitted | None,
    ) -> Pass:
        size = f"at {plans[0].width}x{plans[0].height}"
        doing = size if len(plans) == 1 else f"{size} for {len(plans)} pictures at once"
        run = functools.partial(self._run, plans, decision, seeds=seeds, each_step=each_step, given=given)
        try:
            with self._tidy_after_failure():
                return catching_out_of_memory(run, doing)
        except OutOfMemory:
            if len(plans) > 1:
                self._warmer.forbid(plans[0], decision, len(plans))
            raise

    def _facts(
        self,
        plans: Sequence[RenderPlan],
        decision: CacheDecision,
        fallbacks: Fallbacks | None,
        likeness: Likeness | None,
    ) -> dict[str, object]:
        noted = self._warmer.note(plans[0], decision, fallbacks, len(plans))
        effective = self._acceleration.effective()
        return noted | {
            "compile_scope": effective["compile_scope"],
            "attention": effective["attention"],
            "replayed": self._acceleration.is_replayed,
            "microbatch": len(plans),
            "likeness": likeness,
        }


def _stopping(on_step: OnStep, before: int, total: int, count: int = 1) -> Callable[[int], None]:
    """Tells the steps of all pictures; a step of a pass is one of each of its pictures."""

    def each_step(done: int) -> None:
        steps = before + done * count
        if not on_step(steps, total):
            raise Stopped(steps)

    return each_step


def _picture(plan: RenderPlan, index: int, seed: int, drawn: Drawn) -> Picture:
    if plan.kind == "video":
        return Picture(index, seed, image=None, frames=drawn.pixels)
    return Picture(index, seed, image=Image.fromarray(drawn.pixels), frames=None)

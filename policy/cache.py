"""Decides how a job is cached: the effective configuration of each transformer, or none, and why.

The job's own `cache` field is the strongest: "off" never mounts, a preset or knobs are used even where the
worker's `cache` is off. A preset or a mask replaces the worker's; the worker keeps the say on what belongs to
the model, `cache_fn`, `cache_bn` and a `cache_taylorseer` that somebody set, unless the job names that very
knob. "default" does what the worker's policy says.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from policy.curve import Chosen, Curve
from policy.job_cache import CacheKnobs
from policy.knobs import FOLLOWED, MAX_CONSECUTIVE, THRESHOLD, preset_knobs
from policy.mask import LEAD_IN, UNFITTED_ORDER, choose_mask, lead_in_of, minimum_steps, step_mask
from policy.model_spec import ModelSpec
from policy.options import CACHE_KNOBS, SECONDARY, STATIC_PRESETS
from policy.plan import RenderPlan
from policy.platforms import CUDA_GRAPH_MODES
from policy.resolved import Policy

_OWN_MASK = frozenset({"cache_scm", "cache_warmup_steps"})

__all__ = ["CacheConfig", "CacheDecision", "decide_cache", "forced", "minimum_steps", "step_mask"]


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The effective key of one transformer: two jobs with equal configs may share a mount.

    Attributes:
        steps: Steps that this transformer executes in the job.
        mask: 1 computed, 0 reused, one per step; None: decided by `threshold` while running.
        fn: First blocks computed in every step.
        bn: Last blocks computed in every step.
        warmup_steps: First steps that are always computed.
        threshold: Largest relative residual difference at which a step is reused; unused under a mask.
        max_consecutive: Most steps reused in a row; unused under a mask.
        taylorseer: Order of the Taylor predictor, 0 for none.
        separate_cfg: Whether each step makes two transformer calls, with guidance and without.
    """

    steps: int
    mask: tuple[int, ...] | None
    fn: int
    bn: int
    warmup_steps: int
    threshold: float
    max_consecutive: int
    taylorseer: int
    separate_cfg: bool

    @property
    def may_reuse(self) -> bool:
        """Whether any step can be reused at all."""
        return self.steps > self.warmup_steps + 1 if self.mask is None else 0 in self.mask


@dataclass(frozen=True, slots=True)
class CacheDecision:
    """One config per transformer, or None for no cache; `preset` names what is in effect."""

    configs: tuple[CacheConfig, ...] | None
    preset: str | None
    reason: str

    @property
    def settings(self) -> tuple[CacheConfig, ...]:
        """The configs without what depends on a job's steps, its mask above all; empty: no cache."""
        return tuple(
            replace(config, steps=0, mask=None if config.mask is None else (), warmup_steps=0)
            for config in self.configs or ()
        )


def decide_cache(plan: RenderPlan, spec: ModelSpec, policy: Policy, steps: tuple[int, ...]) -> CacheDecision:
    """Decides for one job.

    Args:
        plan: The job.
        spec: Its model.
        policy: The worker's options.
        steps: Steps that each transformer executes in this job.
    """
    if len(steps) != len(spec.transformers):
        raise ValueError(f"{spec.id} has {len(spec.transformers)} transformers, not {len(steps)}")
    refusal = _refusal(plan, policy)
    if refusal:
        return CacheDecision(None, None, refusal)
    separate = spec.calls_per_step(plan) == 2
    knobs = [_knobs(plan, spec, policy, prefix) for prefix in ("", SECONDARY)[: len(steps)]]
    configs = tuple(
        _config(knob, count, spec.curve, separate=separate) for knob, count in zip(knobs, steps, strict=True)
    )
    if problem := _too_many_blocks(configs, spec):
        return CacheDecision(None, None, problem)
    preset = "+".join(dict.fromkeys(str(knob["name"]) for knob in knobs))
    if not any(config.may_reuse for config in configs):
        return CacheDecision(
            None, None, f'{_steps_text(steps)} steps are too few for "{preset}" to reuse one'
        )
    return CacheDecision(configs, preset, f'"{preset}", {_author(plan, policy)}; {_effect(configs)}')


def _too_many_blocks(configs: tuple[CacheConfig, ...], spec: ModelSpec) -> str | None:
    """What the job asks for may be too much only together with what the worker has, which no API knows."""
    for config in configs:
        if spec.blocks is not None and config.fn + config.bn >= spec.blocks:
            return (
                f"fn {config.fn} and bn {config.bn}, the job's and the worker's, leave none of the "
                f"{spec.blocks} blocks of {spec.id} to reuse"
            )
    return None


UNCACHED = CacheDecision(None, None, "without a cache, to measure against")


def with_mask(mask: tuple[int, ...], taylorseer: int, *, fn: int = 1, bn: int = 0) -> CacheDecision:
    """Returns the decision that reuses exactly the zeros of `mask`, for measurements of one transformer."""
    config = CacheConfig(
        steps=len(mask),
        mask=mask,
        fn=fn,
        bn=bn,
        warmup_steps=1,
        threshold=THRESHOLD,
        max_consecutive=MAX_CONSECUTIVE,
        taylorseer=taylorseer,
        separate_cfg=False,
    )
    return CacheDecision((config,), None, "a mask that is measured")


def forced(config: CacheConfig, steps: int) -> CacheConfig:
    """Returns `config` for a warm-up of `steps` steps in which the step before the last is certainly reused.

    Compute, reuse and compute-again all occur, so that nothing is left to compile for a job.

    Raises:
        ValueError: Fewer than 3 steps.
    """
    if steps < 3:
        raise ValueError(f"a warm-up with a reused step needs at least 3 steps, not {steps}")
    lead = steps - 2
    return replace(config, steps=steps, mask=(*[1] * lead, 0, 1), warmup_steps=min(config.warmup_steps, lead))


def _refusal(plan: RenderPlan, policy: Policy) -> str | None:
    if plan.cache == "off":
        return "the job asks for no cache"
    if policy["compile"] and policy["compile_mode"] in CUDA_GRAPH_MODES:
        return (
            f"compile_mode {policy['compile_mode']} records CUDA graphs, which overwrite what a cache keeps"
        )
    if policy["capture"]:
        return "capture records CUDA graphs, which overwrite what a cache keeps"
    if plan.cache == "default" and not policy["cache"]:
        resolved = policy.options["cache"]
        return f"the worker's cache is off ({resolved.source}: {resolved.reason})"
    return None


def _knobs(plan: RenderPlan, spec: ModelSpec, policy: Policy, prefix: str) -> dict[str, Any]:
    """The knobs in effect for one transformer, and the name under which they are shown."""
    worker = {name: policy[prefix + name] for name in CACHE_KNOBS}
    custom = any(policy.is_given(prefix + name) for name in _OWN_MASK)
    worker["name"] = "custom" if custom and worker["cache_scm"] else worker["cache_preset"]
    if isinstance(plan.cache, CacheKnobs):
        asked = plan.cache
    elif plan.cache in STATIC_PRESETS:
        asked = CacheKnobs.model_validate({"preset": plan.cache})
    else:
        return worker
    own = {f"cache_{name}": value for name, value in asked.model_dump(exclude={"preset"}).items()}
    knobs = worker
    if asked.rule:
        kept = [*FOLLOWED, *["cache_taylorseer"] * policy.is_given(f"{prefix}cache_taylorseer")]
        preset = asked.preset or STATIC_PRESETS[0]  # of which an own mask replaces all that matters
        knobs = preset_knobs(preset, fitted=spec.curve is not None) | {"name": preset}
        knobs |= {name: worker[name] for name in kept}
    if asked.scm:
        own.setdefault("cache_warmup_steps", lead_in_of(asked.scm))
    return knobs | own | ({"name": "custom"} if own.keys() & _OWN_MASK else {})


def _config(knobs: dict[str, Any], steps: int, curve: Curve | None, *, separate: bool) -> CacheConfig:
    rule, lead_in, order = (knobs[name] for name in ("cache_scm", "cache_warmup_steps", "cache_taylorseer"))
    chosen = None if rule is None else _choose(rule, steps, curve, lead_in)
    mask = None if chosen is None else chosen.mask
    return CacheConfig(
        steps=steps,
        mask=mask,
        fn=knobs["cache_fn"],
        bn=knobs["cache_bn"],
        warmup_steps=_lead_in(mask) if lead_in is None else lead_in,
        threshold=THRESHOLD if mask else knobs["cache_threshold"],
        max_consecutive=MAX_CONSECUTIVE if mask else knobs["cache_max_consecutive"],
        taylorseer=order if order is not None or chosen is None else chosen.order,
        separate_cfg=separate,
    )


def _choose(rule: str, steps: int, curve: Curve | None, lead_in: int | None) -> Chosen:
    """A mask in digits fits jobs of its own length; any other job is computed in full."""
    if rule.isdecimal() and len(rule) != steps:
        return Chosen((1,) * steps, UNFITTED_ORDER, fitted=False)
    return choose_mask(rule, steps, curve, lead_in)


def _lead_in(mask: tuple[int, ...] | None) -> int:
    return LEAD_IN if mask is None else (*mask, 0).index(0)


def _author(plan: RenderPlan, policy: Policy) -> str:
    if plan.cache == "default":
        return f"as the worker has it ({policy.options['cache_preset'].source})"
    if policy["cache"]:
        return "as the job asks"
    return f"as the job asks, which outranks the worker's cache=false ({policy.options['cache'].source})"


def _effect(configs: tuple[CacheConfig, ...]) -> str:
    return " and ".join(_effects(configs))


def _effects(configs: tuple[CacheConfig, ...]) -> Iterator[str]:
    for config in configs:
        if config.mask is None:
            yield f"of {config.steps} steps those with a residual below {config.threshold} are reused"
        else:
            yield f"{config.mask.count(0)} of {config.steps} steps are reused"


def _steps_text(steps: tuple[int, ...]) -> str:
    return " + ".join(map(str, steps))

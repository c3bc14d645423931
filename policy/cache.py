"""Decides how a job is cached: the effective configuration of each transformer, or none, and why.

The job's own `cache` field is the strongest: "off" never mounts, a preset is used even where the worker's
`cache` is off. It replaces the worker's preset and mask; the worker keeps the say on what belongs to the
model, `cache_fn`, `cache_bn` and a `cache_taylorseer` that somebody set. "default" does what the worker's
policy says.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from policy.knobs import MAX_CONSECUTIVE, THRESHOLD, preset_knobs
from policy.mask import minimum_steps, step_mask
from policy.model_spec import ModelSpec
from policy.options import SECONDARY
from policy.plan import RenderPlan
from policy.platforms import CUDA_GRAPH_MODES
from policy.resolved import Policy

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
    knobs = [_knobs(plan, policy, prefix) for prefix in ("", SECONDARY)[: len(steps)]]
    configs = tuple(_config(knob, count, separate) for knob, count in zip(knobs, steps, strict=True))
    preset = "+".join(dict.fromkeys(str(knob["name"]) for knob in knobs))
    if not any(config.may_reuse for config in configs):
        return CacheDecision(
            None, None, f'{_steps_text(steps)} steps are too few for "{preset}" to reuse one'
        )
    return CacheDecision(configs, preset, f'"{preset}", {_author(plan, policy)}; {_effect(configs)}')


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


def _knobs(plan: RenderPlan, policy: Policy, prefix: str) -> dict[str, Any]:
    """The knobs in effect for one transformer, and the name under which they are shown."""
    worker = {name: policy[prefix + name] for name in preset_knobs("balanced")}
    if plan.cache != "default":
        knobs = preset_knobs(plan.cache)
        kept = ["cache_fn", "cache_bn"]
        if policy.is_given(f"{prefix}cache_taylorseer"):
            kept.append("cache_taylorseer")
        return knobs | {name: worker[name] for name in kept} | {"name": plan.cache}
    custom = any(policy.is_given(prefix + name) for name in ("cache_scm", "cache_warmup_steps"))
    return worker | {"name": "custom" if custom and worker["cache_scm"] else worker["cache_preset"]}


def _config(knobs: dict[str, Any], steps: int, separate: bool) -> CacheConfig:
    mask = None if knobs["cache_scm"] is None else _mask(knobs["cache_scm"], steps)
    return CacheConfig(
        steps=steps,
        mask=mask,
        fn=knobs["cache_fn"],
        bn=knobs["cache_bn"],
        warmup_steps=knobs["cache_warmup_steps"],
        threshold=THRESHOLD if mask else knobs["cache_threshold"],
        max_consecutive=MAX_CONSECUTIVE if mask else knobs["cache_max_consecutive"],
        taylorseer=knobs["cache_taylorseer"],
        separate_cfg=separate,
    )


def _mask(rule: str, steps: int) -> tuple[int, ...]:
    """A mask in digits fits jobs of its own length; any other job is computed in full."""
    if rule.isdecimal() and len(rule) != steps:
        return (1,) * steps
    return step_mask(rule, steps)


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

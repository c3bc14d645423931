"""Decides how a job is cached: the effective configuration of each transformer, or none, and why."""

from dataclasses import dataclass, replace

from policy.mask import check_rule, minimum_steps, step_mask

__all__ = [
    "CacheConfig",
    "CacheDecision",
    "check_rule",
    "forced",
    "minimum_steps",
    "step_mask",
]


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


@dataclass(frozen=True, slots=True)
class CacheDecision:
    """One config per transformer, or None for no cache; `preset` names the preset in effect."""

    configs: tuple[CacheConfig, ...] | None
    preset: str | None
    reason: str


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

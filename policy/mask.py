"""Step masks: which denoising steps are computed (1) and which are reused (0).

A rule is written in one of two ways:

    LEAD:COMPUTED:REUSED   LEAD steps are computed, then COMPUTED computed and REUSED reused steps take turns
    111101011              one digit per step, for jobs of exactly that many steps

Whatever the rule says, the first and the last step are computed, and a mask is exactly as long as the job:
Cache-DiT reuses every step beyond the end of a shorter one. The presets are three rules, evenly spaced:
at the same number of reused steps even spacing came out closer to the uncached picture than uneven masks.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

LEAD_IN = 4
PRESET_RULES: Mapping[str, str] = MappingProxyType(
    {"quality": f"{LEAD_IN}:2:1", "balanced": f"{LEAD_IN}:1:1", "fast": f"{LEAD_IN}:1:2"}
)
_PERIODIC = re.compile(r"([1-9]\d{0,2}):([1-9]\d{0,2}):([1-9]\d{0,2})", re.ASCII)
_DIGITS = re.compile(r"1[01]{1,998}1")


def step_mask(rule: str, steps: int) -> tuple[int, ...]:
    """Returns the mask of a job: 1 computed, 0 reused, `steps` long.

    Args:
        rule: A rule, or the name of a static preset.
        steps: Steps of the job, at least 1.

    Returns:
        All ones when the job is too short for the rule to reuse anything.

    Raises:
        ValueError: The rule cannot be read, or has a digit for each of another number of steps.
    """
    text = PRESET_RULES.get(rule, rule)
    check_rule(text)
    periodic = _PERIODIC.fullmatch(text)
    if periodic is None:
        if len(text) != steps:
            raise ValueError(f"the mask has {len(text)} digits and the job {steps} steps")
        return tuple(map(int, text))
    lead, computed, reused = map(int, periodic.groups())
    inner = (
        1 if step < lead or (step - lead) % (computed + reused) < computed else 0 for step in range(steps - 1)
    )
    return (*inner, 1)


def check_rule(rule: str) -> None:
    """Raises ValueError, with the syntax, when `rule` is not a mask rule."""
    if _PERIODIC.fullmatch(rule) or _DIGITS.fullmatch(rule):
        return
    raise ValueError(
        "a mask is LEAD:COMPUTED:REUSED such as 4:1:1 (each 1 to 999), "
        "or one digit per step such as 111101011 (the first and the last computed)"
    )


def with_lead_in(rule: str, lead: int) -> str:
    """Returns the rule with another lead-in; a rule in digits has none and stays as it is."""
    periodic = _PERIODIC.fullmatch(PRESET_RULES.get(rule, rule))
    return f"{lead}:{periodic[2]}:{periodic[3]}" if periodic else rule


def rule_minimum_steps(rule: str) -> int:
    """Returns the fewest steps of a job in which the rule reuses at least one step."""
    periodic = _PERIODIC.fullmatch(PRESET_RULES.get(rule, rule))
    return int(periodic[1]) + int(periodic[2]) + 2 if periodic else len(rule)


def minimum_steps(preset: str) -> int:
    """Returns the fewest steps with which a preset reuses one."""
    return rule_minimum_steps(PRESET_RULES[preset]) if preset in PRESET_RULES else LEAD_IN + 2


def lead_in_of(rule: str) -> int:
    """Returns how many steps the rule computes before it may reuse one, as its author wrote it."""
    periodic = _PERIODIC.fullmatch(PRESET_RULES.get(rule, rule))
    return int(periodic[1]) if periodic else len(rule) - len(rule.lstrip("1"))

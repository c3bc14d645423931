"""Step masks: which denoising steps are computed (1) and which are reused (0).

A rule is written in one of three ways:

    LEAD:COMPUTED:REUSED   LEAD steps are computed, then COMPUTED computed and REUSED reused steps take turns
    111101011              one digit per step, for jobs of exactly that many steps
    fit:50                 the mask that was fitted to this checkpoint and reuses 50 % of the steps

Whatever the rule says, the first and the last step are computed, and a mask is exactly as long as the job:
Cache-DiT reuses every step beyond the end of a shorter one. The presets are points on the checkpoint's curve
(`policy.curve`) where it has one; elsewhere, and for jobs shorter than any that was fitted, they are three
evenly spaced rules: without a fit, even spacing came out closer to the uncached picture than uneven masks.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from policy.curve import Chosen, Curve, Order

LEAD_IN = 4
FEW_STEPS = 8  # with fewer there are not enough computed steps to predict from
PRESET_PERCENT: Mapping[str, int] = MappingProxyType({"quality": 27, "balanced": 50, "fast": 58})
PRESET_RULES: Mapping[str, str] = MappingProxyType(
    {"quality": f"{LEAD_IN}:2:1", "balanced": f"{LEAD_IN}:1:1", "fast": f"{LEAD_IN}:1:2"}
)
_PERIODIC = re.compile(r"([1-9]\d{0,2}):([1-9]\d{0,2}):([1-9]\d{0,2})", re.ASCII)
_DIGITS = re.compile(r"1[01]{1,998}1")
_FITTED = re.compile(r"fit:([1-9]\d?)", re.ASCII)
UNFITTED_ORDER: Order = 1  # of the predictor: better than none at every share that was measured


def choose_mask(rule: str, steps: int, curve: Curve | None = None, lead_in: int | None = None) -> Chosen:
    """Returns the mask of a job and the order of the predictor that goes with it.

    Args:
        rule: A rule.
        steps: Steps of the job, at least 1.
        curve: Of the checkpoint; None: nothing was fitted to it, and a fitted rule becomes that of the
            nearest preset.
        lead_in: How many steps are computed first, instead of the rule's own number. It moves the pattern of
            a rule, takes the first reused steps from a fitted mask, and leaves digits alone.

    Raises:
        ValueError: As `step_mask`.
    """
    percent = fitted_percent(rule)
    chosen = curve.choose(percent, steps) if curve is not None and percent is not None else None
    if chosen is None:
        rule = unfitted(rule) if lead_in is None else with_lead_in(unfitted(rule), lead_in)
        return Chosen(step_mask(rule, steps), UNFITTED_ORDER, fitted=False)
    lead = min(lead_in or 0, steps)
    return replace(chosen, mask=(*[1] * lead, *chosen.mask[lead:]))


def step_mask(rule: str, steps: int) -> tuple[int, ...]:
    """Returns the mask of a job: 1 computed, 0 reused, `steps` long.

    Args:
        rule: A rule other than a fitted one, or the name of a static preset.
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
    if any(form.fullmatch(rule) for form in (_PERIODIC, _DIGITS, _FITTED)):
        return
    raise ValueError(
        "a mask is LEAD:COMPUTED:REUSED such as 4:1:1 (each 1 to 999), one digit per step such as 111101011 "
        "(the first and the last computed), or fit:50 for the fitted one that reuses 50 % (1 to 99)"
    )


def preset_rule(preset: str, *, fitted: bool) -> str:
    """Returns the rule of a static preset, for a checkpoint that masks were fitted to or for another."""
    return f"fit:{PRESET_PERCENT[preset]}" if fitted else PRESET_RULES[preset]


def fitted_percent(rule: str) -> int | None:
    """Returns the share of reused steps that a fitted rule asks for; None for a rule of another form."""
    fitted = _FITTED.fullmatch(rule)
    return int(fitted[1]) if fitted else None


def unfitted(rule: str) -> str:
    """Returns the rule to use where nothing was fitted: that of the preset with the nearest share."""
    percent = fitted_percent(rule)
    if percent is None:
        return rule
    return PRESET_RULES[min(PRESET_PERCENT, key=lambda preset: abs(PRESET_PERCENT[preset] - percent))]


def with_lead_in(rule: str, lead: int) -> str:
    """Returns the rule with another lead-in; one in digits or a fitted one stays as it is."""
    periodic = _PERIODIC.fullmatch(PRESET_RULES.get(rule, rule))
    return f"{lead}:{periodic[2]}:{periodic[3]}" if periodic else rule


def rule_minimum_steps(rule: str) -> int:
    """Returns the fewest steps of a job in which the rule reuses at least one step."""
    periodic = _PERIODIC.fullmatch(PRESET_RULES.get(rule, rule))
    return int(periodic[1]) + int(periodic[2]) + 2 if periodic else len(rule)


def minimum_steps(preset: str) -> int:
    """Returns the fewest steps with which a preset reuses one, where nothing was fitted."""
    return rule_minimum_steps(PRESET_RULES[preset]) if preset in PRESET_RULES else LEAD_IN + 2


def lead_in_of(rule: str) -> int | None:
    """Returns how many steps the rule computes before it may reuse one; None: as each fitted mask has it."""
    if fitted_percent(rule) is not None:
        return None
    periodic = _PERIODIC.fullmatch(PRESET_RULES.get(rule, rule))
    return int(periodic[1]) if periodic else len(rule) - len(rule.lstrip("1"))

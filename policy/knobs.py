"""The cache knobs in effect: what is given, else the preset's; the second transformer follows the first."""

from collections.abc import Mapping
from typing import Any

from policy.mask import (
    LEAD_IN,
    UNFITTED_ORDER,
    fitted_percent,
    lead_in_of,
    preset_rule,
    with_lead_in,
)
from policy.options import CACHE_KNOBS, OPTIONS, SECONDARY, SECONDARY_KNOBS
from policy.resolved import GIVEN, Resolved

THRESHOLD = 0.12  # adaptive, 24 steps, real pictures: 7 steps reused at 47 dB; 0.24 reused 13 at 38 dB
MAX_CONSECUTIVE = 3
FOLLOWED = ("cache_fn", "cache_bn")  # what suits the model's blocks, whatever the preset

_OF_EACH_MASK = "each fitted mask has its own"
_Options = Mapping[str, Resolved]


def preset_knobs(preset: str, *, fitted: bool = False) -> dict[str, Any]:
    """Returns every knob of a preset; None: the preset does not look at it, or each fitted mask has its own.

    Args:
        preset: Its name.
        fitted: Whether masks were fitted to the checkpoint.
    """
    adaptive = preset == "adaptive"
    fitted = fitted and not adaptive
    return {
        "cache_preset": preset,
        "cache_fn": 1,
        "cache_bn": 0,
        "cache_warmup_steps": None if fitted else LEAD_IN,
        "cache_threshold": THRESHOLD if adaptive else None,
        "cache_max_consecutive": MAX_CONSECUTIVE if adaptive else None,
        "cache_taylorseer": None if fitted else 0 if adaptive else UNFITTED_ORDER,
        "cache_scm": None if adaptive else preset_rule(preset, fitted=fitted),
    }


def fill_knobs(given: _Options, transformers: int, *, fitted: bool) -> dict[str, Resolved]:
    """Returns all cache knobs of a model with one or two transformers, with or without fitted masks."""
    default = Resolved(OPTIONS["cache_preset"].default, "default", "the default: nothing sets it")
    preset = given.get("cache_preset", default)
    first = _fill(given, _from_preset(preset, fitted=fitted))
    if transformers == 1:
        none = Resolved(None, "default", "the model has one transformer")
        return first | {name: given.get(name, none) for name in SECONDARY_KNOBS}
    own = {name.removeprefix(SECONDARY): given[name] for name in SECONDARY_KNOBS if name in given}
    followed = {
        name: Resolved(knob.value, knob.source, f"follows {name}: {knob.reason}")
        for name, knob in first.items()
    }
    if "cache_preset" in own:
        followed = _from_preset(own["cache_preset"], fitted=fitted) | {
            name: followed[name] for name in FOLLOWED
        }
    return first | {SECONDARY + name: knob for name, knob in _fill(own, followed).items()}


def _from_preset(preset: Resolved, *, fitted: bool) -> dict[str, Resolved]:
    knobs = preset_knobs(str(preset.value), fitted=fitted)
    filled = {
        name: Resolved(knobs[name], "default", _reason(name, str(preset.value), knobs))
        for name in CACHE_KNOBS
    }
    return filled | {"cache_preset": preset}


def _reason(name: str, preset: str, knobs: Mapping[str, Any]) -> str:
    if knobs[name] is not None:
        return f"as preset {preset} has it"
    own = name in ("cache_warmup_steps", "cache_taylorseer")
    return _OF_EACH_MASK if own else f"preset {preset} does not look at it"


def _fill(own: _Options, otherwise: _Options) -> dict[str, Resolved]:
    """The lead-in and the mask say the same thing twice: the one that is given decides the other."""
    knobs = {name: own.get(name, otherwise[name]) for name in CACHE_KNOBS}
    mask, lead = knobs["cache_scm"], knobs["cache_warmup_steps"]
    if isinstance(mask.value, str) and "cache_scm" not in own and lead.source in GIVEN:
        rule = with_lead_in(mask.value, int(str(lead.value)))
        knobs["cache_scm"] = Resolved(rule, mask.source, f"{mask.reason}, with the lead-in of {lead.value}")
    elif isinstance(mask.value, str):
        lead_in = lead_in_of(mask.value)
        reason = _OF_EACH_MASK if lead_in is None else "the lead-in of the mask"
        knobs["cache_warmup_steps"] = Resolved(lead_in, mask.source, reason)
    if knobs["cache_taylorseer"].value is None and fitted_percent(str(mask.value)) is None:
        knobs["cache_taylorseer"] = Resolved(UNFITTED_ORDER, "default", "the mask is not a fitted one")
    return knobs

"""The cache knobs in effect: what is given, else the preset's; the second transformer follows the first."""

from collections.abc import Mapping
from typing import Any

from policy.mask import LEAD_IN, PRESET_RULES, lead_in_of, with_lead_in
from policy.options import CACHE_KNOBS, OPTIONS, SECONDARY, SECONDARY_KNOBS
from policy.resolved import GIVEN, Resolved

THRESHOLD = 0.12  # adaptive, 24 steps, real pictures: 7 steps reused at 47 dB; 0.24 reused 13 at 38 dB
MAX_CONSECUTIVE = 3
FOLLOWED = ("cache_fn", "cache_bn")  # what suits the model's blocks, whatever the preset

_Options = Mapping[str, Resolved]


def preset_knobs(preset: str) -> dict[str, Any]:
    """Returns every knob of a preset; None: the preset does not look at it."""
    adaptive = preset == "adaptive"
    return {
        "cache_preset": preset,
        "cache_fn": 1,
        "cache_bn": 0,
        "cache_warmup_steps": LEAD_IN,
        "cache_threshold": THRESHOLD if adaptive else None,
        "cache_max_consecutive": MAX_CONSECUTIVE if adaptive else None,
        "cache_taylorseer": 0 if adaptive else 1,
        "cache_scm": PRESET_RULES.get(preset),
    }


def fill_knobs(given: _Options, transformers: int) -> dict[str, Resolved]:
    """Returns all cache knobs of a model with one or two transformers."""
    default = Resolved(OPTIONS["cache_preset"].default, "default", "the default: nothing sets it")
    preset = given.get("cache_preset", default)
    first = _fill(given, _from_preset(preset))
    if transformers == 1:
        none = Resolved(None, "default", "the model has one transformer")
        return first | {name: given.get(name, none) for name in SECONDARY_KNOBS}
    own = {name.removeprefix(SECONDARY): given[name] for name in SECONDARY_KNOBS if name in given}
    followed = {
        name: Resolved(knob.value, knob.source, f"follows {name}: {knob.reason}")
        for name, knob in first.items()
    }
    if "cache_preset" in own:
        followed = _from_preset(own["cache_preset"]) | {name: followed[name] for name in FOLLOWED}
    return first | {SECONDARY + name: knob for name, knob in _fill(own, followed).items()}


def _from_preset(preset: Resolved) -> dict[str, Resolved]:
    knobs = preset_knobs(str(preset.value))
    filled = {
        name: Resolved(knobs[name], "default", _reason(preset.value, knobs[name])) for name in CACHE_KNOBS
    }
    return filled | {"cache_preset": preset}


def _reason(preset: object, value: object) -> str:
    return f"preset {preset} does not look at it" if value is None else f"as preset {preset} has it"


def _fill(own: _Options, otherwise: _Options) -> dict[str, Resolved]:
    """The lead-in and the mask say the same thing twice: the one that is given decides the other."""
    knobs = {name: own.get(name, otherwise[name]) for name in CACHE_KNOBS}
    mask, lead = knobs["cache_scm"], knobs["cache_warmup_steps"]
    if isinstance(mask.value, str) and "cache_scm" not in own and lead.source in GIVEN:
        rule = with_lead_in(mask.value, int(str(lead.value)))
        knobs["cache_scm"] = Resolved(rule, mask.source, f"{mask.reason}, with the lead-in of {lead.value}")
    elif isinstance(mask.value, str):
        knobs["cache_warmup_steps"] = Resolved(lead_in_of(mask.value), mask.source, "the lead-in of the mask")
    return knobs

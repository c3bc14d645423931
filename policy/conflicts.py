"""Combinations of options that cannot work, or of which one would silently have no effect.

Each rule yields a problem and the options it is about. A derived value takes part like an explicit one, so
each message says which option to change.
"""

from collections.abc import Callable, Iterator

from policy.advice import or_offload
from policy.hardware_rules import (
    attention_rules,
    compiler_rules,
    graph_rules,
    placement_rules,
    quantize_rules,
)
from policy.job_cache import too_many_blocks
from policy.mask import FEW_STEPS, fitted_percent, unfitted
from policy.model_spec import size_text
from policy.options import OPTIONS, SECONDARY, SECONDARY_KNOBS, STATIC_PRESETS
from policy.parallel_rules import parallel_rules
from policy.platforms import CUDA_GRAPH_MODES
from policy.setting import Conflict, Setting, conflict
from policy.sizes import check_size, parse_size
from policy.wording import show

__all__ = ["FEW_STEPS", "Conflict", "Setting", "find_conflicts"]


def find_conflicts(setting: Setting) -> list[Conflict]:
    """Returns every conflict."""
    return [found for rule in _RULES for found in rule(setting)]


def _compile_rules(setting: Setting) -> Iterator[Conflict]:
    values = setting.values
    if not values["compile"]:
        return
    mode = values["compile_mode"]
    if mode in CUDA_GRAPH_MODES and values["offload"] != "none":
        message = (
            f"compile_mode {mode} records CUDA graphs, and offload {values['offload']} moves their weights: "
            f"use --compile-mode max-autotune-no-cudagraphs{or_offload(setting, 'none')}"
        )
        yield conflict(setting, message, "compile_mode", "compile", "offload")
    if mode in CUDA_GRAPH_MODES and values["cache"]:
        message = (
            f"compile_mode {mode} records CUDA graphs, which overwrite what the cache keeps: use "
            "--compile-mode max-autotune-no-cudagraphs or --no-cache"
        )
        yield conflict(setting, message, "compile_mode", "compile", "cache")
    if values["offload"] in ("sequential", "group"):
        in_place = ("none",) if mode in CUDA_GRAPH_MODES else ("none", "model")
        message = (
            f"compile needs the weights in place, and offload {values['offload']} moves them inside of what "
            f"is compiled: use --no-compile{or_offload(setting, *in_place)}"
        )
        yield conflict(setting, message, "compile", "offload")


def _warmup_rules(setting: Setting) -> Iterator[Conflict]:
    values = setting.values
    if not values["warmup"] and "warmup_sizes" in setting.explicit and values["warmup_sizes"]:
        message = "warmup_sizes has no effect with warmup off: leave one of them out"
        yield conflict(setting, message, "warmup_sizes", "warmup")
    if not values["warmup"] and values["compile"] and values["new_shape"] == "eager":
        message = (
            "with warmup off and new_shape eager nothing would ever be compiled: leave warmup on, or let "
            "requests wait with --new-shape compile"
        )
        yield conflict(setting, message, "warmup", "compile", "new_shape")
    if not values["warmup"] and values["microbatch"] != 1:
        message = (
            "with warmup off nothing would ever share a pass, because the warm-up finds out which pictures "
            "may: leave warmup on, or use microbatch 1"
        )
        yield conflict(setting, message, "warmup", "microbatch")
    yield from _warmup_size_rules(setting)


def _warmup_size_rules(setting: Setting) -> Iterator[Conflict]:
    limits = setting.spec.size
    sizes = setting.values["warmup_sizes"]
    for text in sizes if isinstance(sizes, tuple) else ():
        try:
            problems = [error.message for error in check_size(*parse_size(text), limits)]
        except ValueError as error:
            problems = [str(error)]
        for problem in problems:
            default = size_text(limits.default)
            message = f"warmup_sizes: {setting.spec.id} cannot draw {show(text)}: {problem}"
            yield conflict(setting, message, "warmup_sizes", nearest=default)


def _cache_rules(setting: Setting) -> Iterator[Conflict]:
    values, spec = setting.values, setting.spec
    if "adaptive" in (values["cache_preset"], values["secondary_cache_preset"]) and values["microbatch"] != 1:
        message = (
            "cache_preset adaptive decides for a whole pass at once, so a picture would depend on its mates: "
            "use microbatch 1 or another preset"
        )
        yield conflict(setting, message, "cache_preset", "secondary_cache_preset", "microbatch")
    least = min(map(spec.cache_minimum_steps, STATIC_PRESETS))
    if values["cache"] and "cache" in setting.explicit and spec.steps.maximum < least:
        most = spec.steps.maximum
        message = f"cache needs at least {least} steps, and {spec.id} takes at most {most}: leave it off"
        yield conflict(setting, message, "cache", limit=spec.steps.maximum, nearest=False)
    if len(spec.transformers) == 1:
        yield from _secondary_rules(setting)
    prefixes = ("",) if len(spec.transformers) == 1 else ("", SECONDARY)
    for prefix in prefixes:
        yield from _knob_rules(setting, prefix)


def _secondary_rules(setting: Setting) -> Iterator[Conflict]:
    for name in SECONDARY_KNOBS:
        if name in setting.explicit:
            plain = name.removeprefix(SECONDARY)
            message = (
                f"{name} needs a second transformer, and {setting.spec.id} has one: use {OPTIONS[plain].flag}"
            )
            yield conflict(setting, message, name, nearest=plain)


def _knob_rules(setting: Setting, prefix: str) -> Iterator[Conflict]:
    """Knobs that were asked for and that the preset does not look at."""
    preset_name = f"{prefix}cache_preset"
    preset = setting.values[preset_name]
    unused = ("cache_scm",) if preset == "adaptive" else ("cache_threshold", "cache_max_consecutive")
    why = "decides by its threshold" if preset == "adaptive" else "is a fixed step mask"
    other = "a static preset" if preset == "adaptive" else f"{OPTIONS[preset_name].flag} adaptive"
    for name in (prefix + knob for knob in unused):
        if name in setting.explicit:
            message = f"{name} has no effect: preset {preset} {why}; use {other}"
            yield conflict(setting, message, name, preset_name)
    mask, lead_in, taylor = (
        prefix + knob for knob in ("cache_scm", "cache_warmup_steps", "cache_taylorseer")
    )
    if mask in setting.explicit and lead_in in setting.explicit:
        message = f"{lead_in} and {mask} both set the lead-in: leave one of them out"
        yield conflict(setting, message, lead_in, mask)
    rule = setting.values[mask]
    if mask in setting.explicit and setting.spec.curve is None and fitted_percent(str(rule)) is not None:
        message = f"{mask} {rule} asks for a fitted mask, and none was fitted to {setting.spec.id}"
        yield conflict(setting, message, mask, nearest=unfitted(str(rule)))
    yield from _block_rules(setting, prefix)
    if taylor in setting.explicit and setting.values[taylor] and setting.spec.steps.default < FEW_STEPS:
        steps = setting.spec.steps.default
        message = f"{taylor} predicts from computed steps, and {setting.spec.id} has {steps}: use 0"
        yield conflict(setting, message, taylor, limit=0, nearest=0)


def _block_rules(setting: Setting, prefix: str) -> Iterator[Conflict]:
    names = {"fn": f"{prefix}cache_fn", "bn": f"{prefix}cache_bn"}
    fn, bn = (int(str(setting.values[name])) for name in names.values())
    for knob, value, most in too_many_blocks(fn, bn, setting.spec.blocks):
        message = (
            f"{names[knob]} must be at most {most}, not {value}: {setting.spec.id} has {setting.spec.blocks} "
            f"blocks, which {names['fn']} and {names['bn']} share"
        )
        yield conflict(setting, message, names[knob], limit=most, nearest=most)


_RULES: tuple[Callable[[Setting], Iterator[Conflict]], ...] = (
    _compile_rules,
    compiler_rules,
    graph_rules,
    _warmup_rules,
    placement_rules,
    attention_rules,
    quantize_rules,
    _cache_rules,
    parallel_rules,
)

"""The field `cache` of a job: a word, or knobs of its own.

The knobs are those options of a worker, without `cache_`, whose effect does not depend on what is rendered
beside the job: `adaptive` and its threshold are not among them. What a job leaves out is the worker's.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_serializer

from policy.errors import FieldError
from policy.mask import FEW_STEPS, check_rule, choose_mask, fitted_percent, preset_rule, unfitted
from policy.model_spec import ModelSpec
from policy.options import OPTIONS, STATIC_PRESETS
from policy.wording import quote, show

WORD, KNOBS = "[word]", "[knobs]"
Preset = Literal["quality", "balanced", "fast"]
CacheWord = Literal["default", "off", "quality", "balanced", "fast"]
_DIGITS = re.compile(r"[01]+")
_PAIR = re.compile(r"\s*(\w+)\s*=\s*([^\s,;]+)\s*", re.ASCII)


def _within(name: str, least: int, most: int) -> Any:  # noqa: ANN401 (what Field returns)
    return Field(default=None, ge=least, le=most, description=OPTIONS[f"cache_{name}"].help)


class CacheKnobs(BaseModel):
    """How this job alone is cached; what is left out is as the worker has it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    preset: Preset | None = Field(default=None, description="Start from this preset instead of the worker's")
    fn: int | None = _within("fn", 1, 64)
    bn: int | None = _within("bn", 0, 64)
    warmup_steps: int | None = _within("warmup_steps", 1, 100)
    taylorseer: int | None = _within("taylorseer", 0, 2)
    scm: str | None = Field(default=None, min_length=1, description=OPTIONS["cache_scm"].help)

    @model_serializer
    def _given(self) -> dict[str, object]:
        return {name: value for name, value in self if value is not None}

    @property
    def rule(self) -> str | None:
        """What says which steps are reused: an own mask, a preset, or None for the worker's."""
        return self.scm or self.preset


def _kind(value: object) -> str:
    return KNOBS if isinstance(value, Mapping | CacheKnobs) else WORD


CacheChoice = Annotated[
    Annotated[CacheWord, Tag(WORD)] | Annotated[CacheKnobs, Tag(KNOBS)], Discriminator(_kind)
]


def read_text(text: str) -> object:
    """Returns what a cell or a flag says: `preset=fast, fn=2` as knobs; any other text as the word it is.

    Numbers become integers; what cannot be read stays text, for the check to refuse.
    """
    word = text.strip()
    if "=" not in word:
        return word
    pairs = [_PAIR.fullmatch(part) for part in re.split(r"[,;\s]+(?=\w+\s*=)", word)]
    knobs = {pair[1]: _value(pair[1], pair[2]) for pair in pairs if pair}
    # What cannot be read, and a knob that is given twice, stays text.
    return knobs if len(knobs) == len(pairs) else word


def _value(name: str, text: str) -> object:
    is_number = name not in ("preset", "scm") and re.fullmatch(r"[+-]?[0-9]{1,18}", text)
    return int(text) if is_number else text


def check_cache(cache: object, spec: ModelSpec, steps: int, run: int) -> Iterator[FieldError]:
    """Yields what is wrong with a job's cache for so many steps of this model; its types are right.

    Args:
        cache: A word, or the knobs that are given.
        spec: The model.
        steps: Steps that are asked for, at least 1.
        run: Those of them that are run, which are fewer where the job starts from a picture.
    """
    if isinstance(cache, Mapping):
        with suppress(ValidationError):  # a number out of its range, which is told already
            yield from _check_knobs(CacheKnobs.model_validate(cache), spec, steps, run)
    elif cache in STATIC_PRESETS:
        yield from _check_preset("cache", str(cache), spec, steps, run)


def _check_preset(field: str, preset: str, spec: ModelSpec, steps: int, run: int) -> Iterator[FieldError]:
    needed = spec.cache_minimum_steps(preset)
    if run >= needed:
        return
    if steps >= needed:
        message = (
            f'{field} "{preset}" needs at least {needed} steps that are run, not {run} of {steps}: '
            'give more strength or num_inference_steps, or give cache "default" or "off"'
        )
        yield FieldError(field, message, preset, needed, "off")
        return
    possible = needed <= spec.steps.maximum
    hint = f"give at least {needed}" if possible else f"{spec.id} takes at most {spec.steps.maximum}"
    message = (
        f'{field} "{preset}" needs at least {needed} num_inference_steps, not {show(steps)}: {hint}, '
        'or give cache "default" or "off"'
    )
    yield FieldError(field, message, preset, needed, needed if possible else "off")


def _check_knobs(knobs: CacheKnobs, spec: ModelSpec, steps: int, run: int) -> Iterator[FieldError]:
    given = knobs.model_dump()
    if not given:
        names = list(CacheKnobs.model_fields)
        message = f'cache names no knob: give at least one of {", ".join(names)}, or the word "default"'
        yield FieldError("cache", message, "an object", names, "default")
    if knobs.preset and knobs.scm:
        message = "cache.preset and cache.scm both say which steps are reused: leave one of them out"
        yield FieldError("cache.preset", message, knobs.preset)
    elif knobs.preset:
        yield from _check_preset("cache.preset", knobs.preset, spec, steps, run)
    if knobs.scm:
        yield from _check_mask(knobs.scm, run, spec, lead_in=knobs.warmup_steps)
    if knobs.warmup_steps and not knobs.scm:
        yield from _check_lead_in(knobs, run, spec)
    yield from _check_blocks(knobs, spec)
    if knobs.taylorseer and run < FEW_STEPS:
        message = (
            f"cache.taylorseer predicts from computed steps, and the {show(run)} that are run are too few: "
            f"give 0, or at least {FEW_STEPS} steps"
        )
        yield FieldError("cache.taylorseer", message, knobs.taylorseer, 0, 0)


def _check_mask(rule: str, steps: int, spec: ModelSpec, lead_in: int | None) -> Iterator[FieldError]:
    field = "cache.scm"
    try:
        check_rule(rule)
    except ValueError as error:
        message = f"{field} must be a step mask ({error}), not {quote(rule)}"
        yield FieldError(field, message, show(rule), "LEAD:COMPUTED:REUSED, digits or fit:PERCENT")
        return
    if lead_in is not None:
        message = "cache.warmup_steps and cache.scm both set the lead-in: leave one of them out"
        yield FieldError("cache.warmup_steps", message, lead_in)
    if problem := _misfit(rule, steps, spec):
        yield FieldError(field, f"{field} {problem[0]}", show(rule), problem[1], problem[2])
    elif 0 not in choose_mask(rule, _least_share(steps, spec), spec.curve).mask:
        message = f"{field} {quote(rule)} reuses none of the {show(steps)} steps that are run"
        message += ": set a digit to 0" if _DIGITS.fullmatch(rule) else ": give more steps"
        yield FieldError(field, message, show(rule), show(steps))


def _check_blocks(knobs: CacheKnobs, spec: ModelSpec) -> Iterator[FieldError]:
    """What is left out is at least its default; the worker's own is not known here."""
    for name, value, most in too_many_blocks(knobs.fn or 1, knobs.bn or 0, spec.blocks):
        message = f"cache.{name} must be at most {most}, not {value}: {spec.id} has {spec.blocks} blocks"
        yield FieldError(
            f"cache.{name}", f"{message}, which fn and bn share; nearest: {most}", value, most, most
        )


def too_many_blocks(fn: int, bn: int, blocks: int | None) -> Iterator[tuple[str, int, int]]:
    """Yields which of `fn` and `bn` leaves no block to reuse, its value and the most it may be."""
    if blocks is None:
        return
    if fn > (most := blocks - 1):
        yield "fn", fn, most
    if bn > (rest := most - min(fn, most)):
        yield "bn", bn, rest


def _misfit(rule: str, steps: int, spec: ModelSpec) -> tuple[str, object, object] | None:
    """What a mask is not made for, the limit that it breaks and the nearest mask."""
    if fitted_percent(rule) is not None and spec.curve is None:
        return f"{quote(rule)} asks for a fitted mask, and none was fitted to {spec.id}", None, unfitted(rule)
    if not _DIGITS.fullmatch(rule):
        return None
    near = unfitted(f"fit:{max(1, min(99, round(100 * rule.count('0') / len(rule))))}")
    if len(spec.transformers) > 1:
        why = f"{spec.id} shares the steps out among two transformers"
        return f"must be LEAD:COMPUTED:REUSED, because {why}", "LEAD:COMPUTED:REUSED", near
    if len(rule) == steps:
        return None
    words = f"has {len(rule)} digits, and the job runs {show(steps)} steps; nearest: {near}"
    return words, steps, near


def _check_lead_in(knobs: CacheKnobs, steps: int, spec: ModelSpec) -> Iterator[FieldError]:
    """A lead-in leaves a step to reuse; under the worker's rule, which is not known here, it at least may."""
    lead_in, share = knobs.warmup_steps or 0, _least_share(steps, spec)
    most = share - 3
    fits = lead_in <= most
    if knobs.preset:
        rule = preset_rule(knobs.preset, fitted=spec.curve is not None)
        fits = 0 in choose_mask(rule, share, spec.curve, lead_in).mask
    if not fits:
        message = f"cache.warmup_steps {lead_in} leaves nothing to reuse of {show(steps)} steps"
        nearest = most if most >= 1 else None
        yield FieldError("cache.warmup_steps", message, lead_in, max(most, 0), nearest)


def _least_share(steps: int, spec: ModelSpec) -> int:
    """Steps that one of the transformers has for certain."""
    return max(1, steps // len(spec.transformers))

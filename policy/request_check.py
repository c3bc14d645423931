"""Checks a request against its model's spec: sizes, limits, guidance, frames, cache.

The functions look only at fields whose types are right, and yield one error per problem.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from policy.errors import FieldError
from policy.job_cache import check_cache
from policy.lora import check_loras
from policy.model_spec import ModelSpec
from policy.picture_check import check_pictures
from policy.sizes import check_size
from policy.spec_tables import FrameLimits
from policy.strength import executed_steps
from policy.wording import closest, listing, quote, show

SEED_LIMIT = 2**53  # integers below this are exact in every JSON reader
DRAWN_SEED_LIMIT = 10**15  # spreadsheets keep 15 digits; a seed that nobody chose has to survive them

Fields = Mapping[str, Any]  # name -> value, of the fields that are given and of the right type


def check_fields(fields: Fields, spec: ModelSpec) -> Iterator[FieldError]:
    """Yields every way in which the fields break the spec."""
    yield from _check_size(fields, spec)
    yield from _check_range(fields, "num_inference_steps", spec.steps.minimum, spec.steps.maximum)
    yield from _check_guidance(fields, spec)
    yield from _check_boundary(fields, spec)
    yield from _check_range(fields, "n", 1, spec.limits.n)
    yield from _check_seed(fields)
    yield from _check_texts(fields, spec)
    yield from _check_video(fields, spec)
    yield from _check_format(fields, spec)
    yield from check_pictures(fields, spec)
    steps = fields.get("num_inference_steps", spec.steps.default)
    if steps >= 1:
        yield from check_cache(fields.get("cache"), spec, steps, _steps_run(fields, spec, steps))
    yield from check_loras(fields.get("lora"), spec.loras, spec.id)


def _check_size(fields: Fields, spec: ModelSpec) -> Iterator[FieldError]:
    if "width" not in fields and "height" not in fields:
        return
    width, height = spec.size.default
    for error in check_size(fields.get("width", width), fields.get("height", height), spec.size):
        one_side = "width" not in fields and "x" in str(error.value)
        yield (
            FieldError("height", error.message, error.value, error.limit, error.nearest)
            if one_side
            else error
        )


def _check_range(fields: Fields, field: str, minimum: float, maximum: float) -> Iterator[FieldError]:
    value = fields.get(field)
    if value is None or minimum <= value <= maximum:
        return
    nearest = minimum if value < minimum else maximum
    span = f"{minimum}" if minimum == maximum else f"{minimum} to {maximum}"
    message = f"{field} must be {span}, not {show(value)}; nearest: {nearest}"
    yield FieldError(field, message, show(value), nearest, nearest)


def _check_guidance(fields: Fields, spec: ModelSpec) -> Iterator[FieldError]:
    limits = spec.guidance
    scale = fields.get("guidance_scale")
    if limits.style != "none" or scale is None or scale == limits.default:
        yield from _check_range(fields, "guidance_scale", limits.minimum, limits.maximum)
        return
    fix = f"leave it out, or give {limits.default}, not {show(scale)}"
    message = f"guidance_scale has no effect on {spec.id}: {fix}"
    yield FieldError("guidance_scale", message, show(scale), limits.default, limits.default)


def _check_boundary(fields: Fields, spec: ModelSpec) -> Iterator[FieldError]:
    if fields.get("boundary_ratio") is not None and spec.boundary_ratio is None:
        message = f"boundary_ratio is for models with two transformers, and {spec.id} has one: leave it out"
        yield FieldError("boundary_ratio", message, show(fields["boundary_ratio"]))


def _check_seed(fields: Fields) -> Iterator[FieldError]:
    seed, n = fields.get("seed"), fields.get("n", 1)
    if seed is None or not 0 <= seed < SEED_LIMIT or n < 1 or seed + n <= SEED_LIMIT:
        return
    nearest = SEED_LIMIT - n
    message = f"seed + n must be at most 2^53, not {seed} + {show(n)}; nearest seed: {show(nearest)}"
    yield FieldError("seed", message, seed, SEED_LIMIT, max(nearest, 0))


def _check_texts(fields: Fields, spec: ModelSpec) -> Iterator[FieldError]:
    limit = spec.limits.prompt_characters
    for field in ("prompt", "negative_prompt"):
        length = len(fields.get(field) or "")
        if length > limit:
            message = f"{field} must have at most {limit} characters, not {length}"
            yield FieldError(field, message, show(fields[field]), limit, limit)
    if fields.get("negative_prompt"):
        yield from _check_negative_prompt(fields, spec)


def _check_negative_prompt(fields: Fields, spec: ModelSpec) -> Iterator[FieldError]:
    text = show(fields["negative_prompt"])
    scale = fields.get("guidance_scale")
    if not spec.limits.negative_prompt:
        message = f"negative_prompt has no effect on {spec.id}: leave it out"
        yield FieldError("negative_prompt", message, text)
    elif scale is not None and not spec.guidance.steers(scale):
        off_at = spec.guidance.off_at
        message = f"negative_prompt has no effect at guidance_scale {show(scale)}: give more than {off_at}"
        yield FieldError("negative_prompt", message, text, off_at)


def _check_video(fields: Fields, spec: ModelSpec) -> Iterator[FieldError]:
    if spec.frames is not None:
        yield from _check_frames(fields, spec.frames)
        yield from _check_range(fields, "fps", spec.frames.fps_minimum, spec.frames.fps_maximum)
        return
    for field in ("num_frames", "fps"):
        if fields.get(field) is not None:
            message = f"{field} is for video models, and {spec.id} makes images: leave it out"
            yield FieldError(field, message, show(fields[field]))


def _check_frames(fields: Fields, limits: FrameLimits) -> Iterator[FieldError]:
    frames = fields.get("num_frames")
    if frames is None:
        return
    if not limits.minimum <= frames <= limits.maximum:
        yield from _check_range(fields, "num_frames", limits.minimum, limits.maximum)
    elif frames % limits.multiple != limits.remainder:
        below = frames - (frames - limits.remainder) % limits.multiple
        rule = f"a multiple of {limits.multiple} plus {limits.remainder}"
        nearest = [below, below + limits.multiple]
        message = f"num_frames must be {rule}, not {frames}; nearest: {listing(nearest)}"
        yield FieldError("num_frames", message, frames, rule, nearest)


def _check_format(fields: Fields, spec: ModelSpec) -> Iterator[FieldError]:
    chosen = fields.get("output_format")
    if chosen is None or chosen in spec.output_formats:
        return
    nearest = closest(chosen, spec.output_formats) or spec.output_formats[0]
    offered = listing(spec.output_formats)
    message = f"output_format must be {offered}, not {quote(chosen)}; nearest: {nearest}"
    yield FieldError("output_format", message, show(chosen), list(spec.output_formats), nearest)


def _steps_run(fields: Fields, spec: ModelSpec, steps: int) -> int:
    if fields.get("image") is None or spec.inputs is None:
        return steps
    strength = fields.get("strength", spec.inputs.strength)
    return executed_steps(steps, strength if 0 < strength <= 1 else None)

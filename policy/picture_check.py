"""Checks the pictures of a request: whether its model draws from any, and what is said of them."""

from collections.abc import Iterator, Mapping
from typing import Any

from policy.errors import FieldError
from policy.model_spec import ModelSpec
from policy.pictures import Given
from policy.references import PICTURES, FileId, read_reference
from policy.request_shape import flaw_in
from policy.spec_tables import PictureInputs
from policy.strength import LEAST, executed_steps
from policy.wording import quote, show

Fields = Mapping[str, Any]


def check_pictures(fields: Fields, spec: ModelSpec) -> Iterator[FieldError]:
    """Yields what is wrong with image, mask and strength as far as it can be said without the files."""
    given = [name for name in (*PICTURES, "strength") if fields.get(name) is not None]
    if spec.inputs is None:
        for name in given:
            message = f"{name} has no effect on {spec.id}, which draws from no picture: leave it out"
            yield FieldError(name, message, show(fields[name]))
        return
    for name in PICTURES:
        yield from _check_reference(name, fields)
    if "image" in given:
        yield from _check_way("mask" in given, spec.inputs, spec)
        yield from _check_sides(fields)
    elif given:
        yield FieldError("image", f"image is missing: {given[0]} goes with an image", None, "required")
    yield from _check_strength(fields, spec)


def _check_reference(name: str, fields: Fields) -> Iterator[FieldError]:
    text = fields.get(name)
    if text is None or flaw_in(text):
        return
    try:
        read_reference(text.strip())
    except ValueError as words:
        yield FieldError(name, f"{name} must be {words}, not {quote(text)}", show(text))


def _check_way(masked: bool, inputs: PictureInputs, spec: ModelSpec) -> Iterator[FieldError]:
    if masked and inputs.inpaint is None:
        message = f"mask has no effect on {spec.id}, which changes whole pictures only: leave it out"
        yield FieldError("mask", message)
    if not masked and inputs.image_to_image is None:
        message = f"mask is missing: {spec.id} changes a picture only inside a mask"
        yield FieldError("mask", message, None, "required")


def _check_sides(fields: Fields) -> Iterator[FieldError]:
    """One side alone would have to follow the picture's shape or the model's default; neither is said."""
    sides = [name for name in ("width", "height") if fields.get(name) is not None]
    if len(sides) == 1:
        other = "height" if sides == ["width"] else "width"
        message = f"{other} is missing: with an image give both sides, or none to follow its shape"
        yield FieldError(other, message, None, "required")


def _check_strength(fields: Fields, spec: ModelSpec) -> Iterator[FieldError]:
    strength = fields.get("strength")
    if strength is None:
        return
    steps = fields.get("num_inference_steps") or spec.steps.default
    if not 0 < strength <= 1:
        nearest = LEAST if strength <= 0 else 1
        message = f"strength must be more than 0 and at most 1, not {show(strength)}; nearest: {nearest}"
        yield FieldError("strength", message, show(strength), 1, nearest)
    elif executed_steps(steps, strength) < 1:
        message = f"strength {show(strength)} leaves no step of {steps} to run; nearest: {LEAST}"
        yield FieldError("strength", message, strength, LEAST, LEAST)


def check_given(fields: Fields, pictures: Given) -> Iterator[FieldError]:
    """Yields what is wrong with the pictures of a sound request, now that its files were looked up."""
    found = {name: pictures.get(fields[name].strip()) for name in PICTURES if fields.get(name) is not None}
    for name, picture in found.items():
        if picture is None:
            yield _unknown(name, fields[name])
    image, mask = found.get("image"), found.get("mask")
    if image is not None and mask is not None and image.size != mask.size:
        sizes = ["x".join(map(str, picture.size)) for picture in (image, mask)]
        message = f"mask must be as large as image, {sizes[0]}, not {sizes[1]}; nearest: {sizes[0]}"
        yield FieldError("mask", message, sizes[1], sizes[0], sizes[0])


def _unknown(name: str, text: str) -> FieldError:
    if isinstance(read_reference(text.strip()), FileId):
        message = f"{name} names no file of yours that is still kept: {quote(text)}; upload it again"
    elif text.startswith("sha256:"):
        message = f"{name} names no content of yours that is still kept: {quote(text)}; upload it again"
    else:
        message = f"{name} in a row must be the id of an uploaded file, not {quote(text)}: use POST /v1/files"
    return FieldError(name, message, show(text))

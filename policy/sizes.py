"""Which picture sizes a model takes, and which valid size is nearest to one it does not take."""

import re
from collections.abc import Iterator

from policy.errors import FieldError
from policy.spec_tables import SizeLimits
from policy.wording import listing, show

_SIZE = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,5})", re.ASCII)


def parse_size(text: str) -> tuple[int, int]:
    """Returns (width, height) of a text such as `1024x768`, or raises ValueError."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f'"{show(text)}" is not a size such as 1024x768')
    return int(found[1]), int(found[2])


def check_size(width: int, height: int, limits: SizeLimits) -> Iterator[FieldError]:
    """Yields what is wrong with a size; the pixel limit is looked at when both sides are right."""
    wrong = [*_check_side("width", width, limits), *_check_side("height", height, limits)]
    yield from wrong
    if not wrong and width * height > limits.max_pixels:
        yield _too_many_pixels(width, height, limits)


def nearest_sides(side: int, limits: SizeLimits) -> tuple[int, ...]:
    """Returns the valid side below and the valid side above, or the one at the edge."""
    multiple = limits.multiple
    lowest = -(-limits.minimum // multiple) * multiple
    highest = limits.maximum // multiple * multiple
    below = min(max(side // multiple * multiple, lowest), highest)
    above = min(max(-(-side // multiple) * multiple, lowest), highest)
    return tuple(sorted({below, above}))


def _check_side(field: str, side: int, limits: SizeLimits) -> Iterator[FieldError]:
    nearest = nearest_sides(side, limits)
    near = f"nearest: {listing(nearest)}"
    value = show(side)
    if not limits.minimum <= side <= limits.maximum:
        span = _span(limits)
        yield FieldError(field, f"{field} must be {span}, not {value}; {near}", value, span, _one(nearest))
    elif side % limits.multiple:
        message = f"{field} must be a multiple of {limits.multiple}, not {value}; {near}"
        yield FieldError(field, message, value, limits.multiple, _one(nearest))


def _span(limits: SizeLimits) -> str:
    if limits.minimum == limits.maximum:
        return f"{limits.minimum}"
    return f"{limits.minimum} to {limits.maximum} and a multiple of {limits.multiple}"


def _one(nearest: tuple[int, ...]) -> object:
    return nearest[0] if len(nearest) == 1 else list(nearest)


def _too_many_pixels(width: int, height: int, limits: SizeLimits) -> FieldError:
    fitting = _shrunk(width, height, limits)
    asked = f"{width}x{height} = {width * height}"
    message = f"width x height must be at most {limits.max_pixels} pixels, not {asked}; nearest: {fitting}"
    return FieldError("width", message, f"{width}x{height}", limits.max_pixels, fitting)


def _shrunk(width: int, height: int, limits: SizeLimits) -> str:
    """Returns the largest valid size of about the same shape, as text."""
    factor = (limits.max_pixels / (width * height)) ** 0.5
    sides = [min(nearest_sides(int(side * factor), limits)) for side in (width, height)]
    if not limits.admits(*sides):
        return "x".join(map(str, limits.default))
    return f"{sides[0]}x{sides[1]}"

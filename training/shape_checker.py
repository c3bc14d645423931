"""The part of the checker that judges a single shape on a plain background."""

import math
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from training import scenes
from training.drawing import fill_shape
from training.scenes import Shape

Pixels = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_NAMES: Final = tuple(scenes.COLOURS)
_PALETTE: Final = np.array(list(scenes.COLOURS.values()), np.float64)
_SMALLEST: Final = 20  # pixels that count as a thing
_GRID: Final = 32
# Height or width of a shape, whichever is more, for a radius of one.
_EXTENT: Final = {"square": 1.76, "star": 2.13, "heart": 2.1, "diamond": 2.2}


def check_shape(spec: Shape, pixels: Pixels) -> dict[str, bool]:
    """What the scene says, and whether the picture (64, 64, 3) shows it."""
    colours = ((pixels[:, :, None, :] - _PALETTE) ** 2).sum(-1).argmin(-1)
    thing = _largest_piece(colours == _NAMES.index(spec.colour))
    found = {
        "background": _border_colour(colours) == spec.background,
        "colour": int(thing.sum()) >= _SMALLEST,
    }
    if not found["colour"]:
        return found | dict.fromkeys(("shape", "place", "size"), False)
    return found | {
        "shape": _likest_shape(thing) == spec.shape,
        "place": _is_at(thing, spec.place),
        "size": _nearest_size(thing, spec.shape) == spec.size,
    }


def _border_colour(colours: npt.NDArray[np.intp]) -> str:
    border = [colours[:2], colours[-2:], colours[:, :2], colours[:, -2:]]
    return _NAMES[int(np.bincount(np.concatenate([part.ravel() for part in border])).argmax())]


def _largest_piece(mask: Mask) -> Mask:
    """The largest group of pixels that touch side by side."""
    left = {(int(y), int(x)) for y, x in zip(*np.nonzero(mask), strict=True)}
    largest: set[tuple[int, int]] = set()
    while left:
        piece = _take_piece(left)
        largest = max(largest, piece, key=len)
    alone = np.zeros_like(mask)
    for y, x in largest:
        alone[y, x] = True
    return alone


def _take_piece(left: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Remove one connected piece from the pixels that are left."""
    waiting = [left.pop()]
    piece = set(waiting)
    while waiting:
        y, x = waiting.pop()
        touching = {(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)} & left
        left -= touching
        piece |= touching
        waiting += touching
    return piece


def _limits(mask: Mask) -> tuple[int, int, int, int]:
    """Top, bottom, left and right of a mask; bottom and right are just outside."""
    rows, columns = np.nonzero(mask)
    return int(rows.min()), int(rows.max()) + 1, int(columns.min()), int(columns.max()) + 1


def _cut_out(mask: Mask) -> Pixels:
    """The mask within its limits, stretched to a square."""
    top, bottom, left, right = _limits(mask)
    cut = Image.fromarray((mask[top:bottom, left:right] * 255).astype(np.uint8))
    return np.asarray(cut.resize((_GRID, _GRID), Image.Resampling.BILINEAR), np.float64) / 255


@cache
def _templates() -> dict[str, Pixels]:
    templates = {}
    for shape in scenes.SHAPES:
        picture = Image.new("RGB", (200, 200))
        fill_shape(ImageDraw.Draw(picture), shape, (100, 100, 80), ((255, 255, 255), (0, 0, 0)))
        templates[shape] = _cut_out(np.asarray(picture)[..., 0] > 127)
    return templates


def _likest_shape(thing: Mask) -> str:
    """The shape whose template overlaps most, as intersection over union."""
    seen = _cut_out(thing)
    overlaps = {
        shape: float(np.minimum(seen, template).sum() / np.maximum(seen, template).sum())
        for shape, template in _templates().items()
    }
    return max(overlaps, key=lambda shape: overlaps[shape])


def _is_at(thing: Mask, place: str) -> bool:
    top, bottom, left, right = _limits(thing)
    x, y = scenes.PLACES[place]
    size = len(thing)
    return abs((left + right) / 2 / size - x) < 0.16 and abs((top + bottom) / 2 / size - y) < 0.16


def _nearest_size(thing: Mask, shape: str) -> str:
    top, bottom, left, right = _limits(thing)
    radius = max(bottom - top, right - left) / _EXTENT.get(shape, 2.0) / len(thing)
    return min(scenes.SIZES, key=lambda size: abs(math.log(2 * radius / sum(scenes.SIZES[size]))))

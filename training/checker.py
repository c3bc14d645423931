"""Judges by its pixels whether a picture shows what its caption says.

    judge("a boat with a red sail on the sea", picture).correct

It measures colours at the places where the drawings have their things, so it is a judge for the tiny
model's scenes only. Needs Pillow and numpy. Regions below are pixels of a 64x64 picture.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from training import captions, scenes
from training.drawing import dim
from training.scenes import RGB, Landscape, Scene, Shape
from training.shape_checker import check_shape

SIZE: Final = 64
Pixels = npt.NDArray[np.float64]

_X: Final = {"left": 20, "right": 47}  # middle of what stands on a side
_LIGHT_X: Final = {"left": (4, 22), "right": (42, 60)}
_FAR_ROWS: Final = range(33, 38)
_FAR_COLUMNS: Final = (*range(4), *range(30, 37), *range(61, 64))  # between the things


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether everything is right, and what is wrong otherwise ("roof", "sky", ...)."""

    correct: bool
    wrong: tuple[str, ...]


def judge(caption: str, image: Image.Image) -> Verdict:
    """Judge a picture of any size against a caption of the grammar.

    Raises:
        captions.UnknownCaptionError: The caption is no sentence of the grammar.
    """
    wrong = tuple(what for what, is_right in check(captions.read(caption), image).items() if not is_right)
    return Verdict(correct=not wrong, wrong=wrong)


def check(spec: Scene, image: Image.Image) -> dict[str, bool]:
    """Each thing that the scene says, and whether the picture shows it."""
    small = image.convert("RGB")
    if small.size != (SIZE, SIZE):
        small = small.resize((SIZE, SIZE), Image.Resampling.BOX)
    pixels = np.asarray(small, np.float64)
    return check_shape(spec, pixels) if isinstance(spec, Shape) else _check_landscape(spec, pixels)


def _check_landscape(spec: Landscape, pixels: Pixels) -> dict[str, bool]:
    brightness = scenes.BRIGHTNESS[spec.sky]
    found = {
        "sky": _is_sky(spec, pixels),
        "ground": _is_ground(spec, pixels, brightness),
        "light": _light_side(spec, pixels) == spec.light,
        "far": _far(spec, pixels, brightness) == spec.far,
    }
    x = _X[spec.side]
    behind = _behind(spec, brightness)
    if spec.roof and spec.wall:
        roofs = _dimmed(scenes.ROOFS, brightness)
        eaves = pixels[38:40, [*range(x - 12, x - 9), *range(x + 10, x + 13)]]  # wider than a tree's crown
        has_eaves = _count(eaves, roofs[spec.roof], 70) > 0
        found["roof"] = has_eaves and _shows(pixels[28:40, x - 13 : x + 14], spec.roof, roofs, 40, behind)
        walls = _dimmed(scenes.WALLS, brightness)
        found["wall"] = _shows(pixels[40:54, x - 11 : x + 12], spec.wall, walls, 100)
    if spec.sail:
        sails = _dimmed(scenes.SAILS, brightness)
        found["sail"] = _shows(pixels[30:41, x - 8 : x + 11], spec.sail, sails, 40, behind)
    if spec.tree:
        crowns = {name: dim(colour, brightness) for name, colour in scenes.TREES.items()}
        x = _X[spec.tree_side]
        # The trunk too: a green crown alone could be a hill.
        has_trunk = not _is_bare(spec, pixels[47:53, x - 1 : x + 2], brightness)
        found["tree"] = has_trunk and _shows(pixels[26:46, x - 9 : x + 10], spec.tree, crowns, 120)
    if not (spec.wall and spec.tree):
        other = _X["right" if spec.side == "left" else "left"]
        found["nothing else"] = _is_bare(spec, pixels[47:54, other - 3 : other + 4], brightness)
    return found


def _dimmed(names: Iterable[str], brightness: float) -> dict[str, RGB]:
    return {name: dim(scenes.COLOURS[name], brightness) for name in names}


def _count(region: Pixels, colour: RGB, reach: float) -> int:
    """How many pixels lie within a distance of a colour."""
    return int((np.sqrt(((region - colour) ** 2).sum(-1)) < reach).sum())


def _nearest(value: Pixels, colours: Mapping[str, RGB]) -> str:
    return min(colours, key=lambda name: float(((value - colours[name]) ** 2).sum()))


def _behind(spec: Landscape, brightness: float) -> tuple[RGB, ...]:
    """Colours that may be seen past a roof or a sail, which are no colours of it."""
    red, green, blue = (int(0.15 * a + 0.85 * b) for a, b in zip(*scenes.SKIES[spec.sky], strict=True))
    return dim(scenes.MOUNTAIN, brightness), dim(scenes.HILL, brightness), (red, green, blue)


def _shows(
    region: Pixels, name: str, colours: Mapping[str, RGB], enough: int, behind: tuple[RGB, ...] = ()
) -> bool:
    """Whether more than `enough` pixels are of this colour, and no other colour has more."""
    palette = np.array([*colours.values(), *behind], np.float64)
    distances = np.sqrt(((region[:, :, None] - palette) ** 2).sum(-1))
    nearest = distances.argmin(-1)[distances.min(-1) < 70]
    counts = dict(zip(colours, np.bincount(nearest, minlength=len(palette)), strict=False))
    return bool(counts[name] > enough and counts[name] == max(counts.values()))


def _is_sky(spec: Landscape, pixels: Pixels) -> bool:
    tops = {name: top for name, (top, _) in scenes.SKIES.items()}
    return _nearest(pixels[1:5, 20:44].mean((0, 1)), tops) == spec.sky


def _is_ground(spec: Landscape, pixels: Pixels, brightness: float) -> bool:
    grounds = {name: dim(colour, brightness) for name, colour in scenes.GROUNDS.items()}
    return _nearest(pixels[59:64].mean((0, 1)), grounds) == spec.ground


def _is_bare(spec: Landscape, region: Pixels, brightness: float) -> bool:
    return _count(region, dim(scenes.GROUNDS[spec.ground], brightness), 45) > 0.7 * region[..., 0].size


def _light_side(spec: Landscape, pixels: Pixels) -> str | None:
    colour = scenes.MOON if spec.sky == "night" else scenes.SUN
    counts = {side: _count(pixels[3:19, a:b], colour, 50) for side, (a, b) in _LIGHT_X.items()}
    side = max(counts, key=lambda name: counts[name])
    return side if counts[side] > 50 else None


def _far(spec: Landscape, pixels: Pixels, brightness: float) -> str | None:
    """What most pixels just above the horizon show: mountains, hills or the sky (None)."""
    top, bottom = (np.array(colour, float) for colour in scenes.SKIES[spec.sky])
    votes = dict.fromkeys(("mountains", "hills", "sky"), 0)
    for row in _FAR_ROWS:
        share = row / 40
        references = {
            "mountains": np.array(dim(scenes.MOUNTAIN, brightness)),
            "hills": np.array(dim(scenes.HILL, brightness)),
            "sky": top * (1 - share) + bottom * share,
        }
        for column in _FAR_COLUMNS:
            distances = {name: ((pixels[row, column] - c) ** 2).sum() for name, c in references.items()}
            votes[min(distances, key=lambda name: distances[name])] += 1
    winner = max(votes, key=lambda name: votes[name])
    return None if winner == "sky" else winner

"""Draws a scene with Pillow: the ground truth that the tiny model learns from.

Everything is drawn on a canvas of 256 pixels and reduced by averaging, which smooths the edges.
Lengths and positions below are pixels of that canvas.
"""

import math
import random
from typing import Final

from PIL import Image, ImageDraw

from training import scenes
from training.scenes import RGB, Landscape, Scene, Shape

CANVAS: Final = 256
Point = tuple[float, float]


def draw(scene: Scene, rng: random.Random, size: int = 64) -> Image.Image:
    """Draw a scene; `rng` jitters positions and flat colours a little."""
    picture = _draw_landscape(scene, rng) if isinstance(scene, Landscape) else _draw_shape(scene, rng)
    return picture if size == CANVAS else picture.resize((size, size), Image.Resampling.BOX)


def jitter(colour: RGB, rng: random.Random, reach: int) -> RGB:
    red, green, blue = (max(0, min(255, value + rng.randint(-reach, reach))) for value in colour)
    return red, green, blue


def dim(colour: RGB, brightness: float) -> RGB:
    red, green, blue = (int(value * brightness) for value in colour)
    return red, green, blue


def _box(x: float, y: float, radius: float) -> tuple[float, float, float, float]:
    return (x - radius, y - radius, x + radius, y + radius)


# --- landscapes


def _draw_landscape(scene: Landscape, rng: random.Random) -> Image.Image:
    brightness = scenes.BRIGHTNESS[scene.sky]
    horizon = int(CANVAS * 0.62) + rng.randint(-4, 4)
    ground = dim(jitter(scenes.GROUNDS[scene.ground], rng, 4), brightness)
    picture = _sky_and_ground(scene.sky, horizon, ground)
    pen = ImageDraw.Draw(picture)
    if scene.sky == "night":
        _stars(pen, horizon)
    if scene.light:
        _light(pen, scene, rng)
    if scene.far == "mountains":
        _mountains(pen, horizon, brightness)
    elif scene.far == "hills":
        _hills(pen, horizon, brightness, ground)
    _things(pen, scene, CANVAS * 0.84 + rng.uniform(-4, 4), brightness)
    return picture


def _sky_and_ground(sky: str, horizon: int, ground: RGB) -> Image.Image:
    top, bottom = scenes.SKIES[sky]
    column = Image.new("RGB", (1, CANVAS), ground)
    for y in range(horizon):
        share = y / (horizon - 1)
        red, green, blue = (int(a * (1 - share) + b * share) for a, b in zip(top, bottom, strict=True))
        column.putpixel((0, y), (red, green, blue))
    return column.resize((CANVAS, CANVAS), Image.Resampling.NEAREST)


def _stars(pen: ImageDraw.ImageDraw, horizon: int) -> None:
    """Seven stars, always in the same places."""
    for i in range(7):
        x, y = (37 * i * i + 29 * i + 20) % CANVAS, (53 * i + 11 * i * i + 14) % int(horizon * 0.6)
        pen.ellipse(_box(x, y, 2), fill=(235, 235, 210))


def _light(pen: ImageDraw.ImageDraw, scene: Landscape, rng: random.Random) -> None:
    x = CANVAS * (0.2 if scene.light == "left" else 0.8) + rng.uniform(-5, 5)
    y = CANVAS * 0.17 + rng.uniform(-4, 4)
    pen.ellipse(_box(x, y, 24), fill=scenes.MOON if scene.sky == "night" else scenes.SUN)


def _mountains(pen: ImageDraw.ImageDraw, horizon: int, brightness: float) -> None:
    snow = 0.3  # the share of a mountain that is white
    for x, height, width in ((60, 86, 70), (150, 104, 84), (232, 74, 60)):
        peak = (x, horizon - height)
        foot = [(x - width, horizon), peak, (x + width, horizon)]
        pen.polygon(foot, fill=dim(scenes.MOUNTAIN, brightness))
        line = horizon - height * (1 - snow)
        pen.polygon(
            [(x - width * snow, line), peak, (x + width * snow, line)], fill=dim((245, 245, 250), brightness)
        )


def _hills(pen: ImageDraw.ImageDraw, horizon: int, brightness: float, ground: RGB) -> None:
    for x, width, height in ((50, 100, 44), (190, 120, 56)):
        pen.ellipse(
            (x - width, horizon - height, x + width, horizon + height), fill=dim(scenes.HILL, brightness)
        )
    pen.rectangle((0, horizon, CANVAS, CANVAS), fill=ground)


def _things(pen: ImageDraw.ImageDraw, scene: Landscape, foot: float, brightness: float) -> None:
    x = {"left": CANVAS * 0.31, "right": CANVAS * 0.73}
    if scene.wall and scene.roof:
        wall, roof = scenes.COLOURS[scene.wall], scenes.COLOURS[scene.roof]
        lit = (255, 230, 120) if scene.sky == "night" else (150, 200, 235)
        _house(pen, (x[scene.side], foot), (dim(wall, brightness), dim(roof, brightness)), brightness)
        _windows(pen, (x[scene.side], foot), lit)
    if scene.sail:
        _boat(pen, (x[scene.side], foot), dim(scenes.COLOURS[scene.sail], brightness), brightness)
    if scene.tree:
        _tree(pen, (x[scene.tree_side], foot), dim(scenes.TREES[scene.tree], brightness), brightness)


def _house(pen: ImageDraw.ImageDraw, at: Point, colours: tuple[RGB, RGB], brightness: float) -> None:
    (x, foot), (wall, roof) = at, colours
    pen.rectangle((x - 44, foot - 56, x + 44, foot), fill=wall)
    pen.polygon([(x - 56, foot - 56), (x, foot - 108), (x + 56, foot - 56)], fill=roof)
    pen.rectangle((x - 10, foot - 32, x + 10, foot), fill=dim((95, 60, 40), brightness))


def _windows(pen: ImageDraw.ImageDraw, at: Point, light: RGB) -> None:
    for x in (at[0] - 27, at[0] + 27):
        pen.rectangle((x - 9, at[1] - 44, x + 9, at[1] - 26), fill=light)


def _boat(pen: ImageDraw.ImageDraw, at: Point, sail: RGB, brightness: float) -> None:
    x, foot = at
    hull = [(x - 52, foot - 24), (x + 52, foot - 24), (x + 34, foot), (x - 34, foot)]
    pen.polygon(hull, fill=dim((130, 75, 45), brightness))
    pen.rectangle((x - 3, foot - 112, x + 3, foot - 24), fill=dim((80, 50, 35), brightness))
    pen.polygon([(x + 6, foot - 112), (x + 6, foot - 32), (x + 52, foot - 32)], fill=sail)
    pen.polygon([(x - 6, foot - 98), (x - 6, foot - 32), (x - 40, foot - 32)], fill=sail)


def _tree(pen: ImageDraw.ImageDraw, at: Point, crown: RGB, brightness: float) -> None:
    x, foot = at
    pen.rectangle((x - 7, foot - 44, x + 7, foot), fill=dim((105, 65, 40), brightness))
    pen.ellipse((x - 36, foot - 112, x + 36, foot - 34), fill=crown)


# --- shapes


def _draw_shape(scene: Shape, rng: random.Random) -> Image.Image:
    background = jitter(scenes.COLOURS[scene.background], rng, 4)
    picture = Image.new("RGB", (CANVAS, CANVAS), background)
    radius = rng.uniform(*scenes.SIZES[scene.size]) * CANVAS
    x, y = (share * CANVAS + rng.uniform(-5, 5) for share in scenes.PLACES[scene.place])
    if scene.place != "center":  # large ones stay inside the picture
        margin = radius * 1.12 + 4
        x, y = (min(max(value, margin), CANVAS - margin) for value in (x, y))
    colour = jitter(scenes.COLOURS[scene.colour], rng, 7)
    fill_shape(ImageDraw.Draw(picture), scene.shape, (x, y, radius), (colour, background))
    return picture


def fill_shape(
    pen: ImageDraw.ImageDraw, shape: str, circle: tuple[float, float, float], colours: tuple[RGB, RGB]
) -> None:
    """Fill the shape that belongs to a circle (x, y, radius) with (colour, colour of a ring's hole)."""
    x, y, radius = circle
    if shape in ("circle", "ring"):
        pen.ellipse(_box(x, y, radius), fill=colours[0])
        if shape == "ring":
            pen.ellipse(_box(x, y, radius * 0.55), fill=colours[1])
        return
    pen.polygon([(x + radius * dx, y + radius * dy) for dx, dy in _outline(shape)], fill=colours[0])


def _outline(shape: str) -> list[Point]:
    """Corners of a shape around the origin, for a radius of one; y points down."""
    if shape == "star":
        return [_on_circle(i / 10, 1.12 if i % 2 == 0 else 0.48) for i in range(10)]
    if shape == "heart":
        return [_on_heart(2 * math.pi * i / 48) for i in range(48)]
    return _CORNERS[shape]


def _on_circle(turn: float, radius: float) -> Point:
    angle = 2 * math.pi * turn - math.pi / 2
    return radius * math.cos(angle), radius * math.sin(angle)


def _on_heart(t: float) -> Point:
    """The usual heart curve: x = 16 sin^3 t, y = 13 cos t - 5 cos 2t - 2 cos 3t - cos 4t."""
    y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
    return 0.065 * 16 * math.sin(t) ** 3, -0.065 * y - 0.1


_ARM = 0.36  # half the width of a cross's arm
_CORNERS: Final[dict[str, list[Point]]] = {
    "square": [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
    "diamond": [(0, -1.1), (0.8, 0), (0, 1.1), (-0.8, 0)],
    "triangle": [(0, -1), (1, 0.8), (-1, 0.8)],
    "cross": [
        (-_ARM, -1), (_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM),
        (_ARM, 1), (-_ARM, 1), (-_ARM, _ARM), (-1, _ARM), (-1, -_ARM), (-_ARM, -_ARM),
    ],
}  # fmt: skip

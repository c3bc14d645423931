"""Draws what each way to reuse steps costs in fidelity, from the rows of `benchmarks.masks`."""

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, MARGIN = 900, 560, 70
LOWEST_DB, HIGHEST_DB, HIGHEST_SHARE = 15.0, 90.0, 0.8
KINDS = {
    "fitted": ("fitted masks (presets)", (20, 110, 60)),
    "rule": ("evenly spaced rules", (40, 80, 190)),
    "library+taylor": ("Cache-DiT's masks, first-order predictor", (200, 120, 20)),
    "library": ("Cache-DiT's masks", (190, 50, 50)),
    "threshold": ("residual threshold", (120, 60, 160)),
}
INK, GRID, PAPER = (40, 40, 40), (225, 225, 225), (255, 255, 255)


def draw(rows: Sequence[Mapping[str, Any]], steps: int) -> Image.Image:
    """Returns the picture: share of reused steps to the right, decibels upwards; dots mean, rings worst."""
    image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    pen = ImageDraw.Draw(image)
    _axes(pen, steps)
    for number, (kind, (label, colour)) in enumerate(KINDS.items()):
        points = sorted((row for row in rows if row["kind"] == kind), key=lambda row: float(row["share"]))
        _series(pen, points, "mean_db", colour, filled=True)
        _series(pen, points, "worst_db", colour, filled=False)
        y = MARGIN // 2 + 20 * number
        pen.ellipse((WIDTH - 365, y + 3, WIDTH - 355, y + 13), fill=colour)
        pen.text((WIDTH - 345, y), label, INK, _font(14))
    return image


def _font(size: int) -> Any:  # noqa: ANN401 (Pillow's two kinds of font)
    return ImageFont.load_default(size)


def _place(share: float, decibels: float) -> tuple[float, float]:
    inside = (min(max(decibels, LOWEST_DB), HIGHEST_DB) - LOWEST_DB) / (HIGHEST_DB - LOWEST_DB)
    x = MARGIN + share / HIGHEST_SHARE * (WIDTH - 2 * MARGIN)
    return x, HEIGHT - MARGIN - inside * (HEIGHT - 2 * MARGIN)


def _axes(pen: ImageDraw.ImageDraw, steps: int) -> None:
    for decibels in range(20, 91, 10):
        x, y = _place(0, decibels)
        pen.line((x, y, WIDTH - MARGIN, y), GRID)
        pen.text((x - 30, y - 8), str(decibels), INK, _font(14))
    for percent in range(0, 81, 10):
        x, y = _place(percent / 100, LOWEST_DB)
        pen.line((x, MARGIN, x, y), GRID)
        pen.text((x - 12, y + 8), f"{percent} %", INK, _font(14))
    pen.text((MARGIN, HEIGHT - 34), f"steps reused, of {steps}", INK, _font(15))
    pen.text((MARGIN, 14), "PSNR against uncached, dB: dots mean, rings worst picture", INK, _font(15))


def _series(
    pen: ImageDraw.ImageDraw,
    rows: Sequence[Mapping[str, Any]],
    name: str,
    colour: tuple[int, int, int],
    *,
    filled: bool,
) -> None:
    places = [_place(row["share"], row[name]) for row in rows]
    if len(places) > 1:
        pen.line(places, colour, 2 if filled else 1)
    for x, y in places:
        pen.ellipse((x - 5, y - 5, x + 5, y + 5), fill=colour if filled else PAPER, outline=colour, width=2)

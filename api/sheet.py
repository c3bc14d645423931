"""A batch as one picture: a grid of thumbnails, each with its row and first words; Pillow only.

A row without a picture gets a tile that says why. The letters are Pillow's own, which has those of ASCII:
accents are left off and other letters become ``?``, but the number of the row always stands there.
"""

import io
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError

from api.tiles import Tile

LARGEST_TILE: Final = 200
WIDEST: Final = 1600
"""Pixels. With ``ROWS_PER_PAGE`` and ``LARGEST_TILE`` it bounds a sheet to 10 million pixels, 30 MB."""
GAP: Final = 6
LINE: Final = 14
FONT_SIZE: Final = 11
_PAPER, _INK, _FAINT = (255, 255, 255), (32, 32, 32), (110, 110, 110)
_PLAIN, _WAITING = (228, 228, 228), (232, 240, 250)
_TILES = {
    "failed": (250, 222, 220),
    "expired": (250, 222, 220),
    "queued": _WAITING,
    "in progress": _WAITING,
    "video": (226, 240, 226),
}
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def draw_sheet(tiles: Sequence[Tile], columns: int) -> bytes:
    """Return a PNG of ``tiles``, row by row; at most ``ROWS_PER_PAGE`` of them.

    One picture is open at a time. What ``Tile.read`` raises goes through; a picture that cannot be decoded
    becomes a tile that says so.
    """
    side = min(LARGEST_TILE, WIDEST // columns - GAP)
    height = side + 2 * LINE + GAP
    columns = min(columns, len(tiles))
    lines = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * (side + GAP) + GAP, lines * height + GAP), _PAPER)
    pen = _Pen(sheet, side)
    for place, tile in enumerate(tiles):
        down, across = divmod(place, columns)
        pen.draw(tile, GAP + across * (side + GAP), GAP + down * height)
    written = io.BytesIO()
    sheet.save(written, "PNG", compress_level=4)
    return written.getvalue()


class _Pen:
    """Draws tiles of one size on one sheet."""

    def __init__(self, sheet: Image.Image, side: int) -> None:
        self.sheet = sheet
        self.side = side
        self.canvas = ImageDraw.Draw(sheet)
        self.font = ImageFont.load_default(FONT_SIZE)

    def draw(self, tile: Tile, left: int, top: int) -> None:
        data = None if tile.read is None else tile.read()
        picture = None if data is None else _thumbnail(data, self.side)
        if picture is not None:
            margin = ((self.side - picture.width) // 2, (self.side - picture.height) // 2)
            self.sheet.paste(picture, (left + margin[0], top + margin[1]))
        else:
            said = tile.state if tile.read is None else "deleted" if data is None else "cannot be read"
            self._label(tile, said, left, top)
        below = top + self.side + 2
        self._write(tile.title, left, below, _INK)
        self._write(tile.words, left, below + LINE, _FAINT)

    def _label(self, tile: Tile, said: str, left: int, top: int) -> None:
        box = (left, top, left + self.side - 1, top + self.side - 1)
        self.canvas.rectangle(box, fill=_TILES.get(tile.state, _PLAIN))
        middle = top + self.side // 2 - LINE
        self._write(said, left + 4, middle, _INK)
        self._write(tile.note, left + 4, middle + LINE, _FAINT)

    def _write(self, text: str, left: int, top: int, colour: tuple[int, int, int]) -> None:
        self.canvas.text((left, top), fit(text, self.side - 4, self.font), fill=colour, font=self.font)


def _thumbnail(data: bytes, side: int) -> Image.Image | None:
    """Return the picture as large as ``side`` x ``side`` pixels allow; None when it is none."""
    try:
        with Image.open(io.BytesIO(data)) as picture:
            picture.draft("RGB", (side, side))
            picture.thumbnail((side, side))
            return ImageOps.contain(picture.convert("RGB"), (side, side))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def fit(text: str, width: int, font: Font) -> str:
    """Return as much of ``text`` as is ``width`` pixels wide, in letters that the font has."""
    plain = make_drawable(text[:200]).replace(" ", "  ")  # the font's space is 2 pixels wide
    if font.getlength(plain) <= width:
        return plain
    kept = bisect_right(range(len(plain)), float(width), key=lambda count: _length(plain, count, font)) - 1
    return f"{plain[:kept].rstrip()}..." if kept > 0 else ""


def _length(text: str, count: int, font: Font) -> float:
    return float(font.getlength(f"{text[:count]}..."))


def make_drawable(text: str) -> str:
    """Return ``text`` in one line of ASCII: accents left off, what is no letter of it as ``?``."""
    bare = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    spaced = "".join(char if char.isprintable() else " " for char in bare.replace("\u00df", "ss"))
    return " ".join(spaced.encode("ascii", "replace").decode("ascii").split())

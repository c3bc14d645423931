"""Shows a small picture on a terminal: each cell is two pixels, the upper half block in two colours."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.console import Console
    from rich.text import Text

COLOURED = ("truecolor", "256")
WIDEST = 64


def show_picture(path: Path, console: "Console") -> None:
    """Print the picture where the output is a terminal with enough colours and columns; else nothing."""
    if not (console.is_terminal and console.color_system in COLOURED and console.width >= WIDEST):
        return
    from PIL import Image

    with Image.open(path) as picture:
        console.print(as_text(picture.convert("RGB")))


def as_text(picture: "Image") -> "Text":
    """The picture, at most `WIDEST` pixels wide, in lines of half blocks."""
    from rich.text import Text

    width = min(picture.width, WIDEST)
    height = max(2, round(picture.height * width / picture.width) // 2 * 2)
    pixels = picture.resize((width, height))
    text = Text(no_wrap=True)
    for y in range(0, height, 2):
        for x in range(width):
            text.append("▀", f"{_hex(pixels, x, y)} on {_hex(pixels, x, y + 1)}")
        text.append("\n")
    return text


def _hex(picture: "Image", x: int, y: int) -> str:
    red, green, blue = picture.getpixel((x, y))  # type: ignore[misc] # RGB has three
    return f"#{red:02x}{green:02x}{blue:02x}"

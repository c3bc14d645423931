"""What the tiny model can be asked to draw: scenes as plain values.

A scene holds only what its caption says; positions are jittered when it is drawn.
Colours are RGB, 0 to 255.
"""

from dataclasses import dataclass
from typing import Final

RGB = tuple[int, int, int]

COLOURS: Final[dict[str, RGB]] = {
    "red": (220, 40, 40),
    "orange": (245, 140, 20),
    "yellow": (250, 220, 40),
    "green": (40, 160, 60),
    "cyan": (60, 205, 215),
    "blue": (40, 80, 210),
    "purple": (140, 60, 180),
    "pink": (250, 140, 190),
    "brown": (125, 75, 40),
    "white": (250, 250, 250),
    "black": (25, 25, 30),
    "gray": (140, 140, 145),
}
# Top and bottom of the sky's gradient.
SKIES: Final[dict[str, tuple[RGB, RGB]]] = {
    "day": ((120, 190, 245), (190, 225, 250)),
    "night": ((14, 18, 52), (40, 46, 96)),
    "sunset": ((235, 110, 80), (252, 195, 120)),
}
# How much of its daylight everything below the sky keeps.
BRIGHTNESS: Final[dict[str, float]] = {"day": 1.0, "night": 0.72, "sunset": 0.92}
GROUNDS: Final[dict[str, RGB]] = {
    "meadow": (70, 165, 70),
    "beach": (235, 210, 150),
    "snow": (238, 243, 250),
    "sea": (35, 95, 170),
}
TREES: Final[dict[str, RGB]] = {"green": (35, 130, 55), "orange": (235, 130, 30), "pink": (245, 150, 190)}
MOUNTAIN: Final[RGB] = (120, 115, 135)
HILL: Final[RGB] = (60, 120, 75)
SUN: Final[RGB] = (255, 225, 60)
MOON: Final[RGB] = (245, 240, 215)

WALLS: Final = ("white", "yellow", "pink", "gray", "red", "blue", "green", "orange", "purple", "brown")
ROOFS: Final = WALLS
SAILS: Final = ("white", "yellow", "pink", "red", "orange", "blue", "purple")
FAR: Final = ("mountains", "hills")
SIDES: Final = ("left", "right")

SHAPES: Final = ("circle", "square", "triangle", "star", "heart", "diamond", "ring", "cross")
# Smallest and largest radius, as a share of the picture's width.
SIZES: Final[dict[str, tuple[float, float]]] = {
    "small": (0.11, 0.14),
    "medium": (0.17, 0.20),
    "large": (0.26, 0.30),
}
# Centre (x, y) as a share of the picture.
PLACES: Final[dict[str, tuple[float, float]]] = {
    "center": (0.5, 0.5),
    "left": (0.25, 0.5),
    "right": (0.75, 0.5),
    "top": (0.5, 0.25),
    "bottom": (0.5, 0.75),
    "top left": (0.26, 0.26),
    "top right": (0.74, 0.26),
    "bottom left": (0.26, 0.74),
    "bottom right": (0.74, 0.74),
}


@dataclass(frozen=True, slots=True)
class Landscape:
    """A house, a boat or a tree under a sky.

    Attributes:
        sky: A key of SKIES.
        ground: A key of GROUNDS; "sea" exactly when there is a boat.
        side: Where the main object stands, "left" or "right".
        wall: Colour of the house, or None without a house.
        roof: Colour of its roof, or None without a house.
        sail: Colour of the boat's sail, or None without a boat.
        tree: A key of TREES or None. It stands opposite the house, or is itself the main object.
        far: "mountains", "hills" or None.
        light: Side of the sun (the moon at night), or None.
    """

    sky: str
    ground: str
    side: str
    wall: str | None = None
    roof: str | None = None
    sail: str | None = None
    tree: str | None = None
    far: str | None = None
    light: str | None = None

    @property
    def tree_side(self) -> str:
        """The side where the tree stands, if there is one."""
        if self.wall is None:
            return self.side
        return "right" if self.side == "left" else "left"


@dataclass(frozen=True, slots=True)
class Shape:
    """One flat shape on a plain background."""

    shape: str
    colour: str
    size: str
    place: str
    background: str


Scene = Landscape | Shape

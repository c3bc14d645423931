"""A picture that is given to a job: its size, the size of the result, and the part of it that is drawn over.

A picture is never stretched. It is scaled until it covers the size of the result; what then stands over at
two opposite sides is cut off, the same at both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from policy.spec_tables import Size, SizeLimits

Box = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class GivenPicture:
    """A file that a request names: its id, the SHA-256 of its bytes, its upright size in pixels."""

    id: str
    sha256: str
    size: Size


Given = Mapping[str, GivenPicture]
"""The files that are known, by the text that names them in a request."""


class PlannedPicture(BaseModel):
    """One picture of a plan.

    Attributes:
        sha256: Of the file as it was sent.
        width: Pixels of the picture as it is to be seen, turned upright.
        height: As `width`.
        crop: Left, top, right and bottom of the part that becomes the result's size, in pixels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    width: int = Field(gt=0)
    height: int = Field(gt=0)
    crop: Box

    @classmethod
    def cut(cls, sha256: str, size: Size, result: Size) -> Self:
        """Returns the picture of this size, cut to the shape of the result."""
        return cls(sha256=sha256, width=size[0], height=size[1], crop=crop_box(size, result))


def crop_box(size: Size, result: Size) -> Box:
    """Returns the largest part of a picture that has the shape of the result, from its middle."""
    width, height = size
    scale = max(result[0] / width, result[1] / height)
    part_width = min(width, max(1, round(result[0] / scale)))
    part_height = min(height, max(1, round(result[1] / scale)))
    left, top = (width - part_width) // 2, (height - part_height) // 2
    return (left, top, left + part_width, top + part_height)


def size_like(size: Size, limits: SizeLimits) -> Size:
    """Returns the size of a result that has a picture's shape, as far as the model allows.

    It has as many pixels as the picture but not more than the model's default size; sides are multiples of
    the model's own, between its limits.
    """
    width, height = size
    most = math.prod(limits.default)
    scale = min(1.0, math.sqrt(most / (width * height)))
    scale = max(scale, limits.minimum / min(width, height))
    sides = [_side(side * scale, limits) for side in (width, height)]
    while math.prod(sides) > limits.max_pixels:
        longer = sides.index(max(sides))
        sides[longer] -= limits.multiple
    return (sides[0], sides[1])


def _side(wanted: float, limits: SizeLimits) -> int:
    lowest = -(-limits.minimum // limits.multiple) * limits.multiple
    highest = limits.maximum // limits.multiple * limits.multiple
    return min(max(round(wanted / limits.multiple) * limits.multiple, lowest), highest)

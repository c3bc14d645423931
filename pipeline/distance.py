"""How far pictures are from others that should look the same: the peak signal-to-noise ratio."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
_PEAK = 255.0


class Distance(NamedTuple):
    """In decibels; None: the same bytes, which is no finite number.

    Attributes:
        all_db: Of all pictures, from their mean squared error together.
        worst_db: Of the picture that is farthest away.
    """

    all_db: float | None
    worst_db: float | None


def measure_distance(pictures: Sequence[Pixels], references: Sequence[Pixels]) -> Distance:
    """Compares pictures, uint8 of any shape, each with its reference of the same shape."""
    errors = [
        float(np.mean((picture.astype(np.float64) - reference) ** 2))
        for picture, reference in zip(pictures, references, strict=True)
    ]
    return Distance(_decibels(sum(errors) / len(errors)), _decibels(max(errors)))


def _decibels(error: float) -> float | None:
    return round(float(10 * np.log10(_PEAK**2 / error)), 1) if error else None

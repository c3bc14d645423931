"""Pictures that are given to a job, made ready for its passes, and what a mask keeps of them."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from pipeline.errors import Unsupported
from policy.pictures import PlannedPicture
from policy.plan import RenderPlan

PAINTED = 128
"""A mask is painted over from this grey on; diffusers' pipelines draw the line at the same place."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Pictures as they were sent: upright, any size, RGB; the mask, if any, in greys, white to paint over."""

    image: Image.Image
    mask: Image.Image | None = None


@dataclass(frozen=True, slots=True)
class Fitted:
    """The same at the size of the result; the mask in black and white."""

    image: Image.Image
    mask: Image.Image | None

    def restore(self, pixels: np.ndarray) -> np.ndarray:
        """Returns the result with the given picture, to the bit, where its mask is black.

        Args:
            pixels: uint8, shape (H, W, 3).
        """
        if self.mask is None:
            return pixels
        painted = np.asarray(self.mask)[..., None] >= PAINTED
        return np.where(painted, pixels, np.asarray(self.image))


def fit(inputs: Inputs | None, plan: RenderPlan) -> Fitted | None:
    """Cuts and scales the pictures as the plan says; None when the plan has none.

    Raises:
        Unsupported: The pictures are not those of the plan.
    """
    if plan.image is None:
        if inputs is not None:
            raise Unsupported("the plan draws from no picture, and one was given")
        return None
    if inputs is None or (inputs.mask is None) != (plan.mask is None):
        raise Unsupported("the plan draws from a picture that was not given, or not with its mask")
    size = (plan.width, plan.height)
    image = _cut(inputs.image.convert("RGB"), plan.image, size)
    if inputs.mask is None or plan.mask is None:
        return Fitted(image, None)
    grey = _cut(inputs.mask.convert("L"), plan.mask, size)
    return Fitted(image, grey.point(lambda value: 255 if value >= PAINTED else 0))


def stand_in(plan: RenderPlan) -> Fitted | None:
    """Returns a picture for a pass of the warm-up, where only its size counts."""
    if plan.image is None:
        return None
    size = (plan.width, plan.height)
    grey = Image.linear_gradient("L").resize(size)
    return Fitted(Image.merge("RGB", (grey, grey, grey)), None if plan.mask is None else grey)


def _cut(picture: Image.Image, planned: PlannedPicture, size: tuple[int, int]) -> Image.Image:
    if picture.size != (planned.width, planned.height):
        found = "x".join(map(str, picture.size))
        raise Unsupported(f"the picture is {found}; the plan was made for {planned.width}x{planned.height}")
    return picture.resize(size, Image.Resampling.LANCZOS, box=planned.crop)

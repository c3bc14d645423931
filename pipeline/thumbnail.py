"""A small picture of a video's first frame, for lists and pages."""

from typing import Final

from PIL import Image

from pipeline.errors import Unsupported
from pipeline.rendering import Picture

LONGEST_SIDE: Final = 512
FORMAT: Final = "webp"


def thumbnail(video: Picture) -> Picture:
    """Returns the first frame, its longer side at most ``LONGEST_SIDE`` pixels.

    Raises:
        Unsupported: The picture is no video.
    """
    if video.frames is None:
        raise Unsupported("an image is its own thumbnail")
    image = Image.fromarray(video.frames[0])
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    return Picture(video.index, video.seed, image=image, frames=None)

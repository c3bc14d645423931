"""Reads the pictures that callers send: what they are, and whether they can be drawn from as they are.

A picture is turned upright by its own word (EXIF) and brought to sRGB from its colour profile (ICC). One that
would lose something without a word is refused: transparency, frames beyond the first, more than 8 bits a
channel, inks in place of light. What a phone puts behind the first frame of a JPEG (MPO: a gain map) is no
animation. Pillow is loaded when the first picture comes.
"""

import threading
import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Final

from core.colours import find_transform, in_srgb

if TYPE_CHECKING:
    from PIL.Image import Image

LIMIT_BYTES: Final = 20 * 1024 * 1024
LIMIT_PIXELS: Final = 36_000_000
"""6000 x 6000; some 110 MB when it is decoded."""
LIMIT_SIDE: Final = 16_384
_FORMATS = ("PNG", "JPEG", "WEBP")
_MEDIA_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "MPO": "image/jpeg", "WEBP": "image/webp"}
_PNG_DEPTH = 24
"""Where a PNG says how many bits a channel has; Pillow reads 8 of 16 without a word."""
_PLACES = threading.BoundedSemaphore(2)
"""So many are decoded at a time: a file of 100 kB may become 110 MB, and calls come by the dozen."""
_MODES = frozenset({"1", "L", "P", "RGB", "LA", "PA", "RGBA"})


class BadPicture(Exception):
    """The bytes are no picture that can be drawn from; the message goes on from "the picture ..."."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a picture is.

    Attributes:
        media_type: image/png, image/jpeg or image/webp.
        width: Pixels, upright.
        height: As `width`.
        bytes: Of the file.
    """

    media_type: str
    width: int
    height: int
    bytes: int


def examine(data: bytes) -> Facts:
    """Return what the picture in ``data`` is, after decoding all of it.

    Raises:
        BadPicture: It cannot be drawn from; large ones are refused before they are decoded.
    """
    if len(data) > LIMIT_BYTES:
        raise BadPicture(f"has {len(data)} bytes; at most {LIMIT_BYTES} are taken")
    image = _opened(data)
    media_type = _MEDIA_TYPES[str(image.format)]
    upright = _decoded(image)
    return Facts(media_type, upright.width, upright.height, len(data))


def read_picture(data: bytes) -> "Image":
    """Return the picture upright, in RGB, in the colours of sRGB.

    Raises:
        BadPicture: As ``examine``.
    """
    return in_srgb(_decoded(_opened(data)))


def _opened(data: bytes) -> "Image":
    from PIL import Image  # noqa: PLC0415 - loaded when needed

    try:
        with warnings.catch_warnings():
            # The size is looked at below, before anything is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError:
        raise BadPicture(f"has far more than {LIMIT_PIXELS} pixels") from None
    except Exception as error:
        # Pillow's readers raise whatever a damaged file makes them stumble over.
        raise BadPicture("is no PNG, JPEG or WebP, or is damaged") from error
    _check_head(image)
    if image.format == "PNG" and data[_PNG_DEPTH] > 8:
        raise BadPicture(f"has {data[_PNG_DEPTH]} bits a channel; save it with 8 bits in RGB or grey")
    return image


def _check_head(image: "Image") -> None:
    width, height = image.size
    if width * height > LIMIT_PIXELS or max(width, height) > LIMIT_SIDE:
        limits = f"at most {LIMIT_PIXELS} pixels and {LIMIT_SIDE} a side are taken"
        raise BadPicture(f"is {width}x{height}; {limits}")
    if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
        raise BadPicture("is animated; send one frame of it")
    if image.mode not in _MODES:
        raise BadPicture(f"has the pixel format {image.mode}; save it with 8 bits in RGB or grey")


def _decoded(image: "Image") -> "Image":
    from PIL import ImageOps  # noqa: PLC0415 - loaded when needed

    try:
        with _PLACES:
            image.load()
            upright = ImageOps.exif_transpose(image)
            transparent = _is_transparent(upright)
    except Exception as error:
        raise BadPicture("is damaged: it cannot be decoded to its end") from error
    if transparent:
        raise BadPicture("has transparent pixels; put it on a background first")
    try:
        find_transform(upright)
    except ValueError:
        raise BadPicture("has a colour profile that cannot be used; save it in sRGB") from None
    return upright


def _is_transparent(image: "Image") -> bool:
    if not image.has_transparency_data:
        return False
    lowest, _ = image.convert("RGBA").getchannel("A").getextrema()
    return bool(isinstance(lowest, int | float) and lowest < 255)

"""Brings a picture from the colours of its profile (ICC) to those of sRGB, in which every model draws."""

from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageCms import ImageCmsTransform

_SAME = 2
"""A profile that moves no colour by more levels of 255, which rounding does, is sRGB by whatever name."""
_SPACES = {"RGB": "RGB", "GRAY": "L"}
_GREYS = frozenset({"1", "L", "LA"})


def in_srgb(image: "Image") -> "Image":
    """Return the picture in RGB, in the colours of sRGB; one without a profile is in them.

    Raises:
        ValueError: Its profile is damaged, or is not one for its pixels.
    """
    transform = find_transform(image)
    if transform is None:
        return image.convert("RGB")
    return transform.apply(image.convert(transform.input_mode))


def find_transform(image: "Image") -> "ImageCmsTransform | None":
    """Return what brings the picture's colours to sRGB; None when they are in it.

    Raises:
        ValueError: As ``in_srgb``.
    """
    embedded = image.info.get("icc_profile")
    if not embedded:
        return None
    from PIL import ImageCms  # noqa: PLC0415 - loaded when needed

    try:
        profile = ImageCms.ImageCmsProfile(BytesIO(embedded))
        mode = _SPACES[profile.profile.xcolor_space.strip()]
        if mode == "L" and image.mode not in _GREYS:
            raise ValueError("a profile of greys")
        transform = ImageCms.buildTransform(profile, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, KeyError, TypeError) as error:
        raise ValueError("no profile of colours") from error
    return None if _changes_nothing(transform, mode) else transform


def _changes_nothing(transform: "ImageCmsTransform", mode: str) -> bool:
    from PIL import ImageChops  # noqa: PLC0415 - loaded when needed

    samples = _samples(mode)
    moved = ImageChops.difference(transform.apply(samples), samples.convert("RGB"))
    most = max(int(high) for _, high in moved.getextrema())  # type: ignore[misc]
    return most <= _SAME


def _samples(mode: str) -> "Image":
    from PIL import Image  # noqa: PLC0415 - loaded when needed

    if mode == "L":
        return Image.frombytes("L", (256, 1), bytes(range(256)))
    levels = range(0, 256, 51)
    colours = bytes(
        level for red in levels for green in levels for blue in levels for level in (red, green, blue)
    )
    return Image.frombytes("RGB", (len(colours) // 3, 1), colours)

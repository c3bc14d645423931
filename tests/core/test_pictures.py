"""Pictures that callers send: what is taken as it is, and what is refused because it would lose something."""

import io
import struct
import zlib

import pytest
from PIL import Image

from core import pictures
from core.pictures import BadPicture, examine, read_picture


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def colours() -> Image.Image:
    image = Image.new("RGB", (40, 20), "red")
    image.paste("blue", (20, 0, 40, 20))
    return image


@pytest.mark.parametrize(
    ("kind", "media_type"), [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("WEBP", "image/webp")]
)
def test_three_formats_are_taken(kind: str, media_type: str) -> None:
    data = saved(colours(), kind)
    facts = examine(data)
    assert (facts.media_type, facts.width, facts.height, facts.bytes) == (media_type, 40, 20, len(data))
    assert read_picture(data).size == (40, 20)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "LA"])
def test_greys_palettes_and_opaque_alpha_are_read_as_rgb(mode: str) -> None:
    image = colours().convert(mode)
    assert read_picture(saved(image)).tobytes() == image.convert("RGB").tobytes()


def test_a_picture_is_turned_as_its_camera_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    data = saved(colours(), "JPEG", exif=exif.tobytes(), quality=95, subsampling=0)
    assert (examine(data).width, examine(data).height) == (20, 40)
    upright = read_picture(data)
    red, _, blue = upright.getpixel((10, 5))  # type: ignore[misc]
    assert red > 200
    assert blue < 50


def animated() -> bytes:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    return saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], duration=50)


def transparent() -> bytes:
    image = colours().convert("RGBA")
    image.putpixel((0, 0), (0, 0, 0, 254))
    return saved(image)


def bomb(width: int, height: int) -> bytes:
    """A head that promises a picture of that size and a body of a few bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is no PNG, JPEG or WebP"),
        (b"hello", "is no PNG, JPEG or WebP"),
        (saved(colours(), "GIF"), "is no PNG, JPEG or WebP"),
        (saved(colours(), "BMP"), "is no PNG, JPEG or WebP"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is no PNG, JPEG or WebP"),
        (saved(colours())[:-30], "is damaged: it cannot be decoded to its end"),
        (saved(colours(), "JPEG")[:-60], "is damaged"),
        (animated(), "is animated; send one frame of it"),
        (transparent(), "has transparent pixels; put it on a background first"),
        (saved(colours().convert("CMYK"), "JPEG"), "pixel format CMYK"),
        (saved(Image.new("I;16", (8, 8))), "pixel format I;16; save it with 8 bits"),
        (bomb(6001, 6001), "is 6001x6001; at most 36000000 pixels"),
        (bomb(60_000, 60_000), "far more than 36000000 pixels"),
        (bomb(16_400, 10), "is 16400x10; at most"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(BadPicture, match=words.replace("(", r"\(")):
        examine(data)


def test_large_files_are_refused_before_they_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "LIMIT_BYTES", 50)
    with pytest.raises(BadPicture, match="bytes; at most 50 are taken"):
        examine(saved(colours()))

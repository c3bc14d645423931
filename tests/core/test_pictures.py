"""Pictures that callers send: what is taken as it is, and what is refused because it would lose something."""

import io
import struct
import zlib

import pytest
from PIL import Image, ImageCms

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


def gamma(value: float, kind: bytes = b"RGB ") -> bytes:
    """A profile of the primaries of sRGB, or of greys, whose tone curve is a plain power."""
    place = struct.Struct(">i")

    def xyz(*values: float) -> bytes:
        return b"XYZ " + bytes(4) + b"".join(place.pack(round(each * 65536)) for each in values)

    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, round(value * 256)) + bytes(2)
    text = b"desc" + bytes(4) + struct.pack(">I", 2) + b"x" + bytes(79)
    tags = {b"desc": text, b"cprt": b"text" + bytes(4) + b"x" + bytes(3), b"wtpt": xyz(0.9642, 1.0, 0.8249)}
    if kind == b"GRAY":
        tags |= {b"kTRC": curve}
    else:
        tags |= {b"rXYZ": xyz(0.4361, 0.2225, 0.0139), b"gXYZ": xyz(0.3851, 0.7169, 0.0971)}
        tags |= {b"bXYZ": xyz(0.1431, 0.0606, 0.7141), b"rTRC": curve, b"gTRC": curve, b"bTRC": curve}
    at, table, body = 128 + 4 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for name, tag in tags.items():
        padded = tag + bytes(-len(tag) % 4)
        table += name + struct.pack(">II", at + len(body), len(tag))
        body += padded
    head = bytes(4) + bytes(4) + bytes.fromhex("02100000") + b"mntr" + kind + b"XYZ " + bytes(12) + b"acsp"
    head += bytes(28) + b"".join(place.pack(round(each * 65536)) for each in (0.9642, 1.0, 0.8249))
    head = (head + bytes(128))[:128]
    whole = head + table + body
    return struct.pack(">I", len(whole)) + whole[4:]


@pytest.mark.parametrize("kind", [b"RGB ", b"GRAY"])
def test_a_picture_is_brought_from_its_colour_profile_to_srgb(kind: bytes) -> None:
    """A grey of 128 under a gamma of 1.0 is half of the light, which is 188 in sRGB."""
    image = Image.new("RGB" if kind == b"RGB " else "L", (8, 8), "#808080")
    data = saved(image, icc_profile=gamma(1.0, kind))
    examine(data)
    read = read_picture(data)
    assert read.mode == "RGB"
    assert all(abs(int(level) - 188) <= 1 for level in read.getpixel((4, 4)))  # type: ignore[union-attr, arg-type]


def test_a_picture_whose_profile_is_srgb_is_read_to_the_bit() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    noise = Image.effect_noise((40, 20), 80).convert("RGB")
    assert read_picture(saved(noise, icc_profile=profile)).tobytes() == noise.tobytes()


def test_of_a_phones_picture_the_first_frame_is_taken() -> None:
    behind = Image.new("RGB", (20, 10), "green")
    data = saved(colours(), "MPO", save_all=True, append_images=[behind], quality=95)
    facts = examine(data)
    assert (facts.media_type, facts.width, facts.height) == ("image/jpeg", 40, 20)
    red, _, blue = read_picture(data).getpixel((5, 10))  # type: ignore[misc]
    assert red > 200
    assert blue < 50


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def deep(kind: int, channels: int) -> bytes:
    """A PNG of 16 bits a channel."""

    head = struct.pack(">IIBBBBB", 4, 4, 16, kind, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x12\x34" * 4 * channels) * 4)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def animated() -> bytes:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    return saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], duration=50)


def transparent() -> bytes:
    image = colours().convert("RGBA")
    image.putpixel((0, 0), (0, 0, 0, 254))
    return saved(image)


def bomb(width: int, height: int) -> bytes:
    """A head that promises a picture of that size and a body of a few bytes."""

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
        (deep(2, 3), "has 16 bits a channel; save it with 8 bits"),
        (deep(6, 4), "has 16 bits a channel"),
        (deep(4, 2), "has 16 bits a channel"),
        (saved(colours(), icc_profile=b"no profile"), "colour profile that cannot be used; save it in sRGB"),
        (saved(colours(), icc_profile=gamma(1.0, b"GRAY")), "colour profile that cannot be used"),
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

"""Files say how they were made, whatever text they carry and whatever becomes of them later."""

import io
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from pipeline import versions
from pipeline.encode import ProvenanceMissing, encode, extension, media_type, read_provenance
from pipeline.errors import Unsupported
from pipeline.rendering import Picture

FORMATS = ("png", "jpeg", "webp", "mp4")
PROMPTS = {
    "plain": "a red house",
    "empty": "",
    "emoji": "a 🏠 with a 👩‍👩‍👧‍👦 and 🇪🇺",
    "lines": "one\ntwo\r\nthree\ttab\u2028four\u0085five",
    "right to left": "بيت أحمر \u202e שלום \u200f",
    "markup": "<b>&amp;</b> ]]> \"quoted\" 'single' </renderq:provenance> -->",
    "control": "null \x00 bell \x07 delete \x7f end \ufffe \uffff",
    "half a character": "\ud83c alone",
    "10 kB": "a house by the sea. " * 512,
}


def picture_for(output_format: str) -> Picture:
    draw = np.random.default_rng(3)
    if output_format == "mp4":
        ramp = np.linspace(0, 255, 9)[:, None, None, None] * np.ones((9, 64, 48, 3))
        return Picture(0, 7, None, ramp.astype(np.uint8))
    return Picture(0, 7, Image.fromarray(draw.integers(0, 256, (64, 48, 3), dtype=np.uint8)), None)


def encoded(output_format: str, provenance: dict[str, object]) -> bytes:
    return encode(picture_for(output_format), output_format, provenance, fps=8)


def provenance_of(prompt: str) -> dict[str, object]:
    plan = {"prompt": prompt, "seed": 2**53 - 1, "guidance_scale": 3.5, "n": 1, "fps": None}
    return {"request": {"prompt": prompt}, "plan": plan, "versions": versions.collect(), "list": [1, [True]]}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
@pytest.mark.parametrize("output_format", FORMATS)
def test_provenance_survives(output_format: str, prompt: str) -> None:
    provenance = provenance_of(prompt)
    data = encoded(output_format, provenance)
    assert read_provenance(data) == provenance


@pytest.mark.parametrize("output_format", FORMATS)
def test_provenance_longer_than_a_jpeg_segment_survives(output_format: str) -> None:
    provenance = provenance_of("🏠 by the sea, " * 10_000)
    assert read_provenance(encoded(output_format, provenance)) == provenance


@pytest.mark.parametrize("output_format", FORMATS)
def test_the_same_input_gives_the_same_bytes_whatever_the_order_of_its_keys(output_format: str) -> None:
    provenance = provenance_of("a red house")
    turned = dict(reversed(provenance.items()))
    assert encoded(output_format, provenance) == encoded(output_format, turned)


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_file_on_disk_reads_like_its_bytes(output_format: str, tmp_path: Path) -> None:
    path = tmp_path / f"picture{extension(output_format)}"
    path.write_bytes(encoded(output_format, {"seed": 1}))
    assert read_provenance(path) == read_provenance(str(path)) == {"seed": 1}


@pytest.mark.parametrize("output_format", ["png", "webp", "jpeg"])
def test_an_image_keeps_its_pixels(output_format: str) -> None:
    flat = Image.new("RGB", (48, 64), (200, 50, 50))
    data = encode(Picture(0, 1, flat, None), output_format, {"seed": 1})
    read = Image.open(io.BytesIO(data))
    assert Image.MIME[str(read.format)] == media_type(output_format)
    pixels = np.asarray(read.convert("RGB"), dtype=int)
    assert np.abs(pixels - np.array([200, 50, 50])).max() <= (0 if output_format == "png" else 2)


def test_png_keeps_every_pixel() -> None:
    picture = picture_for("png")
    assert picture.image is not None
    read = Image.open(io.BytesIO(encode(picture, "png", {})))
    assert read.tobytes() == picture.image.tobytes()


@pytest.mark.parametrize("side", [64, 63])
def test_a_video_keeps_frames_rate_and_colour(side: int) -> None:
    frames = np.broadcast_to(np.array([200, 50, 50], np.uint8), (9, side, side, 3))
    data = encode(Picture(0, 1, None, frames), "mp4", {}, fps=12)
    assert data.index(b"moov") < data.index(b"mdat"), "the index stands in front"
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        pictures = [
            frame.to_ndarray(format="rgb24", src_colorspace="ITU709") for frame in container.decode(stream)
        ]
        assert (len(pictures), stream.average_rate, stream.pix_fmt) == (9, 12, "yuv420p")
        assert pictures[0].shape == (64, 64, 3)
    assert np.abs(pictures[4].astype(int) - np.array([200, 50, 50])).max() <= 3


@pytest.mark.parametrize("output_format", FORMATS)
def test_other_software_can_see_who_made_the_file(output_format: str) -> None:
    data = encoded(output_format, {"seed": 1})
    if output_format == "mp4":
        with av.open(io.BytesIO(data)) as container:
            told = container.metadata["description"]
            assert "seed" in container.metadata["comment"]
    else:
        image = Image.open(io.BytesIO(data))
        told = str(image.getexif().get(0x0131) or image.info["Software"])
    assert versions.software() in told
    assert versions.software().startswith("renderq 0.")


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_truncated_file_is_refused_in_words_or_still_read(output_format: str) -> None:
    data = encoded(output_format, provenance_of("a house"))
    for length in range(0, len(data), max(1, len(data) // 150)):
        assert told_or_refused(data[:length]) in (None, provenance_of("a house"))
    assert told_or_refused(data[:40]) is None


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_damaged_file_never_raises_anything_else(output_format: str) -> None:
    data = encoded(output_format, provenance_of("a house"))
    dice = random.Random(1)
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(dice.randint(1, 12)):
            damaged[dice.randrange(min(len(data), 1500))] = dice.randrange(256)
        told_or_refused(bytes(damaged))


def told_or_refused(data: bytes) -> dict[str, object] | None:
    try:
        return read_provenance(data)
    except ProvenanceMissing:
        return None


def strange_files() -> dict[str, bytes]:
    plain = {kind: io.BytesIO() for kind in ("PNG", "JPEG", "WEBP", "GIF")}
    for kind, buffer in plain.items():
        Image.new("RGB", (8, 8)).save(buffer, kind)
    box = struct.pack(">I4s", 0, b"moov")
    return {kind: buffer.getvalue() for kind, buffer in plain.items()} | {
        "nothing": b"",
        "text": b"a text file\n" * 20,
        "html": b"<html><script>alert(1)</script></html>",
        "zeros": bytes(4096),
        "png head only": b"\x89PNG\r\n\x1a\n",
        "endless png": b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 10**9, 10**9, 8, 2, 0, 0, 0)),
        "mp4 head only": b"\0\0\0\x18ftypisom",
        "mp4 box of no size": b"\0\0\0\x10ftypisom\0\0\0\0" + struct.pack(">I4s", 4, b"moov"),
        "mp4 box that ends where it starts": b"\0\0\0\x10ftypisom\0\0\0\0"
        + struct.pack(">I4sQ", 1, b"free", 8),
        "mp4 endless box": b"\0\0\0\x10ftypisom\0\0\0\0" + box,
        "mp4 large box": b"\0\0\0\x10ftypisom\0\0\0\0" + struct.pack(">I4sQ", 1, b"moov", 2**63),
        "text bomb": png_with(b"zTXt", b"renderq\0\0" + zlib.compress(b" " * 10**8)),
        "deep json": png_with(b"iTXt", b"renderq\0\0\0\0\0" + b"[" * 200_000),
        "not an object": png_with(b"iTXt", b"renderq\0\0\0\0\0[1]"),
        "long number": png_with(b"iTXt", b"renderq\0\0\0\0\0" + b"9" * 10_000),
    }


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_with(name: bytes, body: bytes) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    data = buffer.getvalue()
    return data[:33] + chunk(name, body) + data[33:]


@pytest.mark.parametrize("data", strange_files().values(), ids=strange_files().keys())
def test_a_file_that_is_not_ours_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(ProvenanceMissing, match=r"\w+ \w+"):
        read_provenance(data)


def test_a_missing_file_and_a_folder_are_refused_in_words(tmp_path: Path) -> None:
    for path in (tmp_path / "none.png", tmp_path):
        with pytest.raises(ProvenanceMissing, match="cannot be read"):
            read_provenance(path)


def test_the_comment_of_other_software_is_not_taken_for_ours() -> None:
    from pipeline import mp4

    for comment in ("shot on holiday", '{"seed": 1}', "[1]", '{"renderq": null}'):
        frames = np.zeros((2, 16, 16, 3), np.uint8)
        with pytest.raises(ProvenanceMissing, match="no provenance"):
            read_provenance(mp4.write(frames, 2, comment, "other 1.0"))


def test_a_part_missing_from_a_long_jpeg_text_is_noticed() -> None:
    data = encoded("jpeg", provenance_of("🏠 by the sea, " * 10_000))
    second = data.index(b"http://ns.adobe.com/xmp/extension/", 70_000) - 4
    size = int.from_bytes(data[second + 2 : second + 4]) + 2
    with pytest.raises(ProvenanceMissing):
        read_provenance(data[:second] + data[second + size :])


def test_a_format_that_does_not_fit_the_picture_is_refused() -> None:
    with pytest.raises(Unsupported, match="gif"):
        encoded("gif", {})
    with pytest.raises(Unsupported, match="gif"):
        media_type("gif")
    with pytest.raises(Unsupported, match="mp4"):
        encode(picture_for("mp4"), "png", {})
    for picture in (picture_for("png"), picture_for("mp4")):
        with pytest.raises(Unsupported, match="frames"):
            encode(picture, "mp4", {}, fps=None)


def test_what_json_cannot_say_is_refused_instead_of_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encoded("png", {"seconds": float("nan")})


def test_versions_name_what_shapes_a_picture() -> None:
    assert set(versions.collect()) == {"renderq", "torch", "diffusers", "cache-dit", "transformers", "python"}


def test_reading_a_file_loads_no_gpu_stack() -> None:
    code = """import sys, pipeline.encode, pipeline.versions
pipeline.versions.collect()
sys.exit(", ".join({"torch", "numpy", "av", "diffusers", "transformers"} & set(sys.modules)) or None)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

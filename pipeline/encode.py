"""A picture to the bytes of a file that says how it was made, and back.

PNG carries the provenance as international text, JPEG and WebP as XMP, MP4 as the comment. The same picture
and provenance give the same bytes. Nothing of the GPU stack is imported: ``renderq inspect`` reads with this.
"""

import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast

from PIL import Image, PngImagePlugin

from pipeline import mp4, versions, xmp
from pipeline.errors import PipelineError, Unsupported
from pipeline.rendering import Picture

KEY = "renderq"
EXIF_SOFTWARE = 0x0131

# Half characters cannot be written as UTF-8, the others are not allowed in XML. In JSON all of them stand
# inside strings, where an escape means the same.
_UNSAFE = re.compile("[\ud800-\udfff\ufffe\uffff\x7f-\x9f]")


class ProvenanceMissing(PipelineError):
    """The file cannot be read as one of ours, or says nothing about how it was made."""

    code = "provenance_missing"


def encode(
    picture: Picture, output_format: str, provenance: Mapping[str, object], fps: int | None = None
) -> bytes:
    """Bytes of the file.

    Args:
        picture: An image for png, jpeg and webp; frames for mp4.
        output_format: One of ``png``, ``jpeg``, ``webp``, ``mp4``.
        provenance: JSON values only.
        fps: Frames per second, needed for mp4.

    Raises:
        Unsupported: The format is unknown or does not fit the picture.
    """
    _find(output_format)
    if output_format == "mp4":
        if picture.frames is None or fps is None:
            raise Unsupported("mp4 needs frames and their number per second; the picture is an image")
        return mp4.write(picture.frames, fps, _to_json({KEY: provenance}), versions.software())
    if picture.image is None:
        raise Unsupported(f"{output_format} needs an image; the picture is a video, which is written as mp4")
    return _IMAGE_WRITERS[output_format](picture.image, _to_json(provenance))


def media_type(output_format: str) -> str:
    """Media type of a format, such as ``image/png``."""
    return _find(output_format).media_type


def extension(output_format: str) -> str:
    """End of a file's name with its dot, such as ``.png``."""
    return _find(output_format).extension


def read_provenance(source: bytes | str | Path) -> dict[str, object]:
    """What :func:`encode` was given, from the file or its bytes.

    Raises:
        ProvenanceMissing: For anything else, whatever the file holds.
    """
    try:
        with BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as stream:
            text = _read_text(stream)
    except OSError as error:
        raise ProvenanceMissing(f"the file cannot be read: {error}") from error
    if text is None:
        raise ProvenanceMissing("the file holds no provenance")
    return _from_json(text)


@dataclass(frozen=True, slots=True)
class _Format:
    media_type: str
    extension: str


_FORMATS: Mapping[str, _Format] = {
    "png": _Format("image/png", ".png"),
    "jpeg": _Format("image/jpeg", ".jpg"),
    "webp": _Format("image/webp", ".webp"),
    "mp4": _Format("video/mp4", ".mp4"),
}


def _find(output_format: str) -> _Format:
    if output_format not in _FORMATS:
        raise Unsupported(f"output_format {output_format!r} is unknown; known: {', '.join(_FORMATS)}")
    return _FORMATS[output_format]


def _to_json(value: Mapping[str, object]) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def _from_json(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProvenanceMissing(f"the provenance in the file is damaged: {error}") from error
    if not isinstance(value, dict):
        raise ProvenanceMissing("the provenance in the file is not an object")
    return cast("dict[str, object]", value)


def _write_png(image: Image.Image, text: str) -> bytes:
    chunks = PngImagePlugin.PngInfo()
    chunks.add_text("Software", versions.software())
    chunks.add_itxt(KEY, text)
    return _save(image, "PNG", pnginfo=chunks)


def _write_jpeg(image: Image.Image, text: str) -> bytes:
    main, extension_segments = xmp.split(text, versions.software())
    data = _save(image, "JPEG", quality=95, subsampling=0, xmp=main, exif=_exif())
    first = 4 + int.from_bytes(data[4:6])  # start marker and the JFIF segment, which must stay in front
    return data[:first] + extension_segments + data[first:]


def _write_webp(image: Image.Image, text: str) -> bytes:
    return _save(image, "WEBP", quality=92, xmp=xmp.packet(text, versions.software()), exif=_exif())


_IMAGE_WRITERS: Mapping[str, Callable[[Image.Image, str], bytes]] = {
    "png": _write_png,
    "jpeg": _write_jpeg,
    "webp": _write_webp,
}


def _save(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.convert("RGB").save(buffer, kind, **options)
    return buffer.getvalue()


def _exif() -> bytes:
    exif = Image.Exif()
    exif[EXIF_SOFTWARE] = versions.software()
    return exif.tobytes()


def _read_text(stream: BinaryIO) -> str | None:
    head = stream.read(12)
    stream.seek(0)
    if head[4:8] == b"ftyp":
        comment = mp4.read_comment(stream)
        return _unwrap(comment) if comment else None
    try:
        with warnings.catch_warnings():
            # Only heads are read here, so a large picture costs nothing.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return _image_text(Image.open(stream, formats=("PNG", "JPEG", "WEBP")))
    except Image.DecompressionBombError as error:
        raise ProvenanceMissing(f"the picture is too large to be looked into: {error}") from error
    except Exception as error:
        # Pillow's readers raise whatever a damaged file makes them stumble over.
        raise ProvenanceMissing("the file is no PNG, JPEG, WebP or MP4, or is damaged") from error


def _image_text(image: Image.Image) -> str | None:
    if image.format == "PNG":
        text = image.info.get(KEY)
        return str(text) if text is not None else None
    segments = [body for _, body in getattr(image, "applist", ())]
    return xmp.text_of(image.info.get("xmp", b""), segments)


def _unwrap(comment: str) -> str | None:
    """The provenance in a video's comment; other software writes comments too, so ours has a name."""
    try:
        value = _from_json(comment).get(KEY)
    except ProvenanceMissing:
        return None
    return json.dumps(value) if value is not None else None

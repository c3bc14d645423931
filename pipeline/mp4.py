"""H.264 video in MP4, and the comment that travels with it.

Reading walks the boxes of the file and needs no video library, so that a machine without one can look.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import numpy as np

THREADS = 4  # x264 gives other bytes with another number of threads, so it does not follow the machine
BT709, LIMITED_RANGE = 1, 1  # said in the stream: players guess the colours of untagged video by its size
COMMENT = b"\xa9cmt"
MAX_BOX = 2**24
"""Most bytes of the ``meta`` box that are read; far more than any provenance."""


def write(frames: "np.ndarray", fps: int, comment: str, software: str) -> bytes:
    """Encode frames of shape (F, H, W, 3), uint8, with the index in front so that players start at once."""
    # The index is moved in a second pass over the file, which needs a real one.
    with tempfile.TemporaryDirectory(prefix="renderq-") as folder:
        path = Path(folder, "video.mp4")
        _write_file(path, _even(frames), fps, {"comment": comment, "description": f"made with {software}"})
        return path.read_bytes()


def read_comment(stream: BinaryIO) -> str | None:
    """The comment of an MP4 file, or None if it has none; damage reads as none."""
    stream.seek(0, 2)
    end = stream.tell()
    for wanted in (b"moov", b"udta", b"meta"):
        start = 0 if wanted == b"moov" else stream.tell()
        box = next((span for name, *span in _boxes(stream, start, end) if name == wanted), None)
        if box is None:
            return None
        end = box[1]
        stream.seek(box[0])
    body = stream.read(min(end - stream.tell(), MAX_BOX))
    return _comment(body)


def _write_file(path: Path, frames: "np.ndarray", fps: int, metadata: dict[str, str]) -> None:
    import av  # noqa: PLC0415 - only workers have it

    options = {"movflags": "+faststart", "fflags": "+bitexact"}
    with av.open(str(path), "w", format="mp4", options=options) as container:
        container.metadata.update(metadata)
        stream = container.add_stream("libx264", rate=fps, options={"crf": "17", "threads": str(THREADS)})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        codec = stream.codec_context
        codec.colorspace = codec.color_primaries = codec.color_trc = BT709
        codec.color_range = LIMITED_RANGE
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            container.mux(stream.encode(picture.reformat(format="yuv420p", dst_colorspace="ITU709")))
        container.mux(stream.encode())


def _even(frames: "np.ndarray") -> "np.ndarray":
    """Repeat the last row and column where a side is odd: yuv420p halves both."""
    import numpy as np  # noqa: PLC0415 - only workers have it

    height, width = frames.shape[1:3]
    return np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _boxes(stream: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Name, start and end of the content of each box between two offsets."""
    while start + 8 <= end:
        stream.seek(start)
        size, name = int.from_bytes(stream.read(4)), stream.read(4)
        head = 8
        if size == 1:
            size, head = int.from_bytes(stream.read(8)), 16
        stop = end if size == 0 else min(start + size, end)
        if stop < start + head:
            return
        yield name, start + head, stop
        start = stop


def _comment(meta: bytes) -> str | None:
    """Text after the ``data`` box head (size, name, type, locale: 16 bytes) of the comment entry."""
    at = meta.find(COMMENT)
    if at < 0 or meta[at + 8 : at + 12] != b"data":
        return None
    size = int.from_bytes(meta[at + 4 : at + 8])
    return meta[at + 20 : at + 4 + size].decode(errors="replace")

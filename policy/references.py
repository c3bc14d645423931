"""How a request names a picture: by file, by content, as a result of an earlier job, or in full.

    01994d0e-...                     the id of a file that was uploaded
    sha256:9f86d081...               the same by its content, if it is still kept
    job:01994d0f-.../0               the result 0 of an earlier job
    data:image/png;base64,iVBOR...   the picture itself, if it is small

An address is none of them: nothing is ever fetched from elsewhere for a caller.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

PICTURES: Final = ("image", "mask")
"""Fields of a request that name a picture."""
INLINE_BYTES: Final = 128 * 1024
"""Largest picture that stands in a request itself, decoded."""
MEDIA_TYPES: Final = ("image/png", "image/jpeg", "image/webp")

_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_FILE = re.compile(_ID)
_CONTENT = re.compile(r"sha256:([0-9a-f]{64})")
_RESULT = re.compile(rf"job:({_ID})(?:/([0-9]{{1,4}}))?")
_DATA = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,([A-Za-z0-9+/]+={0,2})", re.IGNORECASE)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_WANTED = 'the id of an uploaded file, "sha256:...", "job:ID/INDEX" or a data: URL in base64'


@dataclass(frozen=True, slots=True)
class FileId:
    """An uploaded file."""

    id: str


@dataclass(frozen=True, slots=True)
class Content:
    """An uploaded file, by its SHA-256."""

    sha256: str


@dataclass(frozen=True, slots=True)
class Result:
    """A file of an earlier job."""

    job_id: str
    index: int


@dataclass(frozen=True, slots=True)
class Inline:
    """The picture itself, in base64."""

    base64: str


Reference = FileId | Content | Result | Inline


def read_reference(text: str) -> Reference:
    """Returns what `text` names.

    Raises:
        ValueError: It names nothing, in words that go on from "image must be ...".
    """
    if _FILE.fullmatch(text):
        return FileId(text)
    if found := _CONTENT.fullmatch(text):
        return Content(found[1])
    if found := _RESULT.fullmatch(text):
        return Result(found[1], int(found[2] or 0))
    if text[:5].lower() == "data:":
        return _read_data(text)
    if _ADDRESS.match(text):
        raise ValueError("no address, since nothing is fetched from elsewhere: upload it with POST /v1/files")
    raise ValueError(_WANTED)


def _read_data(text: str) -> Inline:
    found = _DATA.fullmatch(text)
    if found is None:
        raise ValueError("a data: URL such as data:image/png;base64,iVBOR...")
    if found[1].lower() not in MEDIA_TYPES:
        raise ValueError(f"a data: URL of {', '.join(MEDIA_TYPES[:-1])} or {MEDIA_TYPES[-1]}")
    if len(found[2]) * 3 // 4 > INLINE_BYTES + 2:
        raise ValueError(f"at most {INLINE_BYTES} bytes when it stands in the request: use POST /v1/files")
    return Inline(found[2])


def references_in(body: Mapping[str, Any]) -> Iterator[str]:
    """Yields every text that names a picture in a request, or in the template, rows and grid of many."""
    rows = body.get("rows")
    grid = body.get("grid")
    places = [body, body.get("template"), *(rows if isinstance(rows, list) else ())]
    for name in PICTURES:
        found = [place.get(name) for place in places if isinstance(place, Mapping)]
        values = grid.get(name) if isinstance(grid, Mapping) else None
        found += values if isinstance(values, list) else []
        yield from (text.strip() for text in found if isinstance(text, str))

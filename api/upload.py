"""Receives a large body: one JSON object, or a form with an uploaded table.

Only receiving happens on the event loop. What came waits in a temporary file without a name;
``Upload.parse`` reads it in a thread. So memory holds only the few bodies that are being parsed.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import PureWindowsPath
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from api.body import BODY_LIMIT_BYTES, check_json_headers, parse_body, parse_part, receive_chunks
from api.errors import Refused
from api.idempotency import fingerprint
from api.problems import tell
from core.rowfile import has_text_cells, read_rows
from policy.errors import FieldError

UPLOAD_LIMIT_BYTES = 32 * 1024 * 1024
"""Of the whole body, file and all."""
UPLOAD_TIMEOUT_S = 300.0
IN_MEMORY_BYTES = 1024 * 1024
UPLOADS_AT_ONCE = 8
"""Bodies larger than IN_MEMORY_BYTES; so the temporary files of all take a quarter of 1 GiB at most."""
RETRY_S = 5
FILE = "file"
_MOST_PARTS = 40
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")

Parts = Mapping[str, bool]
"""Names of the parts that a form may have besides its file, and whether they are JSON; the rest is text."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a call asks for, as one object; the rows of a file stand under ``rows``."""

    body: dict[str, Any]
    text_cells: bool | None
    """Whether the rows came from a table, in which every cell is text; None when there are no rows."""
    said: Mapping[str, Any]
    """What makes two calls the same: the body, with a digest for the file."""

    def fingerprint(self) -> str:
        """Return a digest that is equal for calls that say the same."""
        return fingerprint(dict(self.said))


@dataclass(frozen=True, slots=True)
class Upload:
    """A body that has arrived; ``parse`` reads it, once, and takes its time: call it in a thread."""

    parse: Callable[[], Order]


class UploadPlaces:
    """Bounds how many large bodies one application keeps; small ones need no place. For one event loop."""

    def __init__(self, number: int = UPLOADS_AT_ONCE) -> None:
        """Offer ``number`` places."""
        self.free = number

    @contextmanager
    def watch(self) -> Iterator[Callable[[int], None]]:
        """Yield what is to be told how large one body has grown; its place is free again after the block.

        Raises:
            Refused: 503, when it has become large and no place is free.
        """
        taken = False

        def grown(size: int) -> None:
            nonlocal taken
            if taken or size <= IN_MEMORY_BYTES:
                return
            if self.free <= 0:
                detail = f"{UPLOADS_AT_ONCE} large bodies are on their way already"
                raise Refused("too_many_uploads", detail, headers={"Retry-After": str(RETRY_S)})
            self.free -= 1
            taken = True

        try:
            yield grown
        finally:
            self.free += taken


@asynccontextmanager
async def receive_order(
    request: Request, parts: Parts, places: UploadPlaces, *, file_required: bool = True
) -> AsyncGenerator[Upload, None]:
    """Wait for the body of ``request``: a JSON object, or a form of ``parts`` and a file. Kept for the block.

    Raises:
        Refused: 400, 408, 413, 415, 422 or 503: too large, too slow, of another type, with parts that are
            unknown, repeated or missing, or one of too many.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    with places.watch() as grown:
        if media_type != "multipart/form-data":
            _check_is_json(request, media_type)
            with SpooledTemporaryFile(IN_MEMORY_BYTES) as spooled:
                await _receive_into(spooled, _chunks(request, grown))
                yield Upload(lambda: _parse_json_order(spooled))
            return
        form = await _receive_form(request, grown)
        try:
            texts, file = _check_parts(form, parts, file_required=file_required)
            yield Upload(lambda: _parse_form_order(texts, file, parts))
        finally:
            await form.close()


@asynccontextmanager
async def receive_picture(
    request: Request, places: UploadPlaces
) -> AsyncGenerator[Callable[[], bytes], None]:
    """Wait for a form with nothing but a file in it, and yield what reads the file: call it in a thread.

    Raises:
        Refused: As ``receive_order``.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "multipart/form-data":
        detail = "send the picture as the part 'file' of a form, with Content-Type: multipart/form-data"
        raise Refused("unsupported_media_type", detail)
    with places.watch() as grown:
        form = await _receive_form(request, grown)
        try:
            _, file = _check_parts(form, {}, file_required=True, kind="a picture")
            yield (lambda: b"") if file is None else file.file.read
        finally:
            await form.close()


async def _chunks(request: Request, grown: Callable[[int], None]) -> AsyncGenerator[bytes, None]:
    size = 0
    async for chunk in receive_chunks(request, UPLOAD_LIMIT_BYTES, UPLOAD_TIMEOUT_S):
        size += len(chunk)
        grown(size)
        yield chunk


def _check_is_json(request: Request, media_type: str) -> None:
    if media_type != "application/json":
        wanted = "Content-Type: application/json, or multipart/form-data with a file"
        raise Refused("unsupported_media_type", f"send the body with {wanted}")
    check_json_headers(request)


async def _receive_into(spooled: Any, chunks: AsyncGenerator[bytes, None]) -> None:  # noqa: ANN401 - a file
    file = UploadFile(spooled)  # writes to the disk in a thread
    async for chunk in chunks:
        await file.write(chunk)


def _parse_json_order(spooled: IO[bytes]) -> Order:
    spooled.seek(0)
    body = parse_body(spooled.read())
    return Order(body, text_cells=False if "rows" in body else None, said=body)


# --- forms ----------------------------------------------------------------------------------------------


async def _receive_form(request: Request, grown: Callable[[int], None]) -> FormData:
    """Latin-1 loses no byte, so that texts that are not UTF-8 can be refused and not guessed at."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused("unsupported_media_type", "send the body without Content-Encoding")
    boundary = _boundary(request)
    kind = f'multipart/form-data; charset=latin-1; boundary="{boundary}"'
    try:
        return await _parser(
            Headers({"content-type": kind}), _whole(_chunks(request, grown), boundary)
        ).parse()
    except MultiPartException as error:
        raise Refused("malformed_form", f"the form cannot be read: {error.message}") from None


async def _whole(chunks: AsyncGenerator[bytes, None], boundary: str) -> AsyncGenerator[bytes, None]:
    """Yield the body, and miss its closing line, which the parser does not."""
    end = f"--{boundary}--".encode("ascii")
    last = b""
    async for chunk in chunks:
        yield chunk
        last = (last + chunk)[-2 * len(end) :]
    if end not in last:
        raise MultiPartException("it breaks off before its last boundary.")


def _parser(headers: Headers, chunks: AsyncGenerator[bytes, None]) -> MultiPartParser:
    return MultiPartParser(
        headers, chunks, max_files=_MOST_PARTS, max_fields=_MOST_PARTS, max_part_size=BODY_LIMIT_BYTES
    )


def _boundary(request: Request) -> str:
    _, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary", b"")
    if not _BOUNDARY.fullmatch(boundary):
        raise Refused("malformed_form", "Content-Type names no boundary of the form's parts")
    return boundary.decode("ascii")


def _check_parts(
    form: FormData, parts: Parts, *, file_required: bool, kind: str = "a CSV or JSONL file"
) -> tuple[dict[str, bytes], UploadFile | None]:
    """Return the texts by name, and the file; all that is wrong with the parts is told at once."""
    errors: list[FieldError] = []
    texts: dict[str, bytes] = {}
    files: list[UploadFile] = []
    for raw_name, value in form.multi_items():
        name = _printable(raw_name)
        if name in texts or (name == FILE and files):
            errors.append(FieldError(name, f"the part {name!r} stands twice in the form"))
        elif name == FILE and not isinstance(value, str):
            files.append(value)
        elif name not in parts or not isinstance(value, str):
            errors.append(_misplaced(name, parts, is_file=not isinstance(value, str)))
        else:
            texts[name] = value.encode("latin-1")
    if file_required and not files and not any(error.field == FILE for error in errors):
        errors.append(FieldError(FILE, f"the form has no part 'file' with {kind}"))
    if errors:
        raise Refused("invalid_request", tell(errors), errors=errors)
    return texts, files[0] if files else None


def _misplaced(name: str, parts: Parts, *, is_file: bool) -> FieldError:
    known = sorted([FILE, *parts])
    if name == FILE:
        return FieldError(name, "the part 'file' must be an uploaded file with a name, not a text")
    if name in parts and is_file:
        return FieldError(name, f"the part {name!r} must be a text, not an uploaded file")
    hint = "; rows are in the file" if name == "rows" else ""
    return FieldError(
        name, f"{name!r} is not a part of this form; known: {', '.join(known)}{hint}", limit=known
    )


def _printable(latin_1: str) -> str:
    """The name as UTF-8 where it is that, short and safe to show."""
    text = latin_1.encode("latin-1").decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else "?" for char in text[:100])


def _parse_form_order(texts: Mapping[str, bytes], file: UploadFile | None, parts: Parts) -> Order:
    body = {
        name: parse_part(raw, name) if parts[name] else _parse_text(name, raw) for name, raw in texts.items()
    }
    if file is None:
        return Order(body, text_cells=None, said=body)
    return _with_rows(body, file.file.read(), _base_name(file.filename or ""))


def _with_rows(body: dict[str, Any], content: bytes, name: str) -> Order:
    said = body | {FILE: hashlib.sha256(content).hexdigest()}
    return Order(body | {"rows": read_rows(content, name)}, text_cells=has_text_cells(name), said=said)


def _base_name(latin_1: str) -> str:
    """The last part of the file's name, which only tells its type; nothing is ever written under it."""
    return PureWindowsPath(_printable(latin_1[-100:])).name


def _parse_text(name: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        detail = f"the part {name!r} is not UTF-8: byte {error.start} cannot be read"
        raise Refused("malformed_form", detail, errors=[FieldError(name, detail)]) from None

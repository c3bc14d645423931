"""Reads a call's body as one strict JSON object, before anything else looks at it.

``read_json`` is for small bodies; ``receive_chunks`` and ``parse_body`` are its halves, for large ones, which
are parsed outside the event loop. What strict means is told by ``core.strict_json``.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from fastapi import Request

from api.errors import Refused
from core import strict_json
from core.strict_json import DEPTH_LIMIT, BadJson
from policy.errors import FieldError

__all__ = [
    "BODY_LIMIT_BYTES",
    "DEPTH_LIMIT",
    "parse_body",
    "parse_part",
    "read_json",
    "receive_chunks",
]

BODY_LIMIT_BYTES = 256 * 1024
BODY_TIMEOUT_S = 30.0
OBJECTS_LIMIT = 25_000
"""Most objects in one body: 10,000 rows with an object in each, and some. More would only fill the memory."""


async def read_json(request: Request) -> dict[str, Any]:
    """Return the body of ``request`` as a dictionary.

    Raises:
        Refused: 400, 408, 413 or 415, with the reason in words.
    """
    check_json_headers(request)
    raw = bytearray()
    async for chunk in receive_chunks(request, BODY_LIMIT_BYTES, BODY_TIMEOUT_S):
        raw += chunk
    return parse_body(raw)


async def receive_chunks(request: Request, limit: int, timeout_s: float) -> AsyncGenerator[bytes, None]:
    """Yield the body as it comes and refuse it as soon as it is too large or too slow.

    Raises:
        Refused: 408, or 413; the latter before a byte is read when the call announces too many.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise too_large(limit)
    deadline = asyncio.get_running_loop().time() + timeout_s
    stream = request.stream()
    left = limit
    while (chunk := await _next_chunk(stream, deadline, timeout_s)) is not None:
        left -= len(chunk)
        if left < 0:
            raise too_large(limit)
        yield chunk


async def _next_chunk(stream: AsyncIterator[bytes], deadline: float, timeout_s: float) -> bytes | None:
    try:
        async with asyncio.timeout_at(deadline):
            return await anext(stream, None)
    except TimeoutError:
        raise Refused("body_timeout", f"the body did not arrive within {timeout_s:g} s") from None


def parse_body(raw: bytes | bytearray) -> dict[str, Any]:
    """Return the JSON object in ``raw``, which must be UTF-8 and hold nothing else."""
    try:
        return strict_json.parse_object(raw, objects_limit=OBJECTS_LIMIT)
    except BadJson as error:
        raise Refused(error.code, str(error)) from None


def parse_part(raw: bytes, name: str) -> object:
    """Return what the JSON text in the part ``name`` of a form says."""
    try:
        return strict_json.parse_json(raw, f"the part {name!r}", OBJECTS_LIMIT)
    except BadJson as error:
        raise Refused(error.code, str(error), errors=[FieldError(name, str(error))]) from None


def check_json_headers(request: Request) -> None:
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    if media_type.strip().lower() != "application/json":
        raise Refused("unsupported_media_type", "send the body with Content-Type: application/json")
    charset = parameters.strip().lower().replace('"', "")
    if charset not in {"", "charset=utf-8", "charset=utf8"}:
        raise Refused("unsupported_media_type", "the body must be in UTF-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused("unsupported_media_type", "send the body without Content-Encoding")


def too_large(limit: int) -> Refused:
    """Return the refusal of a body of more than ``limit`` bytes."""
    return Refused("body_too_large", f"the body is larger than {limit} bytes")

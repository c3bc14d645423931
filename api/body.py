"""Reads a call's body as one strict JSON object, before anything else looks at it.

Python's reader takes more than JSON: it keeps the last of two equal keys, knows NaN and turns 1e999 into
infinity. Each of these would let two readers of one body see two different orders, so each is refused here.
"""

import asyncio
import json
import math
from typing import Any

from fastapi import Request

from api.errors import Refused

BODY_LIMIT_BYTES = 256 * 1024
BODY_TIMEOUT_S = 30.0
DEPTH_LIMIT = 16
KEYS_LIMIT = 100
"""Most keys of one object; each unknown one costs a search for the word that was meant."""


async def read_json(request: Request) -> dict[str, Any]:
    """Return the body of ``request`` as a dictionary.

    Raises:
        Refused: 400, 408, 413 or 415, with the reason in words.
    """
    _check_headers(request)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            raw = await _read(request)
    except TimeoutError:
        raise Refused("body_timeout", f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    return parse_object(raw)


def parse_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in ``raw``, which must be UTF-8 and hold nothing else."""
    try:
        body = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise Refused("malformed_json", f"the body is not UTF-8: byte {error.start} cannot be read") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise Refused("malformed_json", f"the body is not JSON: {error.msg} at {place}") from None
    except RecursionError:
        raise Refused("malformed_json", f"the body is nested deeper than {DEPTH_LIMIT} levels") from None
    except ValueError as error:  # an integer of thousands of digits
        raise Refused("malformed_json", f"the body holds a number that cannot be read: {error}") from None
    if not isinstance(body, dict):
        raise Refused("malformed_json", f"the body must be one JSON object, not {_kind(body)}")
    _check_depth(body)
    return body


def _check_headers(request: Request) -> None:
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    if media_type.strip().lower() != "application/json":
        raise Refused("unsupported_media_type", "send the body with Content-Type: application/json")
    charset = parameters.strip().lower().replace('"', "")
    if charset not in {"", "charset=utf-8", "charset=utf8"}:
        raise Refused("unsupported_media_type", "the body must be in UTF-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused("unsupported_media_type", "send the body without Content-Encoding")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > BODY_LIMIT_BYTES:
        raise _too_large()


async def _read(request: Request) -> bytes:
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > BODY_LIMIT_BYTES:
            raise _too_large()
    return bytes(raw)


def _too_large() -> Refused:
    return Refused("body_too_large", f"the body is larger than {BODY_LIMIT_BYTES} bytes")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(pairs) > KEYS_LIMIT:
        raise Refused("malformed_json", f"an object has {len(pairs)} keys; at most {KEYS_LIMIT} are read")
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise Refused("duplicate_key", f"the key {key[:100]!r} stands twice in one object")
        found[key] = value
    return found


def _refuse_constant(name: str) -> float:
    raise Refused("malformed_json", f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Refused("malformed_json", f"the number {text[:40]} is too large")
    return value


def _check_depth(body: object) -> None:
    """Walk without recursion, so that a deep body cannot exhaust the stack here or later."""
    level: list[object] = [body]
    for _ in range(DEPTH_LIMIT):
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise Refused("malformed_json", f"the body is nested deeper than {DEPTH_LIMIT} levels")


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _kind(value: object) -> str:
    names: dict[type, str] = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")

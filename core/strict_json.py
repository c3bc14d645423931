"""Reads JSON without the liberties of Python's reader, which would let two readers see two different orders.

Python keeps the last of two equal keys, knows NaN and turns 1e999 into infinity; each is refused here, and so
is what is nested or filled so that it costs more than it says.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

DEPTH_LIMIT = 16
_PIECE = 64 * 1024
VALUES_LIMIT = 1_250_000
"""Most values in one text: 10,000 rows of 100 columns, and some. They take 100 bytes each, or more."""
KEYS_LIMIT = 100
"""Most keys of one object; each unknown one costs a search for the word that was meant."""


class BadJson(ValueError):
    """The text is not one strict JSON value.

    Attributes:
        code: `duplicate_key`, or `malformed_json` for anything else.
    """

    def __init__(self, message: str, code: str = "malformed_json") -> None:
        """Keep the code beside the message."""
        super().__init__(message)
        self.code = code


def parse_json(
    raw: bytes | bytearray | str, what: str = "the body", objects_limit: int | None = None
) -> object:
    """Return what the JSON text in ``raw`` says; problems are told of ``what``.

    Raises:
        BadJson: It is not UTF-8, not JSON, too deep, has an object of too many keys, or too many objects or
            values. What comes as bytes is counted before anything is built of it.
    """
    if not isinstance(raw, str) and has_too_many_values([raw]):
        raise BadJson(f"{what} has more than {VALUES_LIMIT} values")
    reader = _Reader(what, objects_limit)
    try:
        value = json.loads(
            raw if isinstance(raw, str) else raw.decode("utf-8"),
            object_pairs_hook=reader.unique,
            parse_constant=reader.refuse_constant,
            parse_float=reader.finite,
        )
    except BadJson:
        raise
    except UnicodeDecodeError as error:
        raise BadJson(f"{what} is not UTF-8: byte {error.start} cannot be read") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise BadJson(f"{what} is not JSON: {error.msg} at {place}") from None
    except RecursionError:
        raise BadJson(f"{what} is nested deeper than {DEPTH_LIMIT} levels") from None
    except ValueError as error:  # an integer of thousands of digits
        raise BadJson(f"{what} holds a number that cannot be read: {error}") from None
    _check_depth(value, what)
    return value


def parse_object(
    raw: bytes | bytearray | str, what: str = "the body", objects_limit: int | None = None
) -> dict[str, Any]:
    """Return the one JSON object in ``raw``, or raise BadJson."""
    value = parse_json(raw, what, objects_limit)
    if not isinstance(value, dict):
        raise BadJson(f"{what} must be one JSON object, not {_kind(value)}")
    return value


def has_too_many_values(texts: Sequence[bytes | bytearray]) -> bool:
    """Whether JSON texts hold more than VALUES_LIMIT values together; seen without building one."""
    if sum(map(len, texts)) <= VALUES_LIMIT or sum(map(_count, texts)) <= VALUES_LIMIT:
        return False
    return sum(map(_count_outside_strings, texts)) > VALUES_LIMIT


def _count(text: bytes | bytearray) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _count_outside_strings(text: bytes | bytearray) -> int:
    """In pieces, since so many strings would take more memory than they have letters."""
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    found, inside = 0, 0
    for begin in range(0, len(bare), _PIECE):
        parts = bare[begin : begin + _PIECE].split(b'"')
        found += _count(b"".join(parts[inside::2]))
        inside = (inside + len(parts) - 1) % 2
    return found


@dataclass(slots=True)
class _Reader:
    """The hooks of one reading; it counts the objects."""

    what: str
    objects_limit: int | None
    objects: int = 0

    def unique(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        self.objects += 1
        if self.objects_limit is not None and self.objects > self.objects_limit:
            raise BadJson(f"{self.what} has more than {self.objects_limit} objects")
        if len(pairs) > KEYS_LIMIT:
            raise BadJson(f"an object has {len(pairs)} keys; at most {KEYS_LIMIT} are read")
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise BadJson(f"the key {key[:100]!r} stands twice in one object", "duplicate_key")
            found[key] = value
        return found

    def refuse_constant(self, name: str) -> NoReturn:
        raise BadJson(f"{name} is not JSON")

    def finite(self, text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise BadJson(f"the number {text[:40]} is too large")
        return value


def _check_depth(value: object, what: str) -> None:
    """Walk without recursion, so that a deep value cannot exhaust the stack here or later."""
    level: list[object] = [value]
    for _ in range(DEPTH_LIMIT):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise BadJson(f"{what} is nested deeper than {DEPTH_LIMIT} levels")


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _kind(value: object) -> str:
    names: dict[type, str] = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")

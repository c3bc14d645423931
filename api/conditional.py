"""Conditional and partial reads (RFC 9110): entity tags and single byte ranges, as pure functions."""

import re
from typing import NamedTuple

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.IGNORECASE)


class Span(NamedTuple):
    """Bytes ``start`` up to but without ``end`` of a file."""

    start: int
    end: int


class Unsatisfiable(Exception):
    """The range begins behind the end of the file."""


def is_same(if_none_match: str | None, etag: str) -> bool:
    """Tell whether ``If-None-Match`` names ``etag``; weak marks do not matter for reading."""
    if if_none_match is None:
        return False
    named = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return named == ["*"] or etag in named


def choose_span(size: int, etag: str, range_header: str | None, if_range: str | None) -> Span | None:
    """Return the part of a file of ``size`` bytes that a call asks for, or None for the whole file.

    Several ranges, other units and ranges we cannot read are answered with the whole file, as the RFC allows.

    Raises:
        Unsatisfiable: nothing of the range lies in the file.
    """
    match = _RANGE.fullmatch((range_header or "").strip())
    if match is None or (if_range is not None and if_range.strip() != etag):
        return None
    first, last = match.groups()
    if not first:
        return _suffix(size, last)
    start = int(first)
    end = min(int(last) + 1, size) if last else size
    if last and int(last) < start:
        return None
    if start >= size:
        raise Unsatisfiable
    return Span(start, end)


def _suffix(size: int, length: str) -> Span | None:
    if not length:
        return None
    if int(length) == 0 or size == 0:
        raise Unsatisfiable
    return Span(max(0, size - int(length)), size)

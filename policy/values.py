"""Reads one option's value as a flag, an environment variable or a model's file gives it."""

import math
import re
from collections.abc import Callable, Mapping

from policy.mask import check_rule
from policy.options import Option
from policy.wording import closest, listing, quote

_TRUE = frozenset({"true", "1", "yes", "on"})
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_FALSE = frozenset({"false", "0", "no", "off"})


class BadValueError(Exception):
    """A value that an option does not take: `words` follow "must"."""

    def __init__(self, words: str, limit: object, nearest: object = None) -> None:
        self.words, self.limit, self.nearest = words, limit, nearest
        super().__init__(words)


def read_value(option: Option, raw: object) -> object:
    """Returns the value in the option's own type; texts may spell any type.

    Raises:
        BadValueError: The value cannot be read or is not admitted.
    """
    if option.name.endswith("cache_scm"):
        return _read_mask(raw)
    if option.type is str and option.allowed:
        return _read_choice(option.allowed, raw)
    value = _READERS[option.type](raw)
    _check_number(option, value)
    return value


def text_of(value: object) -> str:
    """Returns a value as one writes it in a flag or an environment variable."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _read_bool(raw: object) -> bool:
    word = raw.strip().lower() if isinstance(raw, str) else raw
    if isinstance(word, bool):
        return word
    if isinstance(word, str) and word in _TRUE | _FALSE:
        return word in _TRUE
    raise BadValueError("be true or false", [True, False])


def _read_int(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and _INTEGER.fullmatch(raw.strip()):
        return int(raw)
    raise BadValueError("be an integer", "an integer")


def _read_float(raw: object) -> float:
    try:
        value = float(raw) if isinstance(raw, str | int | float) and not isinstance(raw, bool) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise BadValueError("be a number", "a number")
    return value


def _read_text(raw: object) -> str:
    if isinstance(raw, str):
        return raw.strip()
    raise BadValueError("be a text", "a text")


def _read_list(raw: object) -> tuple[str, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise BadValueError("be a comma-separated list", "a comma-separated list")
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _read_mask(raw: object) -> str:
    rule = _read_text(raw)
    try:
        check_rule(rule)
    except ValueError as error:
        raise BadValueError(f"be a step mask ({error})", "LEAD:COMPUTED:REUSED or digits") from error
    return rule


def _read_choice(allowed: tuple[object, ...], raw: object) -> object:
    spelled = {text_of(value): value for value in allowed}
    word = text_of(raw).strip().lower() if isinstance(raw, str | bool) else ""
    if word in spelled:
        return spelled[word]
    raise BadValueError(f"be {listing(spelled)}", list(allowed), closest(word, spelled))


def _check_number(option: Option, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if option.allowed and value not in option.allowed:
        nearest = min(
            (number for number in option.allowed if isinstance(number, int)), key=lambda n: abs(n - value)
        )
        raise BadValueError(f"be {listing(option.allowed)}", list(option.allowed), nearest)
    for limit, beyond, words in (
        (option.minimum, option.minimum is not None and value < option.minimum, "at least"),
        (option.maximum, option.maximum is not None and value > option.maximum, "at most"),
    ):
        if beyond:
            raise BadValueError(f"be {words} {quote(limit)}", limit, limit)


_READERS: Mapping[type, Callable[[object], object]] = {
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_text,
    tuple: _read_list,
}

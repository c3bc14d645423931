"""How values and near misses are put into messages."""

import difflib
import math
from collections.abc import Iterable

LONGEST_SHOWN = 80  # characters of a caller's text that are repeated to the caller


def show(value: object) -> object:
    """Returns `value` as something short that JSON, UTF-8 and a terminal can carry.

    Numbers, booleans and None stay what they are unless JSON cannot write them (NaN, infinities, integers of
    thousands of digits); text is cut; anything else becomes the name of its JSON type.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, str):
        return _show_text(value)
    return kind_of(value)


def _show_text(text: str) -> str:
    cut = text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"
    return cut if cut.isprintable() else ascii(cut)[1:-1]


def quote(value: object) -> str:
    """Returns `value` as it stands in a sentence: text in quotation marks, booleans as JSON writes them."""
    shown = show(value)
    if isinstance(value, str):
        return f'"{shown}"'
    if shown is None or isinstance(shown, bool):
        return {None: "null", True: "true", False: "false"}[shown]
    return str(shown)


def kind_of(value: object) -> str:
    """Returns the JSON name of a value's type, with its article."""
    if value is None:
        return "null"
    names: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a number"),
        (str, "a string"),
        ((list, tuple), "a list"),
        (dict, "an object"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Returns the known word nearest to `word`, or None when none is near."""
    found = difflib.get_close_matches(word[:LONGEST_SHOWN], list(known), n=1, cutoff=cutoff)
    return found[0] if found else None


def listing(values: Iterable[object], word: str = "or") -> str:
    """Returns `a, b or c`."""
    texts = [str(value) for value in values]
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} {word} {texts[-1]}"

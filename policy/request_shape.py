"""Checks the shape of a request, which is the same for every model: names, types, texts, plain ranges.

Pydantic finds the problems; they are put into our own words here, with what is allowed and what is nearest.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from policy.errors import FieldError
from policy.job_cache import KNOBS, WORD, CacheKnobs
from policy.limits import BOUNDS, Reader, Rule, choice, rule_of
from policy.lora import LoraChoice
from policy.wording import LONGEST_SHOWN, closest, listing, quote, show

RANGE = frozenset(BOUNDS)
MOST_ERRORS = 50  # a body of a million wrong fields is not worth the time
_MARKS = ("[key]", WORD, KNOBS)  # pydantic's and our notes in the place of an error
_NUL = "\0"
_SURROGATE = re.compile("[\ud800-\udfff]")


def check_shape(body: Mapping[Any, Any], model: type[BaseModel]) -> Iterator[tuple[str, FieldError]]:
    """Yields (kind of problem, error) for each problem; a kind in `RANGE` says that the type is right."""
    flaws = {key: flaw for key, value in body.items() if (flaw := flaw_in(key, value))}
    for key, flaw in islice(flaws.items(), MOST_ERRORS):
        field = str(show(key))
        yield "text", FieldError(field, f"{field} must not contain {flaw}", show(body[key]), "Unicode text")
    try:
        model.model_validate(_without_flaws(body))
    except ValidationError as error:
        told = (item for item in error.errors(include_url=False) if not _is_told(item, flaws))
        for item in islice(told, MOST_ERRORS):
            yield item["type"], in_words(item, tuple(model.model_fields))


def _is_told(item: ErrorDetails, flaws: Mapping[Any, str]) -> bool:
    """A field that was left out here because of its flaw is not missing."""
    return item["type"] == "missing" and item["loc"][0] in flaws


def flaw_in(*values: object) -> str | None:
    """Names what a database, a file or a terminal cannot keep in these texts, or inside these values."""
    for value in values:
        if isinstance(value, Mapping) and (inner := flaw_in(*value.keys(), *value.values())):
            return inner
        if isinstance(value, list) and (inner := flaw_in(*value)):
            return inner
        if isinstance(value, str) and _NUL in value:
            return "the character NUL"
        if isinstance(value, str) and _SURROGATE.search(value):
            return "half of a surrogate pair"
    return None


def _without_flaws(body: Mapping[Any, Any]) -> dict[Any, Any]:
    """Leaves out what is told already, so that the rest is looked at too."""
    kept: dict[Any, Any] = {}
    for key, value in body.items():
        if isinstance(value, dict) and not flaw_in(key):
            kept[key] = {inner: text for inner, text in value.items() if not flaw_in(inner, text)}
        elif not flaw_in(key, value):
            kept[key] = value
    return kept


def in_words(item: ErrorDetails, known: tuple[str, ...]) -> FieldError:
    """Says what pydantic found in our words: field, value, limit and the nearest valid value."""
    field = ".".join(str(show(part)) or '""' for part in item["loc"] if part not in _MARKS) or "body"
    value = item["input"]
    if item["type"] == "extra_forbidden":
        if KNOBS in item["loc"]:
            return _unknown_knob(field, value, str(item["loc"][-1]))
        inner = tuple(LoraChoice.model_fields) if item["loc"][0] == "lora" else known
        return _unknown_field(field, value, inner)
    if item["type"] == "missing":
        return FieldError(field, f"{field} is missing", None, "required")
    if item["type"] == "string_too_short":
        return FieldError(field, f"{field} must not be empty", "", 1)
    words, limit, nearest = rule_of(item, _TYPES, _RULES)
    near = "" if nearest is None else f"; nearest: {show(nearest)}"
    return FieldError(field, f"{field} must {words}, not {_shown(value)}{near}", show(value), limit, nearest)


def _unknown_field(field: str, value: object, known: tuple[str, ...]) -> FieldError:
    nearest = closest(field, known)
    hint = f'did you mean "{nearest}"?' if nearest else f"known: {listing(known, 'and')}"
    return FieldError(
        field, f'"{field}" is not a field of a request; {hint}', show(value), list(known), nearest
    )


def _unknown_knob(field: str, value: object, name: str) -> FieldError:
    knobs = tuple(CacheKnobs.model_fields)
    nearest = closest(name.removeprefix("cache_"), knobs)
    hint = f'did you mean "cache.{nearest}"?' if nearest else f"known: {listing(knobs, 'and')}"
    message = f'"{field}" is not a knob that a job may set; {hint}'
    return FieldError(field, message, show(value), list(knobs), nearest)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return f"an object with {len(value)}"
    if isinstance(value, list):
        return f"a list with {len(value)}"
    if isinstance(value, str) and len(value) > LONGEST_SHOWN:
        return f"{len(value)}"
    return quote(value)


_TYPES: Mapping[str, str] = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "dict_type": "an object",
    "list_type": "a list",
    "model_type": "an object",
    "finite_number": "a finite number",
}


def _literal(context: Mapping[str, Any], item: ErrorDetails) -> Rule:
    words, allowed, nearest = choice(context, item)
    if WORD in item["loc"] and isinstance(allowed, list):
        words = f"be {', '.join(allowed)}, or an object of knobs"
    return words, allowed, nearest


def _too_long(context: Mapping[str, Any], item: ErrorDetails) -> Rule:
    unit = "entries" if isinstance(item["input"], Mapping | list) else "characters"
    return f"have at most {context['max_length']} {unit}", context["max_length"], None


def _blank(_: Mapping[str, Any], __: ErrorDetails) -> Rule:
    return "have a visible character", "a visible character", None


_RULES: Mapping[str, Reader] = {
    **BOUNDS,
    "literal_error": _literal,
    "enum": _literal,
    "string_too_long": _too_long,
    "too_long": _too_long,
    "string_pattern_mismatch": _blank,
}

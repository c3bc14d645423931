"""Reads a file of the catalogue; what is wrong is told with file, field, value, limit and nearest value.

Every file of the catalogue is read here: models, LoRAs, step masks and evidence.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from policy.errors import InvalidCatalogue
from policy.limits import BOUNDS, Reader, Rule, choice, rule_of
from policy.wording import closest, listing, quote

ID = r"^[a-z0-9][a-z0-9._-]{0,62}$"
"""What an id of a model or the name of a LoRA looks like."""
SHA256 = r"^[0-9a-f]{64}$"
SAFETENSORS = r"\.safetensors$"
MASK = r"^1[01]*1$"

Facts = TypeVar("Facts", bound=BaseModel)


def read_file(path: Path, kind: type[Facts], apart: Mapping[str, str] | None = None) -> Facts:
    """Returns what the file says.

    Args:
        path: A TOML file.
        kind: Its model.
        apart: Fields of the model that come from elsewhere, each with where.

    Raises:
        InvalidCatalogue: It cannot be used; the message names the file and everything that is wrong in it.
    """
    apart = apart or {}
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
        misplaced = [f"{name}: {place}" for name, place in apart.items() if name in facts]
        if misplaced:
            raise InvalidCatalogue(f"{path}: {'; '.join(misplaced)}")
        # As JSON: strict about types there, yet an array is a tuple.
        return kind.model_validate_json(json.dumps(facts, default=str), strict=True)
    except OSError as error:
        raise InvalidCatalogue(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidCatalogue(f"{path}: {error}") from error
    except ValidationError as error:
        told = (_told(item, kind, apart) for item in error.errors(include_url=False))
        raise InvalidCatalogue(f"{path}: {'; '.join(told)}") from error


def _told(item: ErrorDetails, kind: type[BaseModel], apart: Mapping[str, str]) -> str:
    field = ".".join(map(str, item["loc"]))
    if item["type"] == "missing":
        return f"{field} is missing"
    if item["type"] == "extra_forbidden":
        return _unknown(field, item, [name for name in _fields(kind, item["loc"][:-1]) if name not in apart])
    if item["type"] == "value_error":
        return f"{field}: {item['ctx']['error']}".removeprefix(": ")
    words, _, nearest = rule_of(item, _TYPES, _RULES)
    near = "" if nearest is None else f"; nearest: {nearest}"
    return f"{field} must {words}, not {_value(item['input'])}{near}"


def _unknown(field: str, item: ErrorDetails, known: list[str]) -> str:
    nearest = closest(str(item["loc"][-1]), known)
    hint = f"did you mean {nearest}?" if nearest else f"known: {listing(known, 'and')}"
    shown = "" if isinstance(item["input"], Mapping) else f" = {_value(item['input'])}"
    return f"{field}{shown} is not known here; {hint}"


def _fields(kind: type[BaseModel], path: tuple[int | str, ...]) -> tuple[str, ...]:
    """Names that may stand in the table at `path`."""
    for name in path:
        if isinstance(name, str):
            kind = table_of(kind.model_fields[name].annotation) or kind
    return tuple(kind.model_fields)


def table_of(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - annotations have no type of their own
    """Returns the model of a field that is a table, a list of tables, or none of the two."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := table_of(inner))), None)


def _value(value: object) -> str:
    return f"[{', '.join(map(_value, value))}]" if isinstance(value, list) else quote(value)


_TYPES: Mapping[str, str] = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}


def _length(words: str, key: str) -> Reader:
    def rule(context: Mapping[str, Any], _: ErrorDetails) -> Rule:
        return f"have {words} {context[key]} entries", context[key], None

    return rule


def _pattern(context: Mapping[str, Any], item: ErrorDetails) -> Rule:
    pattern = context["pattern"]
    if pattern == ID:
        words = 'be 1 to 63 of a-z, 0-9, ".", "_" and "-", a letter or digit first'
        return words, pattern, _nearest_id(item["input"])
    if pattern == SHA256:
        lower = str(item["input"]).strip().lower()
        return "be 64 hexadecimal digits", pattern, lower if re.search(SHA256, lower) else None
    known = {SAFETENSORS: "end with .safetensors", MASK: "be digits 1 and 0, the first and last a 1"}
    return known.get(pattern, f"match {pattern}"), pattern, None


def _nearest_id(text: str) -> str | None:
    plain = re.sub(r"[^a-z0-9._-]+", "-", text.strip().lower()).lstrip("._-")[:63].rstrip("-")
    return plain or None


_RULES: Mapping[str, Reader] = {
    **BOUNDS,
    "literal_error": choice,
    "string_pattern_mismatch": _pattern,
    "too_short": _length("at least", "min_length"),
    "too_long": _length("at most", "max_length"),
}

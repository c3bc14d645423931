"""The fields of a catalogue's file as rows of a table, from the models themselves and their docstrings."""

import inspect
import re
from collections.abc import Collection, Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from policy.spec_tables import Size
from policy.tomlfile import table_of

FIELDS = ("field", "values", "default", "what it is")
_ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {8,}.+)*)", re.MULTILINE)
_KINDS: dict[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "`true`, `false`",
    Size: "`[WIDTH, HEIGHT]`",
    dict[str, float]: "table of numbers",
    dict[str, Any]: "table",
}


def field_rows(
    kind: type[BaseModel], apart: Collection[str] = (), table: str = ""
) -> Iterator[tuple[str, ...]]:
    """Yields a row for each field and each table, those of tables behind it.

    Args:
        kind: The model of a file, or of a table in it.
        apart: Fields that stand in no file.
        table: Name of the table.
    """
    told = _attributes(kind)
    inner = []
    for name, field in kind.model_fields.items():
        if name in apart:
            continue
        below = table_of(field.annotation)
        if below is not None:
            inner.append((name, field, below))
        else:
            yield f"`{table}{name}`", _values(field), _default(field), told[name]
    for name, field, below in inner:
        words = told.get(name) or inspect.getdoc(below).partition("\n")[0]  # type: ignore[union-attr] # all have one
        yield f"`[{name}]`", "table", _default(field), words
        yield from field_rows(below, table=f"{name}.")


def _attributes(kind: type[BaseModel]) -> dict[str, str]:
    """What the docstring says of each field."""
    text = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    return {name: " ".join(words.split()) for name, words in _ATTRIBUTE.findall(text)}


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value in (None, (), {}, ""):
        return "-"
    return (
        f"`{str(value).lower()}`"
        if not isinstance(value, tuple)
        else ", ".join(f"`{each}`" for each in value)
    )


def _values(field: FieldInfo) -> str:
    words = _kind(field.annotation)
    lowest = next((f"from {limit.ge}" for limit in field.metadata if isinstance(limit, Ge)), None)
    lowest = next((f"above {limit.gt}" for limit in field.metadata if isinstance(limit, Gt)), lowest)
    highest = next((f"to {limit.le}" for limit in field.metadata if isinstance(limit, Le)), None)
    highest = next((f"below {limit.lt}" for limit in field.metadata if isinstance(limit, Lt)), highest)
    limits = " ".join(part for part in (lowest, highest) if part)
    return f"{words} {limits}".rstrip()


def _kind(annotation: Any) -> str:  # noqa: ANN401 - annotations have no type of their own
    if annotation in _KINDS:
        return _KINDS[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, UnionType):
        return _kind(next(each for each in inner if each is not NoneType))
    if origin is tuple:
        return f"list of {'texts' if inner[0] is str else _kind(inner[0])}"
    return _kind(inner[0])  # Annotated

"""Turns the cells of a table file, which are all text, into the types that a request's fields have.

A cell that does not read as its field's type stays text, and the check of the request then says so.
"""

import re
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Union, get_args, get_origin

from policy import lora
from policy.errors import FieldError
from policy.job_cache import read_text
from policy.request import RenderRequest

_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")
_ZEROS = re.compile(r"\.0{1,2}$")  # not three, which may mean thousands
_TRUTHS = {"true": True, "false": False}


def typed_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row with the cells of request fields read as their types.

    An empty cell of a request field counts as not given. Cells of other columns stay the text they are, also
    when it is empty. What is no text is left alone.
    """
    typed: dict[str, Any] = {}
    for name, cell in row.items():
        if name in _READERS and isinstance(cell, str):
            if cell.strip():
                typed[name] = _READERS[name](cell)
        else:
            typed[name] = cell
    return typed


def with_nearest(error: FieldError, row: Mapping[str, Any]) -> FieldError:
    """Adds to an error of a cell the number that was meant by `7,5` or `64.0`, if it is one."""
    cell = row.get(error.field)
    if error.nearest is not None or not isinstance(cell, str):
        return error
    meant = typed_cells({error.field: _ZEROS.sub("", cell.strip().replace(",", "."))}).get(error.field)
    if meant is None or isinstance(meant, str):
        return error
    return replace(error, message=f"{error.message}; nearest: {meant}", nearest=meant)


def _integer(cell: str) -> object:
    return int(cell) if _INTEGER.fullmatch(cell.strip()) else cell


def _number(cell: str) -> object:
    return float(cell) if _NUMBER.fullmatch(cell.strip()) else cell


def _truth(cell: str) -> object:
    return _TRUTHS.get(cell.strip().lower(), cell)


def _text(cell: str) -> object:
    return cell


def _word(cell: str) -> object:
    """A field with a few allowed words, or a name; white space around it is an accident of the table."""
    return cell.strip()


_BY_NAME: Mapping[str, Callable[[str], object]] = {"cache": read_text, "lora": lora.read_cell}
_BY_TYPE: Mapping[object, Callable[[str], object]] = {bool: _truth, int: _integer, float: _number}
_TEXTS = frozenset({"prompt", "negative_prompt"})


def _core_type(annotation: object) -> object:
    """`float` for `Annotated[float, ...] | None`."""
    if get_origin(annotation) in (Union, types.UnionType):
        return _core_type(next(part for part in get_args(annotation) if part is not type(None)))
    return get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


def _reader(name: str, annotation: object) -> Callable[[str], object]:
    if name in _BY_NAME:
        return _BY_NAME[name]
    return _text if name in _TEXTS else _BY_TYPE.get(_core_type(annotation), _word)


_READERS = {name: _reader(name, field.annotation) for name, field in RenderRequest.model_fields.items()}

"""From what a caller sends for many jobs to one list of rows: rows x grid, checked for its form only."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policy.cells import typed_cells
from policy.errors import FieldError, InvalidRequest
from policy.request import RenderRequest
from policy.wording import kind_of, quote, show

MAX_ROWS = 10_000
ROW = "row"
"""The name under which a template finds the number of its row."""

FIELDS = frozenset(RenderRequest.model_fields)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the result.

    Attributes:
        number: From 1, counted over the result.
        source: From 1, counted over the rows that were sent; 0 when there is a grid alone.
        given: What the row said.
        varied: What the grid added.
    """

    number: int
    source: int
    given: Mapping[str, Any]
    varied: Mapping[str, Any]

    @property
    def fields(self) -> dict[str, Any]:
        """All that is special to this row."""
        return {**self.given, **self.varied}


@dataclass(frozen=True, slots=True)
class Expansion:
    """Rows x grid, unrolled on demand; rows are the outer loop, the grid's fields turn in the order given."""

    template: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    grid: Mapping[str, Sequence[Any]]
    text_cells: bool = False

    @property
    def per_row(self) -> int:
        """How many jobs the grid makes of one row."""
        return math.prod(len(values) for values in self.grid.values())

    @property
    def total(self) -> int:
        """How many jobs come out."""
        return max(len(self.rows), 1) * self.per_row

    @property
    def names(self) -> frozenset[str]:
        """Every name that some row or the grid has a value for."""
        return frozenset(itertools.chain(self.grid, *self.rows))

    def __iter__(self) -> Iterator[Row]:
        sources: Sequence[Mapping[str, Any]] = self.rows or [{}]
        first = 1 if self.rows else 0
        combinations = [
            dict(zip(self.grid, one, strict=True)) for one in itertools.product(*self.grid.values())
        ]
        pairs = itertools.product(enumerate(sources, first), combinations)
        for number, ((source, given), varied) in enumerate(pairs, 1):
            yield Row(number, source, given, varied)


def read_expansion(body: Mapping[str, Any], *, text_cells: bool = False) -> Expansion:
    """Reads `template`, `rows` and `grid` of `body`; other keys are the caller's affair.

    Raises:
        InvalidRequest: The form is wrong, there is no row, or there are more than MAX_ROWS.
    """
    errors = [*_check_template(body), *_check_rows(body), *_check_grid(body)]
    if errors:
        raise InvalidRequest(errors)
    rows = body.get("rows") or []
    expansion = Expansion(
        template=body.get("template") or {},
        rows=[typed_cells(row) for row in rows] if text_cells else rows,
        grid=body.get("grid") or {},
        text_cells=text_cells,
    )
    errors = [*_check_overlap(expansion), *_check_total(expansion)]
    if errors:
        raise InvalidRequest(errors)
    return expansion


def _check_template(body: Mapping[str, Any]) -> Iterator[FieldError]:
    template = body.get("template")
    if template is not None and not isinstance(template, Mapping):
        yield _wrong_kind("template", template, "an object with fields of a request")


def _check_rows(body: Mapping[str, Any]) -> Iterator[FieldError]:
    rows = body.get("rows")
    if rows is None:
        if body.get("grid") is None:
            yield FieldError("rows", "rows is missing: give rows, a grid, or both", None, "required")
    elif not isinstance(rows, list):
        yield _wrong_kind("rows", rows, "a list of objects")
    elif not rows:
        yield FieldError("rows", "rows must hold at least one row, not 0", 0, 1, 1)
    elif len(rows) > MAX_ROWS:
        yield _too_many("rows", f"{len(rows)}", len(rows))
    else:
        yield from _check_each_row(rows)


def _check_each_row(rows: Sequence[object]) -> Iterator[FieldError]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            message = f"row {number}: must be an object, not {kind_of(row)}"
            yield FieldError("rows", message, show(row), "an object", row=number)
        elif ROW in row:
            message = (
                f'row {number}: "{ROW}" is the name of the row\'s own number; call the column differently'
            )
            yield FieldError(ROW, message, show(row[ROW]), row=number)
            return  # a column of that name is in every row


def _check_grid(body: Mapping[str, Any]) -> Iterator[FieldError]:
    grid = body.get("grid")
    if grid is None:
        return
    if not isinstance(grid, Mapping):
        yield _wrong_kind("grid", grid, "an object with a list of values for each field")
        return
    if not grid:
        yield FieldError("grid", "grid must name at least one field, or be left out", 0, 1, 1)
    for name, values in grid.items():
        yield from _check_axis(f"grid.{show(name)}", name, values)


def _check_axis(field: str, name: str, values: object) -> Iterator[FieldError]:
    if name == ROW:
        yield FieldError(field, f'{field}: "{ROW}" is the name of the row\'s own number; call it differently')
    elif not isinstance(values, list):
        yield _wrong_kind(field, values, "a list of values")
    elif not values:
        yield FieldError(field, f"{field} must hold at least one value, not 0", 0, 1, 1)


def _check_overlap(expansion: Expansion) -> Iterator[FieldError]:
    for name in expansion.grid:
        row = next((number for number, row in enumerate(expansion.rows, 1) if name in row), None)
        if row is not None:
            field = f"grid.{show(name)}"
            message = f"row {row}: gives {quote(name)}, and so does the grid; give it in one of them"
            yield FieldError(field, message, show(expansion.rows[row - 1][name]), row=row)


def _check_total(expansion: Expansion) -> Iterator[FieldError]:
    if expansion.total > MAX_ROWS:
        factors = [len(values) for values in expansion.grid.values()]
        if expansion.rows:
            factors.insert(0, len(expansion.rows))
        product = f"{' x '.join(map(str, factors))} = {expansion.total}" if factors[1:] else f"{factors[0]}"
        yield _too_many("grid", product, expansion.total)


def _too_many(field: str, written: str, total: int) -> FieldError:
    message = f"{field} must make at most {MAX_ROWS} jobs, not {written}; send the rest in another batch"
    return FieldError(field, message, total, MAX_ROWS, MAX_ROWS)


def _wrong_kind(field: str, value: object, wanted: str) -> FieldError:
    return FieldError(field, f"{field} must be {wanted}, not {kind_of(value)}", show(value), wanted)

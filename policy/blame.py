"""Gathers the problems of all rows and tells each where it lies: in a row, in the grid or in the template."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from policy.errors import FieldError
from policy.expansion import Expansion, Row
from policy.frame import Frame, in_template

MOST_TOLD = 50_000
"""Problems after which no further row is looked at; five for each row of the largest table."""

_Key = tuple[int | str, str, str]  # where the value came from, field, message


class Blame:
    """The problems found so far."""

    def __init__(self, expansion: Expansion, frame: Frame) -> None:
        self._expansion = expansion
        self._frame = frame
        self._general = list(frame.errors)
        self._found: dict[_Key, list[tuple[Row, FieldError]]] = defaultdict(list)
        self._count = 0

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return bool(self._general or self._found)

    @property
    def full(self) -> bool:
        """Whether more would not help."""
        return self._count >= MOST_TOLD

    def add_general(self, error: FieldError) -> None:
        """Takes a problem that is told as it is."""
        self._general.append(error)

    def add(self, row: Row, error: FieldError) -> None:
        """Takes a problem that was found while looking at `row`."""
        name = self._name_of(error.field)
        if name in self._frame.broken and name not in row.given and name not in row.varied:
            return  # told once, of the template
        self._found[self._origin(name, row), error.field, error.message].append((row, error))
        self._count += 1

    def errors(self) -> list[FieldError]:
        """Returns all problems: first those of the whole, then those of each row in turn."""
        told = [
            *self._general,
            *(error for key, found in self._found.items() for error in self._told(key, found)),
        ]
        return sorted(told, key=lambda error: error.row or 0)

    def _name_of(self, field: str) -> str:
        """The field or column that is wrong; a column may have dots in its name."""
        return field if field in self._frame.names else field.partition(".")[0]

    def _origin(self, name: str, row: Row) -> int | str:
        if name in row.varied:
            return "grid"
        if name in row.given or name in self._frame.filled:
            return row.source
        lacking = name in self._frame.names and name not in self._frame.fields
        return row.source if lacking else "template"

    def _told(self, key: _Key, found: list[tuple[Row, FieldError]]) -> Iterator[FieldError]:
        origin, field, message = key
        row, error = found[0]
        if origin == "template" and ((field, message) in self._frame.conflicts or self._everywhere(found)):
            yield self._once(error)
        elif origin == "grid" and self._wherever_given(field, found):
            yield _in_grid(error)
        elif isinstance(origin, int) and len(found) >= self._expansion.per_row:
            yield self._in_row(row, error)
        else:
            yield from (self._in_row(*one) for one in found)

    def _everywhere(self, found: list[tuple[Row, FieldError]]) -> bool:
        return len(found) == self._expansion.total > 1

    def _wherever_given(self, field: str, found: list[tuple[Row, FieldError]]) -> bool:
        values = self._expansion.grid[self._name_of(field)]
        return len(found) * len(values) >= self._expansion.total

    def _once(self, error: FieldError) -> FieldError:
        if error.field.partition(".")[0] in self._frame.fields:
            return in_template(error)
        return replace(error, message=f"{error.message} in every row")

    def _in_row(self, row: Row, error: FieldError) -> FieldError:
        of_table = f" (row {row.source} of the table)" if row.source and self._expansion.per_row > 1 else ""
        return replace(error, message=f"row {row.number}: {error.message}{of_table}", row=row.number)


def _in_grid(error: FieldError) -> FieldError:
    told = error.message.startswith(error.field)
    message = f"grid.{error.message}" if told else f"grid: {error.message}"
    return replace(error, field=f"grid.{error.field}", message=message)

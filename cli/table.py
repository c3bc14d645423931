"""Tables in which identifiers stay whole; cells are cut or wrapped on a terminal only."""

import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from cli.terminal import print_line, printable, say

GAP = "  "
LEAST = 12
"""Cells of a last column below which another column gives way."""
CUT = "…"

Row = Sequence[object]


class Table(NamedTuple):
    """The lines, and the columns for which there was no room."""

    lines: list[str]
    left_out: list[str]


def print_fitted(
    columns: Sequence[str], rows: Sequence[Row], *, drop: Sequence[str] = (), least: int = LEAST
) -> None:
    """Write rows to standard output, fitted to the terminal; elsewhere every cell is whole.

    Says which columns were left out; ``--json`` of the command must have them.

    Args:
        columns: The last one takes what the others leave.
        rows: A cell that is None is shown as a dash.
        drop: Columns to leave out, in this order, until the last one has ``least`` cells.
        least: The cells that the last column needs and gets, even where the line is then too long.
    """
    lines, gone = lay_out(columns, rows, _terminal_width(), drop=drop, least=least)
    print_line("\n".join(lines))
    if gone:
        say(f"not shown: {', '.join(gone)} (a wider terminal or --json has them)")


def print_wrapped(columns: Sequence[str], rows: Sequence[Row], *, narrow: Mapping[str, int]) -> None:
    """Write rows to standard output, whole: on a terminal a long cell goes on below itself.

    Args:
        columns: The last one takes what the others leave.
        rows: A cell that is None is shown as a dash.
        narrow: Most cells of a column on a terminal; a column that is not named is as wide as it needs.
    """
    print_line("\n".join(wrap(columns, rows, _terminal_width(), narrow=narrow)))


def wrap(
    columns: Sequence[str], rows: Sequence[Row], width: int | None, *, narrow: Mapping[str, int]
) -> list[str]:
    """The lines of a table in which no cell is cut; at most ``width`` cells wide where that is possible."""
    table = [tuple(columns), *(tuple(_cell(value) for value in row) for row in rows)]
    if width is not None:
        rooms = [narrow.get(name) for name in columns[:-1]]
        last = _left(_wrapped(table, [*rooms, None]), width)
        table = _wrapped(table, [*rooms, max(last, LEAST)])
    return [_line(row, _widths(table), None) for row in table]


def _wrapped(table: Sequence[tuple[str, ...]], rooms: Sequence[int | None]) -> list[tuple[str, ...]]:
    """Each row as one or more, none of whose cells is wider than its room."""
    cells = [[_pieces(text, room) for text, room in zip(row, rooms, strict=True)] for row in table]
    return [part for row in cells for part in zip_longest(*row, fillvalue="")]


def _pieces(text: str, room: int | None) -> list[str]:
    return [text] if room is None else _Wrapper(room, break_long_words=False).wrap(text) or [""]


class _Wrapper(textwrap.TextWrapper):
    """Breaks at blanks and after commas: a list of values has no blanks, and a flag keeps its hyphens."""

    wordsep_re = re.compile(r"(\s+|(?<=,)(?=\S))")


def _terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def lay_out(
    columns: Sequence[str],
    rows: Sequence[Row],
    width: int | None,
    *,
    drop: Sequence[str] = (),
    least: int = LEAST,
) -> Table:
    """A table of at most ``width`` cells where that is possible without cutting but the last column."""
    table = _fitted(columns, rows, width, drop, least)
    room = None if width is None else max(_left(table, width), least)
    lines = [_line(row, _widths(table), room) for row in table]
    return Table(lines, [name for name in columns if name not in table[0]])


def _fitted(
    columns: Sequence[str], rows: Sequence[Row], width: int | None, drop: Sequence[str], least: int
) -> list[tuple[str, ...]]:
    table = [tuple(columns), *(tuple(_cell(value) for value in row) for row in rows)]
    going = list(drop)
    while width is not None and going and _left(table, width) < least:
        at = table[0].index(going.pop(0))
        table = [row[:at] + row[at + 1 :] for row in table]
    return table


def _cell(value: object) -> str:
    return "-" if value is None else printable(" ".join(str(value).split()))


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _widths(table: Sequence[tuple[str, ...]]) -> list[int]:
    return [max(map(_cells, column)) for column in list(zip(*table, strict=True))[:-1]]


def _left(table: Sequence[tuple[str, ...]], width: int) -> int:
    widths = _widths(table)
    return width - sum(widths) - len(GAP) * len(widths)


def _line(row: tuple[str, ...], widths: Sequence[int], room: int | None) -> str:
    *first, last = row
    padded = [text + " " * (width - _cells(text)) for text, width in zip(first, widths, strict=True)]
    return GAP.join([*padded, last if room is None else _shortened(last, room)]).rstrip()


def _shortened(text: str, room: int) -> str:
    from rich.cells import set_cell_size

    return text if _cells(text) <= room else set_cell_size(text, max(room - 1, 0)).rstrip() + CUT

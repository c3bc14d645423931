"""Tables of one line a row: identifiers stay whole, only the last column is cut, and only on a terminal."""

import shutil
import sys
from collections.abc import Sequence
from datetime import datetime

from cli.terminal import print_line, printable

GAP = "  "
LEAST = 12
"""Cells of a last column below which another column gives way."""
CUT = "…"

Row = Sequence[object]


def print_fitted(
    columns: Sequence[str], rows: Sequence[Row], *, drop: Sequence[str] = (), least: int = LEAST
) -> None:
    """Write rows to standard output, fitted to the terminal; elsewhere every cell is whole.

    Args:
        columns: The last one takes what the others leave.
        rows: A cell that is None is shown as a dash.
        drop: Columns to leave out, in this order, until the last one has ``least`` cells.
        least: The cells that the last column needs and gets, even where the line is then too long.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print_line("\n".join(lay_out(columns, rows, width, drop=drop, least=least)))


def lay_out(
    columns: Sequence[str],
    rows: Sequence[Row],
    width: int | None,
    *,
    drop: Sequence[str] = (),
    least: int = LEAST,
) -> list[str]:
    """The lines of a table of at most ``width`` cells where that is possible without cutting but the last."""
    table = [tuple(columns), *(tuple(_cell(value) for value in row) for row in rows)]
    going = list(drop)
    while width is not None and going and _left(table, width) < least:
        at = table[0].index(going.pop(0))
        table = [row[:at] + row[at + 1 :] for row in table]
    room = None if width is None else max(_left(table, width), least)
    return [_line(row, _widths(table), room) for row in table]


def short_time(text: str | None) -> str | None:
    """A time of the API as local time without its year, such as ``11-30 21:51:07``."""
    return text and datetime.fromisoformat(text).astimezone().strftime("%m-%d %H:%M:%S")


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

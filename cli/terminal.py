"""Writing to the terminal: results to standard output, everything said along the way to standard error."""

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 200
"""Columns where the output is no terminal: wide enough that no table cell of ours is cut."""


def print_json(value: object) -> None:
    """Write a value for scripts, indented for a person who looks at it."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_json_line(value: object) -> None:
    """Write a value as one line at once, for a script that reads while we run."""
    print(json.dumps(value, ensure_ascii=False, default=str), flush=True)


def out() -> "Console":
    """The console of standard output."""
    return _console(sys.stdout)


def err() -> "Console":
    """The console of standard error."""
    return _console(sys.stderr)


def _console(stream: Any) -> "Console":  # noqa: ANN401 - a stream of the interpreter
    from rich.console import Console

    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def say(text: str) -> None:
    """One line to the user beside the result; a closed terminal is no reason to stop."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a plain table to standard output."""
    from rich.table import Table

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    out().print(table)


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Write names and values, each pair on its line and a long value whole."""
    shown = [(name, "-" if value is None else str(value)) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{name:<{width}}  {value}")

"""Writing to the terminal: results to standard output, everything said along the way to standard error."""

import contextlib
import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cli.exits import CliError, ExitCode

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 200
"""Columns where the output is no terminal: wide enough that no table cell of ours is cut."""
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that move, reorder or hide text: controls, formats, lone surrogates, line separators."""
NEWLINE = "⏎"


def printable(value: object, *, breaks: bool = False) -> str:
    """Text of others as it may stand on a terminal: controls as escapes, newlines as `NEWLINE` or kept."""
    kept = "\n" if breaks else NEWLINE
    return "".join(kept if character == "\n" else _visible(character) for character in str(value))


def _visible(character: str) -> str:
    if unicodedata.category(character) not in HIDDEN:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Say in words that standard output takes nothing; a reader that is gone is typer's to end on."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CliError(f"cannot write to standard output: {error.strerror}", ExitCode.UNAVAILABLE) from error


def print_line(text: str) -> None:
    """Write a result to standard output."""
    with writing():
        print(text)


def prepare_streams() -> None:
    """Make a closed stream known instead of None, and let no character stop a line."""
    if sys.stdout is None:  # a descriptor that only reads: writing fails in words
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - stays open to the end
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # the interpreter's own


def close_output(code: int) -> int:
    """Write out what is buffered; return ``code``, or that of an output that could not be written."""
    try:
        with writing():
            sys.stdout.flush()
    except (CliError, BrokenPipeError) as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes again
        if code == ExitCode.OK and isinstance(error, CliError):
            say(f"renderq: {error.message}")
            return error.code
    return code


def print_json(value: object) -> None:
    """Write a value for scripts, indented for a person who looks at it; in ASCII, safe on a terminal."""
    print_line(_ascii(value, indent=2))


def print_json_line(value: object) -> None:
    """Write a value as one line at once, for a script that reads while we run."""
    with writing():
        print(_ascii(value), flush=True)


def _ascii(value: object, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, default=str).replace("\x7f", "\\u007f")


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
    """Lines to the user beside the result; a closed terminal is no reason to stop."""
    with contextlib.suppress(OSError):
        print(printable(text, breaks=True), file=sys.stderr, flush=True)


def say_all(texts: Iterable[object] | None) -> None:
    """Say each text of another, such as a warning of the server, on a line of its own."""
    for text in texts or ():
        say(printable(text))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a plain table to standard output."""
    from rich.table import Table

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*("-" if cell is None else printable(cell) for cell in row))
    with writing():
        out().print(table)


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Write names and values, each pair on its line and a long value whole."""
    shown = [(printable(name), "-" if value is None else printable(value)) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print_line(f"{name:<{width}}  {value}")

"""Shows what the server found wrong in the rows of a file: a table of row, field and message."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cli.exits import CliError
from cli.table import lay_out
from cli.terminal import print_json, say

SHOWN = 20
"""Errors shown to a person; a script gets all."""


@contextmanager
def explaining(*, as_json: bool) -> Iterator[None]:
    """Show a refused order row by row, or print its problem document, and end with its exit code."""
    from cli.client import Refusal

    try:
        yield
    except Refusal as refusal:
        errors = _errors(refusal.problem)
        if as_json and refusal.problem:
            print_json(refusal.problem)
        if not any(error.get("row") is not None for error in errors):
            raise
        if not as_json:
            say("\n".join(table_of(errors)))
        raise CliError(_summary(errors), refusal.code) from refusal


def table_of(errors: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of the table, at most `SHOWN` errors, and how many more there are."""
    rows = [(error.get("row"), error.get("field"), _message(error)) for error in errors[:SHOWN]]
    lines = lay_out(("row", "field", "message"), rows, None)
    left = len(errors) - SHOWN
    return [*lines, f"... and {left} more; --json has all"] if left > 0 else lines


def _errors(problem: dict[str, Any]) -> list[dict[str, Any]]:
    found = problem.get("errors")
    return [error for error in found if isinstance(error, dict)] if isinstance(found, list) else []


def _message(error: dict[str, Any]) -> str:
    """The sentence without the number that has a column of its own."""
    return str(error.get("message", "")).removeprefix(f"row {error.get('row')}: ")


def _summary(errors: Sequence[dict[str, Any]]) -> str:
    rows = len({error["row"] for error in errors if error.get("row") is not None})
    count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
    return f"{count} in {rows} row{'' if rows == 1 else 's'}: nothing was ordered"

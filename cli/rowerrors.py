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
            say("\n".join([*table_of(errors), *_hint(errors)]))
        raise CliError(_summary(errors), refusal.code) from refusal


def table_of(errors: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of the table, at most `SHOWN` errors, and how many more there are."""
    rows = [(error.get("row"), error.get("field"), _message(error)) for error in errors[:SHOWN]]
    lines = lay_out(("row", "field", "message"), rows, None).lines
    left = len(errors) - SHOWN
    return [*lines, f"... and {left} more; --json has all"] if left > 0 else lines


def _errors(problem: dict[str, Any]) -> list[dict[str, Any]]:
    found = problem.get("errors")
    return [error for error in found if isinstance(error, dict)] if isinstance(found, list) else []


def _message(error: dict[str, Any]) -> str:
    """The sentence without the number that has a column of its own."""
    return str(error.get("message", "")).removeprefix(f"row {error.get('row')}: ")


def _hint(errors: Sequence[dict[str, Any]]) -> list[str]:
    """How to keep columns that nothing uses; one that is near a known name is a slip and better put right."""
    unused = [str(error["field"]) for error in errors if _is_unused_column(error)]
    names = ",".join(dict.fromkeys(unused))
    return [f"--keep {names} keeps such a column for file names and results"] if unused else []


def _is_unused_column(error: dict[str, Any]) -> bool:
    known = error.get("limit")
    names_fields = isinstance(known, list) and {"model", "prompt"} <= set(map(str, known))
    return names_fields and error.get("row") is not None and not error.get("nearest")


def _summary(errors: Sequence[dict[str, Any]]) -> str:
    count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
    return f"{count}: nothing was ordered"

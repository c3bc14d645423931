"""What a batch may have been meant differently than it was ordered: cells that leave a gap in a prompt."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from policy.bulk import Order
from policy.template import read_template

ROWS_TOLD = 5
_TEXTS = ("prompt", "negative_prompt")


def find_gaps(template: Mapping[str, Any], orders: Sequence[Order]) -> Iterator[str]:
    """Yields what `find_gaps_in_rows` does for orders that `make_orders` returned for this template."""
    return find_gaps_in_rows(template, {order.row: order.fields for order in orders})


def find_gaps_in_rows(template: Mapping[str, Any], rows: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """Yields for each column that the template's prompts name how many of its cells are empty, in words.

    Args:
        template: The template that the rows were made with.
        rows: What each row says, by its number.
    """
    columns = frozenset().union(*rows.values())
    used: dict[str, list[str]] = {}
    for field in _TEXTS:
        if isinstance(text := template.get(field), str):
            for name in sorted(read_template(text, columns).names & columns):
                used.setdefault(name, []).append(field)
    for name, fields in used.items():
        gaps = [row for row, given in rows.items() if _is_gap(given, name, fields)]
        if gaps:
            yield _in_words(name, gaps)


def _is_gap(given: Mapping[str, Any], name: str, fields: Sequence[str]) -> bool:
    """Whether the cell is empty, and a text that names it is not replaced by the row."""
    cell = given.get(name)
    return isinstance(cell, str) and not cell.strip() and any(field not in given for field in fields)


def _in_words(name: str, rows: Sequence[int]) -> str:
    told = ", ".join(map(str, rows[:ROWS_TOLD])) + (", ..." if rows[ROWS_TOLD:] else "")
    if len(rows) == 1:
        return f"1 row has an empty {{{name}}} (row {told})"
    return f"{len(rows)} rows have an empty {{{name}}} (rows {told})"

"""What a batch may have been meant differently than it was ordered: cells that leave a gap in a prompt."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from policy.bulk import Order
from policy.template import read_template

ROWS_TOLD = 5
_TEXTS = ("prompt", "negative_prompt")


def find_gaps(template: Mapping[str, Any], orders: Sequence[Order]) -> Iterator[str]:
    """Yields for each column that the template's prompts name how many of its cells are empty, in words.

    Args:
        template: The template that `orders` were made with.
        orders: As `make_orders` returns them.
    """
    columns = frozenset().union(*(order.fields for order in orders))
    used: dict[str, list[str]] = {}
    for field in _TEXTS:
        if isinstance(text := template.get(field), str):
            for name in sorted(read_template(text, columns).names & columns):
                used.setdefault(name, []).append(field)
    for name, fields in used.items():
        rows = [order.row for order in orders if _is_gap(order.fields, name, fields)]
        if rows:
            yield _in_words(name, rows)


def _is_gap(given: Mapping[str, Any], name: str, fields: Sequence[str]) -> bool:
    """Whether the cell is empty, and a text that names it is not replaced by the row."""
    cell = given.get(name)
    return isinstance(cell, str) and not cell.strip() and any(field not in given for field in fields)


def _in_words(name: str, rows: Sequence[int]) -> str:
    told = ", ".join(map(str, rows[:ROWS_TOLD])) + (", ..." if rows[ROWS_TOLD:] else "")
    if len(rows) == 1:
        return f"1 row has an empty {{{name}}} (row {told})"
    return f"{len(rows)} rows have an empty {{{name}}} (rows {told})"

"""Empty cells that leave a gap in a prompt are told."""

from typing import Any

import pytest

from policy.bulk import make_orders
from policy.gaps import find_gaps
from tests.policy.parts import CATALOGUE

BOAT = {"model": "tiny", "prompt": "a {Farbe} boat"}


def gaps(rows: list[dict[str, Any]], **template: Any) -> list[str]:
    body = {"template": BOAT | template, "rows": rows}
    return list(find_gaps(body["template"], make_orders(body, CATALOGUE, lambda: 7, text_cells=True)))


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["red", "", "blue"], ["1 row has an empty {Farbe} (row 2)"]),
        (["", "red", " "], ["2 rows have an empty {Farbe} (rows 1, 3)"]),
        ([""] * 9, ["9 rows have an empty {Farbe} (rows 1, 2, 3, 4, 5, ...)"]),
        (["red", "0"], []),
    ],
)
def test_empty_cells_of_a_column_are_told_with_their_rows(cells: list[str], words: list[str]) -> None:
    assert gaps([{"Farbe": cell} for cell in cells]) == words


def test_an_empty_cell_that_no_prompt_uses_is_no_gap() -> None:
    rows = [{"Farbe": "red", "sku": ""}, {"Farbe": "", "prompt": "a house", "sku": "1"}]
    assert gaps(rows, metadata={"sku": "{sku}"}) == []


def test_each_column_is_told_once_whatever_its_name() -> None:
    rows = [{"Farbe": "", "Art.-Nr.": ""}]
    assert gaps(
        rows, prompt="x {Farbe} {Farbe} {Art.-Nr.}", negative_prompt="{Farbe} x", guidance_scale=2
    ) == [
        "1 row has an empty {Art.-Nr.} (row 1)",
        "1 row has an empty {Farbe} (row 1)",
    ]


def test_rows_without_a_template_have_no_gaps() -> None:
    rows = [{"model": "tiny", "prompt": "a house"}]
    assert list(find_gaps({}, make_orders({"rows": rows}, CATALOGUE, lambda: 7))) == []

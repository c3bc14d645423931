"""Template, rows and grid become orders. What is refused is in test_bulk_errors.py."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.bulk import Order, make_orders
from policy.cells import typed_cells
from tests.policy.parts import CATALOGUE

MUG = {"model": "tiny", "prompt": "a {colour} mug", "metadata": {"sku": "{sku}-{row}", "shop": "north"}}


def ordered(
    draw_seed: Callable[[], int] = lambda: 7, *, text_cells: bool = False, **body: Any
) -> list[Order]:
    return make_orders(body, CATALOGUE, draw_seed, text_cells=text_cells)


def prompts(orders: Sequence[Order]) -> list[str]:
    return [order.request.prompt for order in orders]


def test_each_row_fills_the_template() -> None:
    orders = ordered(template=MUG, rows=[{"colour": "red", "sku": "A"}, {"colour": "blue", "sku": "B"}])
    assert [order.row for order in orders] == [1, 2]
    assert prompts(orders) == ["a red mug", "a blue mug"]
    assert [order.request.metadata for order in orders] == [
        {"sku": "A-1", "shop": "north"},
        {"sku": "B-2", "shop": "north"},
    ]
    assert orders[1].fields == {"colour": "blue", "sku": "B"}
    assert orders[1].body == {
        "model": "tiny",
        "prompt": "a blue mug",
        "metadata": {"sku": "B-2", "shop": "north"},
    }
    assert orders[1].plan.prompt == "a blue mug"


def test_a_column_called_like_a_field_replaces_the_templates() -> None:
    template = {"model": "tiny", "prompt": "a house", "seed": 1, "metadata": {"a": "1"}}
    rows = [{"seed": 2}, {"prompt": "a boat", "metadata": {"b": "2"}}]
    first, second = ordered(template=template, rows=rows)
    assert (first.plan.seed, first.plan.prompt, first.request.metadata) == (2, "a house", {"a": "1"})
    assert (second.plan.seed, second.plan.prompt, second.request.metadata) == (1, "a boat", {"b": "2"})


def test_a_name_is_not_asked_of_a_row_that_replaces_the_text() -> None:
    template = {"model": "tiny", "prompt": "a {colour} mug"}
    assert prompts(ordered(template=template, rows=[{"prompt": "a cup"}, {"colour": "red"}])) == [
        "a cup",
        "a red mug",
    ]


def test_rows_without_a_template_are_a_list_of_jobs_as_they_are() -> None:
    orders = ordered(rows=[{"model": "tiny", "prompt": "{curly} braces"}, {"model": "tiny", "prompt": "b"}])
    assert prompts(orders) == ["{curly} braces", "b"]


def test_the_grid_multiplies_rows_with_the_rows_outermost_and_its_fields_in_order() -> None:
    orders = ordered(
        template=MUG,
        rows=[{"sku": "A"}, {"sku": "B"}],
        grid={"colour": ["red", "blue"], "seed": [1, 2]},
    )
    seen = [(order.fields["sku"], order.fields["colour"], order.plan.seed) for order in orders]
    assert seen == [(sku, colour, seed) for sku in "AB" for colour in ("red", "blue") for seed in (1, 2)]
    assert [order.row for order in orders] == list(range(1, 9))
    assert orders[-1].request.metadata["sku"] == "B-8"


def test_a_grid_alone_is_enough() -> None:
    orders = ordered(grid={"model": ["tiny"], "prompt": ["a", "{b}"], "seed": [1, 2]})
    assert prompts(orders) == ["a", "a", "{b}", "{b}"]


def test_numbers_and_truths_are_written_into_texts_as_json_writes_them() -> None:
    template = {"model": "tiny", "prompt": "{a} {b} {c}"}
    (order,) = ordered(template=template, rows=[{"a": 12, "b": 1.5, "c": True}])
    assert order.plan.prompt == "12 1.5 true"


def test_a_column_is_kept_whatever_its_header_is() -> None:
    header = {"Art.-Nr.": "4711", "Preis (EUR)": "7,50", "Größe: cm": "3"}
    template = {"model": "tiny", "prompt": "{Art.-Nr.}", "metadata": {name: f"{{{name}}}" for name in header}}
    (order,) = ordered(template=template, rows=[header], text_cells=True)
    assert (order.plan.prompt, order.request.metadata) == ("4711", header)


def test_a_field_of_the_row_can_be_named_in_a_text_too() -> None:
    template = {"model": "tiny", "prompt": "a house", "metadata": {"seed": "{seed}"}}
    assert ordered(template=template, grid={"seed": [3]})[0].request.metadata == {"seed": "3"}


def test_a_seed_is_drawn_for_each_row_that_names_none() -> None:
    seeds = iter([5, 6])
    rows = [{"seed": 1}, {"seed": None}, {}]
    orders = ordered(lambda: next(seeds), template={"model": "tiny", "prompt": "x"}, rows=rows)
    assert [order.plan.seed for order in orders] == [1, 5, 6]


def test_what_a_template_gives_may_be_wrong_where_every_row_gives_better() -> None:
    template = {"model": "tiny", "prompt": "x", "width": 63, "cache": "fast", "num_inference_steps": 4}
    (order,) = ordered(template=template, rows=[{"width": 64, "num_inference_steps": 24}])
    assert (order.plan.width, order.plan.cache) == (64, "fast")


def test_double_braces_in_a_template_are_plain_ones_also_without_names() -> None:
    template = {"model": "tiny", "prompt": "a {{ brace }}", "negative_prompt": None}
    assert prompts(ordered(template=template, rows=[{}])) == ["a { brace }"]


def test_cells_of_a_table_are_read_as_the_types_of_their_fields() -> None:
    row = {
        "width": " 64 ",
        "seed": "7",
        "guidance_scale": "2",
        "queue_timeout_s": "1.5e2",
        "cache": " off ",
        "prompt": " x ",
        "sku": "007",
        "n": "",
        "colour": "",
    }
    assert typed_cells(row) == {
        "width": 64,
        "seed": 7,
        "guidance_scale": 2.0,
        "queue_timeout_s": 150.0,
        "cache": "off",
        "prompt": " x ",
        "sku": "007",
        "colour": "",
    }


@pytest.mark.parametrize("cell", ["64.0", "0x40", "6_4", "٦٤", "6 4", "x", "1" * 31, "--1"])
def test_a_cell_that_is_no_integer_stays_text(cell: str) -> None:
    assert typed_cells({"width": cell}) == {"width": cell}


@pytest.mark.parametrize("cell", ["7,5", "nan", "inf", "1e", "1_0", ".", "1" * 31])
def test_a_cell_that_is_no_number_stays_text(cell: str) -> None:
    assert typed_cells({"guidance_scale": cell}) == {"guidance_scale": cell}


def test_an_empty_cell_of_a_field_leaves_the_field_to_the_template() -> None:
    template = {"model": "tiny", "prompt": "a {colour} mug", "seed": 3}
    first, second = ordered(
        template=template, text_cells=True, rows=[{"colour": "", "seed": ""}, {"colour": "red", "seed": "4"}]
    )
    assert (first.plan.prompt, first.plan.seed) == ("a  mug", 3)
    assert (second.plan.prompt, second.plan.seed) == ("a red mug", 4)


def test_without_being_told_so_no_text_is_taken_for_a_number() -> None:
    with pytest.raises(Exception, match="row 1: seed must be an integer"):
        ordered(template={"model": "tiny", "prompt": "x"}, rows=[{"seed": "4"}])


def test_the_example_of_the_documents_is_taken() -> None:
    page = (Path(__file__).parents[2] / "docs" / "bulk.md").read_text(encoding="utf-8")
    example = json.loads(page.partition("```json\n")[2].partition("```")[0])
    assert prompts(ordered(**example)) == [
        "a red mug on a wooden table",
        "a blue mug on a wooden table",
    ]


def test_the_largest_table_is_taken() -> None:
    orders = ordered(template=MUG, rows=[{"colour": f"c{i}", "sku": f"{i}"} for i in range(10_000)])
    assert orders[-1].request.metadata["sku"] == "9999-10000"


VALUES: dict[str, list[Any]] = {
    "seed": [1, 2, 3],
    "colour": ["red", "{x}", ""],
    "priority": ["low", "normal", "high"],
}
axes = st.dictionaries(st.sampled_from(sorted(VALUES)), st.integers(1, 3), min_size=1)


@settings(deadline=None, max_examples=40)
@given(axes, st.integers(1, 4))
def test_there_are_as_many_orders_as_rows_times_the_grid(sizes: dict[str, int], rows: int) -> None:
    grid = {name: VALUES[name][:size] for name, size in sizes.items()}
    table = [{"sku": str(index)} | ({} if "colour" in grid else {"colour": "red"}) for index in range(rows)]
    orders = ordered(template=MUG, rows=table, grid=grid)
    expected = rows * math.prod(sizes.values())
    assert [order.row for order in orders] == list(range(1, expected + 1))
    assert len({tuple(order.fields.items()) for order in orders}) == expected
    assert all(order.fields["sku"] == str((order.row - 1) * rows // expected) for order in orders)

"""What is refused in a batch: with row and field, everything at once, and each fault once."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import blame
from policy.bulk import make_orders
from policy.errors import FieldError, InvalidRequest
from tests.policy.parts import CATALOGUE

MUG = {"model": "tiny", "prompt": "a {colour} mug"}
RED = {"colour": "red"}


def errors_of(**body: Any) -> list[FieldError]:
    with pytest.raises(InvalidRequest) as refusal:
        make_orders(body, CATALOGUE, lambda: 7, text_cells=body.pop("text_cells", False))
    return list(refusal.value.errors)


def told(**body: Any) -> list[tuple[int | None, str]]:
    return [(error.row, error.field) for error in errors_of(**body)]


def test_every_problem_of_every_row_is_told_at_once_with_row_and_field() -> None:
    rows = [RED, {**RED, "width": 63, "seed": -1}, RED, {**RED, "cache": "fasst"}]
    errors = errors_of(template=MUG, rows=rows)
    assert [(error.row, error.field) for error in errors] == [(2, "width"), (2, "seed"), (4, "cache")]
    assert errors[0].message == "row 2: width must be 64, not 63; nearest: 64"
    assert (errors[0].value, errors[0].nearest) == (63, 64)
    assert errors[2].nearest == "fast"


def test_ten_thousand_bad_rows_are_ten_thousand_errors() -> None:
    errors = errors_of(template=MUG, rows=[{**RED, "width": 63}] * 10_000)
    assert [error.row for error in errors] == list(range(1, 10_001))


@pytest.mark.parametrize(
    ("template", "field", "words"),
    [
        ({"width": 63}, "template.width", "template.width must be 64, not 63"),
        ({"n": "2"}, "template.n", "template.n must be an integer"),
        ({"n": 0}, "template.n", "template.n must be 1 to"),
        ({"widht": 64}, "template.widht", '"widht" is not a field of a request; did you mean "width"?'),
        ({"model": "tyny"}, "template.model", 'template.model "tyny" is not offered'),
        ({"model": 3}, "template.model", "must be a string"),
        ({"prompt": 3}, "template.prompt", "must be a string"),
        ({"prompt": ""}, "template.prompt", "must not be empty"),
        ({"prompt": "a\0b"}, "template.prompt", "must not contain the character NUL"),
        ({"prompt": "x" * 1001}, "template.prompt", "at most 1000 characters, not 1001"),
        ({"prompt": "a {colour mug"}, "template.prompt", '"{" at character 3 is never closed'),
        ({"prompt": "{0.__class__}"}, "template.prompt", "is more than a name"),
        ({"negative_prompt": "{x!r}"}, "template.negative_prompt", "is more than a name"),
        ({"metadata": {"a": "{"}}, "template.metadata.a", "is never closed"),
        ({"metadata": {"a": 1}}, "template.metadata.a", "must be a string"),
        ({"metadata": {"a": 1, "b": "{colour}"}}, "template.metadata.a", "must be a string"),
        ({"metadata": "x"}, "template.metadata", "must be an object"),
        ({"cache": "fast", "num_inference_steps": 4}, "template.cache", "needs at least"),
    ],
)
def test_a_fault_of_the_template_is_told_once(template: dict[str, Any], field: str, words: str) -> None:
    plain = {"model": "tiny", "prompt": "a mug", "metadata": {"colour": "{colour}"}}
    (error,) = (
        errors_of(template={**plain, **template}, rows=[RED] * 100)
        if "metadata" not in template
        else (errors_of(template={**MUG, **template}, rows=[RED] * 100))
    )
    assert (error.row, error.field) == (None, field)
    assert words in error.message


def test_a_fault_of_the_template_does_not_hide_those_of_the_rows() -> None:
    rows = [RED, {**RED, "width": 63}]
    assert told(template={**MUG, "n": "x", "model": 3}, rows=[RED]) == [
        (None, "template.model"),
        (None, "template.n"),
    ]
    assert told(template={**MUG, "n": "x"}, rows=rows) == [(None, "template.n"), (2, "width")]


def test_a_fault_that_only_some_rows_leave_to_the_template_is_still_told_once() -> None:
    assert told(template={**MUG, "width": 63}, rows=[{**RED, "width": 64}, RED, RED]) == [
        (None, "template.width")
    ]


def test_a_clash_between_row_and_template_is_told_of_the_row() -> None:
    errors = errors_of(template={**MUG, "cache": "fast"}, rows=[RED, {**RED, "num_inference_steps": 4}, RED])
    assert [(error.row, error.field) for error in errors] == [(2, "cache")]
    assert errors[0].message.startswith('row 2: cache "fast" needs at least')


def test_problems_of_rows_come_in_the_order_of_the_rows() -> None:
    few = {**RED, "num_inference_steps": 4}
    rows = [{"colour": "red", "widht": 1}, few, {**RED, "width": 63}, few]
    assert told(template={**MUG, "cache": "fast"}, rows=rows) == [
        (None, "widht"),
        (2, "cache"),
        (3, "width"),
        (4, "cache"),
    ]


def test_a_text_that_cannot_be_read_does_not_make_its_columns_unknown() -> None:
    assert told(template={"model": "tiny", "prompt": "a {colour} {mug"}, rows=[RED]) == [
        (None, "template.prompt")
    ]


def test_what_every_row_lacks_is_told_once() -> None:
    (error,) = errors_of(template={"model": "tiny"}, rows=[{"seed": 1}, {"seed": 2}])
    assert (error.row, error.field, error.message) == (None, "prompt", "prompt is missing in every row")


def test_what_some_rows_lack_is_told_of_each() -> None:
    rows = [{"prompt": "a"}, {}, {"prompt": "b"}, {}]
    assert told(template={"model": "tiny"}, rows=rows) == [(2, "prompt"), (4, "prompt")]


def test_an_unknown_column_is_told_once_with_the_word_that_was_meant() -> None:
    errors = errors_of(template=MUG, rows=[RED, {**RED, "widht": 64}, {**RED, "widht": 64}])
    assert [(error.row, error.field, error.nearest) for error in errors] == [(None, "widht", "width")]
    assert errors[0].message == 'nothing uses the column "widht": did you mean "width"?'
    assert errors[0].limit[-1] == "colour"  # type: ignore[index]


def test_a_far_off_column_is_told_in_a_few_words() -> None:
    (error,) = errors_of(template=MUG, rows=[{**RED, "zzzz": 1}] * 50)
    assert (error.row, error.field, error.limit) == (None, "zzzz", None)
    words = "name it in a text of the template, or remove it"
    assert error.message == f'nothing uses the column "zzzz": {words}'
    (error,) = errors_of(template=MUG, rows=[RED], grid={"zzzz": [1]})
    assert (error.field, error.message) == ("grid.zzzz", f'nothing uses "zzzz" of the grid: {words}')


def test_a_column_in_capitals_is_recognised() -> None:
    assert errors_of(template=MUG, rows=[{**RED, "WIDTH": 64}])[0].nearest == "width"


@pytest.mark.parametrize("column", ["color", "Colour", "COLOUR"])
def test_a_name_and_the_column_that_was_meant_are_one_error(column: str) -> None:
    (error,) = errors_of(template=MUG, rows=[{column: "red"}] * 3)
    assert (error.row, error.field, error.nearest) == (None, "template.prompt", column)
    assert error.message == (
        f'template.prompt names {{colour}}, and no row has a column of that name; did you mean "{column}"?'
    )


def test_a_column_that_is_taken_for_one_name_is_still_wrong_beside_others() -> None:
    errors = errors_of(template=MUG, rows=[{"color": "red", "size": 1}])
    assert [error.field for error in errors] == ["template.prompt", "size"]


def test_columns_with_dots_in_their_names_are_told_of_their_rows() -> None:
    template = {"model": "tiny", "prompt": "a {Art.-Nr.}"}
    rows = [{"Art.-Nr.": "1"}, {"seed": 1}, {"Art.-Nr.": "a\0"}]
    errors = errors_of(template=template, rows=rows, grid={"n": [1, 2]})
    assert [(error.row, error.field) for error in errors] == [(3, "Art.-Nr."), (5, "Art.-Nr.")]


def test_a_name_that_one_row_lacks_is_told_of_that_row() -> None:
    (error,) = errors_of(template=MUG, rows=[RED, {}])
    assert (error.row, error.field) == (2, "colour")
    assert error.message == 'row 2: "colour" is missing, and template.prompt names it'


def test_a_name_that_one_row_lacks_is_told_once_also_when_the_grid_multiplies_it() -> None:
    assert told(template=MUG, rows=[RED, {"seed": 1}], grid={"n": [1, 2]}) == [(3, "colour")]


def test_a_field_that_is_named_in_a_text_too_is_told_of_where_it_is_wrong() -> None:
    template = {**MUG, "width": 63, "metadata": {"size": "{width}"}}
    assert told(template=template, rows=[{**RED, "width": 64}, RED]) == [
        (None, "template.width"),
        (2, "width"),
    ]


@pytest.mark.parametrize("value", [None, [], {}, 10**400])
def test_what_cannot_stand_in_a_text_is_refused(value: object) -> None:
    (error,) = errors_of(template=MUG, rows=[RED, {"colour": value}])
    assert (error.row, error.field) == (2, "colour")
    assert "must be a text or a number" in error.message


@pytest.mark.parametrize("value", ["a\0b", "a\ud800"])
def test_a_text_that_nothing_can_keep_is_told_of_its_column(value: str) -> None:
    (error,) = errors_of(template=MUG, rows=[{"colour": value}])
    assert (error.row, error.field) == (1, "colour")
    assert "row 1: colour must not contain" in error.message


def test_a_filled_text_is_held_to_the_limits_of_the_model() -> None:
    (error,) = errors_of(template=MUG, rows=[RED, {"colour": "r" * 1000}])
    assert error.message == "row 2: prompt must have at most 1000 characters, not 1006"
    assert told(template=MUG, rows=[{"colour": "r" * 1000}] * 2) == [(1, "prompt"), (2, "prompt")]


def test_a_text_that_would_fill_the_memory_is_not_built() -> None:
    template = {**MUG, "prompt": "{colour}" * 3_000}
    (error,) = errors_of(template=template, rows=[{"colour": "r" * 50_000}])
    assert (error.row, error.field, error.value) == (1, "prompt", 150_000_000)


def test_a_text_that_a_row_leaves_empty_is_told_of_the_row() -> None:
    (error,) = errors_of(template={**MUG, "prompt": "{colour}"}, rows=[RED, {"colour": ""}, RED])
    assert (error.row, error.field) == (2, "prompt")


def test_a_fault_of_the_grid_is_told_once() -> None:
    rows = [{"colour": str(number)} for number in range(5)]
    (error,) = errors_of(template=MUG, rows=rows, grid={"width": [64, 63], "seed": [1, 2, 3]})
    assert (error.row, error.field) == (None, "grid.width")
    assert error.message == "grid.width must be 64, not 63; nearest: 64"


def test_a_clash_between_grid_and_row_is_told_of_the_row() -> None:
    rows = [RED, {**RED, "num_inference_steps": 4}]
    assert told(template=MUG, rows=rows, grid={"cache": ["off", "fast"]}) == [(4, "cache")]


def test_a_fault_of_a_row_is_told_once_also_when_the_grid_multiplies_it() -> None:
    (error,) = errors_of(template=MUG, rows=[RED, {**RED, "width": 63}], grid={"seed": [1, 2, 3]})
    assert (error.row, error.field) == (4, "width")
    assert error.message == "row 4: width must be 64, not 63; nearest: 64 (row 2 of the table)"


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "rows", "rows is missing: give rows, a grid, or both"),
        ({"template": MUG}, "rows", "rows is missing"),
        ({"rows": []}, "rows", "at least one row"),
        ({"rows": {}}, "rows", "rows must be a list of objects, not an object"),
        ({"rows": "x"}, "rows", "not a string"),
        ({"rows": [RED, 3]}, "rows", "row 2: must be an object, not an integer"),
        ({"rows": [{"row": 1}]}, "row", "the row's own number"),
        ({"rows": [RED], "template": []}, "template", "must be an object"),
        ({"grid": {}}, "grid", "at least one field"),
        ({"grid": []}, "grid", "must be an object"),
        ({"grid": {"seed": 1}}, "grid.seed", "must be a list of values"),
        ({"grid": {"seed": []}}, "grid.seed", "at least one value"),
        ({"grid": {"row": [1]}}, "grid.row", "the row's own number"),
        ({"template": MUG, "grid": {"colour": ["red"], "sed": [1]}}, "grid.sed", 'did you mean "seed"?'),
        (
            {"rows": [{"seed": 1}], "grid": {"seed": [1]}},
            "grid.seed",
            'row 1: gives "seed", and so does the grid',
        ),
        ({"rows": [RED] * 10_001}, "rows", "at most 10000 jobs, not 10001"),
        (
            {"rows": [RED] * 101, "grid": {"n": [1] * 10, "seed": [1] * 10}},
            "grid",
            "at most 10000 jobs, not 101 x 10 x 10 = 10100",
        ),
    ],
)
def test_the_form_of_a_batch_is_checked_first(body: dict[str, Any], field: str, words: str) -> None:
    (error,) = errors_of(**body)
    assert error.field == field
    assert words in error.message


def test_a_thousand_unknown_columns_are_not_all_listed() -> None:
    errors = errors_of(template=MUG, rows=[{**RED, f"x{number}": 1} for number in range(1000)])
    assert len(errors) == 51
    assert any("950 more columns are unknown" in error.message for error in errors)


def test_a_flood_of_problems_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blame.MOST_TOLD >= 50_000
    monkeypatch.setattr(blame, "MOST_TOLD", 200)
    flawed = {"model": "tiny", "prompt": "x", "metadata": {f"k{number}": 1 for number in range(60)}}
    errors = errors_of(rows=[flawed] * 100)
    assert len(errors) == 201
    assert errors[0].message == "rows after row 4 were not looked at: there are too many problems to tell"


def test_cells_that_do_not_read_as_their_type_are_told_with_the_row() -> None:
    rows = [{"colour": "red", "width": "64.5", "guidance_scale": "7,5", "metadata": "{}"}]
    errors = errors_of(template=MUG, rows=rows, text_cells=True)
    assert [error.message for error in errors] == [
        'row 1: width must be an integer, not "64.5"',
        'row 1: guidance_scale must be a number, not "7,5"; nearest: 7.5',
        'row 1: metadata must be an object, not "{}"',
    ]
    errors = errors_of(template=MUG, rows=[{"colour": "red", "width": "64,0", "seed": "x"}], text_cells=True)
    assert [error.nearest for error in errors] == [64, None]


def test_a_file_without_a_header_is_asked_for_one() -> None:
    errors = errors_of(template=MUG, rows=[{"blue": "red"}, {"blue": "green"}], text_cells=True)
    assert "is the first line of the file the header?" in errors[1].message
    errors = errors_of(template=MUG, rows=[{"colour": "red", "size": "1"}], text_cells=True)
    assert "header" not in errors[0].message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
names = st.sampled_from(["model", "prompt", "width", "seed", "metadata", "colour", "row"]) | st.text(
    max_size=4
)
tables = st.lists(st.dictionaries(names, json_values, max_size=3), max_size=3)
grids = st.dictionaries(names, st.lists(json_values, max_size=2), max_size=2)
templates = st.dictionaries(names, json_values | st.text("{}a.0", max_size=6), max_size=4)


@settings(deadline=None, max_examples=100)
@given(templates, tables | json_values, grids | json_values, st.booleans())
def test_any_batch_is_made_or_refused_with_errors_that_json_can_carry(
    template: dict[str, Any], rows: Any, grid: Any, text_cells: bool
) -> None:
    body = {"template": {"model": "tiny", "prompt": "x", **template}, "rows": rows, "grid": grid}
    try:
        orders = make_orders(body, CATALOGUE, lambda: 7, text_cells=text_cells)
    except InvalidRequest as refusal:
        assert refusal.errors  # noqa: PT017 - both outcomes are right
        for error in refusal.errors:
            json.dumps([error.field, error.message, error.limit, error.nearest], allow_nan=False).encode()
            error.message.encode()
            assert error.row is None or error.message.startswith(f"row {error.row}: ")
    else:
        assert [order.row for order in orders] == list(range(1, len(orders) + 1))

"""Values and lists in messages, and errors that survive a trip between processes."""

import math
import pickle

import pytest

from policy.errors import FieldError, InvalidOptions, UnknownModel
from policy.wording import closest, kind_of, listing, quote, show


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (2.5, 2.5),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (2**64, 2**64),
        (2**4000, "an integer of 4001 bits"),
        ("a house", "a house"),
        ("🏠", "🏠"),
        ("a\0b", "a\\x00b"),
        ("\ud800", "\\ud800"),
        ("\x1b[31m", "\\x1b[31m"),
        ("x" * 81, "x" * 80 + "…"),
        ([1, 2], "a list"),
        ({"a": 1}, "an object"),
    ],
)
def test_a_value_is_shown_so_that_json_and_terminals_can_carry_it(value: object, shown: object) -> None:
    assert show(value) == shown


def test_texts_are_quoted_and_the_rest_is_not() -> None:
    assert [quote(value) for value in ("a", True, None, 3, [1])] == ['"a"', "true", "null", "3", "a list"]


def test_kinds_have_their_json_names() -> None:
    assert [kind_of(value) for value in (None, True, 1, 1.5, "", [], {})] == [
        "null",
        "a boolean",
        "an integer",
        "a number",
        "a string",
        "a list",
        "an object",
    ]
    assert kind_of(b"") == "bytes"


def test_lists_read_like_a_sentence() -> None:
    assert [listing(items) for items in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a or b",
        "a, b or c",
    ]
    assert listing("ab", "and") == "a and b"


def test_a_near_miss_is_found_and_a_far_one_is_not() -> None:
    assert closest("widht", ["width", "height"]) == "width"
    assert closest("zzz", ["width", "height"]) is None


@pytest.mark.parametrize("kind", [InvalidOptions, UnknownModel])
def test_an_error_keeps_its_problems_when_it_is_pickled(kind: type[InvalidOptions]) -> None:
    error = kind([FieldError("n", "n must be 1", 2, 1, 1)])
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(again), again.errors, str(again)) == (kind, error.errors, "n must be 1")

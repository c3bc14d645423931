"""Tables: identifiers whole, one line a row, fitted to a terminal only."""

import pytest

from cli.table import lay_out
from tests.cli.job_answers import ID

COLUMNS = ("id", "status", "model", "created", "prompt")
ROW = (ID, "completed", "tiny", "11-30 21:51:07", "a white house with a blue roof\nand a tree")
DROP = ("model", "created")


@pytest.mark.parametrize(("width", "shown"), [(120, COLUMNS), (80, ("id", "status", "created", "prompt"))])
def test_a_terminal_gets_fitted_lines_with_the_whole_id(width: int, shown: tuple[str, ...]) -> None:
    lines = lay_out(COLUMNS, [ROW, ROW], width, drop=DROP).lines
    assert len(lines) == 3
    assert tuple(lines[0].split()) == shown
    assert all(line.startswith(ID) and len(line) <= width for line in lines[1:])


def test_a_cut_cell_ends_with_an_ellipsis_and_wide_characters_count_twice() -> None:
    [_, line] = lay_out(("id", "prompt"), [("1", "船" * 10)], 20).lines
    assert line == "1   " + "船" * 7 + "…"


def test_a_very_narrow_terminal_still_gets_the_whole_id() -> None:
    assert lay_out(COLUMNS, [ROW], 30, drop=DROP).lines[1].startswith(f"{ID}  completed  ")


def test_elsewhere_nothing_is_cut_and_no_line_ends_with_a_blank() -> None:
    lines = lay_out(COLUMNS, [ROW, (*ROW[:-1], "")], None).lines
    assert lines[1].endswith("a white house with a blue roof and a tree")
    assert not [line for line in lines if line != line.rstrip()]


def test_controls_in_a_cell_are_shown_and_an_empty_one_is_a_dash() -> None:
    assert lay_out(("a", "b"), [("\x1b[2J", None)], None).lines[1] == "\\x1b[2J  -"


def test_columns_without_room_are_named_and_elsewhere_there_are_none() -> None:
    assert lay_out(COLUMNS, [ROW], 80, drop=DROP).left_out == ["model"]
    assert lay_out(COLUMNS, [ROW], 50, drop=DROP).left_out == ["model", "created"]
    assert lay_out(COLUMNS, [ROW], None, drop=DROP).left_out == []

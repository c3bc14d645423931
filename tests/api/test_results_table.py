"""The table of results: columns, order, encoding, and cells that no spreadsheet runs."""

import csv
import io

import pytest

from api.results_table import ResultsTable, make_harmless, write_csv
from core.lifecycle import JobState
from core.tables import Job


def job(row: int, fields: dict[str, object], **values: object) -> Job:
    plan = {"seed": 7, "width": 64, "height": 48, "n": 1}
    return Job(
        **{
            "id": f"job-{row}",
            "state": JobState.QUEUED,
            "batch_row": row,
            "batch_fields": fields,
            "plan": plan,
        }
        | values
    )


def test_each_row_has_what_it_said_and_what_became_of_it() -> None:
    table = ResultsTable([{"sku": "A"}, {"sku": "B", "seed": 3}])
    assert table.header == [
        *("row", "sku", "your_seed", "job_id", "status", "files", "seed", "width", "height"),
        *("error_code", "error_message"),
    ]
    done = job(1, {"sku": "A"}, state=JobState.COMPLETED)
    assert table.line(done, ["u1", "u2"]) == [
        "1",
        "A",
        "",
        "job-1",
        "completed",
        "u1 | u2",
        "7",
        "64",
        "48",
        "",
        "",
    ]
    broken = job(2, {"sku": "B", "seed": 3}, state=JobState.FAILED, error_code="e", error_message="m")
    assert table.line(broken, []) == ["2", "B", "3", "job-2", "failed", "", "7", "64", "48", "e", "m"]


def test_no_two_columns_have_one_name() -> None:
    table = ResultsTable([{"status": 1, "your_status": 2, "your_status_2": 3, "row_": 4}])
    assert len(set(table.header)) == len(table.header)
    assert table.header[1:5] == ["your_status_3", "your_status", "your_status_2", "row_"]


def test_the_file_is_read_by_excel_and_by_python() -> None:
    lines = [["1", 'a "b", c'], ["2", "two\r\nlines"], ["3", "日本"]]
    whole = b"".join(write_csv(["row", "text"], iter(lines)))
    assert whole.startswith(b"\xef\xbb\xbf")
    assert whole.endswith(b"\r\n")
    read = list(csv.reader(io.StringIO(whole.decode("utf-8-sig"), newline="")))
    assert read == [["row", "text"], *lines]


def test_a_long_table_comes_in_pieces() -> None:
    pieces = list(write_csv(["row"], ([str(number)] for number in range(1000))))
    assert len(pieces) > 3
    assert b"".join(pieces).count(b"\r\n") == 1001


@pytest.mark.parametrize(
    ("cell", "harmless"),
    [
        ("=cmd|'/c calc'!A1", "'=cmd|'/c calc'!A1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t'=1"),
        ("\rx", "'\rx"),
        ("\nx", "'\nx"),
        ("  =1", "'  =1"),
        ("＝1", "'＝1"),
        (" " * 9 + "=1", "'" + " " * 9 + "=1"),
        ("\u00a0=1", "'\u00a0=1"),
        ("\u3000+1", "'\u3000+1"),
        ("\ufeff@a", "'\ufeff@a"),
        ("\u200b \u00ad-1", "'\u200b \u00ad-1"),
        ("\x0b=1", "'\x0b=1"),
        ("\x00=1", "'\x00=1"),
        ("\u2028=1", "'\u2028=1"),
        ("a;" + "\u00a0" * 20 + "=1", "a;'" + "\u00a0" * 20 + "=1"),
        ("\ufe66a", "'\ufe66a"),
        ("a, =1", "a, =1"),
        ("a;=1", "a;'=1"),
        ("a\t=1", "a\t'=1"),
        ("a\n=1", "a\n'=1"),
        ('"=1"', '"=1"'),
        ("a = b", "a = b"),
        ("a; b", "a; b"),
        ("http://127.0.0.1/?a=1", "http://127.0.0.1/?a=1"),
        ("", ""),
    ],
)
def test_a_cell_that_a_spreadsheet_would_run_gets_an_apostrophe(cell: str, harmless: str) -> None:
    assert make_harmless(cell) == harmless


def test_the_names_of_columns_are_harmless_too() -> None:
    assert b'"\'=cmd"' in b"".join(write_csv(ResultsTable([{"=cmd": 1}]).header, ()))


def test_blank_cells_of_any_length_cost_little() -> None:
    blank = "\n" * 50_000
    assert make_harmless(blank) == f"'{blank}"
    invisible = "\u00a0\ufeff" * 25_000
    assert make_harmless(f"{invisible}=") == f"'{invisible}="


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separator_can_be_that_of_the_readers_spreadsheet(separator: str) -> None:
    whole = b"".join(write_csv(["row", "text"], [["1", f"a{separator}b"]], separator))
    read = list(csv.reader(io.StringIO(whole.decode("utf-8-sig"), newline=""), delimiter=separator))
    assert read == [["row", "text"], ["1", f"a{separator}b"]]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_where_cells_are_not_divided_by_commas_a_comma_may_divide_them_for_others(separator: str) -> None:
    assert make_harmless("a,=1", separator) == "a,'=1"

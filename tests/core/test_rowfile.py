"""Tables as people send them: what is read, and what is refused with row, line and column."""

import csv
import io
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.rowfile import CELL_LIMIT, LINE_LIMIT, LINES_LIMIT, SEPARATORS_LIMIT, has_text_cells, read_rows
from core.strict_json import VALUES_LIMIT
from policy.errors import FieldError, InvalidRequest

SEPARATOR_HINT = "a text with the separator in it goes between quotation marks"


def errors_of(content: str | bytes, name: str = "products.csv") -> list[FieldError]:
    raw = content.encode() if isinstance(content, str) else content
    with pytest.raises(InvalidRequest) as refusal:
        read_rows(raw, name)
    return list(refusal.value.errors)


def only_error(content: str | bytes, name: str = "products.csv") -> FieldError:
    (error,) = errors_of(content, name)
    assert error.row is None or error.message.startswith(f"row {error.row}: ")
    return error


# --- CSV that is taken ---


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["products.csv", "P.CSV", "products.tsv"])
def test_separator_line_ends_and_byte_order_mark_do_not_matter(
    mark: str, end: str, separator: str, name: str
) -> None:
    lines = ("sku;name", "1;mug", "2;Tasse für Öl")
    content = mark + end.join(lines).replace(";", separator) + end
    assert read_rows(content.encode(), name) == [
        {"sku": "1", "name": "mug"},
        {"sku": "2", "name": "Tasse für Öl"},
    ]


def test_quotes_separators_and_line_breaks_may_stand_in_quoted_cells() -> None:
    content = 'sku;"name";note\r\n1;"a; ""fine""\r\nmug";x\r\n2;"";" y "\r\n'
    assert read_rows(content.encode(), "products.csv") == [
        {"sku": "1", "name": 'a; "fine"\r\nmug', "note": "x"},
        {"sku": "2", "name": "", "note": " y "},
    ]


def test_the_separator_is_that_of_the_header_also_when_cells_hold_others() -> None:
    content = 'sku;"name, long";price\n1;a, b, c;7,5\n'
    assert read_rows(content.encode(), "products.csv") == [
        {"sku": "1", "name, long": "a, b, c", "price": "7,5"},
    ]


def test_a_single_column_needs_no_separator() -> None:
    assert read_rows(b"prompt\na house\n", "p.csv") == [{"prompt": "a house"}]


def test_blank_lines_are_no_rows_and_names_are_trimmed() -> None:
    assert read_rows(b"\n sku , name\n\n1,a\n\r\n2,b\n\n", "p.csv") == [
        {"sku": "1", "name": "a"},
        {"sku": "2", "name": "b"},
    ]


def test_a_formula_is_text_like_any_other() -> None:
    assert read_rows(b"sku\n=cmd|' /C calc'!A0\n", "p.csv") == [{"sku": "=cmd|' /C calc'!A0"}]


def test_the_largest_file_and_the_largest_cell_are_taken() -> None:
    content = "sku,name\n" + "1,a\n" * 9_999 + "2," + "x" * CELL_LIMIT + "\n"
    rows = read_rows(content.encode(), "p.csv")
    assert (len(rows), len(rows[-1]["name"])) == (10_000, CELL_LIMIT)


def test_the_limit_that_all_readers_share_stays_as_it_was() -> None:
    before = csv.field_size_limit()
    read_rows(b"a\n1\n", "p.csv")
    errors_of("a\n" + "x" * 200_000)
    assert csv.field_size_limit() == before


def test_only_tables_hold_nothing_but_text() -> None:
    assert [has_text_cells(name) for name in ("a.csv", "A.TSV", "a.jsonl", "a.ndjson")] == [
        True,
        True,
        False,
        False,
    ]


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
headers = st.lists(
    st.text("abcäö ", min_size=1).map(str.strip).filter(bool), min_size=1, max_size=4, unique=True
)


@settings(deadline=None, max_examples=60)
@given(headers, st.data(), st.sampled_from([",", ";", "\t"]), st.sampled_from(["\n", "\r\n"]))
def test_what_a_spreadsheet_writes_is_read_back(
    header: list[str], data: st.DataObject, separator: str, end: str
) -> None:
    cells = st.lists(texts, min_size=len(header), max_size=len(header)).filter(
        lambda row: any(cell.strip() for cell in row)
    )
    table = data.draw(st.lists(cells, min_size=1, max_size=4))
    written = io.StringIO()
    csv.writer(written, delimiter=separator, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(
        [header, *table]
    )
    rows = read_rows(written.getvalue().encode(), "p.csv")
    assert [list(row.values()) for row in rows] == table
    assert all(list(row) == header for row in rows)


# --- CSV that is refused ---


@pytest.mark.parametrize("content", [b"", b"\n\r\n  \n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ["p.csv", "p.jsonl"])
def test_an_empty_file_is_refused(content: bytes, name: str) -> None:
    error = only_error(content, name)
    assert (error.field, error.message) == ("file", "the file is empty")


def test_a_header_alone_is_refused() -> None:
    assert only_error("sku,name\n").message == "the file has a header and no rows"


def test_bytes_of_latin_1_are_named_with_their_line_and_the_way_out() -> None:
    error = only_error("sku,name\n1,a\n2,für Öl\n".encode("latin-1"))
    assert error.message == (
        'line 3: the byte 0xfc is not UTF-8; save the file as UTF-8 (in a spreadsheet: "CSV UTF-8")'
    )


def test_the_line_is_right_behind_a_byte_order_mark_too() -> None:
    assert only_error(b"\xef\xbb\xbfsku\r\n1\r\n\xe4\r\n").message.startswith("line 3: the byte 0xe4")


def test_utf_16_is_refused() -> None:
    assert "line 1: the byte 0xff is not UTF-8" in only_error("sku\n1\n".encode("utf-16")).message


def test_nul_is_refused_with_its_line() -> None:
    assert only_error("sku\n1\n\0\n").message == "line 3: the file must not contain the character NUL"


def test_a_column_without_a_name_and_a_name_that_stands_twice_are_told_together() -> None:
    errors = errors_of("sku,name, sku,\n1,2,3,4\n")
    assert [(error.field, error.message) for error in errors] == [
        ("sku", 'columns 1 and 3 of the header have one name, "sku"'),
        ("file", "column 4 of the header has no name"),
    ]


@pytest.mark.parametrize("first", ["4711,mug", "x,-7.5", "a," + "long " * 30])
def test_a_first_line_that_is_no_header_is_refused(first: str) -> None:
    assert "is the first line the header?" in only_error(f"{first}\n1,2\n").message


def test_a_header_of_many_columns_is_refused() -> None:
    header = ",".join(f"c{number}" for number in range(101))
    assert "at most 100 columns, not 101" in only_error(f"{header}\n").message


def test_rows_that_do_not_fit_the_header_are_all_told_with_row_line_and_column() -> None:
    errors = errors_of('sku,name,price\n1,"a\nb"\n\n1,a,7,5\n1,a,7\n,  ,\n')
    assert [(error.row, error.field) for error in errors] == [(1, "price"), (2, "price"), (4, "file")]
    assert [error.message for error in errors] == [
        "row 1: line 2 has 2 cells, and the header has 3",
        f"row 2: line 5 has 4 cells, and the header has 3; {SEPARATOR_HINT}",
        "row 4: line 7 has empty cells only; delete the line",
    ]


def test_a_cell_above_the_limit_is_refused_and_the_reading_goes_on() -> None:
    errors = errors_of("sku,name\n1," + "x" * (CELL_LIMIT + 1) + "\n2\n")
    assert [(error.row, error.field) for error in errors] == [(1, "name"), (2, "name")]
    assert errors[0].message == f"row 1: line 2: name must have at most {CELL_LIMIT} characters, not 50001"


@pytest.mark.parametrize(
    "content", ["1," + "x" * 50_000_000, '1,"' + "x\n" * 900_000], ids=["one line", "many lines"]
)
def test_an_enormous_cell_ends_the_reading_with_its_row(content: str) -> None:
    error = only_error(f"sku,name\n0,a\n{content}\n")
    assert (error.row, error.field) == (2, "file")
    assert error.message == 'row 2: line 3: a cell has more than 50000 characters; is a " never closed?'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('sku,name\n1,"a\n2,b\n', 'row 1: line 2: a " is opened and never closed'),
        ('sku,name\n1,"a"b\n', 'row 1: line 2: after a closing " must come a comma'),
        ('sku;name\n1;"a"b\n', 'row 1: line 2: after a closing " must come a semicolon'),
        ('"sku,name\n1,2\n', 'line 1, the header: a " is opened and never closed'),
        ('sku,"name\n1,2\n', 'column 1 of the header cannot be called "sku,"name"; is a " never closed?'),
        ('"sku"x,name\n1,2\n', 'line 1, the header: after a closing " must come a comma'),
    ],
)
def test_a_fault_in_the_quotes_is_named_with_its_row(content: str, words: str) -> None:
    assert words in only_error(content).message


@pytest.mark.parametrize(
    ("header", "row", "name"), [("sku\n", "1\n", "p.csv"), ("", '{"a": 1}\n', "p.jsonl")]
)
def test_the_row_after_the_last_allowed_one_is_refused(header: str, row: str, name: str) -> None:
    error = only_error(header + row * 10_001, name)
    line = 10_002 if header else 10_001
    assert (error.row, error.nearest) == (10_001, 10_000)
    assert f"row 10001: line {line}: a file has at most 10000 rows" in error.message


@pytest.mark.parametrize(
    "name", ["p.xlsx", "p.txt", "P.XLS", "p", "", "csv", "p.csv.gz", "p.csv\0", ".csv/x"]
)
def test_a_file_of_another_kind_is_refused_by_its_name(name: str) -> None:
    error = only_error("a\n1\n", name)
    assert error.field == "file"
    assert "must end in .csv, .tsv, .jsonl or .ndjson" in error.message
    assert ("CSV UTF-8" in error.message) is name.lower().endswith(("xlsx", "txt", "xls"))


@pytest.mark.parametrize("content", [b"PK\x03\x04\x14\0", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"])
@pytest.mark.parametrize("name", ["p.csv", "p.tsv", "p.jsonl"])
def test_a_spreadsheet_file_under_another_name_is_told_as_what_it_is(content: bytes, name: str) -> None:
    assert only_error(content, name).message == "this is a spreadsheet file: save it as CSV UTF-8"


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("name", ["p.csv", "p.jsonl"])
def test_a_file_of_endless_lines_is_refused_unread(end: str, name: str) -> None:
    error = only_error("a" + end * (LINES_LIMIT + 1), name)
    assert error.message == f"the file has {LINES_LIMIT + 1} lines; at most {LINES_LIMIT} are read"


@pytest.mark.parametrize("begin", ["", "a;b\n"])
def test_a_line_of_endless_cells_is_refused_unread(begin: str) -> None:
    error = only_error(begin + "a;" * (SEPARATORS_LIMIT + 1))
    assert f"semicolons; at most {SEPARATORS_LIMIT} are read" in error.message


def test_a_file_of_json_lines_with_endless_values_is_refused_unread() -> None:
    line = '{"c":[' + "[]," * 80_000 + "[]]}\n"
    error = only_error('"\n' + line * (VALUES_LIMIT // 80_000 + 1), "p.jsonl")
    assert error.message == f"the file has more than {VALUES_LIMIT} values"


def test_a_table_is_not_copied_to_be_read() -> None:
    content = b"a,b\n" + (b"x" * 40_000 + b",y\n") * 200
    tracemalloc.start()
    read_rows(content, "p.csv")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3 * len(content)  # the text, the rows, and some; a text buffer alone takes four


# --- JSON lines ---


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("name", ["p.jsonl", "P.NDJSON"])
def test_json_lines_keep_their_types_and_blank_lines_are_skipped(mark: str, name: str) -> None:
    content = mark + '{"sku": "1", "seed": 7}\r\n\n  \n{"metadata": {"a": "b"}, "note": "\u2028"}'
    assert read_rows(content.encode(), name) == [
        {"sku": "1", "seed": 7},
        {"metadata": {"a": "b"}, "note": "\u2028"},
    ]


def test_every_bad_line_is_told_with_row_and_line() -> None:
    lines: list[Any] = [
        '{"a": 1}',
        "",
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        "[1]",
        '"text"',
        '{"a": 1',
        '{"a": 1} {"a": 2}',
        "[" * 100_000,
        '{"a":' + "9" * 5000 + "}",
        json.dumps({"a": 1} | {f"k{number}": 1 for number in range(100)}),
        '{"a": "\t"}',
        "{'a': 1}",
    ]
    errors = errors_of("\n".join(lines), "p.jsonl")
    assert [error.row for error in errors] == list(range(2, 15))
    assert errors[0].message == "row 2: line 3: the key 'a' stands twice in one object"
    assert errors[1].message == "row 3: line 4: NaN is not JSON"
    assert errors[3].message == "row 5: line 6: the number 1e999 is too large"
    assert errors[4].message == "row 6: line 7: the line must be one JSON object, not a list"
    assert "row 8: line 9: the line is not JSON" in errors[6].message
    assert "nested deeper" in errors[8].message
    assert "101 keys" in errors[10].message


def test_an_enormous_line_is_refused_unread() -> None:
    error = only_error('{"a": 1}\n{"a": "' + "x" * 50_000_000 + '"}', "p.jsonl")
    assert error.row == 2
    assert f"a line has at most {LINE_LIMIT} characters" in error.message


def test_json_lines_in_latin_1_are_refused() -> None:
    assert "line 2: the byte 0xe4" in only_error('{"a": 1}\n{"a": "ä"}'.encode("latin-1"), "p.jsonl").message


@settings(deadline=None)
@given(
    st.binary(max_size=40) | st.text(st.sampled_from('ab,;"\n\r\t{}:1\0'), max_size=30).map(str.encode),
    st.sampled_from(["p.csv", "p.tsv", "p.jsonl"]),
)
def test_any_bytes_are_read_or_refused_in_words(content: bytes, name: str) -> None:
    try:
        rows = read_rows(content, name)
    except InvalidRequest as refusal:
        for error in refusal.errors:
            json.dumps([error.field, error.message, error.limit, error.nearest], allow_nan=False).encode()
            error.message.encode()
    else:
        assert rows

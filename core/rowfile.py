"""Reads an uploaded table, CSV or JSON lines, into rows; what the columns mean is not known here.

Every problem is an `InvalidRequest` with the row (counted from 1, without the header and blank lines), the
line of the file and the column. The limit that Python's CSV reader keeps for all of its users at once is left
as it is: cells are measured here, and a cell above both limits ends the reading.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Any, NoReturn

from core.strict_json import KEYS_LIMIT, VALUES_LIMIT, BadJson, has_too_many_values, parse_object
from policy.errors import FieldError, InvalidRequest
from policy.expansion import MAX_ROWS
from policy.template import LONGEST_NAME
from policy.wording import listing, quote, show

CELL_LIMIT = 50_000  # characters
LINE_LIMIT = 256 * 1024  # characters of one JSON line; a single job's body may be as long in bytes
LINES_LIMIT = 1_000_000  # ten thousand rows of a hundred lines each
SEPARATORS_LIMIT = 2_000_000  # twice those of the largest table; the others are in its texts
LONGEST_HEADER = 2 * KEYS_LIMIT * LONGEST_NAME
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}
_LINE_END = re.compile(r"\r\n|\r|\n")
_LINE = re.compile(r"[^\r\n]*+(?:\r\n|\r|\n)|[^\r\n]++")
_SHEETS = frozenset({".xls", ".xlsx", ".xlsm", ".xlsb", ".ods", ".numbers", ".txt"})
_SHEET_STARTS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # a ZIP, as .xlsx and .ods are; a .xls
_FILE = "file"

Rows = list[dict[str, Any]]


def read_rows(content: bytes, name: str) -> Rows:
    """Return the rows of an uploaded table.

    Args:
        content: The bytes of the file: UTF-8, with or without a byte order mark.
        name: Its name; the ending decides how it is read.

    Returns:
        From `.csv` and `.tsv` a text for every column; from `.jsonl` and `.ndjson` the objects as they are.

    Raises:
        InvalidRequest: With every problem that was found.
    """
    suffix = _suffix(name)
    if suffix not in _READERS:
        _refuse_name(name, suffix)
    if content.startswith(_SHEET_STARTS):
        raise _refusal("this is a spreadsheet file: save it as CSV UTF-8", "text in UTF-8")
    text = _decode(content)
    _check_lines(text)
    if not text.strip():
        raise InvalidRequest([FieldError(_FILE, "the file is empty", len(content))])
    errors: list[FieldError] = []
    rows = _READERS[suffix](text, errors)
    if errors:
        raise InvalidRequest(errors)
    return rows


def has_text_cells(name: str) -> bool:
    """Whether a file of that name holds nothing but text, so that `make_orders` must read numbers from it."""
    return _suffix(name) in {".csv", ".tsv"}


def _suffix(name: str) -> str:
    return PurePath(name.lower()).suffix


def _refuse_name(name: str, suffix: str) -> NoReturn:
    known = list(_READERS)
    hint = "; save the sheet as CSV UTF-8" if suffix in _SHEETS else ""
    message = f"the file's name must end in {listing(known)}, not {quote(name)}{hint}"
    raise InvalidRequest([FieldError(_FILE, message, show(name), known, ".csv" if hint else None)])


def _refusal(message: str, limit: object = None) -> InvalidRequest:
    """What is wrong with the file as a whole."""
    return InvalidRequest([FieldError(_FILE, message, None, limit)])


def _check_lines(text: str) -> None:
    lines = text.count("\n") + text.count("\r") - text.count("\r\n")
    if lines > LINES_LIMIT:
        raise _refusal(f"the file has {lines} lines; at most {LINES_LIMIT} are read", LINES_LIMIT)


def _decode(content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Its offset counts from behind the byte order mark.
        byte, before = error.object[error.start], error.object[: error.start].decode()
        line = len(_LINE_END.findall(before)) + 1
        hint = 'save the file as UTF-8 (in a spreadsheet: "CSV UTF-8")'
        message = f"line {line}: the byte 0x{byte:02x} is not UTF-8; {hint}"
        raise InvalidRequest([FieldError(_FILE, message, f"0x{byte:02x}", "UTF-8")]) from None
    if (place := text.find("\0")) >= 0:
        line = len(_LINE_END.findall(text[:place])) + 1
        raise InvalidRequest([FieldError(_FILE, f"line {line}: the file must not contain the character NUL")])
    return text


# --- CSV ---


def _read_table(text: str, errors: list[FieldError]) -> Rows:
    delimiter = _delimiter(text)
    _check_separators(text, delimiter)
    records = _records(text, delimiter, errors)
    _, first = next(records, (1, []))
    header = [cell.strip() for cell in first]
    errors += _check_header(header)
    if errors:
        return []
    rows: Rows = []
    for number, (line, cells) in enumerate(records, 1):
        if number > MAX_ROWS:
            errors.append(_too_many(number, line))
            break
        errors += _check_cells(number, line, cells, header)
        rows.append(dict(zip(header, cells, strict=False)))
    if not rows and not errors:
        errors.append(FieldError(_FILE, "the file has a header and no rows", 0, 1, 1))
    return rows


def _check_separators(text: str, delimiter: str) -> None:
    """The reader makes a cell after each, of a whole row before it can be counted."""
    found = text.count(delimiter)
    if found > SEPARATORS_LIMIT:
        kind = _DELIMITERS[delimiter]
        message = f"the file has {found} {kind}s; at most {SEPARATORS_LIMIT} are read"
        raise _refusal(message, SEPARATORS_LIMIT)


def _delimiter(text: str) -> str:
    """The one that makes most cells of the header; a comma when all are equal."""
    head = text[:LONGEST_HEADER]
    return max(_DELIMITERS, key=lambda delimiter: len(next(_records(head, delimiter, []), (1, []))[1]))


def _records(text: str, delimiter: str, errors: list[FieldError]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line on which it begins, cells) of each that is not blank; a fault in the quotes is the end."""
    lines = (match[0] for match in _LINE.finditer(text))  # a copy of the text would take four times its bytes
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    number, line = 0, 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
                number += 1
            line = reader.line_num + 1
    except csv.Error as error:
        errors.append(_bad_quotes(number, line, delimiter, str(error)))


def _bad_quotes(number: int, line: int, delimiter: str, reason: str) -> FieldError:
    if "expected after" in reason:
        words = (
            f'after a closing " must come a {_DELIMITERS[delimiter]}; a " inside a quoted cell is written ""'
        )
    elif "limit" in reason:
        words = f'a cell has more than {CELL_LIMIT} characters; is a " never closed?'
    else:
        words = 'a " is opened and never closed'
    if number == 0:
        return FieldError(_FILE, f"line {line}, the header: {words}")
    return FieldError(_FILE, f"row {number}: line {line}: {words}", row=number)


def _check_header(header: Sequence[str]) -> Iterator[FieldError]:
    if len(header) > KEYS_LIMIT:
        message = f"the header must have at most {KEYS_LIMIT} columns, not {len(header)}"
        yield FieldError(_FILE, message, len(header), KEYS_LIMIT, KEYS_LIMIT)
        return
    for place, name in enumerate(header, 1):
        if not name:
            yield FieldError(_FILE, f"column {place} of the header has no name", "", "a name")
        elif name in header[: place - 1]:
            first = header.index(name) + 1
            message = f"columns {first} and {place} of the header have one name, {quote(name)}"
            yield FieldError(str(show(name)), message, show(name), "a name of its own")
        elif len(name) > LONGEST_NAME or '"' in name or re.fullmatch(r"[+-]?[0-9.,]+", name):
            hint = 'is a " never closed?' if '"' in name else "is the first line the header?"
            message = f"column {place} of the header cannot be called {quote(name)}; {hint}"
            yield FieldError(_FILE, message, show(name), "a name")


def _check_cells(number: int, line: int, cells: Sequence[str], header: Sequence[str]) -> Iterator[FieldError]:
    where = f"row {number}: line {line}"
    if len(cells) != len(header):
        surplus = len(cells) > len(header)
        column = header[-1] if surplus else header[len(cells)]
        hint = "; a text with the separator in it goes between quotation marks" if surplus else ""
        message = (
            f"{where} has {len(cells)} cell{'s'[: len(cells) - 1]}, and the header has {len(header)}{hint}"
        )
        yield FieldError(str(show(column)), message, len(cells), len(header), len(header), number)
    elif not any(cell.strip() for cell in cells):
        yield FieldError(_FILE, f"{where} has empty cells only; delete the line", "", row=number)
    for column, cell in zip(header, cells, strict=False):
        if len(cell) > CELL_LIMIT:
            words = f"{column} must have at most {CELL_LIMIT} characters, not {len(cell)}"
            yield FieldError(
                str(show(column)), f"{where}: {words}", len(cell), CELL_LIMIT, CELL_LIMIT, number
            )


def _too_many(number: int, line: int) -> FieldError:
    message = f"row {number}: line {line}: a file has at most {MAX_ROWS} rows; send the rest in another batch"
    return FieldError(_FILE, message, number, MAX_ROWS, MAX_ROWS, number)


# --- JSON lines ---


def _read_lines(text: str, errors: list[FieldError]) -> Rows:
    lines = text.split("\n")
    if len(text) > VALUES_LIMIT and has_too_many_values([line.encode() for line in lines]):
        raise _refusal(f"the file has more than {VALUES_LIMIT} values", VALUES_LIMIT)
    rows: Rows = []
    number = 0
    for line, written in enumerate(lines, 1):
        if not written.strip():
            continue
        number += 1
        if number > MAX_ROWS:
            errors.append(_too_many(number, line))
            break
        try:
            rows.append(_read_line(written))
        except BadJson as error:
            errors.append(FieldError(_FILE, f"row {number}: line {line}: {error}", row=number))
    return rows


def _read_line(written: str) -> dict[str, Any]:
    if len(written) > LINE_LIMIT:
        raise BadJson(f"a line has at most {LINE_LIMIT} characters, not {len(written)}")
    return parse_object(written, "the line")


_READERS: dict[str, Callable[[str, list[FieldError]], Rows]] = {
    ".csv": _read_table,
    ".tsv": _read_table,
    ".jsonl": _read_lines,
    ".ndjson": _read_lines,
}

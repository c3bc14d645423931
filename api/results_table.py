"""A batch as a CSV table: one line for each row, with what it said and what became of it.

The file begins with a byte order mark, so that Excel reads it as UTF-8; Python reads it as ``utf-8-sig``.
Every cell is quoted. Spreadsheets take a cell that begins with ``=`` for a formula, which may call
programs; a text that one of them could take so gets an apostrophe in front, as OWASP advises ("CSV
injection").
"""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from api.file_names import as_text
from core.tables import Job

MEDIA_TYPE = "text/csv; charset=utf-8"
SEPARATOR = " | "
"""Between the files of one row; no name and no address has it."""
LINES_AT_ONCE = 200
BEFORE = ("row",)
AFTER = (
    *("job_id", "status", "files", "seed", "width", "height"),
    *("error_code", "error_message"),
)
COLUMN_SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t"}
_ENDS_A_CELL = re.compile("([;\t\r\n])")
_ENDS_A_CELL_OR_IS_A_COMMA = re.compile("([,;\t\r\n])")
_INVISIBLE = frozenset({"Cc", "Cf", "Zl", "Zp", "Zs"})


class ResultsTable:
    """The columns of one batch, and its lines."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take the columns from what ``rows`` said: each name once, in the order of its first appearance."""
        self.own = tuple(dict.fromkeys(name for row in rows for name in row))

    @property
    def header(self) -> list[str]:
        """Names of the columns; a row's own name that is one of ours gets ``your_`` in front."""
        taken = {*BEFORE, *AFTER, *self.own}
        return [*BEFORE, *(_own_name(name, taken) for name in self.own), *AFTER]

    def line(self, job: Job, files: Sequence[str]) -> list[str]:
        """Return the cells of one row; ``files`` are addresses, or names in a ZIP."""
        fields = job.batch_fields or {}
        own = [as_text(fields.get(name)) for name in self.own]
        sizes = [str(job.plan[name]) for name in ("seed", "width", "height")]
        reason = [job.error_code or "", job.error_message or ""]
        return [str(job.batch_row), *own, job.id, job.state, SEPARATOR.join(files), *sizes, *reason]


def _own_name(name: str, taken: set[str]) -> str:
    if name not in {*BEFORE, *AFTER}:
        return name
    other = f"your_{name}"
    return other if other not in taken else _own_name_numbered(other, taken)


def _own_name_numbered(name: str, taken: set[str]) -> str:
    return next(other for number in range(2, len(taken) + 3) if (other := f"{name}_{number}") not in taken)


def encode_header(header: Sequence[str], separator: str = ",") -> bytes:
    """Return the first line, with the byte order mark before it."""
    return b"\xef\xbb\xbf" + encode_lines([header], separator)


def encode_lines(lines: Iterable[Sequence[str]], separator: str = ",") -> bytes:
    """Return lines as RFC 4180 wants them, every cell quoted and harmless."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerows([make_harmless(cell, separator) for cell in cells] for cells in lines)
    return text.getvalue().encode("utf-8")


def write_csv(header: Sequence[str], lines: Iterable[Sequence[str]], separator: str = ",") -> Iterator[bytes]:
    """Yield the whole file in pieces of some lines each."""
    remaining = iter(lines)
    yield encode_header(header, separator)
    while page := list(islice(remaining, LINES_AT_ONCE)):
        yield encode_lines(page, separator)


def make_harmless(cell: str, separator: str = ",") -> str:
    """Return ``cell`` so that no spreadsheet takes it, or a part of it, for a formula.

    A spreadsheet that expects another separator splits our cells there, so what follows one counts as well.
    """
    parts = (_ENDS_A_CELL if separator == "," else _ENDS_A_CELL_OR_IS_A_COMMA).split(cell)
    if not parts[0] and parts[1:]:
        parts[0] = "'" if cell[0] in "\t\r\n" else ""
    return "".join(f"'{part}" if _is_formula(part) else part for part in parts)


def _is_formula(part: str) -> bool:
    """Whether the first character that can be seen begins a formula, in any of its widths."""
    first = next((char for char in part if unicodedata.category(char) not in _INVISIBLE), "")
    return unicodedata.normalize("NFKC", first)[:1] in set("=+-@")

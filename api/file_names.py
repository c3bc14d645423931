"""Names of files in a ZIP, made from a caller's template: safe on every system, and each only once.

A template such as ``{row}-{sku}`` is filled with what a row of the batch said. What comes out is the name
of one file in one folder: no path, nothing that Windows, macOS or Linux refuses or hides, and no two names
that differ only in case. The ending follows the type of the file.
"""

import json
import re
import unicodedata
from collections.abc import Collection, Mapping
from typing import Any

from pathvalidate import sanitize_filename

from policy.errors import FieldError
from policy.template import InvalidTemplate, Template, read_template

DEFAULT = "{row}"
BUILT_IN = ("row", "index", "id", "seed")
"""Names that every file has: row, number of the file in its job from 0, job's id, picture's seed."""
TEMPLATE_LIMIT = 200
STEM_LIMIT_BYTES = 180
"""In UTF-8; with a number and the ending it stays below the 255 bytes that file systems allow."""
ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "video/mp4": "mp4"}
_WRITTEN_ENDING = re.compile(r"\.(png|jpe?g|webp|mp4)$", re.IGNORECASE)


class BadName(Exception):
    """The template of names cannot be used; ``error`` says why."""

    def __init__(self, message: str, row: int | None = None) -> None:
        self.error = FieldError("name", message, row=row)
        super().__init__(message)


class FileNames:
    """Gives out the names of one archive."""

    def __init__(self, template: str | None = None, columns: Collection[str] = ()) -> None:
        """Read ``template``; None means ``{row}``. Only what is in ``columns`` may have dots in its name.

        Raises:
            BadName: It is no template, too long, or names a folder.
        """
        self._template = _read(template or DEFAULT, columns)
        self._names_index = "index" in self._template.names
        self._used: dict[str, int] = {}

    @property
    def own_names(self) -> frozenset[str]:
        """Names in the template that the rows have to know."""
        return self._template.names - set(BUILT_IN)

    def check(self, row: int, fields: Mapping[str, Any] | None) -> None:
        """Refuse the template for a row that lacks one of its names."""
        missing = sorted(self.own_names - (fields or {}).keys())
        if missing:
            known = ", ".join(sorted({*BUILT_IN, *(fields or {})}))
            raise BadName(f"row {row}: it has no {missing[0]!r} to name a file by; known: {known}", row)

    def give(self, values: Mapping[str, Any], *, several: bool, media_type: str) -> str:
        """Return the name of one file; ``several`` adds the index unless the template has it.

        ``values`` has the row's fields and the names of ``BUILT_IN``.
        """
        texts = {name: as_text(value) for name, value in values.items()}
        stem = self._template.fill(texts)
        if several and not self._names_index:
            stem = f"{stem}-{texts['index']}"
        safe = make_safe(stem) or f"row-{texts['row']}"
        return f"{self._once(safe)}.{ENDINGS.get(media_type, 'bin')}"

    def _once(self, stem: str) -> str:
        name, key = stem, _key(stem)
        while key in self._used:
            self._used[_key(stem)] += 1
            name = f"{stem}-{self._used[_key(stem)]}"
            key = _key(name)
        self._used[key] = 1
        return name


def as_text(value: object) -> str:
    """Return a field's value as it is written in names and tables."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def make_safe(stem: str) -> str:
    """Return ``stem`` as the name of a file without its ending; empty when nothing is left of it."""
    visible = "".join(char if char.isprintable() else "_" for char in unicodedata.normalize("NFC", stem))
    short = visible.strip(" .").encode("utf-8")[:STEM_LIMIT_BYTES].decode("utf-8", "ignore").rstrip(" .")
    clean = sanitize_filename(short, replacement_text="_", platform="universal")
    return f"_{clean[1:]}" if clean.startswith("-") else clean  # a command would take it for an option


def _read(template: str, columns: Collection[str]) -> Template:
    if len(template) > TEMPLATE_LIMIT:
        raise BadName(f"name has {len(template)} characters; at most {TEMPLATE_LIMIT} are read")
    if "/" in template or "\\" in template:
        raise BadName("name must not contain / or \\: the ZIP has no folders")
    try:
        return read_template(_WRITTEN_ENDING.sub("", template), columns)
    except InvalidTemplate as error:
        raise BadName(f"name: {error}") from None


def _key(stem: str) -> str:
    """What two names have in common that some file system takes for the same."""
    return unicodedata.normalize("NFC", stem).casefold()

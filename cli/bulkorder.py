"""What the arguments of a bulk order come to: the file as it is, and the fields that go with it.

The server reads the file and checks every row; here only what cannot be sent at all is refused.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.exits import CliError

MEDIA_TYPES = {
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".jsonl": "application/x-ndjson",
    ".ndjson": "application/x-ndjson",
}
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
Fields = dict[str, Any]

_LOOKS_LIKE_JSON = re.compile(r"\s*\{\s*(\"|\}|$)")
_CLOCK = r"(?:[01]?\d|2[0-3]):[0-5]\d"
_WINDOW = re.compile(rf"({_CLOCK})\s*-\s*({_CLOCK})")
_EVERY = re.compile(r"(\d{1,12})\s*([smhd]?)")


@dataclass(frozen=True, slots=True)
class TableFile:
    """An uploaded table: its name, whose suffix says what it is, and its bytes."""

    name: str
    content: bytes


def read_table(path: Path) -> TableFile:
    """Read a file to send; raise `CliError` when it cannot be read."""
    try:
        return TableFile(path.name, path.read_bytes())
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from error


def parse_template(text: str) -> Fields:
    """Request fields from JSON, or from the plain text of a prompt with {names} of columns.

    A prompt may begin with a name in braces, so only a brace before a quote makes it JSON.
    """
    return parse_object("--template", text) if _LOOKS_LIKE_JSON.match(text) else {"prompt": text}


def parse_object(flag: str, text: str) -> Fields:
    """The JSON object that a flag holds."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CliError(f"{flag} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CliError(f"{flag} must be a JSON object, such as {EXAMPLES.get(flag, '{}')}")
    return value


EXAMPLES = {"--grid": '{"seed": [1, 2, 3]}', "--template": '{"model": "tiny", "prompt": "a {colour} house"}'}


def with_model(template: Fields | None, model: str | None) -> Fields | None:
    """The template with the model of ``--model``; raise `CliError` where the two disagree."""
    if model is None:
        return template
    named = (template or {}).get("model", model)
    if named != model:
        raise CliError(f"--model {model} and the template's model {named!r} disagree: leave one out")
    return {**(template or {}), "model": model}


def with_kept(template: Fields | None, columns: Sequence[str] | None) -> Fields | None:
    """The template with the named columns as metadata of each job, under their own names."""
    names = [name.strip() for text in columns or () for name in text.split(",")]
    if not names:
        return template
    if bad := [name for name in names if not name or set(name) & set("{}")]:
        raise CliError(f"--keep takes names of columns, such as sku,title, not {bad[0]!r}")
    kept = {name: f"{{{name}}}" for name in names}
    metadata = (template or {}).get("metadata", {})
    if not isinstance(metadata, dict):
        raise CliError("the template's metadata must be a JSON object for --keep to add to it")
    return {**(template or {}), "metadata": kept | metadata}


def parse_window(text: str, timezone: str | None) -> Fields:
    """``22:00-06:00`` in a time zone, which has to be named."""
    match = _WINDOW.fullmatch(text.strip())
    if match is None:
        raise CliError(f"--window must look like 22:00-06:00, not {text!r}")
    if timezone is None:
        raise CliError("--window needs --timezone, such as --timezone Europe/Berlin")
    start, end = (clock.zfill(5) for clock in match.groups())
    return {"start": start, "end": end, "timezone": timezone}


def parse_every(text: str) -> int:
    """Seconds of an interval: ``3600``, ``90s``, ``30m``, ``6h`` or ``1d``."""
    match = _EVERY.fullmatch(text.strip().lower())
    if match is None:
        raise CliError(f"--every must be a number with s, m, h or d, such as 6h, not {text!r}")
    return int(match[1]) * UNITS[match[2] or "s"]


def given(fields: Mapping[str, object]) -> Fields:
    """The fields that were given."""
    return {name: value for name, value in fields.items() if value is not None}


def as_call(fields: Mapping[str, object], file: TableFile | None) -> dict[str, Any]:
    """The arguments of a call: a form with the file, or a JSON body without one."""
    if file is None:
        return {"json": dict(fields)}
    media_type = MEDIA_TYPES.get(Path(file.name).suffix.lower(), "application/octet-stream")
    return {
        "data": {name: _form_text(value) for name, value in fields.items()},
        "files": {"file": (file.name, file.content, media_type)},
    }


def _form_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)

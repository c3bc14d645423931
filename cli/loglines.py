"""What of the processes' output is shown on the terminal of `renderq up`, and how.

The log files have everything. The terminal gets our own lines, short, and every warning; what other programs
say about their daily business stays in the files.
"""

import json
from typing import Any

OURS = ("api.", "tasks.", "core.", "pipeline.", "policy.")
EVERY_CALL = "http.answered"
LOUD = frozenset({"warning", "error", "critical"})
FRAME = frozenset({"event", "level", "logger", "process", "timestamp", "exception"})
"""Fields of every line; the rest belong to the event."""
EMPTY: tuple[object, ...] = (None, {}, [], "")
FOREIGN = frozenset({"valkey"})
"""Programs with a log of their own form."""


def concise(program: str, line: str) -> str | None:
    """The line as the terminal shows it; None for one that it does not show."""
    entry = _parse(line)
    if entry is None:
        return _last_state(line) or None if program not in FOREIGN else None
    if entry.get("level") in LOUD:
        return f"{entry['level']}: {_words(entry)}"
    if str(entry.get("logger", "")).startswith(OURS) and entry["event"] != EVERY_CALL:
        return _words(entry)
    return None


def _last_state(line: str) -> str:
    """What a progress bar, which writes over itself, shows last."""
    return line.rstrip("\r").rpartition("\r")[2]


def _parse(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("event"), str) else None


def _words(entry: dict[str, Any]) -> str:
    fields = [f"{name}={value}" for name, value in entry.items() if name not in FRAME and value not in EMPTY]
    failure = [entry["exception"]] if "exception" in entry else []
    first_line = next(iter(entry["event"].strip().splitlines()), "")
    return "\n".join([" ".join([first_line, *fields]), *failure])

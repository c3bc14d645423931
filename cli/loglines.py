"""What of the processes' output is shown on the terminal of `renderq up`, and how.

The log files have everything. The terminal gets our own lines, short, and every warning; what other programs
say about their daily business stays in the files.
"""

import json
from typing import Any

OURS = ("api.", "tasks.", "core.", "pipeline.", "policy.")
QUIET = frozenset({"http.answered", "job.started"})
"""Every call, and every job twice: its end says enough."""
UNHEARD = "Requeuing undeliverable message"
"""Celery's last words about messages that nobody reads any more, since all programs are ending."""
LOUD = frozenset({"warning", "error", "critical"})
FRAME = frozenset({"event", "level", "logger", "process", "timestamp", "exception"})
"""Fields of every line; the rest belong to the event."""
EMPTY: tuple[object, ...] = (None, {}, [], "")
FOREIGN = frozenset({"valkey"})
"""Programs with a log of their own form."""


def concise(program: str, line: str, *, stopping: bool = False) -> str | None:
    """The line as the terminal shows it; None for one that it does not show.

    Args:
        program: Which one wrote it.
        line: As it stands in the log.
        stopping: Whether the programs are being ended.
    """
    entry = _parse(line)
    if entry is None:
        return _last_state(line) or None if program not in FOREIGN else None
    if stopping and entry["event"].startswith(UNHEARD):
        return None
    if entry.get("level") in LOUD:
        return f"{entry['level']}: {_words(entry)}"
    if str(entry.get("logger", "")).startswith(OURS) and entry["event"] not in QUIET:
        return _done(entry) if entry["event"] == "job.completed" else _words(entry)
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


def _done(entry: dict[str, Any]) -> str:
    """A job that is done: id, model, state and seconds; its line in the log has ten times as much."""
    timings = entry.get("timings_ms")
    total_ms = timings.get("total") if isinstance(timings, dict) else None
    seconds = f"{total_ms / 1000:.2f} s" if isinstance(total_ms, int | float) else None
    parts = ("job", entry.get("job_id"), entry.get("model"), "completed", seconds)
    return " ".join(str(part) for part in parts if part)


def _words(entry: dict[str, Any]) -> str:
    fields = [f"{name}={value}" for name, value in entry.items() if name not in FRAME and value not in EMPTY]
    failure = [entry["exception"]] if "exception" in entry else []
    first_line = next(iter(entry["event"].strip().splitlines()), "")
    return "\n".join([" ".join([first_line, *fields]), *failure])

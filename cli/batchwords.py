"""A batch or schedule in a few words, for a line or a cell."""

from datetime import datetime, timedelta
from typing import Any

from cli.terminal import printable
from cli.times import shown_moment, shown_time

ENDED_STATES = ("completed", "failed", "canceled", "expired")
STATES = ("completed", "in_progress", "queued", "failed", "canceled", "expired")
SHOWN_AS = {"in_progress": "rendering", "completed": "done"}
SPANS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def describe_batch(batch: dict[str, Any]) -> str:
    """Such as ``running: 3 of 8 done, 1 rendering, 4 queued``."""
    counts = batch.get("counts") or {}
    more = [
        f"{printable(number)} {printable(SHOWN_AS.get(state, state))}"
        for state, number in in_order(counts)
        if state != "completed" and number
    ]
    done = f"{counts.get('completed', 0)} of {batch['total']} done"
    stopping = ", stopping" if is_stopping(batch) else ""
    return f"{printable(batch['status'])}{stopping}: " + ", ".join([printable(done), *more])


def is_stopping(batch: dict[str, Any]) -> bool:
    """Whether a cancel was asked for that has not come to its end."""
    return bool(batch.get("cancel_requested_at")) and batch["status"] in ("running", "paused")


def in_order(counts: dict[str, int]) -> list[tuple[str, int]]:
    """States and numbers, those that we know first."""
    known = {state: counts[state] for state in STATES if state in counts}
    return list((known | counts).items())


def ended(batch: dict[str, Any]) -> int:
    """How many jobs of the batch have ended, however they did."""
    counts = batch.get("counts") or {}
    return sum(counts.get(state, 0) for state in ENDED_STATES)


def describe_window(window: dict[str, Any] | None) -> str | None:
    """Such as ``22:00-06:00 Europe/Berlin``."""
    return f"{window.get('start')}-{window.get('end')} {window.get('timezone')}" if window else None


def describe_rule(schedule: dict[str, Any]) -> str:
    """When a schedule comes due, such as ``0 22 * * * Europe/Berlin`` or ``every 6 h``."""
    if schedule.get("cron"):
        return f"{schedule['cron']} {schedule.get('timezone') or ''}".strip()
    if schedule.get("every_s"):
        return f"every {describe_span(schedule['every_s'])}"
    return f"at {shown_time(schedule.get('at'), schedule.get('timezone'))}"


def describe_span(seconds: float) -> str:
    """A length of time in its two largest units, such as ``2 h 5 min``."""
    left = round(seconds)
    parts = []
    for unit, length in SPANS:
        number, left = divmod(left, length)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2]) or "0 s"


def describe_eta(text: str | None, now: datetime) -> str | None:
    """The expected end as local time and how long that is from ``now``, which is aware."""
    if not text:
        return None
    end = datetime.fromisoformat(text)
    left = max(end - now, timedelta()).total_seconds()
    return f"{shown_moment(end)} (in {describe_span(left)})"

"""Times of a schedule in its own zone and in UTC, and its firings as rows of a table."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from cli.table import lay_out
from cli.times import shown_moment, shown_time, zone_named

FIRING_COLUMNS = ("due", "fired", "kind", "outcome", "missed", "batch or error")
FIRING_DROP = ("missed", "fired", "kind")
ID_CELLS = 36
"""An id is never cut."""


def times_table(times: Iterable[str], timezone: str | None) -> list[str]:
    """The lines of a table of times with their day; without a known zone they stand in UTC alone."""
    moments = [datetime.fromisoformat(text) for text in times]
    zone = zone_named(timezone)
    utc = [shown_moment(moment, "UTC") for moment in moments]
    if zone is None:
        return lay_out(("UTC",), [(text,) for text in utc], None).lines
    days = [f"{moment.astimezone(zone):%a}" for moment in moments]
    local = [shown_moment(moment, timezone) for moment in moments]
    return lay_out(("day", str(timezone), "UTC"), list(zip(days, local, utc, strict=True)), None).lines


def firing_row(firing: dict[str, Any]) -> Sequence[object]:
    """The cells under `FIRING_COLUMNS`; times are those of this machine."""
    return (
        shown_time(firing.get("due_at")),
        shown_time(firing.get("fired_at")),
        firing.get("kind"),
        firing.get("outcome"),
        firing.get("missed"),
        " ".join(str(part) for part in (firing.get("batch_id"), firing.get("error")) if part) or None,
    )


def last_outcome(schedule: dict[str, Any]) -> str | None:
    """What came of the last firing, and when, such as ``fired 2026-11-30 22:00:00 +0100``."""
    firing = schedule.get("last_firing")
    if not firing:
        return None
    return f"{firing.get('outcome')} {shown_time(firing.get('fired_at')) or ''}".strip()
